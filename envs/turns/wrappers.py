"""From actions to turns: the limits and penalties around a world.

`wrap` builds what `TurnSettings` describes. The world itself knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from echoscope.text.amounts import counted

from ..base import Observation, TextEnv
from .runner import TurnRunner
from .turn import TurnEnv, TurnResult, TurnSettings, WorldTurns


class TurnLayer(TurnEnv):
    """A layer that passes everything on; subclasses change what passes through."""

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


class LimitedTurns(TurnLayer):
    """Limits and penalties, as `TurnSettings` describes them.

    An episode stops with the first of these reasons: its own end, `max_actions`, `max_turns`.
    """

    def __init__(self, inner: TurnEnv, settings: TurnSettings) -> None:
        super().__init__(inner)
        self._settings = settings
        self._num_turns = self._num_actions = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._num_turns = self._num_actions = 0
        return super().reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        most = self._settings.max_actions
        allowed = actions if most is None else actions[: most - self._num_actions]
        result = super().step_turn(allowed, is_well_formed)
        self._num_turns += 1
        self._num_actions += len(result.actions)
        return replace(
            result,
            format_penalty=0.0 if result.is_valid else self._settings.format_penalty,
            stop_reason=result.stop_reason or self._limit_reached(result),
        )

    def instructions(self) -> str:
        settings, text = self._settings, super().instructions()
        if settings.max_actions is not None:
            text += f" At most {counted(settings.max_actions, 'action')} in all."
        per_turn = counted(settings.max_actions_per_turn, "action")
        each = " each" if settings.max_turns > 1 else ""
        return f"{text} You have {counted(settings.max_turns, 'turn')}, {per_turn}{each}."

    def _limit_reached(self, result: TurnResult) -> str | None:
        settings = self._settings
        if settings.max_actions is not None and self._num_actions >= settings.max_actions:
            return "max_actions"
        return "max_turns" if self._num_turns >= settings.max_turns else None


def wrap(build: Callable[[], TextEnv], settings: TurnSettings) -> TurnEnv:
    """The turns that `settings` ask for, around the world that `build` makes."""
    runner = TurnRunner(build, max_actions_per_turn=settings.max_actions_per_turn)
    return LimitedTurns(runner, settings)


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
