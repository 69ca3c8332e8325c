"""What an evaluation costs beyond sampling: its seconds over those that the engine took.

    python -m benchmarks.evaluation [--tasks 200] [--siblings 4] [--policy smollm2]

Prints one row a world: seconds of the whole evaluation without loading the model, seconds inside of
the engine's calls, and their ratio; then the same in seconds of the processor, which other work on
the machine hardly changes. Those of the evaluation are of all its threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import Engine
from echoscope.core.evaluation import play
from echoscope.core.evaluation.plan import Budget, settings_for
from echoscope.core.evaluation.weights import WeightsPlayer
from echoscope.core.evaluation.who import Who, resolve

from .common import describe_machine, markdown_table, read_options, temporary_folder

WORLDS = {"frozen_lake": "tiny", "bandit": "tiny", "sokoban": "tiny", "countdown": "tiny-puzzles"}


def timed(engine: Engine, spent: list[tuple[float, float]]) -> None:
    """Adds the seconds of every call of the engine to `spent`: by the clock, of the processor."""

    def measured(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = (time.perf_counter(), time.thread_time())
            try:
                return call(*args, **kwargs)
            finally:
                spent.append((time.perf_counter() - began[0], time.thread_time() - began[1]))

        return run

    for name in ("submit", "advance", "release_memory"):
        setattr(engine, name, measured(getattr(engine, name)))


def main() -> None:
    arguments = read_options(
        __doc__,
        tasks=200,
        siblings=4,
        policy=(str, "instead of the shipped ones"),
        worlds={"nargs": "+", "default": [*WORLDS], "choices": [*WORLDS]},
    )
    print(describe_machine())
    head = ("policy", "world", "episodes", "evaluation, s", "engine, s", "ratio")
    print(markdown_table((*head, "processor: evaluation, s", "engine, s", "ratio")))
    for world in arguments.worlds:
        policy = arguments.policy or WORLDS[world]
        spent: list[tuple[float, float]] = []
        loaded: list[float] = []

        def make(
            who: Who,
            config: RunConfig,
            budget: Budget,
            spent: list[tuple[float, float]] = spent,
            loaded: list[float] = loaded,
        ) -> WeightsPlayer:
            player = WeightsPlayer(who, config, is_budgeted=False)
            timed(player._engine, spent)
            loaded.append(time.process_time())
            return player

        with temporary_folder() as folder, patch.object(play, "make_player", make):
            evaluation = play.start(
                (who := resolve(policy)),
                settings_for(who, recipe=world, tasks=arguments.tasks, siblings=arguments.siblings),
                folder / "run",
                budget=Budget(),
                on_progress=lambda done, of: None,
                should_stop=lambda: False,
            )
        busy = time.process_time() - loaded[0]
        clock, processor = (sum(column) for column in zip(*spent, strict=True))
        print(
            f"| {policy} | {world} | {len(evaluation.outcomes)} | {evaluation.seconds:.1f} "
            f"| {clock:.1f} | {evaluation.seconds / clock:.2f} | {busy:.2f} | {processor:.2f} "
            f"| {busy / processor:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
