"""How long something may take in a test, whatever else the machine is doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

HANG_S = 60.0
"""How long what hangs in a test hangs, if nobody ends it."""


@contextmanager
def processor_seconds(limit_s: float) -> Iterator[None]:
    """The block costs this thread less; what its neighbours do is not counted."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < limit_s


@contextmanager
def without_hanging() -> Iterator[None]:
    """The block does not wait for what hangs. Half of `HANG_S`: a busy machine is no failure."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < HANG_S / 2
