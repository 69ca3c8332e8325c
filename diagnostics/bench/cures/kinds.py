"""The kinds of collapse that CureBench trains, and their healthy twins: data, in `kinds.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...judge.advice.treatments import (
    ADVICE,
    ASKED,
    GUARDED,
    GUARDS,
    PLACEBO,
    REWOUND,
    UNTREATED,
    treatment,
)

HERE = Path(__file__).parent
DEVELOP = (0, 1, 2, 3, 4)
"""Seeds that treatments and advice may be chosen on."""
SET_ASIDE = (5, 6, 7, 8, 9)
"""Seeds by which no treatment and no advice is chosen."""
LATER = (10, 11, 12, 13, 14)
"""Seeds that are run once, for kinds whose advice changed after a run of seeds 5 to 9 was seen."""
ALL_SEEDS = (*DEVELOP, *SET_ASIDE, *LATER)
"""For what no advice depends on: which kinds count, and healthy runs."""
FURTHER = 60
"""Steps that every arm trains on from where it begins."""
LAST = FURTHER // 3
"""Steps at the end over which success is averaged."""
LOST = 0.5
"""Share of the best success before the alarm below which an untreated run has collapsed."""
LEAST_COLLAPSES, OUT_OF = 3, 5
"""A kind counts if so many of so many seeds collapse untreated; of more seeds, as large a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A healthy way to train a shipped policy on a world, which kinds change something about."""

    name: str
    world: str
    policy: str
    recipe: str
    overrides: tuple[str, ...]
    begins: int
    """The step after which a treatment is given to the twin."""

    @property
    def steps(self) -> int:
        """The last step of the twin itself, and of guarded runs, which are compared with it."""
        return self.begins + FURTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to collapse: a twin, and what is changed about it."""

    name: str
    fault: str
    """What is wrong with it, as a phrase."""
    twin: Twin
    overrides: tuple[str, ...]
    treatments: tuple[str, ...]
    """Names of the treatments that its symptoms make thinkable, the likeliest first."""
    steps: int
    """Steps within which it must raise a critical alarm."""
    live: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that are changed while the run goes on, by the first step that trains with them."""
    is_of_task: bool = False
    """The task is what is wrong, which only a person may change: a guard has to ask."""

    @property
    def arms(self) -> tuple[str, ...]:
        """What is trained beside the untreated run.

        To rewind alone repeats an untreated run bit for bit, unless a setting was changed live.
        """
        rewound, asked = (REWOUND,) * bool(self.live), (ASKED,) * self.is_of_task
        return (*rewound, PLACEBO, ADVICE, *self.treatments, GUARDED, *asked)


def words_of(subject: Kind | Twin) -> tuple[str, ...]:
    """What a run of it is started with after the recipe's name, but for the seed."""
    if isinstance(subject, Twin):
        return subject.overrides
    return (*subject.twin.overrides, *subject.overrides)


def setup_of(subject: Kind | Twin, arm: str) -> str:
    """A short hash of what a piece is trained with: a record of another setup is out of date."""
    if isinstance(subject, Kind):
        parts: list[Any] = [subject.twin.recipe, subject.steps, sorted(subject.live.items())]
    else:
        parts = [subject.recipe, subject.begins]
    parts += [words_of(subject), FURTHER]
    if arm != UNTREATED:
        changes = "" if arm == ADVICE or arm in GUARDS else repr(treatment(arm).changes)
        # Pieces were trained when the class of a change was called so.
        parts.append(changes.replace("TreatmentChange(", "Change(") or arm)
    return sha256(repr(parts).encode()).hexdigest()[:8]


@cache
def twins() -> Mapping[str, Twin]:
    """All twins by name."""
    return {
        name: Twin(name=name, **entry | {"overrides": (*_file()["common"], *entry["overrides"])})
        for name, entry in _file()["twins"].items()
    }


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds by name, in the order of the tables.

    Raises:
        KeyError: the file names a twin or a treatment that there is not.
    """
    return {
        name: Kind(
            name=name,
            fault=entry["fault"],
            twin=twins()[entry["twin"]],
            overrides=tuple(entry["overrides"]),
            treatments=tuple(treatment(each).name for each in entry["treatments"]),
            steps=entry["steps"],
            is_of_task=entry.get("is_of_task", False),
            live={int(step): values for step, values in entry.get("live", {}).items()},
        )
        for name, entry in _file()["kinds"].items()
    }


@cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads((HERE / "kinds.toml").read_text(encoding="utf-8"))
