"""Suites: a player's own tasks, and tasks that lie near to them or far away.

A suite changes the world of the settings, so "in" is what the player trained on: a run's checkpoint
is asked about its own board, and a model about the world as `--env` or `--recipe` shows it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from echoscope.diagnostics.measure.outcomes import OWN_TASKS
from echoscope.envs.settings import EnvGroup
from echoscope.text.did_you_mean import did_you_mean

from ..config.loading import ConfigError

_SEPARATOR = " / "
SUITES: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = tomllib.loads(
    (Path(__file__).parent / "suites.toml").read_text(encoding="utf-8")
)
"""Suite to world to its shifts, as `suites.toml` has them."""


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
                "tag": tag_of(world.name, shift["distance"], shift["name"]),
                "params": {**world.params, **shift["params"]},
                **{
                    name: max(most, getattr(world, name) or 0)
                    for name, most in shift.get("limits", {}).items()
                },
            }
            out.append(world.model_copy(update=changes))
    return out


def tag_of(world: str, distance: str, name: str) -> str:
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
