"""A watch of files that a test writes, and lines as trainers write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echoscope.store.reader import open_run
from echoscope.store.records import Alarm
from echoscope.watch.ledger import Waits
from echoscope.watch.watching import Watch

AT_ONCE = Waits(line_quiet_s=0.0, quiet_s=0.0)
"""What stands in a file is all of its step."""
NEVER = Waits(line_quiet_s=1e9, quiet_s=1e9, patience_s=1e9)
"""Only a later step says that one is complete."""


class Followed:
    """A watch of `path` into `run`, and what it said."""

    def __init__(self, path: Path, run: Path, waits: Waits = AT_ONCE, **settings: Any) -> None:
        self.messages: list[str] = []
        self.alarms: list[Alarm] = []
        self.run = run
        self.seen: list[int] = []
        self.watch = Watch(
            path,
            run,
            waits=waits,
            on_message=self.messages.append,
            on_step=lambda step, values, verdict: self.seen.append(step),
            on_alarms=lambda alarms, verdict: self.alarms.extend(alarms),
            **settings,
        )

    def look(self, times: int = 1) -> list[int]:
        """Look so many times, and which steps the run has now.

        What a look leaves for the next because the machine is slow is part of it.
        """
        for _ in range(times):
            self.watch.look()
            while self.watch.rest_s == 0.0:
                self.watch.look()
        return self.steps()

    def steps(self) -> list[int]:
        if not (self.run / "run.json").is_file():
            return []
        rows = open_run(self.run).sql("SELECT DISTINCT step FROM metrics ORDER BY step")
        return [int(step) for step in rows.column("step").to_pylist()]

    def values(self, key: str) -> dict[int, float]:
        steps, values = open_run(self.run).metrics(key)
        return dict(zip(steps.tolist(), values.tolist(), strict=True))

    def num_episodes(self, *steps: int) -> list[int]:
        return [len(open_run(self.run).trajectories_of_step(step)) for step in steps]

    def was_told(self, phrase: str) -> bool:
        return any(phrase in line for line in self.messages)


@contextmanager
def followed(path: Path, run: Path, waits: Waits = AT_ONCE, **settings: Any) -> Iterator[Followed]:
    watch = Followed(path, run, waits, **settings)
    try:
        yield watch
    finally:
        watch.watch.close()


def line(step: int, entropy: float = 1.0, reward: float = 0.5) -> str:
    """As verl prints a step."""
    return f"(pid=7) step:{step} - actor/entropy:{entropy} - critic/score/mean:{reward}\n"


def row(step: int, sample: int, score: float = 1.0) -> str:
    """As verl writes a rollout."""
    return (
        json.dumps(
            {
                "input": f"user\ntask {sample // 2}\nassistant\n",
                "output": f"<think>move {sample}</think>go",
                "gts": "go",
                "score": score,
                "step": step,
            }
        )
        + "\n"
    )


def add(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
