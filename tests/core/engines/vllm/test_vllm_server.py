"""vLLM in a process of its own: weights and adapters reach it, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from generating import generate
from peft import LoraConfig, get_peft_model
from recorded import metric
from small_qwen import largest_gap, make_model, some_prompts
from started import started

from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import EngineError, SamplingParams
from echoscope.core.engines.vllm.server import VllmEngine
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents

pytestmark = pytest.mark.vllm
SMALL = VllmEngineConfig(kv_cache_gib=0.0625, max_batch_rows=32)


def processes_of(group: int) -> list[psutil.Process]:
    """Processes of a process group that still run."""
    out = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                out.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return out


def await_none(group: int, seconds: float = 10.0) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while (left := processes_of(group)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "model"
    make_model(0, tied=True).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    """With LoRA room: whole weights are synced in the contract test."""
    base = make_model(0, tied=True)
    policy = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear")).eval()
    engine = VllmEngine(policy, str(folder), config=SMALL)
    engine.policy = policy  # type: ignore[attr-defined]
    yield engine
    engine.close()


def test_lora_adapters_are_synced_as_adapters(engine: VllmEngine) -> None:
    policy = engine.policy  # type: ignore[attr-defined]
    assert largest_gap(engine, policy, some_prompts(300)) < 2e-5
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    assert largest_gap(engine, policy, some_prompts(300)) > 0.1
    engine.sync_weights(SimpleNamespace(model=policy, version=1))
    assert largest_gap(engine, policy, some_prompts(300)) < 5e-5


def test_more_prompts_than_one_batch_of_tokens_are_sampled(engine: VllmEngine) -> None:
    """vLLM would compute one of them in parts, which ends it on the CPU."""
    prompts = some_prompts(300, number=12)
    assert sum(map(len, prompts)) > 2048, "vLLM's batch on the CPU"
    assert largest_gap(engine, engine.policy, prompts) < 5e-5  # type: ignore[attr-defined]


def test_a_server_killed_mid_generation_ends_the_call_with_one_sentence(
    engine: VllmEngine,
) -> None:
    """Closing leaves no process."""
    assert engine._process is not None
    pid = engine._process._process.pid
    assert len(processes_of(pid)) >= 2, "the server and its worker"
    killer = threading.Timer(0.3, lambda: os.kill(pid, signal.SIGKILL))
    killer.start()
    prompts, params = some_prompts(20) * 4, SamplingParams(max_new_tokens=200)
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        generate(engine, prompts, params, seeds=range(len(prompts)))
    assert "\n" not in str(caught.value)
    killer.join()
    engine.close()
    assert await_none(pid) == []


HOLD = """
import sys
from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.engines.vllm.server import server_of
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
server_of(model, sys.argv[1], VllmEngineConfig(kv_cache_gib=0.0625), positions=512)
"""


def test_a_server_ends_with_a_trainer_that_is_killed_while_it_starts(folder: Path) -> None:
    trainer = started(subprocess.Popen([sys.executable, "-c", HOLD, str(folder)]))
    group, deadline = 0, time.monotonic() + 240
    while time.monotonic() < deadline:
        servers = [
            p.pid for p in psutil.Process(trainer.pid).children() if p.pid == os.getpgid(p.pid)
        ]
        group = servers[0] if servers else 0
        if group and len(processes_of(group)) >= 2:
            break
        time.sleep(0.1)
    assert len(processes_of(group)) >= 2, "the server and its worker"
    trainer.kill()
    trainer.wait()
    assert await_none(group) == []


def test_a_run_with_a_server_has_a_mismatch_under_1e_6(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    engine = "engine={kind: vllm, kv_cache_gib: 0.0625, max_batch_rows: 32}"
    config = make_config(engine, "steps=3", "diagnostics.enabled=false", "eval.every=0")
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    kl = metric(tmp_path / "run", "policy/mismatch_kl")
    assert max(kl[step] for step in (1, 2, 3)) < 1e-6
    assert max(metric(tmp_path / "run", "rollout/staleness_max").values()) == 0


class Killing(SilentEvents):
    """Kills a vLLM server of this run in the middle of the sampling of step 2."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.was_killed = False

    def message(self, text: str) -> None:
        self.reports.append(text)

    def phase(self, step: int, name: str) -> None:
        if step == 2 and name == "rollout":
            threading.Timer(0.4, self._kill).start()

    def _kill(self) -> None:
        servers = [
            child.pid
            for child in psutil.Process().children()
            if any("echoscope_vllm_serve" in word for word in child.cmdline())
        ]
        os.killpg(servers[0], signal.SIGKILL)
        self.was_killed = True


def test_a_server_that_is_killed_costs_a_run_with_two_nothing(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """The step goes on with the other server, and another one takes the killed one's place."""
    settings = ("steps=4", "diagnostics.enabled=false", "eval.every=0")
    kind = "kind: vllm, kv_cache_gib: 0.0625, max_batch_rows: 32"
    events = Killing()
    config = make_config(f"engine={{{kind}, replicas: 2}}", *settings)
    assert start(config, tmp_path / "two", events) == "finished"
    assert events.was_killed
    assert any("was lost" in sentence for sentence in events.reports), events.reports
    assert sum(metric(tmp_path / "two", "engine/num_lost").values()) == 1
    assert max(metric(tmp_path / "two", "policy/mismatch_kl").values()) < 1e-6
    assert max(metric(tmp_path / "two", "rollout/staleness_max").values()) == 0


def test_flags_that_vllm_refuses_are_one_sentence(folder: Path) -> None:
    config = SMALL.model_copy(update={"options": {"no-such-flag": True}})
    with pytest.raises(
        EngineError, match=r"ended while it started: .*no-such-flag.*engine.kind=hf"
    ):
        VllmEngine(make_model(0, tied=True), str(folder), config=config)
