"""The gradient diagnostics of a step, fed by the very loss that trains.

All groups take part, those that selection rejects included: what they would have added is what the
decomposition is for. Call it before the update, at the weights that sampled.

Legend: **P** groups, **G** siblings, **B** rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from echoscope.diagnostics.config import GradientConfig, SelectionConfig
from echoscope.diagnostics.measure.gradients import (
    GradientReport,
    GradientUnit,
    decompose,
    gradient_norm,
)
from echoscope.diagnostics.selection.filter import Selection, select_groups
from echoscope.store.records import DiagnosticRecord, RolloutBatch

from ..config.settings import RunConfig
from ..policy import Policy
from ..rollout.chat import ChatFormat
from .assemble import pack_kept, with_advantages
from .batch import TokenBatch, select_rows
from .losses import Denominators, LossTerms, compute_loss, rows_with_gradient
from .update import annotate, retrying


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepGradients:
    """The decomposition of a step's gradient, and the norm of every trajectory's part of it."""

    report: GradientReport
    norms_PG: NDArray[np.float64]
    """NaN where a trajectory cannot train, or norms were not taken."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Metric to why it is NaN."""

    def metrics(self) -> dict[str, float]:
        """`gradient/...` of this step."""
        norms = self.norms_PG[np.isfinite(self.norms_PG)]
        squares = float(np.square(norms).sum())
        return self.report.metrics() | {
            "gradient/trajectory/max_share": (
                float(np.square(norms).max()) / squares if squares > 0 else math.nan
            ),
        }

    def record(self, step: int) -> DiagnosticRecord:
        """The report's record with `trajectory_norms` (P, G), and the reasons of both."""
        of_report = self.report.record(step)
        payload = json.loads(of_report.payload or "{}") | {"reasons": dict(self.reasons)}
        return replace(
            of_report,
            arrays={**of_report.arrays, "trajectory_norms": self.norms_PG},
            payload=json.dumps(payload),
        )


def step_gradients(
    policy: Policy,
    rollouts: RolloutBatch,
    config: RunConfig,
    chat: ChatFormat,
    settings: GradientConfig,
) -> StepGradients:
    """Take the gradient of a step on all its groups apart. Changes nothing of the policy.

    Returns are normalised, and advantages whitened where the algorithm does so, over all groups:
    with selection on, the update whitens over the groups it keeps.

    Out of memory, it is made once more with smaller microbatches, as the update is.

    Raises:
        GradientMemoryError: see `decompose`.
        torch.OutOfMemoryError: memory ran out twice.
    """
    selection = select_groups(rollouts, SelectionConfig(strategy="none"))
    batch, unpacked = pack_kept(rollouts, selection, config, chat)
    batch, _ = annotate(policy, batch.to(policy.device), config)
    advantaged = with_advantages(batch, config, unpacked)

    def work() -> tuple[StepGradients, str]:
        step = _Step(policy, advantaged, selection, config)
        return _measured(step, selection, settings, coupling=_coupling(config))

    out, why = retrying(
        work, lambda: None, policy, config, where="the gradient breakdown (diagnostics.gradient)"
    )
    reasons = dict(out.reasons)
    for key, value in out.metrics().items():
        if math.isnan(value):
            reasons.setdefault(key, why)
    return replace(out, reasons=reasons)


def _measured(
    step: _Step, selection: Selection, settings: GradientConfig, *, coupling: str
) -> tuple[StepGradients, str]:
    """All of it, and why there are no norms of trajectories."""
    report = decompose(step.terms_of, step.units(), step.parameters, settings, coupling=coupling)
    norms_PG = np.full(selection.keep_PG.shape, np.nan)
    why = "gradient.trajectories is off"
    if settings.trajectories:
        norms_PG[selection.keep_PG] = step.trajectory_norms()
        why = "no trajectory has a gradient"
    return StepGradients(report=report, norms_PG=norms_PG, reasons=report.reasons), why


class _Step:
    """Terms, weights and parameters of a step, in the form that the diagnostics ask for."""

    def __init__(
        self, policy: Policy, batch: TokenBatch, selection: Selection, config: RunConfig
    ) -> None:
        self._policy, self._batch, self._config = policy, batch, config
        self._selection = selection
        self._denominators = Denominators.of(batch, config.norm_tokens)
        self._max_tokens = policy.microbatch_tokens(config.optim)
        group_of = torch.from_numpy(np.argwhere(selection.keep_PG)[:, 0])
        self._group_B = group_of[batch.trajectory_index.cpu()]
        self._matters_B = rows_with_gradient(batch, config.loss).cpu()
        self._modules: dict[str, nn.Module] = {"model": policy.model}
        if policy.critic is not None:
            self._modules["critic"] = policy.critic

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
        kept_P = self._selection.keep_PG.sum(1)
        tokens_B = self._batch.loss_mask.sum(1).cpu()
        by_tokens = self._config.loss.aggregation == "token_mean"
        return [
            GradientUnit(
                reward_std=float(std),
                weight=float(tokens_B[self._group_B == p].sum() if by_tokens else kept_P[p]),
            )
            for p, std in enumerate(self._selection.reward_std_P)
        ]

    def terms_of(self, group: int) -> Iterator[Mapping[str, Tensor]]:
        rows = self._group_B == group
        if not self._matters_B[rows].any():
            yield {"policy": torch.zeros(())}
            return
        chosen = select_rows(self._batch, torch.nonzero(rows)[:, 0])
        for micro, _ in self._policy.microbatches(chosen, self._config.optim):
            yield self._terms(micro).named

    def trajectory_norms(self) -> NDArray[np.float64]:
        """(n,) of the trajectories that train, in their order: a pass for each of them."""
        norms = np.zeros(int(self._selection.keep_PG.sum()))
        parameters = list(self.parameters.values())
        owner_B = self._batch.trajectory_index.cpu()
        for trajectory in owner_B[self._matters_B].unique().tolist():
            rows = torch.nonzero(owner_B == trajectory)[:, 0]
            micros = self._policy.microbatches(select_rows(self._batch, rows), self._config.optim)
            losses = (self._terms(micro).total for micro, _ in micros)
            norms[trajectory] = gradient_norm(losses, parameters)
        return norms

    def _terms(self, micro: TokenBatch) -> LossTerms:
        outputs = self._policy.outputs(micro)
        config = self._config
        return compute_loss(outputs, micro, config.loss, self._denominators, config.off_policy)


def _coupling(config: RunConfig) -> str:
    """What ties the groups of a step together besides the weights; empty if nothing does."""
    advantage = config.advantage
    if advantage.kind == "reinforce_pp":
        return "advantage.kind=reinforce_pp whitens advantages over the batch"
    if advantage.kind in ("gae", "bi_level_gae") and advantage.whiten:
        return f"advantage.kind={advantage.kind} whitens advantages over the batch"
    if advantage.kind == "custom":
        return f"{advantage.function} may compare trajectories of different groups"
    if config.reward.normalization == "brpo":
        return "reward.normalization=brpo normalises returns over the batch"
    return ""
