"""What only a GPU can show, for whoever has one: `make test-gpu` runs this and writes a table.

The table goes to `gpu-report.md`, or where `ECHOSCOPE_GPU_REPORT` says. With
`ECHOSCOPE_GPU_DEVICE=cpu` the same code runs on the CPU, over small shapes, so that the suite is
tried where there is no GPU; what it then says of bounds is about the CPU. With
`ECHOSCOPE_GPU_RANKS=N` weights are split over N devices: `make test-multi-gpu` takes all there are.
What needs vLLM runs where this Python has it: `make test-gpu GPU_PYTHON=.../bin/python`.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bench import Bench, make_bench
from generating import generate
from held_caches import cache_bytes
from small_qwen import largest_gap, make_model, some_prompts
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from echoscope import open_run
from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.vllm.server import VllmEngine, visible_gpus
from echoscope.core.engines.vllm.transfer import Transfers
from echoscope.core.memory import estimate_memory
from echoscope.core.optim import Optimizer
from echoscope.core.policy import Policy, build_policy
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.learners.processes import Ranks, start_ranks
from echoscope.core.update.learners.ranked import RankedLearner
from echoscope.core.update.update import update

DEVICE = os.environ.get("ECHOSCOPE_GPU_DEVICE", "cuda")
RANKS = int(os.environ.get("ECHOSCOPE_GPU_RANKS", "1"))
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch sees no CUDA device"
    ),
]
MakeConfig = Callable[..., RunConfig]

SHAPES = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28},
}
HEADS = {
    "0.5B": {"num_attention_heads": 14, "num_key_value_heads": 2},
    "1.5B": {"num_attention_heads": 12, "num_key_value_heads": 2},
}
VOCABULARY = 151_936
PROMPT, REPLY, GROUPS, SIBLINGS = 512, 256, 4, 8
if DEVICE == "cpu":
    SHAPES = {"small": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}}
    HEADS = {"small": {"num_attention_heads": 4, "num_key_value_heads": 2}}
    VOCABULARY, PROMPT, REPLY, GROUPS, SIBLINGS = 1000, 24, 8, 2, 4

BOUNDS = {"float32": 1e-3, "bfloat16": 0.3}
"""Nats by which the log-prob of a sampled token may differ from that of float32 on the CPU."""


@pytest.fixture(scope="module")
def table() -> Iterator[Callable[[str, str], None]]:
    """Takes (what, value); the rows are written when the module is done."""
    rows: list[tuple[str, str]] = []
    yield lambda what, value: rows.append((what, value))
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU"
    where = f"On {name}, {RANKS} ranks, torch {torch.__version__}."
    lines = [where, "", "| what | measured |", "| --- | --- |"]
    lines += [f"| {what} | {value} |" for what, value in rows]
    text = "\n".join(lines) + "\n"
    Path(os.environ.get("ECHOSCOPE_GPU_REPORT", "gpu-report.md")).write_text(text, encoding="utf-8")


def on_device(make_config: MakeConfig, *settings: str) -> Bench:
    return make_bench(make_config(f"model.device={DEVICE}", *settings))


def finished() -> float:
    """Seconds on the clock once the device has done its work."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# -- equality ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probs_are_those_of_float32_on_the_cpu(
    make_config: MakeConfig, table: Callable[[str, str], None], dtype: str
) -> None:
    """Of the sampler's record, of packed rows and of padded ones."""
    here = on_device(make_config, f"model.dtype={dtype}")
    assert here.policy.padded_because == ""
    batch = here.batch()
    exact = make_bench(make_config("model.packing=false"))
    with torch.no_grad():
        expected = exact.policy.outputs(batch.to("cpu")).logprobs
        values = {
            "sampled": batch.behaviour_logprobs,
            "packed": here.policy.outputs(batch.to(here.policy.device)).logprobs,
        }
    for name, logprobs in values.items():
        gaps = (logprobs.cpu() - expected)[batch.loss_mask.cpu()].abs()
        table(f"{name} log-probs in {dtype}, largest gap to the CPU (nats)", f"{gaps.max():.2g}")
        assert float(gaps.max()) < BOUNDS[dtype], name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_ratio_is_1_on_policy(
    make_config: MakeConfig, table: Callable[[str, str], None], dtype: str
) -> None:
    bench = on_device(make_config, f"model.dtype={dtype}")
    batch = bench.batch().to(bench.policy.device)
    metrics = update(bench.policy, bench.optimizer, batch, bench.config, step=1).metrics
    table(f"mean ratio on policy in {dtype}", f"{metrics['policy/ratio_mean']:.6f}")
    assert metrics["policy/ratio_mean"] == pytest.approx(1, abs=BOUNDS[dtype] / 10)


