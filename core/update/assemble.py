"""Between records and tensors: which trajectories train on what, and what was learned of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from echoscope.diagnostics.selection.filter import Selection
from echoscope.store.records import FloatArray, RolloutBatch, Trajectory, TrajectoryOutcome

from ..config.settings import RunConfig
from ..rollout.chat import ChatFormat
from .advantages import LeftOut, estimate_advantages, left_out_rewards, normalize_returns
from .batch import TokenBatch, credit_rewards, pack, scatter_to_turns
from .kl import penalize


def kept_trajectories(rollouts: RolloutBatch, selection: Selection) -> list[Trajectory]:
    """The trajectories that train, in their order; never one twice."""
    return [rollouts.groups[p][g] for p, g in np.argwhere(selection.keep_PG)]


def pack_kept(
    rollouts: RolloutBatch, selection: Selection, config: RunConfig, chat: ChatFormat
) -> tuple[TokenBatch, LeftOut]:
    """Rows of the kept trajectories, with rewards on the tokens that earn them.

    Also returns the rewards of siblings that selection left out, whom a group's baseline counts.

    Returns are normalised over all groups before selection, so that the choice of groups does not
    change what a return means.
    """
    normalized_PG = normalize_returns(
        rollouts.returns_PG,
        config.reward.normalization,
        trainable_PG=rollouts.trainable_PG,
    )
    trajectories = kept_trajectories(rollouts, selection)
    returns = normalized_PG[selection.keep_PG].tolist()
    rewards = [
        credit_rewards(*pair, config.reward.credit)
        for pair in zip(trajectories, returns, strict=True)
    ]
    left_out = left_out_rewards(rollouts, selection.keep_PG, normalized_PG, config.reward.credit)
    batch = pack(
        trajectories,
        rewards,
        pad_token_id=chat.pad_token_id,
        default_temperature=config.sampling.temperature,
    )
    return batch, left_out


def with_advantages(batch: TokenBatch, config: RunConfig, left_out: LeftOut) -> TokenBatch:
    """The batch with its advantages, and with the critic's targets if it has values.

    Args:
        left_out: See `pack_kept`.
    """
    if config.reward.kl is not None:
        batch = penalize(batch, config.reward.kl)
    advantages, returns = estimate_advantages(
        batch, config.advantage, credit=config.reward.credit, left_out=left_out
    )
    return replace(batch, advantages=advantages, returns=returns)


def fresh_tokens(
    batch: TokenBatch, rollouts: RolloutBatch, selection: Selection, version: int
) -> Tensor:
    """(B, T) True on sampled tokens that the weights of `version` sampled.

    A turn that does not say which weights sampled it counts as fresh.
    """
    turns = [turn for each in kept_trajectories(rollouts, selection) for turn in each.turns]
    fresh = np.array([turn.policy_version in (None, version) for turn in turns], dtype=np.bool_)
    sizes = np.array([turn.num_sampled_tokens for turn in turns], dtype=np.int64)
    by_token = torch.from_numpy(fresh.repeat(sizes))
    return torch.zeros_like(batch.loss_mask).masked_scatter(
        batch.loss_mask, by_token.to(batch.loss_mask.device)
    )


def outcomes(
    rollouts: RolloutBatch,
    selection: Selection,
    batch: TokenBatch,
    trainer_logprobs: Tensor | None,
    information: Mapping[str, tuple[FloatArray, ...]] | None = None,
) -> list[TrajectoryOutcome]:
    """What the update learned about every trajectory of the step, kept or dropped.

    Args:
        information: trajectory id to nats per sampled token, where it was measured.
    """
    information = information or {}
    kept = kept_trajectories(rollouts, selection)
    advantages = _per_turn(batch, batch.advantages, kept)
    trainer = [_if_known(arrays) for arrays in _per_turn(batch, trainer_logprobs, kept)]
    reference = _per_turn(batch, batch.ref_logprobs, kept)
    out = [
        TrajectoryOutcome(
            trajectory_id=trajectory.id,
            advantage=_mean(adv),
            kept=True,
            advantages=adv,
            trainer_logprobs=own,
            ref_logprobs=ref,
            information=information.get(trajectory.id),
        )
        for trajectory, adv, own, ref in zip(kept, advantages, trainer, reference, strict=True)
    ]
    for p, g in np.argwhere(~selection.keep_PG):
        identity = rollouts.groups[p][g].id
        out.append(
            TrajectoryOutcome(
                trajectory_id=identity,
                advantage=None,
                kept=False,
                drop_reason=selection.drop_reason(int(p), int(g)),
                information=information.get(identity),
            )
        )
    return out


def _per_turn(
    batch: TokenBatch, values_BT: Tensor | None, kept: Sequence[Trajectory]
) -> Sequence[tuple[FloatArray, ...] | None]:
    if values_BT is None:
        return [None] * len(kept)
    return scatter_to_turns(batch, values_BT, kept)


def _if_known(arrays: tuple[FloatArray, ...] | None) -> tuple[FloatArray, ...] | None:
    """None for a trajectory some of whose tokens no pass computed, which are NaN."""
    if arrays is None or any(np.isnan(array).any() for array in arrays):
        return None
    return arrays


def _mean(arrays: tuple[FloatArray, ...] | None) -> float | None:
    if arrays is None:
        return None
    joined = np.concatenate(arrays) if arrays else np.empty(0)
    return float(joined.mean(dtype=np.float64)) if len(joined) else None
