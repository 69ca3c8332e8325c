"""What an evaluation costs beyond sampling: its seconds over those that the engine took.

    python -m benchmarks.evaluation [--tasks 200] [--siblings 4]

Prints one row a world: seconds of the whole evaluation without loading the model, seconds inside of
the engine's calls, and their ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import Engine
from echoscope.core.evaluation import play
from echoscope.core.evaluation.plan import Budget, settings_for
from echoscope.core.evaluation.weights import WeightsPlayer
from echoscope.core.evaluation.who import Who, resolve

from .machine import describe_machine

WORLDS = {"frozen_lake": "tiny", "bandit": "tiny", "sokoban": "tiny", "countdown": "tiny-puzzles"}


def timed(engine: Engine, spent: list[float]) -> None:
    """Adds the seconds of every call of the engine to `spent`."""

    def measured(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                spent.append(time.perf_counter() - began)

        return run

    for name in ("submit", "advance", "release_memory"):
        setattr(engine, name, measured(getattr(engine, name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--siblings", type=int, default=4)
    arguments = parser.parse_args()
    print(describe_machine())
    print(
        "| world | episodes | evaluation, s | engine, s | ratio |\n| --- | --- | --- | --- | --- |"
    )
    for world, policy in WORLDS.items():
        spent: list[float] = []

        def make(
            who: Who, config: RunConfig, budget: Budget, spent: list[float] = spent
        ) -> WeightsPlayer:
            player = WeightsPlayer(who, config, is_budgeted=False)
            timed(player._engine, spent)
            return player

        with tempfile.TemporaryDirectory() as folder:
            evaluation = play.start(
                (who := resolve(policy)),
                settings_for(who, recipe=world, tasks=arguments.tasks, siblings=arguments.siblings),
                Path(folder) / "run",
                make=make,
                budget=Budget(),
                on_progress=lambda done, of: None,
                should_stop=lambda: False,
            )
        print(
            f"| {world} | {len(evaluation.outcomes)} | {evaluation.seconds:.1f} | {sum(spent):.1f} "
            f"| {evaluation.seconds / sum(spent):.2f} |"
        )


if __name__ == "__main__":
    main()
