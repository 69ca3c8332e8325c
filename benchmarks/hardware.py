"""What fits where: the tables of memory on the page Hardware, computed and measured.

Computed: the memory estimate (`core/memory.py`) of runs whose models have the shapes of well-known
ones; only shapes are made, no weights. Measured: the peak of a process that trains a pretrained
model here for two steps, resident memory above what the process had before.

    python benchmarks/hardware.py                    # prints the computed tables
    python benchmarks/hardware.py --measure          # prints rows for the measured table, minutes
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import (
    alone,
    describe_machine,
    forget_peak,
    markdown_row,
    markdown_table,
    memory_of,
    read_options,
    temporary_folder,
)
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.memory import DeviceKind, MemoryEstimate, ModelShape, estimate, estimate_memory
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.text.amounts import memory_size

GIB = 1 << 30
USABLE = 0.92
"""As the check before a run: the share of free memory that is counted on."""
CARDS = (24, 40, 80, 141)
RANKS = (1, 2, 4, 8, 16)
HOST = 16
LORA = "model.lora={rank: 64}"


def qwen(hidden: int, mlp: int, layers: int, heads: int, kv: int, *, is_tied: bool) -> Qwen2Config:
    """Qwen2.5's shapes: heads of 64 or 128, tied embeddings up to 3B."""
    return Qwen2Config(
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        vocab_size=151_936 if is_tied else 152_064,
        tie_word_embeddings=is_tied,
        max_position_embeddings=32_768,
    )


MODELS: dict[str, PretrainedConfig] = {
    "135M (SmolLM2)": LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49_152,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    ),
    "0.5B (Qwen2.5)": qwen(896, 4864, 24, 14, 2, is_tied=True),
    "1.5B (Qwen2.5)": qwen(1536, 8960, 28, 12, 2, is_tied=True),
    "3B (Qwen2.5)": qwen(2048, 11_008, 36, 16, 2, is_tied=True),
    "7B (Qwen2.5)": qwen(3584, 18_944, 28, 28, 4, is_tied=False),
    "14B (Qwen2.5)": qwen(5120, 13_824, 48, 40, 8, is_tied=False),
    "32B (Qwen2.5)": qwen(5120, 27_648, 64, 40, 8, is_tied=False),
}

GPU_RUN = (
    "envs.train=[{env: frozen_lake, groups: 8, max_turns: 6}]",
    "envs.eval=[]",
    "envs.group_size=8",
    "context.max_prompt_tokens=3600",
    "context.max_response_tokens=400",
)
CPU_RUN = (
    "envs.train=[{env: frozen_lake, groups: 4, max_turns: 4}]",
    "envs.eval=[]",
    "envs.group_size=4",
    "context.max_prompt_tokens=900",
    "context.max_response_tokens=64",
)
MEASURED_RUN = (
    "envs.train=[{env: frozen_lake, groups: 4, max_turns: 2}]",
    "envs.eval=[]",
    "envs.group_size=4",
    "context.system=You solve a task step by step in a text world.",
    "context.instructions=true",
    "context.format_hint=true",
    "context.max_prompt_tokens=512",
    "context.max_response_tokens=32",
    "reward.shaping=[{name: e, function: 'pretrained_speed:share_of_e'}]",
    "probe.every=0",
    "diagnostics.enabled=false",
    "checkpoint.every=0",
    "steps=2",
    "threads=1",
)


def shape_of(config: PretrainedConfig) -> ModelShape:
    """Shapes of the weights, without weights; a tied output embedding is stored once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return ModelShape(
        weights={name: tuple(weight.shape) for name, weight in model.named_parameters()},
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the weights train."""

    name: str
    settings: tuple[str, ...]


KINDS = (
    Kind(name="full, bfloat16", settings=("model.dtype=bfloat16",)),
    Kind(name="full, bfloat16, offload", settings=("model.dtype=bfloat16", "optim.offload=true")),
    Kind(name="LoRA, bfloat16", settings=("model.dtype=bfloat16", LORA)),
)


def run(base: Sequence[str], kind: Kind) -> RunConfig:
    return load_config("frozen_lake", overrides=[*base, *kind.settings])


def verdict(needs: MemoryEstimate, gib: float) -> str:
    """`yes`: with every row at its limit; `short rows`: the run starts, and may have to shrink."""
    usable = gib * GIB * USABLE
    if needs.at_most <= usable:
        return "yes"
    return "short rows" if needs.at_least <= usable else "-"


