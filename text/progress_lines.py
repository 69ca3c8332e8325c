"""Progress of a command as lines on its error stream, for a program that started it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence

PROGRESS_VARIABLE = "ECHOSCOPE_PROGRESS"
"""Environment variable; with the value `LINES` a command writes lines instead of a bar."""
LINES = "lines"
_MARK = "progress"
EVERY_S = 0.2


def reporter(name: str) -> Callable[[int, int], None]:
    """Writes `progress NAME DONE OF`, separated by tabs, at most five times a second."""
    last = -math.inf

    def report(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= of or now - last >= EVERY_S:
            last = now
            sys.stderr.write(f"{_MARK}\t{name}\t{done}\t{of}\n")
            sys.stderr.flush()

    return report


def read_progress(lines: Sequence[str]) -> tuple[str, float | None] | None:
    """What the last line of progress says: name, and the share that is done.

    >>> read_progress(["progress\\treading (bytes)\\t5\\t20", "warning: a word"])
    ('reading (bytes)', 0.25)
    >>> read_progress(["anything else"]) is None
    True
    """
    for line in reversed(lines):
        parts = line.rstrip("\r").split("\t")
        if len(parts) == 4 and parts[0] == _MARK and parts[2].isdigit() and parts[3].isdigit():
            done, of = int(parts[2]), int(parts[3])
            return parts[1], min(1.0, done / of) if of else None
    return None
