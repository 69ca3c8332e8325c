"""Engines on a Ray of this machine: losses, orphans, and runs equal to the built-in engine's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from listening import Listener
from recorded import metric, recorded
from small_qwen import make_model
from started import started
from transformers import PreTrainedModel

from echoscope.core.config.engine import HfEngineConfig, RayEngineConfig
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import EngineError, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.hf.sampling import PolicyNumericsError
from echoscope.core.engines.ray import engine as ray_engine
from echoscope.core.engines.ray.engine import RayEngine
from echoscope.core.engines.ray.guard import processes_of
from echoscope.core.engines.ray.session import SESSION
from echoscope.core.engines.ray.workers import RayWorker
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.reader import open_run

pytestmark = pytest.mark.ray

LONG = SamplingParams(max_new_tokens=400)
PROMPTS = [np.arange(1, 4 + i, dtype=np.int32) for i in range(8)]


@dataclass(frozen=True)
class Policy:
    model: PreTrainedModel
    version: int = 0


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    """One Ray for the tests of this file: starting it takes seconds."""
    yield SESSION.acquire(None, num_cpus=4)
    folder = SESSION.folder
    SESSION.release()
    assert processes_of(folder) == []
    assert not Path(folder).exists()


@pytest.fixture
def engine(both: RayEngine, news: list[str]) -> RayEngine:
    """Two engines with the weights of `make_model(0, tied=True)` as version 0."""
    both.sync_weights(Policy(make_model(0, tied=True)))
    both.take_metrics()
    news.clear()
    return both


@pytest.fixture(scope="module")
def news() -> list[str]:
    return []


@pytest.fixture(scope="module")
def both(news: list[str]) -> Iterator[RayEngine]:
    """The same for all tests that kill engines: they are replaced."""
    engine = RayEngine(
        Policy(make_model(0, tied=True)),
        RayEngineConfig(num_engines=2, timeout_s=3),
        report=news.append,
    )
    yield engine
    engine.close()


def sampled(samples: list[Any]) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in samples]


def builtin(params: SamplingParams = LONG) -> list[list[int]]:
    engine = HfEngine(make_model(0, tied=True), config=HfEngineConfig())
    return sampled(engine.generate(PROMPTS, params, seeds=range(8)))


def kill_soon(pid: int, after_s: float = 0.15) -> None:
    threading.Timer(after_s, lambda: os.kill(pid, signal.SIGKILL)).start()


def test_an_engine_killed_while_it_samples_is_replaced_and_the_samples_are_the_same(
    engine: RayEngine, news: list[str]
) -> None:
    before = engine.pids()
    kill_soon(before[0])
    assert sampled(engine.generate(PROMPTS, LONG, seeds=range(8))) == builtin()
    after = engine.pids()
    assert before[0] != after[0]
    assert before[1] == after[1]
    [sentence] = news
    assert sentence.startswith("engine 0 was lost (")
    assert "a new one took its place and samples the same requests again" in sentence
    values = engine.take_metrics()
    assert values["ray/num_lost"] == 1
    assert sum(values[f"ray/engine_{k}/num_tokens"] for k in (0, 1)) == 8 * 400
    assert engine.take_metrics()["ray/num_lost"] == 0


def test_so_it_is_while_requests_come_one_by_one(engine: RayEngine) -> None:
    kill_soon(engine.pids()[1])
    for key, prompt in enumerate(PROMPTS):
        engine.submit(key, prompt, LONG, seed=key)
    samples: dict[int, Any] = {}
    while engine.num_pending:
        samples.update(engine.advance(max_wait_s=1.0))
    assert sampled([samples[key] for key in range(8)]) == builtin()
    assert engine.take_metrics()["ray/num_lost"] == 1


def test_an_engine_lost_between_calls_is_noticed_at_the_next_sync(engine: RayEngine) -> None:
    os.kill(engine.pids()[0], signal.SIGKILL)
    other = make_model(1, tied=True)
    engine.sync_weights(Policy(other, version=4))
    samples = engine.generate(PROMPTS, LONG, seeds=range(8))
    expected = HfEngine(other, config=HfEngineConfig()).generate(PROMPTS, LONG, seeds=range(8))
    assert sampled(samples) == sampled(expected)
    assert {sample.policy_version for sample in samples} == {4}


def test_an_engine_that_does_not_answer_is_replaced(engine: RayEngine, news: list[str]) -> None:
    os.kill(engine.pids()[0], signal.SIGSTOP)
    short = SamplingParams(max_new_tokens=5)
    assert sampled(engine.generate(PROMPTS, short, seeds=range(8))) == builtin(short)
    assert "no answer within 3 s" in news[0]


def test_engines_that_are_lost_again_and_again_end_the_call_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_engine, "MAX_REPLACEMENTS", 0)
    engine = RayEngine(Policy(make_model(0, tied=True)), RayEngineConfig())
    try:
        os.kill(engine.pids()[0], signal.SIGKILL)
        with pytest.raises(EngineError, match="1 engines were lost one after the other") as error:
            engine.generate(PROMPTS, LONG, seeds=range(8))
        assert "\n" not in str(error.value)
    finally:
        engine.close()


def test_an_error_of_the_engine_is_raised_as_its_own() -> None:
    broken = make_model(0, tied=True)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    engine = RayEngine(Policy(broken), RayEngineConfig())
    try:
        with pytest.raises(PolicyNumericsError, match="NaN or infinity"):
            engine.generate(PROMPTS, LONG, seeds=range(8))
    finally:
        engine.close()


def test_engines_that_find_no_place_are_refused_with_what_there_is(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "START_TIMEOUT_S", 2)
    config = RayEngineConfig(cpus_per_engine=64)
    with pytest.raises(EngineError, match=r"64 CPUs .* the cluster has 4 CPUs .* in all"):
        RayEngine(Policy(make_model(0, tied=True)), config)


def test_ray_listens_on_loopback_alone() -> None:
    addresses = listening_addresses(processes_of(SESSION.folder))
    assert addresses
    assert all(address in LOOPBACK for address in addresses), addresses


def test_ray_shows_no_dashboard_and_reports_no_usage() -> None:
    """A process with the dashboard's name always runs; it would be one if it listened."""
    named = [
        pid
        for pid in processes_of(SESSION.folder)
        if b"dashboard/dashboard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert listening_addresses(named) == set()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


# -- runs ----------------------------------------------------------------------------------------

ONE = ("engine.kind=ray", "engine.num_engines=1")
MakeConfig = Callable[..., RunConfig]


def recorded_apart_from_workers(path: Path) -> dict[str, list[str]]:
    tables = recorded(path)
    tables["metrics"] = [row for row in tables["metrics"] if "'ray/" not in row]
    return tables


def test_a_run_with_one_engine_records_the_same_bits_as_the_builtin_engine(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    for name, settings in (("hf", ()), ("ray", ONE)):
        assert start(make_config(*settings), tmp_path / name, SilentEvents()) == "finished"
    expected, found = (recorded_apart_from_workers(tmp_path / name) for name in ("hf", "ray"))
    for table in expected:
        assert found[table] == expected[table], table
    tokens = metric(tmp_path / "ray", "ray/engine_0/num_tokens")
    trained = metric(tmp_path / "ray", "rollout/num_sampled_tokens")
    assert [tokens[step] for step in (2, 4)] == [trained[step] for step in (2, 4)]
    assert all(tokens[step] > trained[step] for step in (1, 3))  # after an evaluation


def test_a_run_goes_on_where_an_engine_is_killed_in_the_middle_of_a_step(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines, one of which dies in each of the first two calls of step 3."""
    two = make_config("engine.kind=ray", "engine.num_engines=2", "envs.eval=[]")
    assert start(make_config("envs.eval=[]"), tmp_path / "hf", SilentEvents()) == "finished"
    whole = RayEngine.generate
    calls = iter(range(100))

    def generate(engine: RayEngine, *args: Any, **options: Any) -> Any:
        if next(calls) in (4, 5):
            os.kill(engine.pids()[0], signal.SIGKILL)
        return whole(engine, *args, **options)

    monkeypatch.setattr(RayEngine, "generate", generate)
    listener = Listener()
    assert start(two, tmp_path / "ray", listener) == "finished"
    assert metric(tmp_path / "ray", "ray/num_lost") == {1: 0, 2: 0, 3: 2, 4: 0}
    assert sum("a new one took its place" in text for text in listener.messages) == 2
    found, expected = (open_run(tmp_path / name).sql(REPLIES).to_pylist() for name in ("ray", "hf"))
    assert found == expected


# -- environment workers -------------------------------------------------------------------------

PACED = ("collection.mode=async", "envs.eval=[]")
WORKERS = (*PACED, "collection.workers=ray", "collection.num_workers=2")
REPLIES = "SELECT trajectory_id, turn, response_tokens FROM tokens ORDER BY ALL"


def test_environments_in_actors_play_the_same_episodes(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    for name, settings in (("threads", PACED), ("ray", WORKERS)):
        assert start(make_config(*settings), tmp_path / name, SilentEvents()) == "finished"
    found, expected = (
        open_run(tmp_path / name).sql(REPLIES).to_pylist() for name in ("ray", "threads")
    )
    assert found == expected
    assert set(metric(tmp_path / "ray", "ray/num_lost_workers").values()) == {0}


def test_an_environment_worker_killed_in_the_middle_of_a_step_is_replaced(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its episodes end without training; the run goes on with a new worker."""
    whole = RayWorker.call
    turns = iter(range(1000))

    def call(worker: RayWorker, message: tuple[Any, ...], limit_s: float | None) -> Any:
        if "step" in message and next(turns) == 2 * 8 + 4:  # a step has eight times two turns
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
        return whole(worker, message, limit_s)

    monkeypatch.setattr(RayWorker, "call", call)
    listener = Listener()
    config = make_config(*WORKERS, "diagnostics.enabled=false")
    assert start(config, tmp_path / "run", listener) == "finished"
    assert sum(metric(tmp_path / "run", "ray/num_lost_workers").values()) == 1
    assert any("a new one takes its place" in text for text in listener.messages)
    sql = "SELECT DISTINCT step FROM trajectories WHERE stop_reason = 'env_error'"
    assert open_run(tmp_path / "run").sql(sql).to_pylist() == [{"step": 2}]


# -- what is left --------------------------------------------------------------------------------

DRIVER = """
import sys, time
sys.path.insert(0, {tests!r})
from small_qwen import make_model
from test_ray import Policy
from echoscope.core.config.engine import RayEngineConfig
from echoscope.core.engines.ray import engine as ray_engine
from echoscope.core.engines.ray.engine import RayEngine
from echoscope.core.engines.ray.session import SESSION
engine = RayEngine(Policy(make_model(0, tied=True)), RayEngineConfig())
print(SESSION.folder, flush=True)
if sys.argv[1] == "killed":
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["exit", "killed"])
def test_no_process_and_no_folder_is_left(end: str, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(tests=str(Path(__file__).parent)), encoding="utf-8")
    shared = Path(__file__).parents[3] / "shared"
    driver = started(
        subprocess.Popen(
            [sys.executable, str(script), end],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(shared)},
        )
    )
    assert driver.stdout is not None
    folder = driver.stdout.readline().strip()
    if end == "killed":
        assert processes_of(folder)
        driver.kill()
    driver.wait()
    deadline = time.monotonic() + 20
    while (processes_of(folder) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(folder) == []
    assert not Path(folder).exists()


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    script = (
        "from echoscope.core.engines.ray.session import SESSION\n"
        "SESSION.acquire('127.0.0.1:9', num_cpus=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "engine.address is '127.0.0.1:9', where no Ray cluster answers" in last


LOOPBACK = ("0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000")
"""127.0.0.1, the same as an IPv6 address, and ::1."""


def listening_addresses(pids: list[int]) -> set[str]:
    """Of TCP sockets that these processes listen on, in hexadecimal, as the kernel prints them."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(link))
            except OSError:  # closed meanwhile
                continue
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
    ]
    return {
        fields[1].split(":")[0]
        for fields in lines
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets
    }