def table(base: Sequence[str], device: DeviceKind, sizes: Sequence[int]) -> str:
    """Models x ways of training, one line each; every figure is computed."""
    word = "card of" if device == "cuda" else "memory of"
    head, rows = ["model", "training", "needs", *(f"{word} {size} GB" for size in sizes)], []
    for name, config in MODELS.items():
        shape = shape_of(config)
        for kind in KINDS:
            if "offload" in kind.name and device == "cpu":
                continue
            needs = estimate(run(base, kind), shape, device)
            fits = [verdict(needs, size) for size in sizes]
            if device == "cpu" and fits == ["-"] and "LoRA, bfloat16" not in kind.name:
                continue  # larger models on a CPU: only the way that needs the least
            low, high = memory_size(needs.at_least), memory_size(needs.at_most)
            need = low if low == high else f"{low} to {high}"
            rows.append([name, kind.name, need, *fits])
    return markdown_table(head, rows)


def parameters() -> str:
    """What each shape holds."""
    head = ["model", "parameters", "layers", "hidden", "heads / key-value", "LoRA, rank 64"]
    rows = []
    for name, config in MODELS.items():
        shape = shape_of(config)
        adapters = shape.num_adapter_parameters(64, "all-linear")
        row = (
            name,
            f"{shape.num_parameters / 1e6:,.0f} million",
            shape.num_layers,
            shape.hidden_size,
            f"{shape.num_heads} / {shape.num_kv_heads}",
            f"{adapters / 1e6:,.0f} million",
        )
        rows.append(row)
    return markdown_table(head, rows)


def ranks_table() -> str:
    """What rank 0 needs where the weights are split over 1 to 16."""
    head, rows = ["model", *(f"{ranks} rank{'s' * (ranks > 1)}" for ranks in RANKS)], []
    for name, config in MODELS.items():
        shape = shape_of(config)
        needs = [
            estimate(run((*GPU_RUN, f"trainer.ranks={ranks}"), KINDS[0]), shape, "cuda")
            for ranks in RANKS
        ]
        rows.append([name, *(memory_size(need.at_most) for need in needs)])
    return markdown_table(head, rows)


TABLES = {
    "shapes": parameters,
    "gpu": lambda: table(GPU_RUN, "cuda", CARDS),
    "ranks": ranks_table,
    "cpu": lambda: table(CPU_RUN, "cpu", (HOST,)),
}


# -- measured ------------------------------------------------------------------------------------

WAYS = {
    "full, float32": (),
    "full, bfloat16": ("model.dtype=bfloat16",),
    "LoRA, float32": (LORA,),
    "LoRA, bfloat16": ("model.dtype=bfloat16", LORA),
}


def measure_alone(model: str, way: str) -> dict[str, float]:
    """Two real steps in this process."""
    torch.set_num_threads(1)
    config = load_config(
        "frozen_lake", overrides=[f"model.path={model}", *MEASURED_RUN, *WAYS[way]]
    )
    needs = estimate_memory(config, "cpu")
    warm = torch.ones(64, 64, requires_grad=True)  # torch's own buffers
    (warm @ warm).softmax(-1).sum().backward()
    before = memory_of(is_peak=False)
    forget_peak()
    started, processor = time.perf_counter(), time.process_time()
    with temporary_folder() as folder:
        start(config, folder / "run", SilentEvents())
    return {
        "at_least": needs.at_least,
        "at_most": needs.at_most,
        "measured": memory_of() - before,
        "wall_s": time.perf_counter() - started,
        "processor_s": time.process_time() - processor,
    }


def measured(model: str) -> str:
    head, rows = ["training", "estimate", "peak", "seconds for 2 steps (processor)", ""], []
    for way in WAYS:
        out = alone(__file__, "--alone", way, "--model", model)
        low, high = memory_size(out["at_least"]), memory_size(out["at_most"])
        row = (
            way,
            low if low == high else f"{low} to {high}",
            memory_size(out["measured"]),
            f"{out['wall_s']:.0f} ({out['processor_s']:.0f})",
            "measured",
        )
        rows.append(row)
        print(markdown_row(row), flush=True)
    return markdown_table(head, rows)


def main() -> None:
    arguments = read_options(
        __doc__,
        measure=False,
        model="smollm2",
        alone={"choices": list(WAYS), "help": argparse.SUPPRESS},
    )
    if arguments.alone:
        print(json.dumps(measure_alone(arguments.model, arguments.alone)))
    elif arguments.measure:
        print(describe_machine(), flush=True)
        table = measured(arguments.model)
        print(f"\n{describe_machine()}\n{table}")
    else:
        print("\n\n".join(make() for make in TABLES.values()))


if __name__ == "__main__":
    main()
