"""A child with limits: what it may not do, and that an end of a fork costs the child nothing."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echoscope.text.limited_child import LimitedChildren

MODULE = """
import os, socket
from echoscope.text.limited_child import limit, serve

def _errno(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return None

def _answer(question):
    if question == "process":
        return os.getppid()
    limit(memory_bytes=1 << 28, cpu_s=1, file_bytes=0, is_closed=True)
    if question == "memory":
        return len(bytearray(1 << 30))
    if question == "cpu":
        while True:
            pass
    return [_errno(lambda: open("/etc/hostname")), _errno(socket.socket), _errno(os.pipe)]

def work():
    serve(_answer)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedChildren]:
    (tmp_path / "child_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    child = LimitedChildren("child_of_a_test")
    yield child
    child.close()


def test_it_opens_no_file_no_connection_and_no_program(child: LimitedChildren) -> None:
    assert child.ask("open", 60.0) == [errno.EMFILE] * 3


@pytest.mark.parametrize("question", ["memory", "cpu"])
def test_what_needs_too_much_has_no_answer_and_the_next_question_has(
    child: LimitedChildren, question: str
) -> None:
    process = child.ask("process", 60.0)
    assert child.ask(question, 60.0) is None
    assert child.ask("process", 60.0) == process


def test_a_child_that_does_not_answer_in_time_is_replaced(child: LimitedChildren) -> None:
    process = child.ask("process", 60.0)
    assert child.ask("cpu", 0.1) is None
    assert child.ask("process", 60.0) not in (None, process)


def test_children_answer_side_by_side(child: LimitedChildren) -> None:
    children = LimitedChildren("child_of_a_test", 2)
    barrier = threading.Barrier(2)

    def ask(question: str) -> int:
        first = children._idle.get()
        try:
            barrier.wait(60)  # both are held at the same time
            process: int = first.answer(question, 60.0)
        finally:
            children._idle.put(first)
        return process

    with ThreadPoolExecutor(2) as threads:
        assert len({*threads.map(ask, ["process", "process"])}) == 2
    children.close()
