"""A queue that holds nobody up: jobs in order, a bound, a limit on the wait for the end."""

from __future__ import annotations

import threading
import time

import pytest

from echoscope.diagnostics.notify import background
from echoscope.diagnostics.notify.background import BackgroundQueue


def test_jobs_are_done_in_order_and_those_that_wait_are_done_at_the_end() -> None:
    done: list[int] = []
    queue = BackgroundQueue("test")
    for number in range(100):
        queue.put(lambda number=number: done.append(number))
    queue.close()
    assert queue.join(20.0)
    assert done == list(range(100))
    queue.put(lambda: done.append(-1))
    assert done[-1] == 99


def test_of_too_many_jobs_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_WAITING", 10)
    done: list[int] = []
    gate, is_begun = threading.Event(), threading.Event()
    queue = BackgroundQueue("test")
    queue.put(lambda: (is_begun.set(), gate.wait(20.0)))
    assert is_begun.wait(20.0)
    for number in range(18):
        queue.put(lambda number=number: done.append(number))
    gate.set()
    queue.close()
    assert queue.join(20.0)
    assert done == list(range(8, 18))


def test_a_job_that_hangs_is_seen_and_can_be_left() -> None:
    gate, is_begun = threading.Event(), threading.Event()
    queue = BackgroundQueue("test")
    assert queue.busy_s == 0.0
    queue.put(lambda: (is_begun.set(), gate.wait(60.0)))
    queue.put(gate.set)
    assert is_begun.wait(20.0)
    time.sleep(0.01)
    assert queue.busy_s >= 0.01
    queue.abandon()
    assert not queue.join(0.05)
    gate.set()
    assert queue.join(20.0)


def test_a_pause_ends_with_the_queue() -> None:
    queue = BackgroundQueue("test")
    queue.put(lambda: queue.pause(60.0))
    queue.close()
    assert queue.join(20.0)


def test_a_queue_without_jobs_has_no_thread() -> None:
    queue = BackgroundQueue("test")
    queue.close()
    assert queue.join(0.0)
