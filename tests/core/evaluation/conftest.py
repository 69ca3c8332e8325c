"""Evaluations of the shipped policy, and of a server that replies as it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from echoscope.core.evaluation import play
from echoscope.core.evaluation.plan import Budget, settings_for
from echoscope.core.evaluation.play import Evaluation
from echoscope.core.evaluation.who import resolve

Evaluate = Callable[..., Evaluation]


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """Evaluates who is named on the worlds of recipe frozen_lake, greedily, in a new folder."""

    def run(
        who: str,
        name: str,
        *,
        tasks: int = 6,
        siblings: int = 1,
        budget: Budget | None = None,
        price: tuple[float, float] | None = None,
        words: tuple[str, ...] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Evaluation:
        player = resolve(who, None, price)
        settings = settings_for(
            player,
            recipe="frozen_lake",
            tasks=tasks,
            siblings=siblings,
            temperature=0.0,
            seed=0,
            words=words,
        )
        return play.start(
            player,
            settings,
            tmp_path / name,
            budget=budget or Budget(),
            on_progress=lambda done, of: None,
            should_stop=should_stop,
        )

    return run


@pytest.fixture
def go_on(tmp_path: Path) -> Evaluate:
    """Plays what an evaluation has left."""

    def run(name: str, budget: Budget | None = None) -> Evaluation:
        return play.resume(
            tmp_path / name,
            budget=budget,
            on_progress=lambda done, of: None,
            should_stop=lambda: False,
        )

    return run