def test_packed_gradients_are_those_of_padded_rows(
    make_config: MakeConfig, table: Callable[[str, str], None]
) -> None:
    """float32: in bfloat16 the order of additions shows."""
    bench = on_device(make_config, "model.dtype=float32")
    batch = bench.batch().to(bench.policy.device)
    gradients = []
    for pad in (False, True):
        bench.policy.padded_because = "rows are compared" if pad else ""
        bench.policy.outputs(batch).logprobs.sum().backward()
        gradients.append(bench.gradients())
    packed, padded = gradients
    gap = max(float((packed[n] - g).abs().max() / g.abs().max()) for n, g in padded.items())
    table("packed gradients, largest gap to padded ones (relative)", f"{gap:.2g}")
    assert gap < 1e-3


def test_the_engine_contract(make_config: MakeConfig) -> None:
    """One seed, one sample, whatever else is in the call; caches can be released."""
    bench = on_device(make_config, "model.dtype=float32")
    engine = HfEngine(bench.policy.model, config=bench.config.engine)
    prompts = [np.array([5, 6, 7 + row], np.int32) for row in range(6)]
    params = SamplingParams(max_new_tokens=8)
    together = generate(engine, prompts, params, seeds=range(6))
    engine.release_memory()
    assert cache_bytes(engine) == 0
    for row, prompt in enumerate(prompts):
        (alone,) = generate(engine, [prompt], params, seeds=[row])
        assert alone.tokens.tolist() == together[row].tokens.tolist()
        np.testing.assert_allclose(alone.logprobs, together[row].logprobs, atol=1e-3)


