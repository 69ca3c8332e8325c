"""Processes that tests start: none outlives the test that started it, also where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Process(Protocol):
    def kill(self) -> object: ...


P = TypeVar("P", bound=Process)
_started: list[Process] = []


def started(process: P) -> P:
    """The same process, which the test that runs now owns from here on."""
    _started.append(process)
    return process


@contextmanager
def ended_afterwards() -> Iterator[None]:
    """Kill what was started inside and still runs, the last first. `kill` of an ended one is fine.

    What fixtures of a module or a session started before stays theirs.
    """
    first = len(_started)
    try:
        yield
    finally:
        while len(_started) > first:
            _started.pop().kill()
