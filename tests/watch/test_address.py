"""A run at a W&B server that is watched, by what the server answers to each question."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from echoscope.diagnostics.read.records import Collector, MetricsFileError
from echoscope.diagnostics.read.runs import RunMetrics
from echoscope.diagnostics.read.wandb_address import NoAnswerError, ServerRun
from echoscope.store.reader import open_run
from echoscope.watch import address
from echoscope.watch.acting import WatchError
from echoscope.watch.ledger import Waits
from echoscope.watch.watching import MAX_STEPS_AHEAD, Watch

RUN = "wandb:lab/p/r"
Answer = ServerRun | MetricsFileError | OSError | threading.Event


def run(num_steps: int, state: str = "running") -> ServerRun:
    """Steps from 1 on."""
    if not num_steps:
        return ServerRun(metrics=None, state=state)
    collector = Collector(path=RUN, kind="wandb")
    for step in range(1, num_steps + 1):
        collector.add({"_step": step, "actor/entropy": 1.0 / step})
    metrics = RunMetrics(name="r", table=collector.finish(), files=(RUN,))
    return ServerRun(metrics=metrics, state=state)


class Asked:
    """A watch whose server answers as it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self.answers: list[Answer] = []
        self.given_up = threading.Event()
        self.watch = Watch(
            Path(RUN),
            path,
            waits=Waits(line_quiet_s=0.0, quiet_s=0.0),
            on_message=self.said.append,
        )

    def ask(
        self, name: str, mapping: Mapping[str, Any], *, is_wanted: Callable[[], bool]
    ) -> ServerRun:
        answer = self.answers.pop(0)
        if isinstance(answer, threading.Event):
            while is_wanted():
                answer.wait(0.01)
            self.given_up.set()
            raise NoAnswerError("given up")
        if isinstance(answer, MetricsFileError | OSError):
            raise answer
        return answer

    def told(self, *answers: Answer) -> list[int]:
        """The steps of the run after these answers."""
        for answer in answers:
            self.answers.append(answer)
            self.watch.look(is_end=True)
            self.watch.wait()
        return self.steps()

    def steps(self) -> list[int]:
        if not (self.path / "run.json").is_file():
            return []
        rows = open_run(self.path).sql("SELECT DISTINCT step FROM metrics ORDER BY step")
        return [int(step) for step in rows.column("step").to_pylist()]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    asked = Asked(tmp_path / "run")
    monkeypatch.setattr(address, "ask", asked.ask)
    yield asked
    asked.watch.close()


def test_a_run_without_rows_is_waited_for(asked: Asked) -> None:
    assert asked.told(run(0)) == []
    assert (
        asked.said[-1]
        == f"{RUN}: nothing to follow yet. Waiting for the run's first row of metrics."
    )
    assert asked.told(run(2)) == [1, 2]
    assert open_run(asked.path).info().config["watched"] == {"path": RUN}


def test_an_outage_is_told_once_and_its_end_too(asked: Asked) -> None:
    asked.told(run(2))
    failed = NoAnswerError("the server fails (HTTP 500)")
    assert asked.told(failed, failed) == [1, 2]
    assert asked.watch.is_unanswered
    assert asked.told(run(4)) == [1, 2, 3, 4]
    assert not asked.watch.is_unanswered
    words = "the server fails (HTTP 500). The server is asked again every 30 s."
    assert asked.said[1:] == [words, f"{RUN}: the server answers again"]
    asked.told(failed)
    assert asked.said[-1] == words  # the next outage is news


def test_a_server_that_is_down_when_the_watch_begins_is_asked_again(asked: Asked) -> None:
    assert asked.told(NoAnswerError("the server fails (HTTP 500)"), run(3)) == [1, 2, 3]


def test_a_server_that_will_never_answer_ends_the_watch_only_at_its_begin(asked: Asked) -> None:
    refused = MetricsFileError("W&B does not take the key")
    with pytest.raises(WatchError, match="does not take the key"):
        asked.told(refused)


def test_a_key_that_is_withdrawn_later_is_said(asked: Asked) -> None:
    assert asked.told(run(2), MetricsFileError("W&B does not take the key"), run(3)) == [1, 2, 3]


def test_the_watch_ends_with_the_run_once_no_row_came_after_the_end(asked: Asked) -> None:
    asked.told(run(2), run(3, "finished"))
    assert not asked.watch.is_ended
    assert asked.told(run(4, "finished")) == [1, 2, 3, 4]  # rows arrive after the end
    assert not asked.watch.is_ended
    asked.told(run(4, "finished"))
    assert asked.watch.is_ended
    assert asked.said[-1] == "W&B says that the run finished"


@pytest.mark.parametrize("state", ["finished", "failed", "killed"])
def test_a_run_that_had_ended_before_is_read_once(asked: Asked, state: str) -> None:
    assert asked.told(run(2, state)) == [1, 2]
    assert asked.watch.is_ended


def test_more_steps_than_may_wait_are_asked_for_once(asked: Asked) -> None:
    num_steps = 3 * MAX_STEPS_AHEAD
    asked.answers.append(run(num_steps, "finished"))  # a second question would find no answer
    while not asked.watch.is_ended or asked.watch.is_behind:
        asked.watch.look()
        asked.watch.wait()
    assert asked.steps() == list(range(1, num_steps + 1))
    assert asked.said.count("W&B says that the run finished") == 1


def test_a_question_that_the_system_refuses_is_asked_again(asked: Asked) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert asked.told(run(2), full, run(3)) == [1, 2, 3]
    assert "[Errno 28] No space left on device. The server is asked again every 30 s." in asked.said


def test_a_watch_that_is_abandoned_waits_for_no_answer(asked: Asked) -> None:
    asked.answers.append(threading.Event())
    asked.watch.look()
    asked.watch.abandon()
    assert asked.given_up.wait(30)


def test_a_crashed_run_is_watched_on(asked: Asked) -> None:
    asked.told(run(2), run(2, "crashed"), run(2, "crashed"))
    assert not asked.watch.is_ended
    assert asked.said[1:] == [address.CRASHED]
    assert asked.told(run(3)) == [1, 2, 3]
    assert asked.said[-1] == "W&B says that the run goes on"


def test_a_look_does_not_wait_for_a_server_that_hangs(asked: Asked) -> None:
    asked.answers.append(threading.Event())
    for _ in range(3):
        asked.watch.look()
    assert asked.watch.is_behind  # closing it gives the question up


def test_an_address_without_its_three_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WatchError, match="write wandb:ENTITY/PROJECT/RUN"):
        Watch(Path("wandb:lab/run"), tmp_path / "run")
