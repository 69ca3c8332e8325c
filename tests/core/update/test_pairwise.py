"""Every pair of training settings: the ratio is 1, the loss is the naive one, microbatches do not
matter; or the start is refused with the reason and the way out."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import combinations

import pytest
import torch
from bench import Bench, make_bench
from covering import Row, covering_rows
from naive_update import NaiveStep, largest_gap

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.optim import OptimizerStep
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.update import update

MakeConfig = Callable[..., RunConfig]

FACTORS = {
    "sampling": [
        "sampling={temperature: 1.0}",
        "sampling={temperature: 0.7}",
        "sampling={top_p: 0.8}",
        "sampling={top_k: 5}",
        "sampling={min_p: 0.3}",
        "sampling={temperature: 1.4, top_p: 0.9, top_k: 50, min_p: 0.05}",
    ],
    "loss": [
        "loss={kind: clip}",
        "loss={kind: clip, aggregation: seq_mean_token_mean, dual_clip: null, value_clip: null}",
        "loss={kind: clip, aggregation: seq_mean_token_sum, kl_coef: 0.1, kl_estimator: k1}",
        "loss={kind: clip, aggregation: seq_mean_token_sum_norm, entropy_coef: 0.05}",
        "loss={kind: gspo}",
        "loss={kind: gspo, aggregation: token_mean, kl_coef: 0.05, entropy_coef: 0.01}",
        "loss={kind: cispo}",
        "loss={kind: cispo, clip_low: 0.1, clip_high: 0.1, kl_coef: 0.1, kl_estimator: k2}",
    ],
    "advantage": [
        "advantage={kind: gae, gamma: 0.98, lam: 0.9}",
        "advantage={kind: bi_level_gae, gamma: 0.99, lam: 0.8, turn_gamma: 0.9, whiten: false}",
        "advantage={kind: grpo}",
        "advantage={kind: dr_grpo}",
        "advantage={kind: rloo}",
        "advantage={kind: reinforce_pp, gamma: 0.97}",
        "advantage={kind: reinforce_pp_baseline}",
    ],
    "credit": ["reward.credit=trajectory", "reward.credit=turn"],
    "kl in reward": ["reward.kl=null", "reward.kl={coef: 0.05, estimator: k2}"],
    "window": [
        "context.history_turns=null",
        "context.history_turns=1",
        "context.history_turns=2",
    ],
    "critic": [
        "critic={kind: none}",
        "critic={kind: head}",
        "critic={kind: head, detach: true}",
        "critic={kind: model}",
    ],
    "off_policy": [
        "off_policy={}",
        "off_policy={old_logprobs: trainer}",
        "off_policy={old_logprobs: trainer, correction: tis, cap: 1.1}",
        "off_policy={old_logprobs: trainer, correction: tis, level: sequence}",
        "off_policy={old_logprobs: trainer, correction: mis, low: 0.8, high: 1.2}",
        "off_policy={old_logprobs: trainer, correction: mis, level: sequence, low: 0.95}",
    ],
    "lora": ["model.lora=null", "model.lora={rank: 4, alpha: 8}"],
}


class KeepGradients:
    """Stands in for the optimizer: keeps the gradient of the step and moves nothing."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.gradients: dict[str, torch.Tensor] = {}

    def accumulate(self) -> None:
        self.bench.optimizer.accumulate()

    def step(self, **_: object) -> OptimizerStep:
        self.gradients = self.bench.gradients()
        names = [group.name for group in self.bench.policy.parameter_groups()]
        return OptimizerStep(grad_norms=dict.fromkeys(names, 1.0), is_skipped=False)


