"""The process of one sink: reads records from its standard input, answers each with one line.

It belongs to the sink's package, whatever that does: threads, signal handlers, prints, a hang. The
answers are `{}`, `{"where": ..., "identity": ...}` to the first record, `{"error": ...}` where the
package failed, `{"warning": ...}` where it said something.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TextIO

ORPHAN_S = 60.0
"""How long a sink may take to finish after the run's process is gone."""
MAX_ERROR = 300


class Sink(Protocol):
    """A writer of one tool. Every method may raise; the run never notices more than the text."""

    def open(self, record: dict[str, Any]) -> dict[str, str]:
        """Begin; returns `where` the copy is, and its `identity` there."""
        ...

    def step(self, record: dict[str, Any]) -> None: ...

    def alarm(self, record: dict[str, Any]) -> None: ...

    def verdict(self, record: dict[str, Any]) -> None: ...

    def episodes(self, record: dict[str, Any]) -> None: ...

    def close(self, status: str) -> None:
        """End; `crashed` where the run's process is gone."""
        ...


def make(sink: str) -> Sink:
    """The writer of a tool, whose package is imported here and nowhere else."""
    if sink == "wandb":
        from .wandb_sink import WandbWriter

        return WandbWriter()
    if sink == "tensorboard":
        from .tensorboard_sink import TensorboardWriter

        return TensorboardWriter()
    from .trackio_sink import TrackioWriter

    return TrackioWriter()


def main(make: Callable[[str], Sink] = make) -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what packages print is no answer
    said: list[str] = []
    warnings.showwarning = lambda message, *_, **__: said.append(str(message))
    warnings.simplefilter("always", UserWarning)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run ends its sinks
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, lines), daemon=True).start()
    sink: Sink | None = None
    while line := lines.get():
        record = json.loads(line)
        try:
            answer: dict[str, str] = {}
            if record["kind"] == "open":
                sink = make(record["sink"])
                answer = sink.open(record)
                os.dup2(nowhere, 2)  # up to here it says why a start failed
            elif sink is not None and record["kind"] == "close":
                sink.close(record["status"])
                sink = None
            elif sink is not None:
                getattr(sink, _METHODS[record["kind"]])(record)
        except Exception as error:  # noqa: BLE001 - of a stranger's package; it is answered
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        except SystemExit as error:  # a package that gives up
            answer = {"error": f"the package ended: {error}"}
        if said and not answer.get("error"):
            answer["warning"] = " ".join(said[-1].split())
        said.clear()
        answer = {key: text[:MAX_ERROR] for key, text in answer.items()}
        print(json.dumps(answer), file=answers, flush=True)
    if sink is not None:
        sink.close("crashed")


_METHODS = {"step": "step", "alarm": "alarm", "verdict": "verdict", "episodes": "episodes"}


def _read(stream: TextIO, lines: queue.SimpleQueue[str]) -> None:
    """Hand on the lines; after the last one, end this process if it does not end itself."""
    for line in stream:
        lines.put(line)
    lines.put("")
    threading.Event().wait(ORPHAN_S)
    os._exit(1)


if __name__ == "__main__":
    main()
