"""The what-if box says nothing that the verdict above it contradicts."""

from __future__ import annotations

import numpy as np

from echoscope.dashboard.page.whatif_box import payoff_words, spaced
from echoscope.diagnostics.judge.advice.actions import Action
from echoscope.diagnostics.selection.payoff import payoff_of


def test_a_filter_is_not_praised_where_the_verdict_advises_something_else() -> None:
    """The headline said that no setting of the trainer cures the run; the box: filtering pays."""
    pays = payoff_of(np.array(6 * [0.0] + 2 * [0.5]))
    assert payoff_words(pays, ()) == pays.text
    task = Action(text="Change the task.", settings={"envs.train.0.params.slip": 0})
    assert (
        payoff_words(pays, [task])
        == "Before any filter, do what the verdict says: Change the task."
    )
    keep = Action(text="Keep less.", settings={"selection.value": 0.5})
    assert payoff_words(pays, [keep]) == pays.text
    costs = payoff_of(np.array(8 * [0.5, 0.52]))
    assert payoff_words(costs, [task]) == costs.text


def test_a_growing_run_is_selected_from_at_the_same_steps_for_long() -> None:
    """Each new choice of steps is read from the disk, beside a trainer that needs the processor."""
    choices = [tuple(spaced(range(1, length + 1), 24)) for length in range(1, 201)]
    assert choices[23] == tuple(range(1, 25))  # all of them
    assert all(12 < len(steps) <= 24 for steps in choices[24:])
    assert all(steps[0] == 1 and length - steps[-1] < 16 for length, steps in enumerate(choices, 1))
    assert len(set(choices[100:])) < 20
