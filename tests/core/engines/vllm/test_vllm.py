"""vLLM in this process: new weights reach every layer and no cache keeps the old ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from recorded import metric
from small_qwen import largest_gap, make_model, moved, some_prompts
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import Sample, SamplingParams
from echoscope.core.engines.vllm import engine as vllm_engine
from echoscope.core.engines.vllm.engine import VllmEngine
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.config import AlarmConfig
from echoscope.diagnostics.judge.alarms import RULE_ORDER
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.store.reader import open_run

pytestmark = pytest.mark.vllm
MakeConfig = Callable[..., RunConfig]
SMALL = VllmEngineConfig(kv_cache_gib=0.0625, max_batch_rows=32)
VLLM = ("engine={kind: vllm, kv_cache_gib: 0.0625, max_batch_rows: 32}", "probe.every=0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    model: Any
    version: int


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., VllmEngine]]:
    made: list[VllmEngine] = []

    def build(model: Any, config: VllmEngineConfig = SMALL) -> VllmEngine:
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        if not isinstance(model, PeftModel):
            base.save_pretrained(tmp_path / "model")
        made.append(VllmEngine(model, str(tmp_path / "model"), config=config))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


@pytest.mark.parametrize("weights", ["memory", "files"])
@pytest.mark.parametrize("tied", [True, False])
def test_new_weights_reach_every_layer_the_tied_head_included(
    make: Callable[..., VllmEngine], tied: bool, weights: str
) -> None:
    model = make_model(0, tied=tied)
    engine = make(model, SMALL.model_copy(update={"weights": weights}))
    assert largest_gap(engine, model, some_prompts()) < 2e-5
    moved(model)
    assert largest_gap(engine, model, some_prompts()) > 0.1, "the copy is of the old weights"
    engine.sync_weights(Policy(model=model, version=1))
    assert largest_gap(engine, model, some_prompts()) < 2e-5


def test_without_the_repair_a_tied_head_stays_stale(
    make: Callable[..., VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the repair is there; once vLLM packs the head itself, this fails and the repair goes."""
    model = make_model(0, tied=True)
    engine = make(model)
    monkeypatch.setattr(vllm_engine, "repair_tied_head", lambda model: 0)
    engine.sync_weights(Policy(model=moved(model), version=1))
    assert largest_gap(engine, model, some_prompts()) > 0.05


def test_no_cached_prefix_survives_new_weights(make: Callable[..., VllmEngine]) -> None:
    """300 tokens fill blocks of the prefix cache."""
    model = make_model(0, tied=False)
    engine, prompts = make(model), some_prompts(300)
    assert largest_gap(engine, model, prompts) < 2e-5
    engine.sync_weights(Policy(model=moved(model), version=1))
    assert largest_gap(engine, model, prompts) < 2e-5


def test_lora_adapters_are_synced_as_adapters(
    make: Callable[..., VllmEngine], tmp_path: Path
) -> None:
    base = make_model(0, tied=True)
    base.save_pretrained(tmp_path / "model")
    settings = LoraConfig(r=8, lora_alpha=8, target_modules="all-linear")
    policy = get_peft_model(base, settings).eval()
    engine = make(policy)
    assert largest_gap(engine, policy, some_prompts(300)) < 2e-5
    for version in (1, 2):
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                if "lora_" in name:
                    parameter.add_(0.2 * torch.randn_like(parameter))
        assert largest_gap(engine, policy, some_prompts(300)) > 0.1
        engine.sync_weights(Policy(model=policy, version=version))
        assert largest_gap(engine, policy, some_prompts(300)) < 5e-5
        [sample] = engine.generate([np.array([1])], SamplingParams(max_new_tokens=2), seeds=[0])
        assert sample.policy_version == version


