"""The process that lets trackio write a folder: JSON lines come in, trackio's own calls go out.

Run as a script with TRACKIO_DIR set. The first line names project and run; each other line is a
trace, or the metrics of a step.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

_AT_ONCE = 64
"""Traces in one call."""
_PATIENCE_S = 60.0
"""Without a line taken in, or without an end. On a full disk trackio waits for ever."""
_BETWEEN_FLUSHES = 2_000
"""trackio keeps in memory what it has not written yet, so it is made to write now and then."""


class _Watch:
    """Ends this process when nothing was heard for a while."""

    def __init__(self) -> None:
        self._heard = time.monotonic()
        threading.Thread(target=self._wait, daemon=True).start()

    def each(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The lines; each that is asked for counts as heard."""
        for line in lines:
            self._heard = time.monotonic()
            yield line

    def _wait(self) -> None:
        while time.monotonic() - self._heard < _PATIENCE_S:
            time.sleep(1)
        sys.stderr.write(f"nothing was written for {_PATIENCE_S:.0f} s; is the disk full?\n")
        sys.stderr.flush()
        os._exit(1)


def write(lines: Iterable[bytes]) -> None:
    """Log every line with trackio's public interface."""
    import trackio

    rows = (json.loads(line) for line in lines)
    head: dict[str, Any] = next(rows)
    names = {"project": head["project"], "name": head["name"]}
    quiet = {"auto_log_gpu": False, "auto_log_cpu": False}
    run = trackio.init(**names, **quiet)
    waiting = total = 0
    for (step, is_metrics), group in groupby(rows, key=lambda row: (row["step"], "metrics" in row)):
        if is_metrics:
            for row in group:
                if row["metrics"]:
                    run.log(row["metrics"], step=step)
            continue
        traces = [trackio.Trace(messages=r["messages"], metadata=r["metadata"]) for r in group]
        for start in range(0, len(traces), _AT_ONCE):
            run.log({"episode": traces[start : start + _AT_ONCE]}, step=step)
        waiting += len(traces)
        total += len(traces)
        if waiting >= _BETWEEN_FLUSHES:
            trackio.finish()
            run = trackio.init(**names, **quiet, resume="must")
            waiting = 0
    trackio.finish()
    _check(Path(os.environ["TRACKIO_DIR"]) / f"{head['project']}.db", total)


def _check(database: Path, total: int) -> None:
    """Count what is there: trackio goes on with a warning where it could not write."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM traces").fetchall()
    if count != total:
        raise SystemExit(f"it wrote {count} of {total} traces")


if __name__ == "__main__":
    write(_Watch().each(sys.stdin.buffer))
