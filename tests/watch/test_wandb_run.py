"""A run at a W&B server that is watched, by what the server answers to each question."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from followed_run import Followed

from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.wandb_address import NoAnswerError, ServerRun
from echoscope.store.reader import open_run
from echoscope.watch import wandb_run
from echoscope.watch.watched_run import WatchError
from echoscope.watch.watching import Watch

RUN = "wandb:lab/p/r"
Answer = ServerRun | MetricsFileError | OSError | None


def run(num_steps: int, state: str = "running") -> ServerRun:
    """Steps from 1 on."""
    rows = [{"_step": float(s), "actor/entropy": 1.0 / s} for s in range(1, num_steps + 1)]
    return ServerRun(name="r", state=state, rows=rows)


class Asked(Followed):
    """A watch whose server answers as it is told to; None: it says nothing."""

    def __init__(self, path: Path) -> None:
        self.answers: list[Answer] = []
        self.num_ended = 0
        super().__init__(Path(RUN), path)

    def told(self, *answers: Answer) -> list[int]:
        """The steps of the run after these answers."""
        self.answers += answers
        while self.answers and self.answers[0] is not None:
            self.look()
        return self.look()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    asked = Asked(tmp_path / "run")

    class Process:
        def __init__(self, name: str) -> None:
            assert name == RUN

        def is_done(self) -> bool:
            return bool(asked.answers) and asked.answers[0] is not None

        def answer(self) -> ServerRun:
            answer = asked.answers.pop(0)
            if isinstance(answer, MetricsFileError | OSError):
                raise answer
            assert answer is not None
            return answer

        def close(self) -> None:
            asked.num_ended += 1

    monkeypatch.setattr(wandb_run, "WandbProcess", Process)
    monkeypatch.setattr(wandb_run, "ASK_S", 0.0)
    monkeypatch.setattr(wandb_run, "SHARE", 0.0)
    yield asked
    asked.watch.close()


def test_each_answer_brings_new_steps(asked: Asked) -> None:
    assert asked.told(run(2)) == [1, 2]
    assert asked.told(run(4)) == [1, 2, 3, 4]
    assert asked.values("policy/entropy")[4] == 0.25
    assert open_run(asked.run).info().config["watched"] == {"path": RUN}
    assert asked.messages == []


def test_an_outage_is_told_once(asked: Asked) -> None:
    asked.told(run(2))
    failed = NoAnswerError("the server gave no answer within 60 s")
    assert asked.told(failed, failed) == [1, 2]
    assert asked.watch.source.is_unanswered
    assert asked.told(run(4)) == [1, 2, 3, 4]
    assert not asked.watch.source.is_unanswered
    sentence = "the server gave no answer within 60 s. The server is asked again every 0 s."
    assert asked.messages == [sentence]


def test_a_server_that_is_down_when_the_watch_begins_is_asked_again(asked: Asked) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert asked.told(NoAnswerError("the server fails"), full, run(3)) == [1, 2, 3]


def test_a_server_that_will_never_answer_ends_the_watch_only_at_its_begin(asked: Asked) -> None:
    refused = MetricsFileError("W&B refuses the key")
    with pytest.raises(WatchError, match="refuses the key"):
        asked.told(refused)


def test_a_key_that_is_withdrawn_later_is_said(asked: Asked) -> None:
    assert asked.told(run(2), MetricsFileError("W&B refuses the key"), run(3)) == [1, 2, 3]


def test_the_watch_ends_with_the_run_once_no_row_came_after_the_end(asked: Asked) -> None:
    asked.told(run(2), run(3, "finished"))
    assert not asked.watch.source.is_ended
    assert asked.told(run(4, "finished")) == [1, 2, 3, 4]  # rows arrive after the end
    assert not asked.watch.source.is_ended
    asked.told(run(4, "finished"))
    assert asked.watch.source.is_ended
    assert asked.messages[-1] == "W&B says that the run finished"


@pytest.mark.parametrize("state", ["finished", "failed", "killed"])
def test_a_run_that_had_ended_before_is_read_once(asked: Asked, state: str) -> None:
    assert asked.told(run(2, state)) == [1, 2]
    assert asked.watch.source.is_ended


def test_a_crashed_run_is_watched_on(asked: Asked) -> None:
    asked.told(run(2), run(2, "crashed"), run(2, "crashed"))
    assert not asked.watch.source.is_ended
    assert asked.told(run(3)) == [1, 2, 3]


def test_a_look_does_not_wait_for_a_server_that_hangs_and_its_process_is_ended(
    asked: Asked,
) -> None:
    asked.answers.append(None)
    asked.look(3)
    assert asked.watch.is_behind
    asked.watch.close()
    assert asked.num_ended > 0


def test_an_address_without_its_three_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WatchError, match="write wandb:ENTITY/PROJECT/RUN"):
        Watch(Path("wandb:lab/run"), tmp_path / "run")