def test_truncation_is_recorded_and_log_probs_are_over_what_was_left_in(
    make: Callable[..., VllmEngine],
) -> None:
    model = make_model(0, tied=True)
    engine, [prompt, *_] = make(model), some_prompts()
    for truncation in ({"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.6}):
        params = SamplingParams(max_new_tokens=8, records_support=True, **truncation)
        [sample] = engine.generate([prompt], params, seeds=[3])
        assert sample.support is not None
        if truncation == {"top_k": 5}:
            assert sample.support.sizes.tolist() == [5] * 8
        tokens = torch.from_numpy(np.concatenate([prompt, sample.tokens]).astype(np.int64))
        with torch.no_grad():
            logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1].double()
        ends = sample.support.sizes.cumsum()
        for place, (end, size) in enumerate(zip(ends, sample.support.sizes, strict=True)):
            left_in = sample.support.tokens[end - size : end].tolist() if size else list(range(97))
            kept = logits[place, left_in].log_softmax(-1)
            own = kept[left_in.index(int(sample.tokens[place]))].item()
            assert sample.logprobs[place] == pytest.approx(own, abs=2e-5)


def test_starting_and_closing_vllm_leaves_the_process_as_it_was(
    make: Callable[..., VllmEngine],
) -> None:
    """The trainer's random numbers and threads do not depend on its engine."""
    model = make_model(0, tied=True)
    torch.manual_seed(5)
    random.seed(5)
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    state, python = torch.get_rng_state(), random.getstate()
    engine = make(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
    assert (torch.set_num_threads, torch.get_num_threads()) == (set_num_threads, threads)
    with pytest.raises(RuntimeError, match="vLLM runs once in a process"):
        make(model)
    folder = engine._folder.path
    assert folder.is_dir()
    engine.close()
    assert not folder.exists()


def test_requests_come_and_go_one_by_one(make: Callable[..., VllmEngine]) -> None:
    model = make_model(0, tied=True)
    engine, prompts = make(model), some_prompts()
    whole = engine.generate(prompts, SamplingParams(max_new_tokens=9), seeds=range(6))
    returned: dict[int, Sample] = {}
    for key in range(6):
        engine.submit(key, prompts[key], SamplingParams(max_new_tokens=3 + key), seed=key)
        returned |= dict(engine.advance(max_wait_s=0))
    with pytest.raises(RuntimeError, match="sync_weights was called while"):
        engine.sync_weights(Policy(model=model, version=1))
    with pytest.raises(ValueError, match="request 5 is pending already"):
        engine.submit(5, prompts[5], SamplingParams(max_new_tokens=3), seed=0)
    while engine.num_pending:
        returned |= dict(engine.advance(max_wait_s=0))
    for key, sample in returned.items():
        assert sample.tokens.tolist() == whole[key].tokens[: 3 + key].tolist()
    engine.submit(9, prompts[0], SamplingParams(max_new_tokens=50), seed=0)
    engine.cancel()
    assert (engine.num_pending, engine.advance(max_wait_s=0)) == (0, [])


def test_show3_five_steps_with_vllm_have_a_mismatch_under_1e_6(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(*VLLM, "steps=5", "diagnostics.enabled=false")
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    kl = metric(tmp_path / "run", "policy/mismatch_kl")
    assert sorted(kl)[-5:] == [1, 2, 3, 4, 5]
    assert max(kl[step] for step in range(1, 6)) < 1e-6
    assert max(metric(tmp_path / "run", "rollout/staleness_max").values()) == 0
    versions = open_run(tmp_path / "run").sql(
        "select distinct step, policy_version from trajectories where split = 'train' order by step"
    )
    assert versions.column("policy_version").to_pylist() == [0, 1, 2, 3, 4]


def test_show3_a_vllm_engine_that_misses_a_sync_is_named_within_one_step(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmEngine, "sync_weights", lambda self, policy: None)
    config = make_config(*VLLM, "steps=9", "eval.every=0", "optim.lr=3e-3")
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    alarms = open_run(tmp_path / "run").sql("select rule, step, state from alarms")
    assert ("STALE_ENGINE", 2) in set(
        zip(alarms.column("rule").to_pylist(), alarms.column("step").to_pylist(), strict=True)
    )
    others = AlarmConfig(disabled=[name for name in RULE_ORDER if name != "STALE_ENGINE"])
    verdict = diagnose(tmp_path / "run", config=others)
    assert verdict.kinds == ("STALE_ENGINE",)
    assert "stale sampler" in verdict.text
    assert "the weights that sampled lack the last 8 updates" in verdict.text


def test_heads_that_vllm_cannot_compute_on_the_cpu_are_refused_before_it_starts(
    make: Callable[..., VllmEngine],
) -> None:
    config = make_model(0, tied=True).config.to_dict() | {"num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(**config)).eval()
    with pytest.raises(ValueError, match=r"heads are 16 wide.*engine.kind=hf"):
        make(model)


def test_a_cache_too_small_for_one_reply_is_a_sentence(make: Callable[..., VllmEngine]) -> None:
    model = make_model(0, tied=True)
    with pytest.raises(ValueError, match=r"vLLM cannot run .*engine.kv_cache_gib"):
        make(model, SMALL.model_copy(update={"kv_cache_gib": 1e-6}))
