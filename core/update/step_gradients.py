"""The gradient diagnostics of a step, fed by the very loss that trains.

All groups take part, those that selection rejects included: what they would have added is what the
decomposition is for. Call it before the update, at the weights that sampled.

Legend: **P** groups, **G** siblings, **B** rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.measure.gradients import (
    GradientReport,
    decompose,
)
from echoscope.diagnostics.selection.filter import Selection, select_groups
from echoscope.store.records import RolloutBatch

from ..config.settings import RunConfig
from ..policy import Policy
from ..rollout.chat import ChatFormat
from .advantages import LeftOut
from .assemble import pack_kept, with_advantages
from .batch import TokenBatch, select_rows
from .losses import Denominators, compute_loss, rows_with_gradient
from .update import annotate, retrying


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGroups:
    """Every group of a step, packed; the rejected ones too."""

    batch: TokenBatch
    left_out: LeftOut
    selection: Selection


def all_groups(rollouts: RolloutBatch, config: RunConfig, chat: ChatFormat) -> AllGroups:
    """What of a step's rollouts `break_down` reads."""
    selection = select_groups(rollouts, SelectionConfig(strategy="none"))
    batch, left_out = pack_kept(rollouts, selection, config, chat)
    return AllGroups(batch=batch, left_out=left_out, selection=selection)


def break_down(policy: Policy, groups: AllGroups, config: RunConfig) -> GradientReport:
    """Take the gradient of a step on all its groups apart. Changes nothing of the policy.

    Returns are normalised, and advantages whitened where the algorithm does so, over all groups:
    with selection on, the update whitens over the groups it keeps. Every rank joins, where ranks
    share the weights. Out of memory, it is made once more with smaller microbatches, as the update
    is.

    Raises:
        GradientMemoryError: see `decompose`.
        torch.OutOfMemoryError: memory ran out twice.
    """
    policy.sums_gradients(is_last=True)
    selection, loss = groups.selection, config.loss
    annotated, _ = annotate(policy, groups.batch.to(policy.device), config)
    batch = with_advantages(annotated, config, groups.left_out)
    policy.keeps_parts()  # the parameters that gradients come to
    denominators = Denominators.of(batch, config.norm_tokens)
    group_B = torch.from_numpy(np.argwhere(selection.keep_PG)[:, 0])[batch.trajectory_index.cpu()]
    matters_B = rows_with_gradient(batch, loss).cpu()

    def terms_of(group: int) -> Iterator[Mapping[str, Tensor]]:
        rows = group_B == group
        if not matters_B[rows].any():
            yield {"policy": torch.zeros(())}
            return
        chosen = select_rows(batch, torch.nonzero(rows)[:, 0])
        for micro, _ in policy.microbatches(chosen, config.optim):
            outputs = policy.outputs(micro)
            yield compute_loss(outputs, micro, loss, denominators, config.off_policy).named

    # Tokens are what `token_mean` divides by; the sequence means count trajectories.
    weights_P = selection.keep_PG.sum(1).astype(np.float64)
    if loss.aggregation == "token_mean":
        tokens_B = batch.loss_mask.sum(1).cpu().numpy()
        weights_P = np.bincount(group_B.numpy(), tokens_B, minlength=len(weights_P))
    modules = {"model": policy.model, "critic": policy.critic}
    parameters = {
        f"{prefix}.{name}": parameter
        for prefix, module in modules.items()
        if module is not None
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    return retrying(
        lambda: decompose(
            terms_of, parameters, reward_std_P=selection.reward_std_P, weights_P=weights_P
        ),
        policy,
        config,
        where="the gradient breakdown (diagnostics.gradient)",
    )
