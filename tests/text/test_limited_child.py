"""A child with limits: what it may not do, and that an end of a fork costs the child nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from echoscope.text.limited_child import LimitedChild

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
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedChild]:
    (tmp_path / "child_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    child = LimitedChild("child_of_a_test")
    yield child
    child.close()


def test_it_opens_no_file_no_connection_and_no_program(child: LimitedChild) -> None:
    assert child.ask("open", 60.0) == [errno.EMFILE] * 3


@pytest.mark.parametrize("question", ["memory", "cpu"])
def test_what_needs_too_much_has_no_answer_and_the_next_question_has(
    child: LimitedChild, question: str
) -> None:
    process = child.ask("process", 60.0)
    assert child.ask(question, 60.0) is None
    assert child.ask("process", 60.0) == process


def test_a_child_that_does_not_answer_in_time_is_replaced(child: LimitedChild) -> None:
    process = child.ask("process", 60.0)
    assert child.ask("cpu", 0.1) is None
    assert child.ask("process", 60.0) not in (None, process)
