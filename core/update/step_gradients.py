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
from torch import Tensor, nn

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.measure.gradients import (
    GradientReport,
    GradientUnit,
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
    batch, _ = annotate(policy, groups.batch.to(policy.device), config)
    advantaged = with_advantages(batch, config, groups.left_out)
    policy.keeps_parts()  # the parameters that gradients come to

    def work() -> GradientReport:
        step = _Step(policy, advantaged, groups.selection, config)
        return decompose(step.terms_of, step.units(), step.parameters)

    where = "the gradient breakdown (diagnostics.gradient)"
    return retrying(work, policy, config, where=where)


@dataclass(eq=False)
class _Step:
    """Terms, weights and parameters of a step, in the form that the diagnostics ask for."""

    policy: Policy
    batch: TokenBatch
    selection: Selection
    config: RunConfig

    def __post_init__(self) -> None:
        self._denominators = Denominators.of(self.batch, self.config.norm_tokens)
        group_of = torch.from_numpy(np.argwhere(self.selection.keep_PG)[:, 0])
        self._group_B = group_of[self.batch.trajectory_index.cpu()]
        self._matters_B = rows_with_gradient(self.batch, self.config.loss).cpu()
        self._modules: dict[str, nn.Module] = {"model": self.policy.model}
        if self.policy.critic is not None:
            self._modules["critic"] = self.policy.critic

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{name}": parameter
            for prefix, module in self._modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def units(self) -> list[GradientUnit]:
        """Tokens are what `token_mean` divides by; the sequence means count trajectories."""
        kept_P = self.selection.keep_PG.sum(1)
        tokens_B = self.batch.loss_mask.sum(1).cpu()
        by_tokens = self.config.loss.aggregation == "token_mean"
        return [
            GradientUnit(
                reward_std=float(std),
                weight=float(tokens_B[self._group_B == p].sum() if by_tokens else kept_P[p]),
            )
            for p, std in enumerate(self.selection.reward_std_P)
        ]

    def terms_of(self, group: int) -> Iterator[Mapping[str, Tensor]]:
        rows = self._group_B == group
        if not self._matters_B[rows].any():
            yield {"policy": torch.zeros(())}
            return
        chosen = select_rows(self.batch, torch.nonzero(rows)[:, 0])
        config = self.config
        for micro, _ in self.policy.microbatches(chosen, config.optim):
            outputs = self.policy.outputs(micro)
            yield compute_loss(
                outputs, micro, config.loss, self._denominators, config.off_policy
            ).named
