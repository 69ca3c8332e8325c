"""Turns: what a reply does, what it costs, and when an episode stops."""

from __future__ import annotations

from functools import partial

import pytest

from echoscope.envs import registry
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import TurnSettings

LAKE = {"slip": 0.0, "observation": "relative", "holes": 0, "min_distance": 2}


def stack(env: str = "frozen_lake", seed: int = 1, **settings: object) -> TurnRunner:
    params = LAKE if env == "frozen_lake" else {}
    merged = {"max_turns": 5, "max_actions_per_turn": 2, **settings}
    turns = TurnRunner(partial(registry.make, env, **params), TurnSettings(**merged))
    turns.reset(seed, 0)
    return turns


def look(turns: TurnRunner) -> str:
    """What the world shows now, without touching it: a reset to the same task."""
    return turns.env.reset(1, 0).text


def open_moves(turns: TurnRunner) -> tuple[str, str]:
    """A first move that does not end the episode, and the move that takes it back."""
    opposite = {"up": "down", "down": "up", "left": "right", "right": "left"}
    plan = turns.env.solve()
    assert plan is not None
    return plan[0], opposite[plan[0]]


def test_actions_run_in_order_and_are_recorded_in_the_worlds_spelling() -> None:
    turns = stack()
    go, back = open_moves(turns)
    before = look(turns)
    result = turns.step_turn([f" {go.upper()} ", back], True)
    assert result.actions == (go, back)
    assert result.observation.text == before
    assert (result.is_valid, result.is_effective, result.reward) == (True, True, 0.0)
    assert (result.format_penalty, result.stop_reason, result.success) == (0.0, None, False)


def test_surplus_actions_are_dropped_and_said_so() -> None:
    turns = stack(max_actions_per_turn=1)
    go, back = open_moves(turns)
    result = turns.step_turn([go, back], True)
    assert result.actions == (go,)
    assert result.is_valid
    assert result.observation.text.startswith("Only the first 1 action counted. Goal ")


def test_an_invalid_action_is_skipped_charged_once_and_said() -> None:
    turns = stack(format_penalty=-0.25)
    go, _ = open_moves(turns)
    result = turns.step_turn(["jump", go], True)
    assert result.actions == (go,)
    assert result.format_penalty == -0.25
    assert not result.is_valid
    assert result.observation.text.startswith("Invalid. Goal ")
    both = turns.step_turn(["jump", "fly"], True)
    assert (both.actions, both.format_penalty, both.is_effective) == ((), -0.25, False)
    # Said once, not once more for each bad turn.
    assert both.observation.text.count("Invalid.") == 1


@pytest.mark.parametrize(("actions", "is_well_formed"), [((), True), ((), False)])
def test_a_reply_without_an_action_is_a_turn_without_effect(
    actions: tuple[str, ...], is_well_formed: bool
) -> None:
    turns = stack()
    before = look(turns)
    result = turns.step_turn(actions, is_well_formed)
    assert result.observation.text == f"Invalid. {before}"
    assert (result.actions, result.is_valid, result.format_penalty) == ((), False, -0.1)
    again = turns.step_turn(actions, is_well_formed)
    assert again.observation.text == result.observation.text


def test_a_malformed_reply_with_a_good_action_is_executed_and_charged() -> None:
    turns = stack()
    go, _ = open_moves(turns)
    result = turns.step_turn([go], False)
    assert (result.actions, result.is_valid, result.format_penalty) == ((go,), False, -0.1)


@pytest.mark.parametrize(
    ("actions", "notice"),
    [
        (["Farmer"], "Invalid reply: wrong format."),
        ([], "Invalid reply: no action found."),
        ([" "], "Invalid reply: no action found."),
        (["jump"], 'Invalid action "jump".'),
    ],
)
def test_a_malformed_reply_is_told_what_is_wrong(actions: list[str], notice: str) -> None:
    turns = TurnRunner(
        partial(registry.make, "bandit"), TurnSettings(max_turns=2, max_actions_per_turn=1)
    )
    turns.reset(0, 0)
    assert turns.step_turn(actions, False).observation.text.startswith(notice)


def test_the_turn_limit_truncates() -> None:
    turns = stack(max_turns=2)
    assert turns.step_turn([], True).stop_reason is None
    last = turns.step_turn([], True)
    assert (last.stop_reason, last.terminated, last.success) == ("max_turns", False, False)
    turns.reset(1, 0)
    assert turns.step_turn([], True).stop_reason is None


def test_the_action_limit_counts_executed_actions_only() -> None:
    turns = stack(max_actions=3, max_turns=9)
    go, back = open_moves(turns)
    assert turns.step_turn(["jump"], True).stop_reason is None
    assert turns.step_turn([go, back], True).stop_reason is None
    last = turns.step_turn([go, back], True)
    assert (last.actions, last.stop_reason) == ((go,), "max_actions")


def test_the_end_of_the_task_wins_over_every_limit() -> None:
    turns = stack(max_turns=1, max_actions_per_turn=9, max_actions=9)
    plan = turns.env.solve()
    result = turns.step_turn([*plan, "up"], True)
    assert (result.stop_reason, result.terminated, result.success) == ("terminated", True, True)
    assert result.actions == tuple(plan)
    assert result.reward == 1.0


def test_instructions_name_the_limits() -> None:
    for turns, ending in (
        (
            stack(max_turns=6, max_actions_per_turn=1),
            "Actions: up, down, left, right. You have 6 turns, 1 action each.",
        ),
        (stack(max_actions=4), "At most 4 actions in all. You have 5 turns, 2 actions each."),
        (stack("bandit", max_turns=1), "You have 1 turn, 2 actions."),
    ):
        assert turns.reset(0, 0).instructions.endswith(ending)
