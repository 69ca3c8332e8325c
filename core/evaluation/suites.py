"""Suites: a player's own tasks, and tasks that lie near to them or far away.

A suite changes the world of the settings, so "in" is what the player trained on: a run's checkpoint
is asked about its own board, and a model about the world as `--env` or `--recipe` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from echoscope.diagnostics.measure.outcomes import OWN_TASKS
from echoscope.envs.settings import EnvGroup
from echoscope.text.did_you_mean import did_you_mean

from ..config.loading import ConfigError

Distance = Literal["in", "near", "far"]
_SEPARATOR = " / "


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How a world is changed."""

    distance: Distance
    name: str
    params: Mapping[str, Any]
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of `EnvGroup`: larger tasks need more turns."""


def _gym(**settings: int) -> dict[str, Any]:
    """Settings of a generator of reasoning-gym."""
    return {"params": settings}


GENERALISATION: Mapping[str, Sequence[Shift]] = MappingProxyType(
    {
        "frozen_lake": (
            Shift(
                distance="near",
                name="5x5",
                params={"size": 5, "holes": 4, "max_distance": 6},
                limits={"max_turns": 8},
            ),
            Shift(distance="near", name="slip 10 %", params={"slip": 0.1}),
            Shift(
                distance="far",
                name="8x8",
                params={"size": 8, "holes": 12, "min_distance": 6, "max_distance": 12},
                limits={"max_turns": 16},
            ),
            Shift(
                distance="far", name="slip 33 %", params={"slip": 0.33}, limits={"max_turns": 12}
            ),
        ),
        "sokoban": (
            Shift(distance="near", name="6x6", params={"size": [6, 6], "max_solution": 8}),
            Shift(
                distance="near",
                name="other symbols",
                params={"symbols": "W.GBAC@", "observation": "grid"},
            ),
            Shift(
                distance="far",
                name="8x8, two boxes",
                params={"size": [8, 8], "boxes": 2, "max_solution": 20},
                limits={"max_turns": 24},
            ),
        ),
        "bandit": (Shift(distance="near", name="other names", params={"pairs": "test"}),),
        "countdown": (
            Shift(
                distance="near", name="larger numbers", params={"max_number": 20, "max_target": 60}
            ),
            Shift(distance="near", name="products too", params={"operations": "+-*"}),
            Shift(distance="far", name="four numbers", params={"numbers": 4}),
        ),
        "reasoning_gym:chain_sum": (
            Shift(distance="near", name="7 or 8 terms", params=_gym(min_terms=7, max_terms=8)),
            Shift(
                distance="far",
                name="7 or 8 terms of 5 or 6 digits",
                params=_gym(min_terms=7, max_terms=8, min_digits=5, max_digits=6),
            ),
        ),
        "reasoning_gym:number_sorting": (
            Shift(
                distance="near",
                name="11 to 14 numbers",
                params=_gym(min_numbers=11, max_numbers=14),
            ),
            Shift(
                distance="far",
                name="15 to 20 numbers",
                params=_gym(min_numbers=15, max_numbers=20),
            ),
        ),
    }
)
SUITES: Mapping[str, Mapping[str, Sequence[Shift]]] = MappingProxyType(
    {"generalisation": GENERALISATION}
)


def worlds_of(suite: str, worlds: Sequence[EnvGroup]) -> list[EnvGroup]:
    """The worlds themselves, and each as the suite changes it; their tags say how.

    Of several entries of one world the first counts.

    Raises:
        ConfigError: no such suite, or one that does not know a world.
    """
    if suite not in SUITES:
        raise ConfigError(f"no suite {suite!r}{did_you_mean(suite, SUITES)}")
    shifts = SUITES[suite]
    out = []
    first_of_each = {world.env: world for world in reversed(worlds)}
    for world in reversed(first_of_each.values()):
        if world.env not in shifts:
            raise ConfigError(
                f"suite {suite} does not know the world {world.env!r}; it knows {', '.join(shifts)}"
            )
        out.append(world.model_copy(update={"tag": tag_of(world.name, "in", "")}))
        for shift in shifts[world.env]:
            changes = {
                "tag": tag_of(world.name, shift.distance, shift.name),
                "params": {**world.params, **shift.params},
                **{
                    name: max(most, getattr(world, name) or 0)
                    for name, most in shift.limits.items()
                },
            }
            out.append(world.model_copy(update=changes))
    return out


def tag_of(world: str, distance: Distance, name: str) -> str:
    """The tag of a world of a suite.

    >>> tag_of("frozen_lake", "near", "5x5")
    'frozen_lake / near / 5x5'
    """
    return _SEPARATOR.join(part for part in (world, distance, name) if part)


def origin_of(tag: str) -> str | None:
    """The tag of the player's own tasks that a world of a suite is compared with; else None.

    >>> origin_of("frozen_lake / near / 5x5"), origin_of("frozen_lake / in"), origin_of("bandit")
    ('frozen_lake / in', None, None)
    """
    world, *rest = tag.split(_SEPARATOR)
    if len(rest) != 2 or rest[0] not in ("near", "far"):
        return None
    return world + OWN_TASKS
