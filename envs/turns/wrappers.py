"""From actions to turns: limits, penalties and failures, each in a layer of its own.

    Rendered( TurnLimit( EndOnInvalid( FormatPenalty( ActionLimit( TurnRunner( TextEnv ))))))

`wrap` builds the stack that `TurnSettings` describes. The layers share one small interface
(`TurnEnv`); each does one thing to the `TurnResult` that passes through it. The world itself knows
nothing of limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from echoscope.text.amounts import counted

from ..base import Observation, TextEnv
from ..frames import card_frame, to_png
from .runner import TurnRunner
from .turn import TurnEnv, TurnResult, TurnSettings, WorldTurns


class TurnLayer(TurnEnv):
    """A layer that passes everything on; subclasses change what they are named after."""

    def __init__(self, inner: TurnEnv) -> None:
        self.inner = inner

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return self.inner.reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        return self.inner.step_turn(actions, is_well_formed)

    def instructions(self) -> str:
        return self.inner.instructions()

    def close(self) -> None:
        self.inner.close()


class ActionLimit(TurnLayer):
    """Truncates the episode once `max_actions` actions were executed."""

    def __init__(self, inner: TurnEnv, max_actions: int) -> None:
        super().__init__(inner)
        self._max_actions = max_actions
        self._num_actions = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._num_actions = 0
        return super().reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        allowed = actions[: self._max_actions - self._num_actions]
        result = super().step_turn(allowed, is_well_formed)
        self._num_actions += len(result.actions)
        if result.stop_reason is None and self._num_actions >= self._max_actions:
            return replace(result, stop_reason="max_actions")
        return result

    def instructions(self) -> str:
        return f"{super().instructions()} At most {counted(self._max_actions, 'action')} in all."


class FormatPenalty(TurnLayer):
    """Charges `penalty` (<= 0) once for a turn that is not valid."""

    def __init__(self, inner: TurnEnv, penalty: float) -> None:
        super().__init__(inner)
        self._penalty = penalty

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        result = super().step_turn(actions, is_well_formed)
        return result if result.is_valid else replace(result, format_penalty=self._penalty)


class EndOnInvalid(TurnLayer):
    """Ends the episode at a turn without a single valid action."""

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        result = super().step_turn(actions, is_well_formed)
        if result.stop_reason is None and not result.actions:
            return replace(result, stop_reason="parse_failed")
        return result


class TurnLimit(TurnLayer):
    """Truncates the episode after `max_turns` turns, and tells the policy about its limits."""

    def __init__(self, inner: TurnEnv, max_turns: int, max_actions_per_turn: int) -> None:
        super().__init__(inner)
        self._max_turns = max_turns
        self._max_actions_per_turn = max_actions_per_turn
        self._num_turns = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._num_turns = 0
        return super().reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        result = super().step_turn(actions, is_well_formed)
        self._num_turns += 1
        if result.stop_reason is None and self._num_turns >= self._max_turns:
            return replace(result, stop_reason="max_turns")
        return result

    def instructions(self) -> str:
        per_turn = counted(self._max_actions_per_turn, "action")
        each = " each" if self._max_turns > 1 else ""
        turns = counted(self._max_turns, "turn")
        return f"{super().instructions()} You have {turns}, {per_turn}{each}."


class Rendered(TurnLayer):
    """Gives every observation a picture of its view, unless the world has given one itself."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return rendered(super().reset(seed, noise_seed))

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        result = super().step_turn(actions, is_well_formed)
        return replace(result, observation=rendered(result.observation))


def rendered(observation: Observation) -> Observation:
    """An observation with a picture: of its view, or of its text where it has no readable one.

    Never of its frame, which may show people what the policy has to find out.
    """
    if observation.image is not None:
        return observation
    if observation.view is not None:
        try:
            return replace(observation, image=to_png(observation.view))
        except ValueError:
            pass  # a frame of somebody's own kind
    return replace(observation, image=to_png(card_frame("", observation.text.splitlines())))


def wrap(build: Callable[[], TextEnv], settings: TurnSettings) -> TurnEnv:
    """The stack of layers that `settings` asks for, around the world that `build` makes."""
    stack: TurnEnv = TurnRunner(
        build,
        max_actions_per_turn=settings.max_actions_per_turn,
        action_timeout_s=settings.action_timeout_s,
        reset_timeout_s=settings.reset_timeout_s,
    )
    if settings.max_actions is not None:
        stack = ActionLimit(stack, settings.max_actions)
    stack = FormatPenalty(stack, settings.format_penalty)
    if settings.end_on_invalid:
        stack = EndOnInvalid(stack)
    stack = TurnLimit(stack, settings.max_turns, settings.max_actions_per_turn)
    return stack if settings.render == "none" else Rendered(stack)


def world_of(stack: TurnEnv) -> WorldTurns:
    """The innermost layer of a stack."""
    while isinstance(stack, TurnLayer):
        stack = stack.inner
    if not isinstance(stack, WorldTurns):
        raise TypeError(f"a stack of turn layers ends in a WorldTurns, not {type(stack).__name__}")
    return stack


def runner_of(stack: TurnEnv) -> TurnRunner:
    """The innermost layer of a stack whose world lives in this process."""
    world = world_of(stack)
    if not isinstance(world, TurnRunner):
        raise TypeError(f"{type(world).__name__} has no world in this process")
    return world