# -- memory and speed ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(SHAPES))
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A configuration of random weights at a real shape, one turn, prompts at their limit."""
    folder = tmp_path_factory.mktemp(f"model{request.param}")
    shape = Qwen2Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        **SHAPES[request.param],
        **HEADS[request.param],
    )
    Qwen2ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    return load_config(
        overrides=[
            f"name={request.param}",
            f"model.path={folder}",
            f"model.device={DEVICE}",
            "model.dtype=bfloat16",
            "model.gradient_checkpointing=true",
            f"envs.train=[{{env: bandit, groups: {GROUPS}, max_turns: 1}}]",
            f"envs.group_size={SIBLINGS}",
            "envs.eval=[]",
            f"context.max_prompt_tokens={PROMPT}",
            f"context.max_response_tokens={REPLY}",
            "optim.max_microbatch_tokens=8192",
        ]
    )


def some_batch(device: torch.device) -> TokenBatch:
    """Full rows: `GROUPS` prompts with `SIBLINGS` random replies each."""
    generator = torch.Generator().manual_seed(0)
    num_rows, width = GROUPS * SIBLINGS, PROMPT + REPLY
    group = torch.arange(num_rows) // SIBLINGS
    prompts = torch.randint(0, VOCABULARY, (GROUPS, PROMPT), generator=generator)[group]
    replies = torch.randint(0, VOCABULARY, (num_rows, REPLY), generator=generator)
    sampled = (torch.arange(width) >= PROMPT).repeat(num_rows, 1)
    batch = TokenBatch(
        input_ids=torch.cat([prompts, replies], dim=1),
        attention_mask=torch.ones_like(sampled),
        loss_mask=sampled,
        turn_index=sampled.long() - 1,
        behaviour_logprobs=torch.full(sampled.shape, -9.0),
        token_rewards=torch.zeros(sampled.shape),
        trajectory_index=torch.arange(num_rows),
        group_index=group,
        trajectory_num_tokens=sampled.sum(1),
        advantages=torch.randn(sampled.shape, generator=generator),
    )
    return batch.to(device)


def test_memory_and_throughput(large: RunConfig, table: Callable[[str, str], None]) -> None:
    policy = build_policy(large.model, large.critic, seed=0)
    optimizer = Optimizer(policy.parameter_groups(), large.optim)
    batch = some_batch(policy.device)
    seconds = steady_seconds(lambda: update(policy, optimizer, batch, large, 1))
    table(f"{large.name}: update, tokens a second", f"{batch.input_ids.numel() / seconds:.0f}")
    _compare_memory(policy, large, table)
    engine = HfEngine(policy.model, config=large.engine)
    prompts = [row[:PROMPT].cpu().numpy().astype(np.int32) for row in batch.input_ids]
    begun = finished()
    samples = generate(
        engine, prompts, SamplingParams(max_new_tokens=REPLY), seeds=range(len(prompts))
    )
    seconds = finished() - begun
    sampled = sum(len(sample.tokens) for sample in samples)
    table(f"{large.name}: sampling, tokens a second", f"{sampled / seconds:.0f}")
    padded = replace_packing(policy, large)
    seconds = steady_seconds(lambda: update(padded, optimizer, batch, large, 1))
    speed = batch.input_ids.numel() / seconds
    table(f"{large.name}: padded update, tokens a second", f"{speed:.0f}")


def steady_seconds(work: Callable[[], object]) -> float:
    """Of the fastest of five, once no kernel is new and the optimizer has all its moments."""
    for _ in range(2):
        work()
    durations = []
    for _ in range(5):
        begun = finished()
        work()
        durations.append(finished() - begun)
    return min(durations)


def replace_packing(policy: Policy, config: RunConfig) -> Policy:
    """The same weights, rows padded."""
    settings = config.model.model_copy(update={"packing": False})
    return Policy(policy.model, settings, None)


def _compare_memory(policy: Policy, config: RunConfig, table: Callable[[str, str], None]) -> None:
    needs = estimate_memory(config, "cuda" if policy.device.type == "cuda" else "cpu")
    if DEVICE != "cuda":
        return
    measured = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    off = needs.at_most / measured - 1
    sizes = f"{needs.at_most / 2**30:.1f} and {measured / 2**30:.1f} GiB, {off:+.0%}"
    table(f"{config.name}: memory, estimated and measured", sizes)
    assert off >= -0.15, "the estimate is too low"


def test_split_weights_train_as_whole_ones(
    make_config: MakeConfig, table: Callable[[str, str], None], ranks: Ranks
) -> None:
    """Gathering, casting and summing are those of many ranks where there is but one, too."""
    for dtype in ("float32", "bfloat16"):
        config = make_config(f"model.device={DEVICE}", f"model.dtype={dtype}")
        whole = make_bench(config)
        split = RankedLearner(build_policy(config.model, config.critic, seed=0), config, ranks)
        split.policy.model.load_state_dict(whole.policy.model.state_dict())
        batch = whole.batch().to(whole.policy.device)
        theirs = whole.learner.update(batch, config, 1).metrics
        ours = split.update(batch, config, 1).metrics
        gap = abs(ours["optim/grad_norm"] / theirs["optim/grad_norm"] - 1)
        table(
            f"gradient norm of split weights in {dtype}, relative gap to whole ones", f"{gap:.2g}"
        )
        assert gap < {"float32": 1e-4, "bfloat16": 0.05}[dtype]
        assert ours["loss/total"] == pytest.approx(theirs["loss/total"], abs=1e-2)


def test_split_weights_take_a_gradient_apart_as_whole_ones(
    make_config: MakeConfig, table: Callable[[str, str], None], ranks: Ranks
) -> None:
    config = make_config(f"model.device={DEVICE}", "loss.entropy_coef=0.1")
    whole = make_bench(config)
    split = RankedLearner(build_policy(config.model, config.critic, seed=0), config, ranks)
    split.policy.model.load_state_dict(whole.policy.model.state_dict())
    rollouts = whole.collect()
    theirs = whole.learner.gradients(rollouts, config, whole.chat).values["total/all/norm"]
    ours = split.gradients(rollouts, config, whole.chat).values["total/all/norm"]
    gap = abs(ours / theirs - 1)
    table("norm in the gradient breakdown of split weights, relative gap", f"{gap:.2g}")
    assert gap < 1e-3


def test_memory_and_throughput_of_split_weights(
    large: RunConfig, table: Callable[[str, str], None], ranks: Ranks
) -> None:
    """Beside a whole copy that samples, as on rank 0."""
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    learner = RankedLearner(build_policy(large.model, large.critic, seed=0), large, ranks)
    batch = some_batch(learner.policy.device)
    seconds = steady_seconds(lambda: learner.update(batch, large, 1))
    speed = batch.input_ids.numel() / seconds
    table(f"{large.name}: split update, tokens a second", f"{speed:.0f}")
    if DEVICE == "cuda":
        measured = torch.cuda.max_memory_allocated() / 2**30
        table(
            f"{large.name}: memory of a split update beside the whole copy", f"{measured:.1f} GiB"
        )


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = start_ranks(RANKS, DEVICE)
    yield started
    started.close()


# -- weights to vLLM -----------------------------------------------------------------------------

WAYS = ("ipc", "nccl", "files")


def vllm_engine(model: PreTrainedModel, folder: Path, way: str, messages: list[str]) -> VllmEngine:
    """On the policy's GPU, and by NCCL on the next one."""
    if DEVICE == "cpu" or util.find_spec("vllm") is None:
        pytest.skip("this Python has no GPU, or no vLLM: set GPU_PYTHON")
    if way == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a second GPU")
    model.save_pretrained(folder)
    transfers = Transfers(way, model, messages.append)  # type: ignore[arg-type]
    devices = visible_gpus()[1:2] if way == "nccl" else visible_gpus()[:1]
    backend = transfers.backend_for(devices, visible_gpus(), has_ranks=False)
    return VllmEngine(
        model,
        str(folder),
        config=VllmEngineConfig(gpu_memory=0.3),
        transfers=transfers,
        devices=devices,
        backend=backend,
    )


