"""A sink that hangs, refuses, dies or floods holds nobody up, and says so once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.diagnostics.sinks import process
from echoscope.diagnostics.sinks.process import MAX_FAILURES, SinkProcess
from echoscope.diagnostics.sinks.status import SinkStatus, read_status

SERVE = """
import json, sys, time
def answer(**values):
    print(json.dumps(values), flush=True)
for line in sys.stdin:
    record = json.loads(line)
    kind, step = record["kind"], record.get("step")
    {body}
"""
"""A process that answers records as `body` says."""


def served(body: str) -> str:
    return SERVE.format(body=body)


WELL = served("answer(where='there', identity='x1') if kind == 'open' else answer()")


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., SinkProcess]:
    def begin(code: str, news: list[str], timeout_s: float = 20.0, **opening: Any) -> SinkProcess:
        return SinkProcess(
            {"kind": "open"} | opening,
            run_path=tmp_path,
            status=SinkStatus(sink="wandb"),
            timeout_s=timeout_s,
            on_message=news.append,
            code=code,
        )

    return begin


def step(number: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"kind": "step", "step": number}


def ended(sink: SinkProcess, timeout_s: float = 20.0) -> SinkStatus:
    sink.close("finished")
    sink.join(timeout_s)
    return sink.status


def test_all_records_are_taken_in_order_and_the_status_says_how_far(
    start: Callable[..., SinkProcess], tmp_path: Path
) -> None:
    news: list[str] = []
    sink = start(WELL, news)
    for number in range(5):
        sink.put(step(number))
    status = ended(sink)
    assert status == SinkStatus(
        sink="wandb", state="finished", where="there", identity="x1", last_step=4
    )
    assert read_status(tmp_path, "wandb") == status
    assert news == []


def test_one_that_refuses_the_run_stops_with_its_reason(start: Callable[..., SinkProcess]) -> None:
    news: list[str] = []
    status = ended(start(served("answer(error='UsageError: No API key')"), news))
    assert status.state == "failed"
    assert status.problem == "it refuses the run: UsageError: No API key"
    assert len(news) == 1
    assert "the run goes on" in news[0]


def test_one_that_hangs_is_ended_and_nobody_waits_for_it(
    start: Callable[..., SinkProcess],
) -> None:
    news: list[str] = []
    hangs = served("answer() if kind == 'open' else time.sleep(600)")
    sink = start(hangs, news, timeout_s=0.3)
    begun = time.monotonic()
    sink.put(step(1))
    assert time.monotonic() - begun < 0.2
    status = ended(sink)
    assert (status.state, status.problem) == ("failed", "no answer within 0.3 s")
    assert status.last_step is None


def test_one_that_does_not_read_is_ended_too(start: Callable[..., SinkProcess]) -> None:
    """A pipe holds 64 KB: what is longer would be written for ever."""
    sink = start("import time; time.sleep(600)", [], timeout_s=0.3, large="x" * 1_000_000)
    assert ended(sink).problem == "no answer within 0.3 s"


def test_one_that_hangs_at_the_end_is_given_up(start: Callable[..., SinkProcess]) -> None:
    hangs = served("time.sleep(600) if kind == 'close' else answer()")
    status = ended(start(hangs, []), timeout_s=0.5)
    assert (status.state, status.problem) == ("failed", "it did not finish in time")


def test_the_last_words_of_a_process_that_dies_are_said(start: Callable[..., SinkProcess]) -> None:
    status = ended(start("import no_such_package", []))
    assert status.problem == (
        "its process ended (code 1): ModuleNotFoundError: No module named 'no_such_package'"
    )


def test_what_it_started_ends_with_it(start: Callable[..., SinkProcess], tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import subprocess, time; "
        f"open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); "
        "time.sleep(600)"
    )
    ended(start(code, [], timeout_s=1.0))
    child = int(pid.read_text())
    for _ in range(200):  # the kernel ends a process a moment after it was killed
        if not is_running(child):
            return
        time.sleep(0.05)
    pytest.fail("the sleeping child is still there")


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_a_record_that_fails_is_counted_and_the_next_are_taken(
    start: Callable[..., SinkProcess],
) -> None:
    news: list[str] = []
    sink = start(served("answer(error='no') if step == 1 else answer()"), news)
    for number in range(3):
        sink.put(step(number))
    status = ended(sink)
    assert (status.state, status.num_lost, status.last_step) == ("finished", 1, 2)
    assert news == ["sink wandb: no"]


def test_the_same_failure_is_said_once_and_many_in_a_row_stop_the_sink(
    start: Callable[..., SinkProcess],
) -> None:
    news: list[str] = []
    sink = start(served("answer() if kind == 'open' else answer(error='disk is full')"), news)
    for number in range(MAX_FAILURES + 3):
        sink.put(step(number))
    status = ended(sink)
    assert status.state == "failed"
    assert status.num_lost == MAX_FAILURES + 3
    assert news[0] == "sink wandb: disk is full"
    assert len(news) == 2


def test_while_it_is_too_slow_the_oldest_records_are_lost(
    start: Callable[..., SinkProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_WAITING", 10)
    gate = tmp_path / "gate"
    waits = (
        f"import os\n    while kind == 'open' and not os.path.exists({str(gate)!r}): "
        "time.sleep(0.01)\n    answer()"
    )
    news: list[str] = []
    sink = start(served(waits), news)
    for number in range(18):
        sink.put(step(number))
    gate.touch()
    status = ended(sink, timeout_s=60.0)
    assert (status.num_lost, status.last_step) == (8, 17)
    assert news == ["sink wandb: too slow: 8 records lost"]


@pytest.mark.parametrize("words", ["'no json'", "'[]'", "'x' * 20_000"])
def test_an_answer_that_is_none_stops_the_sink(
    words: str, start: Callable[..., SinkProcess]
) -> None:
    status = ended(start(served(f"print({words}, flush=True)"), []))
    assert status.state == "failed"
    assert status.problem


def test_a_full_disk_does_not_stop_the_sink_and_is_said(
    start: Callable[..., SinkProcess], tmp_path: Path
) -> None:
    (tmp_path / "sinks").write_text("a file where the folder should be")
    news: list[str] = []
    status = ended(start(WELL, news))
    assert status.state == "finished"
    assert len(news) == 1
    assert "its status is not written" in news[0]
