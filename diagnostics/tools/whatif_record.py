"""What a what-if answers: what one selection keeps, of a step and of all of them.

Legend: **P** groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import SelectionConfig
from ..selection.filter import BoolArray, FloatArray64
from ..selection.payoff import Payoff


class Drop(StrEnum):
    """Why a group does not train."""

    SOLVED = "solved"
    """No reward spread: every sibling succeeded."""
    HOPELESS = "hopeless"
    """No reward spread: every sibling failed."""
    EQUAL = "equal returns"
    """No reward spread for another reason, or success is not known."""
    ZERO = "metric is zero"
    RANKED = "ranked out"
    """It has signal, and the rule left it out."""
    UNDEFINED = "metric not defined"
    FAILED = "cannot train"
    """No sibling has sampled tokens and an environment that worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one selection keeps, of a step or of many."""

    num_steps: int
    num_empty: int
    """Steps without an update, because nothing was kept."""
    num_groups: int
    num_groups_kept: int
    num_trajectories: int
    num_trajectories_kept: int
    signal: float
    """Sum of the reward std of all groups where it is defined."""
    signal_kept: float
    """... of the kept ones; of a group kept in part, as much as its share of |return - mean|."""
    num_tokens: int
    """Sampled tokens of all trajectories; 0 where none were recorded."""
    num_tokens_kept: int
    drops: Mapping[Drop, int] = field(default_factory=dict)
    """Groups that do not train, by why."""

    @property
    def kept_frac(self) -> float:
        return _share(self.num_groups_kept, self.num_groups)

    @property
    def signal_frac(self) -> float:
        """Share of the reward std that is kept; NaN where there is none."""
        return _share(self.signal_kept, self.signal)

    @property
    def tokens_saved_frac(self) -> float:
        """Share of sampled tokens that the update does not go through; NaN without tokens."""
        return _share(self.num_tokens - self.num_tokens_kept, self.num_tokens)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not defined is null."""
        fractions = {
            "kept_frac": self.kept_frac,
            "signal_frac": self.signal_frac,
            "tokens_saved_frac": self.tokens_saved_frac,
        }
        return {
            "num_steps": self.num_steps,
            "num_empty": self.num_empty,
            "num_groups": self.num_groups,
            "num_groups_kept": self.num_groups_kept,
            "num_trajectories": self.num_trajectories,
            "num_trajectories_kept": self.num_trajectories_kept,
            "num_tokens": self.num_tokens,
            "num_tokens_kept": self.num_tokens_kept,
            **{name: value if value == value else None for name, value in fractions.items()},
            "drops": {str(why): count for why, count in self.drops.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIfRow:
    """One step: group by group, and summed up."""

    step: int
    settings: SelectionConfig
    group_index_P: NDArray[np.int64]  # (P,)
    reward_std_P: FloatArray64  # (P,) NaN with fewer than two siblings that can train
    keep_P: BoolArray  # (P,) what the selection would have kept
    kept_P: BoolArray | None  # (P,) what the run kept; None where it did not say
    drop_P: tuple[Drop | None, ...]  # (P,) why not, of the simulated selection
    simulated: Kept
    recorded: Kept | None
    reason: str
    """Why nothing would have been kept, in words; empty otherwise."""

    @property
    def num_changed(self) -> int:
        """Groups that the run trained on and the selection drops, or the other way round."""
        return 0 if self.kept_P is None else int((self.keep_P != self.kept_P).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIf:
    """All steps asked for, and their totals."""

    rows: tuple[WhatIfRow, ...]
    simulated: Kept
    recorded: Kept | None
    """Of the steps where the run said what it kept; None if it never did."""
    payoff: Payoff
    notes: tuple[str, ...] = ()

    @property
    def num_changed(self) -> int:
        return sum(row.num_changed for row in self.rows)


def total(parts: Sequence[Kept]) -> Kept:
    drops: Counter[Drop] = Counter()
    for part in parts:
        drops.update(part.drops)
    return Kept(
        num_steps=sum(part.num_steps for part in parts),
        num_empty=sum(part.num_empty for part in parts),
        num_groups=sum(part.num_groups for part in parts),
        num_groups_kept=sum(part.num_groups_kept for part in parts),
        num_trajectories=sum(part.num_trajectories for part in parts),
        num_trajectories_kept=sum(part.num_trajectories_kept for part in parts),
        signal=sum(part.signal for part in parts),
        signal_kept=sum(part.signal_kept for part in parts),
        num_tokens=sum(part.num_tokens for part in parts),
        num_tokens_kept=sum(part.num_tokens_kept for part in parts),
        drops={why: drops[why] for why in Drop if drops[why]},
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
