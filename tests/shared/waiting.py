"""Waits until something holds, for tests of threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(holds: Callable[[], T], patience_s: float = 60.0) -> T:
    """The first answer that is true. A test that waits longer fails."""
    deadline = time.monotonic() + patience_s
    while not (answer := holds()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return answer