@pytest.mark.parametrize("way", WAYS)
def test_vllm_samples_from_the_weights_that_were_transferred(
    way: str, tmp_path: Path, table: Callable[[str, str], None]
) -> None:
    """Also where it slept before."""
    model, messages = make_model(0, tied=True).to(DEVICE, torch.bfloat16), list[str]()
    engine = vllm_engine(model, tmp_path, way, messages)
    try:
        for version in (1, 2):
            torch.manual_seed(version)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.std() * torch.randn_like(parameter))
            exact = copy.deepcopy(model).to("cpu", torch.float32)
            old = largest_gap(engine, exact, some_prompts(300))
            engine.release_memory()
            engine.sync_weights(SimpleNamespace(model=model, version=version))
            new = largest_gap(engine, exact, some_prompts(300))
            table(
                f"vLLM after new weights by {way}, largest gap (before) in nats",
                f"{new:.2g} ({old:.2g})",
            )
            assert new < 0.5 < old
    finally:
        engine.close()
    assert len(messages) == 1
    assert ("files" in messages[0]) == (way == "files")


@pytest.mark.parametrize("way", WAYS)
def test_seconds_of_a_transfer(way: str, tmp_path: Path, table: Callable[[str, str], None]) -> None:
    name = next(iter(SHAPES))
    shape = Qwen2Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        **SHAPES[name],
        **HEADS[name],
    )
    model = Qwen2ForCausalLM(shape).to(DEVICE, torch.bfloat16).eval()
    engine = vllm_engine(model, tmp_path, way, [])
    seconds = []
    try:
        for version in range(1, 7):
            begun = finished()
            engine.sync_weights(SimpleNamespace(model=model, version=version))
            seconds.append(finished() - begun)
    finally:
        engine.close()
    table(f"{name}: weights to vLLM by {way}, seconds", f"{statistics.median(seconds[1:]):.2f}")


# -- a run ---------------------------------------------------------------------------------------


def test_a_run_learns(tmp_path: Path, table: Callable[[str, str], None]) -> None:
    steps = 20 if DEVICE == "cuda" else 2
    config = load_config("bandit", overrides=[f"model.device={DEVICE}", f"steps={steps}"])
    start(replace_dtype(config), tmp_path / "run", SilentEvents())
    _, success = open_run(tmp_path / "run").metrics("rollout/success_rate")
    table("bandit, success by step", " ".join(f"{value:.2f}" for value in success))
    assert len(success) == steps
    if DEVICE == "cuda":
        assert np.mean(success[-5:]) > np.mean(success[:5])


def replace_dtype(config: RunConfig) -> RunConfig:
    """bfloat16, whatever the recipe says."""
    return config.model_copy(
        update={"model": config.model.model_copy(update={"dtype": "bfloat16"})}
    )