def move(bench: Bench, seed: int) -> None:
    """Add noise to everything that trains, so that no term is zero by symmetry."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for group in bench.policy.parameter_groups():
            for weight in group.parameters:
                weight.add_(0.02 * torch.randn(weight.shape, generator=random))


def problems_of(config: RunConfig) -> list[str]:
    """What is wrong with the update under these settings; empty if nothing is."""
    bench, out = make_bench(config), []
    move(bench, seed=1)
    rollouts = bench.collect()
    batch, _ = bench.prepare(rollouts)
    naive = NaiveStep.of(bench, rollouts)
    with torch.no_grad():
        logprobs = bench.policy.outputs(batch).logprobs
    gap = float((logprobs - batch.behaviour_logprobs)[batch.loss_mask].abs().max())
    if not math.expm1(gap) < 1e-5:
        out.append(f"the ratio at the weights that sampled is off by {gap:.2g}")
    move(bench, seed=2)
    expected = naive.loss()
    whole, split = gradients(bench, batch, 1_000_000)
    if abs(split - expected) > 1e-5 * max(1.0, abs(expected)):
        out.append(f"the loss is {split:.9g}, the naive one {expected:.9g}")
    with torch.no_grad():
        moved = largest_gap(naive, batch, bench.policy.outputs(batch).logprobs)
    if moved > 1e-4:
        out.append(f"log-probs at other weights are off by {moved:.2g}")
    small, _ = gradients(bench, batch, 90)
    largest = max(float(gradient.abs().max()) for gradient in whole.values())
    if whole.keys() != small.keys() or not largest > 0:
        out.append("the gradient is missing")
    else:
        differs = max(float((small[name] - whole[name]).abs().max()) for name in whole)
        if differs > 1e-5 * max(1.0, largest):
            out.append(f"microbatches move the gradient by {differs:.2g} of {largest:.2g}")
    return out


def gradients(
    bench: Bench, batch: TokenBatch, microbatch: int
) -> tuple[dict[str, torch.Tensor], float]:
    """The gradient of the policy's weights, and the loss, at some size of microbatches."""
    optim = bench.config.optim.model_copy(update={"max_microbatch_tokens": microbatch})
    config = bench.config.model_copy(update={"optim": optim})
    keep = KeepGradients(bench)
    result = update(bench.policy, keep, batch, config, step=1)  # type: ignore[arg-type]
    return keep.gradients, result.metrics["loss/total"]


def test_every_pair_that_can_occur_is_in_a_row() -> None:
    factors = {"a": "12", "b": "123", "c": "12", "d": "1234"}
    possible, impossible = covering_rows(factors, lambda row: not (row[0] == "1" and row[1] == "3"))
    seen = {((i, row[i]), (j, row[j])) for row in possible for i, j in combinations(range(4), 2)}
    assert len(seen) == 2 * 3 + 2 * 2 + 2 * 4 + 3 * 2 + 3 * 4 + 2 * 4 - 1
    assert len(possible) <= 14
    assert [row[:2] for row in impossible] == [("1", "3")]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_show2_every_pair_of_settings_trains_rightly_or_is_refused(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.process_time()

    @cache
    def refusal(row: Row) -> str:
        try:
            make_config(*row, "envs.train.0.max_turns=3")
        except ConfigError as error:
            return str(error)
        return ""

    possible, impossible = covering_rows(FACTORS, lambda row: not refusal(row))
    wrong = []
    for row in possible:
        config = make_config(*row, "envs.train.0.max_turns=3")
        wrong += [f"{' '.join(row)}: {problem}" for problem in problems_of(config)]
    for row in impossible:
        if not re.search(r"needs values: set critic\.kind to head or model", refusal(row)):
            wrong.append(f"{' '.join(row)}: refused without a way out: {refusal(row)}")
    with capsys.disabled():
        sys.stdout.write(
            f"\npairwise: {len(possible)} combinations ran, {len(impossible)} were refused, "
            f"{len(wrong)} problems, {time.process_time() - started:.0f} s of processor time\n"
        )
    assert not wrong, "\n".join(wrong)
    assert len(possible) >= 48
    assert len(impossible) == 2  # gae and bi_level_gae without a critic
