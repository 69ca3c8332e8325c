"""The memory estimate against what a model really holds, and what is said where it cannot fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bench import make_bench
from generating import generate
from held_caches import cache_bytes
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.loading import ConfigError, load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.memory import (
    MAX_MICROBATCH,
    ModelShape,
    _free_host_bytes,
    activation_bytes,
    check_memory,
    estimate,
    estimate_memory,
    fitting_microbatch,
    read_shape,
)
from echoscope.core.policy import Policy
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.update import update

MakeConfig = Callable[..., RunConfig]
GIB = 1 << 30


def qwen(hidden: int, layers: int, intermediate: int, heads: int, kv_heads: int) -> ModelShape:
    """Qwen2.5 at some size, with the vectors of norms and biases left out."""
    width = hidden // heads * kv_heads
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (width, hidden),
        "self_attn.v_proj": (width, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    weights = {
        f"model.layers.{i}.{name}.weight": shape
        for i in range(layers)
        for name, shape in shapes.items()
    }
    return ModelShape(
        weights=weights | {"model.embed_tokens.weight": (151_936, hidden)},
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=151_936,
    )


QWEN_05B = qwen(896, 24, 4864, 14, 2)
QWEN_15B = qwen(1536, 28, 8960, 12, 2)
QWEN_3B = qwen(2048, 36, 11_008, 16, 2)
QWEN_7B = qwen(3584, 28, 18_944, 28, 4)


def config(*overrides: str) -> RunConfig:
    groups = "envs.train=[{env: bandit, groups: 8}]"
    return load_config(overrides=[groups, "envs.group_size=16", *overrides])


# -- the numbers ---------------------------------------------------------------------------------


def test_without_checkpointing_a_large_microbatch_fills_a_gpu() -> None:
    """16,384 tokens: 48 GiB of activations at 1.5B, 78 at 3B."""
    plain = config("model.gradient_checkpointing=false")
    sizes = [16_384 * activation_bytes(plain, shape, "cuda") for shape in (QWEN_15B, QWEN_3B)]
    assert [round(size / GIB) for size in sizes] == [48, 78]
    saving = [16_384 * activation_bytes(config(), shape, "cuda") for shape in (QWEN_15B, QWEN_3B)]
    assert all(size < 5 * GIB for size in saving)


def test_caches_of_128_rows_at_the_context_limits() -> None:
    caches = [estimate(config(), shape, "cuda").caches_at_most for shape in (QWEN_05B, QWEN_7B)]
    logits = 128 * 151_936 * 4 * 8
    assert [round((size - logits) / GIB, 1) for size in caches] == [5.9, 27.3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", ["null", "{rank: 4, alpha: 8}"])
def test_weights_and_optimizer_are_what_a_run_holds(
    make_config: MakeConfig, dtype: str, lora: str
) -> None:
    bench = make_bench(make_config(f"model.dtype={dtype}", f"model.lora={lora}"))
    needs = estimate_memory(bench.config, "cpu")
    weights = sum(p.nbytes for p in bench.policy.model.parameters())
    assert needs.weights == pytest.approx(weights, rel=0.01)
    update(bench.policy, bench.optimizer, bench.batch(), bench.config, step=1)
    held = {key: t for key, t in bench.optimizer.state_tensors().items() if t.ndim}
    assert needs.optimizer == pytest.approx(sum(t.nbytes for t in held.values()), rel=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_what_autograd_saves(dtype: str) -> None:
    settings = config(f"model.dtype={dtype}", "model.gradient_checkpointing=false")
    model, shape = small_model(getattr(torch, dtype))
    policy = Policy(model, settings.model, None)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.outputs(some_batch(rows=4, width=128))
    held = sum(t.untyped_storage().nbytes() for address, t in saved.items() if address not in own)
    assert held / (4 * 128) == pytest.approx(activation_bytes(settings, shape, "cpu"), rel=0.1)


def test_the_cache_is_what_the_engine_holds(make_config: MakeConfig) -> None:
    limits = ("context.max_prompt_tokens=48", "context.max_response_tokens=16")
    bench = make_bench(make_config(*limits, "envs.group_size=2"))
    needs = estimate_memory(bench.config, "cpu")
    engine = HfEngine(bench.policy.model, config=bench.config.engine)
    prompts = [np.full(48, token, np.int32) for token in range(5, 9)]
    generate(engine, prompts, SamplingParams(max_new_tokens=16), seeds=range(4))
    sampled = 4 * read_shape(bench.config.model.path).vocab_size * 4 * 8
    assert needs.caches_at_most - sampled == pytest.approx(cache_bytes(engine), rel=0.01)


COPY = 4 * QWEN_05B.num_parameters


@pytest.mark.parametrize(
    ("overrides", "engine_bytes"),
    [
        ([], 0),
        (["engine={kind: vllm}"], COPY + GIB),
        (["engine={kind: vllm, kv_cache_gib: 2}"], COPY + 2 * GIB),
        (["engine={kind: vllm, replicas: 3}"], 3 * (COPY + GIB)),
        (["engine={kind: ray}"], COPY),
        (["engine={kind: ray, address: auto}"], 0),
        (["engine={kind: openai, url: 'http://127.0.0.1:1'}"], 0),
    ],
)
def test_weights_that_an_engine_holds_for_itself_count(
    overrides: list[str], engine_bytes: int
) -> None:
    needs = estimate(config(*overrides), QWEN_05B, "cpu")
    assert needs.engine == engine_bytes
    assert needs.at_least == estimate(config(), QWEN_05B, "cpu").at_least + engine_bytes
    assert ("engine" in needs.text) == (engine_bytes > 0)


@pytest.mark.parametrize(
    ("visible", "replicas", "engine_bytes"),
    [
        ("0", 1, COPY // 2),
        ("0,1", 1, 0),
        ("0,1,2", 2, 0),
        ("0,1", 2, COPY // 2),
    ],
)
def test_replicas_on_gpus_of_their_own_do_not_count(
    visible: str, replicas: int, engine_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    settings = config(f"engine={{kind: vllm, replicas: {replicas}}}", "model.dtype=bfloat16")
    assert estimate(settings, QWEN_05B, "cuda").engine == engine_bytes


def test_only_the_ranks_of_this_machine_take_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun on two machines of four GPUs: two ranks and two replicas on the first."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    settings = config("engine={kind: vllm, replicas: 2}", "trainer.ranks=4")
    assert estimate(settings, QWEN_05B, "cuda").engine == COPY // 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert estimate(settings, QWEN_05B, "cuda").engine == 0


def test_sampling_ahead_holds_a_copy_and_its_caches_during_the_update() -> None:
    ahead = config(
        "collection={mode: async, max_staleness: 1}",
        "off_policy={old_logprobs: trainer, correction: tis}",
    )
    needs, alone = estimate(ahead, QWEN_05B, "cpu"), estimate(config(), QWEN_05B, "cpu")
    assert needs.engine == COPY
    update = alone.gradients + alone.activations_at_most
    sampling = alone.caches_at_most + alone.prefill_at_most
    assert needs.at_most == alone.weights + alone.optimizer + COPY + sampling + update


def small_model(dtype: torch.dtype) -> tuple[Qwen2ForCausalLM, ModelShape]:
    settings = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(settings).to(dtype).eval()
    shape = ModelShape(
        weights={name: tuple(p.shape) for name, p in model.named_parameters()},
        num_layers=4,
        hidden_size=64,
        intermediate_size=256,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        vocab_size=64,
    )
    return model, shape


def some_batch(*, rows: int, width: int) -> TokenBatch:
    """Only the last token of each row is sampled: logits hardly count."""
    mask = torch.zeros(rows, width, dtype=torch.bool)
    mask[:, -1] = True
    return TokenBatch(
        input_ids=torch.randint(0, 64, (rows, width), generator=torch.Generator().manual_seed(0)),
        attention_mask=torch.ones_like(mask),
        loss_mask=mask,
        turn_index=torch.where(mask, 0, -1),
        behaviour_logprobs=torch.zeros(rows, width),
        token_rewards=torch.zeros(rows, width),
        trajectory_index=torch.arange(rows),
        group_index=torch.zeros(rows, dtype=torch.int64),
        trajectory_num_tokens=mask.sum(1),
    )


# -- what follows from them ----------------------------------------------------------------------


def test_microbatches_are_as_large_as_the_free_memory_allows() -> None:
    needs = {name: estimate(config(), shape, "cuda") for name, shape in SIZES.items()}
    tokens = {name: fitting_microbatch(needs[name], 80 * GIB) for name in SIZES}
    assert tokens["0.5B"] == MAX_MICROBATCH
    assert 1024 < tokens["3B"] < tokens["1.5B"] <= MAX_MICROBATCH
    for name, size in tokens.items():
        assert size % 1024 == 0
        held = needs[name].weights + needs[name].optimizer + needs[name].gradients
        assert held + size * activation_bytes(config(), SIZES[name], "cuda") < 80 * GIB
    assert fitting_microbatch(needs["3B"], 1 * GIB) == 1024


SIZES = {"0.5B": QWEN_05B, "1.5B": QWEN_15B, "3B": QWEN_3B}


def test_what_cannot_fit_is_refused_with_what_to_change(make_config: MakeConfig) -> None:
    settings = make_config("critic.kind=model", "advantage.kind=gae")
    needs = estimate_memory(settings, "cpu")
    assert check_memory(settings, "cpu", 2 * needs.at_least) == needs
    with pytest.raises(ConfigError) as refusal:
        check_memory(settings, "cpu", needs.at_least)
    text = str(refusal.value)
    assert text.startswith("the run needs at least")
    assert "set model.gradient_checkpointing=true" in text
    assert "weights" in text
    assert "critic.kind=head" in text
    assert "choose a smaller model.path" in text


def test_a_model_that_is_not_here_is_not_judged() -> None:
    settings = config("model.path=nobody/nothing")
    assert check_memory(settings, "cuda", 1) is None
    with pytest.raises(ConfigError, match="not on this disk"):
        estimate_memory(settings, "cuda")


def test_free_memory_is_the_containers_where_there_is_one(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  64 kB\nMemAvailable:   32 kB\n")
    assert _free_host_bytes(meminfo, tmp_path) == 32 << 10
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert _free_host_bytes(meminfo, tmp_path) == 32 << 10
    (tmp_path / "memory.max").write_text("5000\n")
    assert _free_host_bytes(meminfo, tmp_path) == 4000


# -- what a run can do about it ------------------------------------------------------------------


def test_a_microbatch_of_a_long_prompt_holds_its_siblings() -> None:
    """Prompt 1536 and eight replies of 64; padded, one row at a time."""
    long = ("context.max_prompt_tokens=1536", "context.max_response_tokens=64")
    one_turn = "envs.train=[{env: bandit, groups: 1, max_turns: 1}]"
    needs = {
        packing: estimate(
            config(*long, one_turn, "envs.group_size=8", f"model.packing={packing}"),
            QWEN_05B,
            "cpu",
        )
        for packing in (True, False)
    }
    per_token = needs[True].activations_per_token
    in_chunks = 3 * 4 * 2**24 + 151_936 * 896 * 4  # with the sum of the output layer's gradient
    logits = {True: in_chunks, False: 64 * 151_936 * 16}
    tokens = {True: 1536 + 8 * 64, False: 1600}
    keys = (8 * 1600 / 2048 - 1, 4 - 1)  # copies beside the token's own, and their bound
    extra = int(min(keys) * 2048 * 24) * 2 * 128 * 4
    for packing, need in needs.items():
        expected = tokens[packing] * per_token + logits[packing] + extra * packing
        assert need.activations_at_most == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["float32", "lora", "critic model", "checkpointing", "bfloat16", "long prompts"]
)
def test_estimates_are_within_15_percent_of_measured_peaks(case: str) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    ran = subprocess.run(
        [sys.executable, script, "--json", "--case", case],
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = json.loads(ran.stdout)["rows"]
    assert abs(row["off"]) <= 0.15, row
