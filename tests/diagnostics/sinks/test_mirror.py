"""What the sinks of a run are told, and that one which hangs, refuses or fails holds nobody up."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from costs import HANG_S, without_hanging
from episodes import text_turn
from trajectories import make_trajectory

from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.sinks import mirror as mirrors
from echoscope.diagnostics.sinks.content import SinkOpening, StepCopy
from echoscope.diagnostics.sinks.mirror import Mirror, SinkStatus, read_status
from echoscope.diagnostics.sinks.settings import SinkError, SinksConfig
from echoscope.store.records import StepMetrics

ON = {"tensorboard": True, "episodes": 2}


@dataclass
class Tool:
    """Stands in for the package of a sink: keeps what it is told, and fails on request."""

    openings: list[SinkOpening] = field(default_factory=list)
    copies: list[StepCopy] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    on_open: Callable[[], object] = lambda: None
    on_write: Callable[[StepCopy], object] = lambda copy: None
    on_close: Callable[[], object] = lambda: None
    where: str = "there"
    identity: str = "x1"

    def open(self, sink: str, opening: SinkOpening) -> Tool:
        self.on_open()
        self.openings.append(opening)
        return self

    def write(self, copy: StepCopy) -> None:
        self.on_write(copy)
        self.copies.append(copy)

    def close(self, status: str) -> None:
        self.on_close()
        self.ends.append(status)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Tool:
    tool = Tool()
    monkeypatch.setattr(mirrors, "open_writer", tool.open)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    return tool


@pytest.fixture
def hang() -> Iterator[Callable[..., object]]:
    """Waits until the test is over."""
    gate = threading.Event()
    yield lambda *_: gate.wait(60.0)
    gate.set()


def metrics(step: int, values: dict[str, float], phase: str = "train") -> StepMetrics:
    return StepMetrics(
        run_id="run-1",
        step=step,
        phase=phase,
        policy_version=0,
        wall_time=0.0,
        values=values,
        durations_s={"time/step_s": 2.0},
    )


def mirror_of(path: Path, news: list[str], **settings: Any) -> Mirror:
    path.mkdir(exist_ok=True)
    config = SinksConfig.model_validate(ON | settings)
    return Mirror(config, run_path=path, run_config={"a": 1}, on_message=news.append)


def copied(tmp_path: Path, steps: int) -> tuple[SinkStatus, list[str]]:
    """Copy so many steps; what became of the sink, and what was said."""
    news: list[str] = []
    mirror = mirror_of(tmp_path / "run-1", news)
    for step in range(1, steps + 1):
        mirror.step([metrics(step, {})])
    mirror.close("finished")
    (status,) = mirror.statuses()
    return status, news


@pytest.mark.long
def test_a_step_is_told_with_its_numbers_alarms_and_verdict(tool: Tool, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "run-1", [])
    diagnosis = Diagnosis(run_id="run-1")
    raised: dict[int, tuple[Any, ...]] = {}
    for step, values in make("template_collapse", 0).table.rows():
        alarms = diagnosis.observe(step, values)
        mirror.step([metrics(step, values)], alarms=alarms, verdict=diagnosis.verdict)
        raised[step] = tuple(alarms)
    mirror.close("finished")
    (opening,) = tool.openings
    assert (opening.run, opening.run_config, opening.identity) == ("run-1", {"a": 1}, "")
    assert {copy.step: copy.alarms for copy in tool.copies} == raised
    assert tool.copies[-1].verdict == diagnosis.verdict()
    told = [copy.verdict for copy in tool.copies if copy.is_news]
    assert 2 <= len(told) < len(tool.copies)
    assert tool.ends == ["finished"]


def test_training_evaluation_and_durations_are_one_row(tool: Tool, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "run-1", [])
    mirror.step(
        [metrics(1, {"text/loop_frac": 0.5}), metrics(1, {"eval/all/return_mean": 1.0}, "eval")]
    )
    mirror.close("finished")
    assert tool.copies[0].numbers == {
        "text/loop_frac": 0.5,
        "eval/all/return_mean": 1.0,
        "time/step_s": 2.0,
        "timing_s/step": 2.0,
    }


def test_episodes_come_at_the_first_step_and_every_tenth(tool: Tool, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "run-1", [])
    for step in range(1, 22):
        episodes = [make_trajectory(text_turn("a"), step=step, index=k) for k in range(3)]
        mirror.step([metrics(step, {})], trajectories=episodes)
    mirror.close("finished")
    tables = {copy.step: len(copy.episodes) for copy in tool.copies if copy.episodes}
    assert tables == {1: 2, 10: 2, 20: 2}


def test_a_run_that_goes_on_tells_its_identity(tool: Tool, tmp_path: Path) -> None:
    for step in (1, 2):
        mirror = mirror_of(tmp_path / "run-1", [])
        mirror.step([metrics(step, {})])
        mirror.close("stopped")
    assert [opening.identity for opening in tool.openings] == ["", "x1"]
    assert [copy.step for copy in tool.copies] == [1, 2]
    status = read_status(tmp_path / "run-1", "tensorboard")
    assert status is not None
    assert (status.state, status.last_step) == ("finished", 2)


def test_a_verdict_that_fails_costs_the_copy_of_a_step_only(tool: Tool, tmp_path: Path) -> None:
    def fails() -> Any:
        raise RuntimeError("no verdict")

    news: list[str] = []
    mirror = mirror_of(tmp_path / "run-1", news)
    mirror.step([metrics(1, {})], verdict=fails)
    mirror.step([metrics(2, {})])
    mirror.close("finished")
    assert news == ["sinks: a step was not copied: RuntimeError: no verdict"]
    assert [copy.step for copy in tool.copies] == [2]


def test_without_a_sink_nothing_starts(tmp_path: Path) -> None:
    mirror = Mirror(SinksConfig(), run_path=tmp_path, run_config={}, on_message=print)
    mirror.step([metrics(1, {})], verdict=None)
    mirror.close("finished")
    assert mirror.statuses() == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_the_package_of_its_sink_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(distribution: str) -> str:
        raise importlib.metadata.PackageNotFoundError(distribution)

    config = load_config("bandit", overrides=["sinks.wandb=offline"])
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(SinkError, match="the sink wandb needs the package wandb"):
        start(config, tmp_path / "run", SilentEvents())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_trained_run_tells_every_step_and_how_it_ended(tool: Tool, tmp_path: Path) -> None:
    small = ["steps=2", "envs.eval=[]", "probe.every=0", "envs.group_size=2"]
    config = load_config("bandit", overrides=[*small, "sinks.tensorboard=true"])
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    assert [copy.step for copy in tool.copies] == [1, 2]
    assert all(copy.verdict is not None for copy in tool.copies)
    assert tool.copies[0].episodes
    assert tool.ends == ["finished"]


def test_the_status_says_how_far_the_copy_is(tool: Tool, tmp_path: Path) -> None:
    status, news = copied(tmp_path, 5)
    assert status == SinkStatus(
        sink="tensorboard", state="finished", where="there", identity="x1", last_step=5
    )
    assert read_status(tmp_path / "run-1", "tensorboard") == status
    assert news == []


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ValueError("No API key"), "ValueError: No API key"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_sink_that_refuses_the_run_stops_with_its_reason(
    error: BaseException, problem: str, tool: Tool, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise error

    tool.on_open = refuse
    status, news = copied(tmp_path, 3)
    assert (status.state, status.problem) == ("failed", problem)
    assert news == [
        f"sink tensorboard: stopped: {problem}; the run goes on. "
        f"`echoscope mirror {tmp_path / 'run-1'} --to tensorboard` copies the rest later"
    ]


@pytest.mark.parametrize("method", ["on_open", "on_write", "on_close"])
def test_a_sink_that_hangs_is_abandoned_in_one_sentence_and_nobody_waits_for_it(
    method: str,
    hang: Callable[..., object],
    tool: Tool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirrors, "TIMEOUT_S", 0.3)
    setattr(tool, method, hang)
    with without_hanging():
        status, news = copied(tmp_path, 3)
    assert status.state == "failed"
    assert status.problem in ("no answer within 0.3 s", "it did not finish in time")
    assert status.last_step == (3 if method == "on_close" else None)
    assert len(news) == 1
    assert "the run goes on" in news[0]


def test_a_sink_that_hangs_is_given_up_while_the_run_trains(
    hang: Callable[..., object], tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "TIMEOUT_S", 0.01)
    tool.on_write = hang
    news: list[str] = []
    mirror = mirror_of(tmp_path / "run-1", news)
    for step in range(1, 1000):
        mirror.step([metrics(step, {})])
        if news:
            break
        time.sleep(0.005)
    assert mirror.has_failed()
    assert "no answer within 0.01 s" in news[0]


def test_one_that_hangs_holds_up_no_other(
    hang: Callable[..., object], tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = Tool()

    def open_writer(sink: str, opening: SinkOpening) -> Tool:
        return well if sink == "trackio" else tool

    tool.on_write = hang
    monkeypatch.setattr(mirrors, "open_writer", open_writer)
    monkeypatch.setattr(mirrors, "TIMEOUT_S", 0.3)
    mirror = mirror_of(tmp_path / "run-1", [], trackio=True)
    for step in range(1, 4):
        mirror.step([metrics(step, {})])
    mirror.close("finished")
    states = {status.sink: (status.state, status.last_step) for status in mirror.statuses()}
    assert states == {"tensorboard": ("failed", None), "trackio": ("finished", 3)}


def test_what_an_abandoned_sink_does_later_changes_nothing(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "TIMEOUT_S", 0.1)
    gate = threading.Event()
    tool.on_write = lambda copy: gate.wait(20.0)
    status, _ = copied(tmp_path, 2)
    gate.set()
    deadline = time.monotonic() + HANG_S
    while not tool.copies and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert read_status(tmp_path / "run-1", "tensorboard") == status
    assert [copy.step for copy in tool.copies] == [1]


def test_a_sink_that_fails_is_stopped_with_all_before(tool: Tool, tmp_path: Path) -> None:
    def fail(copy: StepCopy) -> None:
        if copy.step == 2:
            raise OSError("disk is full")

    tool.on_write = fail
    status, news = copied(tmp_path, 3)
    assert (status.state, status.problem) == ("failed", "OSError: disk is full")
    assert status.last_step == 1
    assert read_status(tmp_path / "run-1", "tensorboard") == status
    assert len(news) == 1
    resumed = mirror_of(tmp_path / "run-1", news)
    for step in (3, 4):  # without step 2 they would stand there as if nothing lacked
        resumed.step([metrics(step, {})])
    resumed.close("finished")
    assert [copy.step for copy in tool.copies] == [1]
    assert news[1].startswith("sink tensorboard: failed after step 1")
    assert len(news) == 2


def test_a_sink_that_is_too_slow_is_stopped(tool: Tool, tmp_path: Path) -> None:
    gate = threading.Event()
    tool.on_open = lambda: gate.wait(20.0)
    news: list[str] = []
    mirror = mirror_of(tmp_path / "run-1", news)
    for step in range(1, 1009):
        mirror.step([metrics(step, {})])
    gate.set()
    mirror.close("finished")
    (status,) = mirror.statuses()
    assert (status.state, status.last_step) == ("failed", None)
    assert "too slow: 1000 steps wait for it" in news[0]
    assert len(news) == 1
