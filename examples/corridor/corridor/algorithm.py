"""Estimator, loss, selection rule and reward term."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from echoscope.core.plugins.calls import AdvantageInputs, LossInputs
    from echoscope.diagnostics.selection.filter import GroupArrays
    from echoscope.store.records import Turn


def ranks(inputs: AdvantageInputs) -> NDArray[np.float64]:
    """(N, L) the share of its siblings that an episode beats, minus the share that beats it.

    The size of a reward plays no part, so one very large reward does not outweigh all others.
    """
    advantages_N = np.zeros(len(inputs.groups_N))
    for group in np.unique(inputs.groups_N):
        members = np.flatnonzero(inputs.groups_N == group)
        returns = inputs.returns_N[members]
        beats = np.sign(returns[:, None] - returns[None, :]).sum(axis=1)
        advantages_N[members] = beats / max(len(members) - 1, 1)
    return np.where(inputs.mask_NL, advantages_N[:, None], 0.0)


def soft_clip(inputs: LossInputs, *, width: float = 0.2) -> torch.Tensor:
    """(L,) PPO's surrogate with a ratio that bends towards 1 + `width` instead of breaking off."""
    log_ratio = (inputs.logprobs_L - inputs.old_logprobs_L).clamp(-20, 20)
    bent = 1 + width * torch.tanh((log_ratio.exp() - 1) / width)
    return -inputs.advantages_L * bent


def undecided(groups: GroupArrays) -> NDArray[np.bool_]:
    """(P,) groups whose episodes do not all have the same return."""
    high_P = np.where(groups.trainable_PG, groups.returns_PG, -np.inf).max(axis=1)
    low_P = np.where(groups.trainable_PG, groups.returns_PG, np.inf).min(axis=1)
    return high_P > low_P + 1e-9 * np.abs(low_P)


def hurry(turn: Turn) -> float:
    """-1 for a turn that changed nothing."""
    return 0.0 if turn.is_effective else -1.0
