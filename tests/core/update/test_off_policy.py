"""Corrections for samples of another policy: by hand, against plain loops, and microbatches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from echoscope.core.config.loading import ConfigError, apply_settings, load_config
from echoscope.core.config.loss import CispoLossConfig, ClipLossConfig, GspoLossConfig, LossConfig
from echoscope.core.config.settings import OffPolicyConfig
from echoscope.core.update.batch import PolicyOutputs, TokenBatch
from echoscope.core.update.losses import Denominators, LossTerms, compute_loss
from echoscope.core.update.metrics import MetricTotals
from echoscope.core.update.off_policy import with_old_logprobs

from .test_losses import rows_of

SUM = "seq_mean_token_sum"
TIS = OffPolicyConfig(old_logprobs="trainer", correction="tis")
MIS = OffPolicyConfig(old_logprobs="trainer", correction="mis")


def by_sequence(config: OffPolicyConfig, **changes: float | None) -> OffPolicyConfig:
    return config.model_copy(update={"level": "sequence", **changes})


def make_batch(mask: list[list[bool]], owners: list[int], **columns: Tensor) -> TokenBatch:
    mask_BT = torch.tensor(mask, dtype=torch.bool)
    trajectory_B = torch.tensor(owners)
    zeros = torch.zeros(mask_BT.shape, dtype=torch.float64)
    base = TokenBatch(
        input_ids=torch.zeros(mask_BT.shape, dtype=torch.int64),
        attention_mask=torch.ones_like(mask_BT),
        loss_mask=mask_BT,
        turn_index=torch.where(mask_BT, 0, -1),
        behaviour_logprobs=zeros,
        token_rewards=zeros,
        trajectory_index=trajectory_B,
        group_index=torch.zeros_like(trajectory_B),
        trajectory_num_tokens=torch.tensor(
            [int(mask_BT[trajectory_B == owner].sum()) for owner in owners]
        ),
        advantages=zeros,
    )
    return replace(base, **columns)


def loss_of(
    logprobs: Tensor,
    batch: TokenBatch,
    config: LossConfig,
    off_policy: OffPolicyConfig,
    denominators: Denominators | None = None,
) -> LossTerms:
    outputs = PolicyOutputs(logprobs=logprobs, entropies=torch.zeros_like(logprobs))
    denominators = denominators or Denominators.of(batch, 10)
    return compute_loss(outputs, batch, config, denominators, off_policy)


@dataclass(frozen=True)
class Found:
    loss: float
    slopes: list[float]
    metrics: dict[str, float]


def two_tokens(
    off_policy: OffPolicyConfig, *, advantage: float = 1.0, old: list[float] | None = None
) -> Found:
    """A trajectory of two tokens; mu gives both the probability 0.1, pi 0.3 and 0.025.

    So pi / mu is 3 and 0.25. Without `old`, pi is pi_old. Losses are sums over the trajectory.
    """
    mu, pi = (torch.tensor([[0.0, *p]]).double().log() for p in ((0.1, 0.1), (0.3, 0.025)))
    mu[0, 0] = pi[0, 0] = 0.0
    batch = make_batch(
        [[False, True, True]],
        [0],
        behaviour_logprobs=mu,
        advantages=torch.tensor([[0.0, advantage, advantage]]).double(),
    )
    if old is not None:
        batch = with_old_logprobs(batch, torch.tensor([[1.0, *old]]).double().log())
    logprobs = pi.clone().requires_grad_()
    terms = loss_of(logprobs, batch, ClipLossConfig(aggregation=SUM), off_policy)
    terms.total.backward()
    totals = MetricTotals()
    totals.add(terms)
    assert logprobs.grad is not None
    return Found(
        float(terms.named["policy"].detach()), logprobs.grad[0, 1:].tolist(), totals.result()
    )


class TestByHand:
    """rho is 3 and 0.25; their product is 0.75, their geometric mean 0.866."""

    @pytest.mark.parametrize(
        ("off_policy", "weights"),
        [
            (OffPolicyConfig(old_logprobs="trainer"), (1.0, 1.0)),
            (TIS, (2.0, 0.25)),  # cut at the cap of 2
            (TIS.model_copy(update={"cap": None}), (3.0, 0.25)),
            (by_sequence(TIS), (0.75, 0.75)),  # the product
            (MIS, (3.0, 0.0)),  # 0.25 is below 0.5
            (MIS.model_copy(update={"high": 2.5}), (0.0, 0.0)),
            (by_sequence(MIS), (1.0, 1.0)),  # 0.866 is inside: kept, not weighted
            (by_sequence(MIS, low=0.8), (1.0, 1.0)),  # the product is below 0.8, the mean is not
            (by_sequence(MIS, low=0.9), (0.0, 0.0)),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("advantage", [1.0, -2.0])
    def test_the_weight_multiplies_loss_and_gradient(
        self, off_policy: OffPolicyConfig, weights: tuple[float, float], advantage: float
    ) -> None:
        loss = two_tokens(off_policy, advantage=advantage)
        assert loss.slopes == pytest.approx([-advantage * weight for weight in weights])
        assert loss.loss == pytest.approx(-advantage * sum(weights))
        assert loss.metrics["policy/ratio_mean"] == loss.metrics["policy/ratio_max"] == 1

    def test_decoupled_ppo_clips_around_the_old_policy_and_weighs_by_rho(self) -> None:
        # old 0.2 and 0.025: pi / old is 1.5 and 1; rho is 2 (cut to 1.8) and 0.25.
        off_policy = TIS.model_copy(update={"cap": 1.8})
        good = two_tokens(off_policy, old=[0.2, 0.025])
        assert good.loss == pytest.approx(-(1.8 * 1.28 + 0.25 * 1.0))
        assert good.slopes == pytest.approx([0.0, -0.25])  # the first is clipped at 1.28
        bad = two_tokens(off_policy, old=[0.2, 0.025], advantage=-1.0)
        assert bad.slopes == pytest.approx([1.8 * 1.5, 0.25])

    def test_without_weights_only_the_old_policy_counts(self) -> None:
        loss = two_tokens(OffPolicyConfig(old_logprobs="trainer"), old=[0.25, 0.025])
        assert loss.slopes == pytest.approx([-0.3 / 0.25, -1.0])

    def test_metrics_of_tokens(self) -> None:
        metrics = two_tokens(TIS).metrics
        assert metrics["off_policy/weight_mean"] == pytest.approx(2.25 / 2)
        assert metrics["off_policy/weight_max"] == pytest.approx(2.0)
        assert metrics["off_policy/truncated_frac"] == pytest.approx(0.5)
        assert metrics["off_policy/effective_frac"] == pytest.approx(2.25**2 / (2 * 4.0625))
        masked = two_tokens(MIS).metrics
        assert masked["off_policy/masked_frac"] == pytest.approx(0.5)
        assert masked["off_policy/effective_frac"] == pytest.approx(0.5)
        assert "off_policy/truncated_frac" not in masked

    def test_metrics_of_sequences_count_each_trajectory_once(self) -> None:
        """Trajectory 0 has a product of 4 in one row, trajectory 1 one of 1 in two rows."""
        mask = [[False, True], [False, True], [False, True]]
        old = torch.tensor([[0.0, math.log(4)], [0.0, 0.5], [0.0, -0.5]]).double()
        batch = with_old_logprobs(make_batch(mask, [0, 1, 1]), old)
        totals = MetricTotals()
        totals.add(loss_of(old, batch, ClipLossConfig(), by_sequence(TIS)))
        metrics = totals.result()
        assert metrics["off_policy/sequence_weight_mean"] == pytest.approx((2 + 1) / 2)
        assert metrics["off_policy/sequence_truncated_frac"] == pytest.approx(1 / 2)
        assert metrics["off_policy/sequence_effective_frac"] == pytest.approx(3**2 / (2 * 5))
        assert metrics["off_policy/truncated_frac"] == pytest.approx(1 / 3)  # of the tokens

    def test_without_a_correction_there_are_no_metrics_of_one(self) -> None:
        metrics = two_tokens(OffPolicyConfig(old_logprobs="trainer")).metrics
        assert not [key for key in metrics if key.startswith("off_policy/")]

    def test_the_kl_penalty_is_weighted_by_the_token_and_leaves_out_what_is_masked(self) -> None:
        # d = log pi - log ref = 1 at both tokens; the weights of tokens are 2 and 0.25, or 3 and 0.
        pi = torch.tensor([[0.0, math.log(0.3), math.log(0.025)]]).double()
        mu = torch.tensor([[0.0, math.log(0.1), math.log(0.1)]]).double()
        batch = make_batch([[False, True, True]], [0], behaviour_logprobs=mu, ref_logprobs=pi - 1.0)
        config = ClipLossConfig(aggregation=SUM, kl_coef=0.5, kl_estimator="k1")
        for off_policy, weight in (
            (OffPolicyConfig(old_logprobs="trainer"), 1 + 1),
            (OffPolicyConfig(), 3 + 0.25),
            (TIS, 2 + 0.25),
            (by_sequence(TIS), 2 + 0.25),  # one context at a time, at either level
            (MIS, 3),
            (by_sequence(MIS, low=0.9), 0),
        ):
            logprobs = pi.clone().requires_grad_()
            terms = loss_of(logprobs, batch, config, off_policy)
            assert float(terms.named["kl"].detach()) == pytest.approx(0.5 * weight)


def test_gspo_cuts_nothing_on_policy_although_the_sampler_rounds() -> None:
    """bfloat16 puts a sequence's ratio at 1.0006, beyond GSPO's limit of 1.0004."""
    mask, rounded = [[False] + [True] * 8], torch.full((1, 9), math.log(1.0006)).double()
    batch = make_batch(mask, [0], behaviour_logprobs=-rounded, advantages=torch.ones(1, 9).double())
    slopes = {}
    for off_policy in (OffPolicyConfig(), OffPolicyConfig(old_logprobs="trainer"), TIS):
        logprobs = torch.zeros(1, 9, dtype=torch.float64, requires_grad=True)
        terms = loss_of(logprobs, batch, GspoLossConfig(aggregation=SUM), off_policy)
        terms.total.backward()
        assert logprobs.grad is not None
        cut = float(terms.metrics["clip_high"]) / 8
        slopes[off_policy.old_logprobs, off_policy.correction] = cut, float(logprobs.grad[0, 1])
    assert slopes["sampler", "none"] == (1.0, 0.0)  # the whole sequence teaches nothing
    assert slopes["trainer", "none"] == (0.0, -1.0)
    assert slopes["trainer", "tis"] == (0.0, pytest.approx(-1.0006))


# -- against plain loops -------------------------------------------------------------------------

NUMBERS = st.integers(-16, 16).map(lambda i: i / 8)
METHODS = st.builds(
    OffPolicyConfig,
    old_logprobs=st.just("trainer"),
    correction=st.sampled_from(["none", "tis", "mis"]),
    level=st.sampled_from(["token", "sequence"]),
    cap=st.sampled_from([None, 1.0, 2.0, 3.5]),
    low=st.sampled_from([0.0, 0.5, 0.9]),
    high=st.sampled_from([1.1, 2.0, 5.0]),
)
LOSSES = st.sampled_from(
    [
        ClipLossConfig(kl_coef=0.3),
        ClipLossConfig(dual_clip=None),
        GspoLossConfig(clip_low=0.1, clip_high=0.2, kl_coef=0.3),
        CispoLossConfig(clip_low=0.2, kl_coef=0.3),
    ]
)
Case = tuple[Tensor, TokenBatch, LossConfig, OffPolicyConfig]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Rows of up to 3 sampled tokens, several rows a trajectory, with old log-probs."""
    num_rows, width = draw(st.integers(1, 5)), draw(st.integers(2, 4))

    def matrix() -> Tensor:
        rows = [draw(st.lists(NUMBERS, min_size=width, max_size=width)) for _ in range(num_rows)]
        return torch.tensor(rows, dtype=torch.float64)

    mask = [
        [False, *draw(st.lists(st.booleans(), min_size=width - 1, max_size=width - 1))]
        for _ in range(num_rows)
    ]
    owners, owner = [], 0
    for _ in range(num_rows):
        owners.append(owner)
        owner += draw(st.booleans())
    batch = make_batch(
        mask, owners, behaviour_logprobs=matrix(), advantages=matrix(), ref_logprobs=matrix()
    )
    return matrix(), with_old_logprobs(batch, matrix()), draw(LOSSES), draw(METHODS)


def slow_loss(case: Case) -> tuple[float, float]:
    """The policy term and the KL term, one token at a time."""
    logprobs, batch, config, method = case
    tokens = [
        (b, t) for b, row in enumerate(batch.loss_mask.tolist()) for t, on in enumerate(row) if on
    ]
    owners = batch.trajectory_index.tolist()
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None

    def gap(first: Tensor, other: Tensor, token: tuple[int, int]) -> float:
        return float(first[token] - other[token])

    policy = kl = 0.0
    for b, t in tokens:
        in_row = [token for token in tokens if token[0] == b]
        in_trajectory = [token for token in tokens if owners[token[0]] == owners[b]]
        rho = math.exp(gap(batch.old_logprobs, batch.behaviour_logprobs, (b, t)))
        logs = [gap(batch.old_logprobs, batch.behaviour_logprobs, token) for token in in_trajectory]
        product = math.exp(max(-20.0, min(20.0, sum(logs))))  # as every log-ratio is limited
        mean = math.exp(sum(logs) / len(logs))
        cap = math.inf if method.cap is None else method.cap
        if method.correction == "none":
            weight = token_weight = 1.0
        elif method.correction == "tis":
            token_weight = min(rho, cap)
            weight = token_weight if method.level == "token" else min(product, cap)
        elif method.level == "token":
            weight = token_weight = rho if method.low <= rho <= method.high else 0.0
        else:
            weight = 1.0 if method.low <= mean <= method.high else 0.0
            token_weight = weight * min(rho, cap)
        log_ratio = gap(logprobs, batch.old_logprobs, (b, t))
        ratio = math.exp(log_ratio)
        if config.kind == "gspo":
            row = [gap(logprobs, batch.old_logprobs, token) for token in in_row]
            ratio = math.exp(sum(row) / len(row))
        advantage = float(batch.advantages[b, t])  # type: ignore[index]
        clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
        if config.kind == "cispo":
            loss = -clipped * advantage * float(logprobs[b, t])
        else:
            loss = -min(ratio * advantage, clipped * advantage)
            if config.kind == "clip" and config.dual_clip is not None and advantage < 0:
                loss = min(loss, -advantage * config.dual_clip)
        share = 1 / len(tokens)
        if config.aggregation == "seq_mean_token_mean":
            share = 1 / len(set(owners)) / len(in_trajectory)
        policy += share * weight * loss
        d = gap(logprobs, batch.ref_logprobs, (b, t))
        k3 = math.exp(-d) - 1 + d
        kl += config.kl_coef * share * min(math.exp(log_ratio) * token_weight, 10) * k3
    return policy, kl


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_loss_agrees_with_the_slow_one(case: Case) -> None:
    terms = loss_of(*case)
    policy, kl = slow_loss(case)
    assert float(terms.named["policy"]) == pytest.approx(policy, rel=1e-9, abs=1e-9)
    assert float(terms.named.get("kl", torch.zeros(()))) == pytest.approx(kl, rel=1e-9, abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(cases(), st.data())
def test_microbatches_add_up_to_the_whole_step(case: Case, data: st.DataObject) -> None:
    """Rows of one trajectory may fall into different microbatches."""
    logprobs, batch, config, method = case
    order = data.draw(st.permutations(range(batch.num_rows)))
    cut = data.draw(st.integers(0, batch.num_rows))
    denominators = Denominators.of(batch, 10)
    whole, parts = MetricTotals(), MetricTotals()
    whole.add(loss_of(*case))
    for rows in (order[:cut], order[cut:]):
        parts.add(loss_of(logprobs[rows], rows_of(batch, rows), config, method, denominators))
    assert parts.result() == pytest.approx(whole.result(), nan_ok=True, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_step_with_one_update_needs_no_log_probs_from_before_it(case: Case) -> None:
    """Its own pass gives them: the ratio is exactly 1, and the weights are the same."""
    logprobs, batch, config, method = case
    owners = torch.arange(batch.num_rows)  # every trajectory in one row
    plain = replace(
        batch,
        old_logprobs=None,
        trajectory_log_ratio=None,
        trajectory_index=owners,
        trajectory_num_tokens=batch.loss_mask.sum(1),
    )
    loss = loss_of(logprobs, plain, config, method)
    expected = loss_of(logprobs, with_old_logprobs(plain, logprobs), config, method)
    assert float(loss.total) == float(expected.total)
    if batch.loss_mask.any():
        assert float(loss.metrics["ratio"]) == float(loss.metrics["num_tokens"])


# -- settings ------------------------------------------------------------------------------------


def test_a_correction_of_the_samplers_log_probs_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"which needs off_policy\.old_logprobs=trainer.*twice"):
        load_config("demo", overrides=["off_policy.correction=tis"])


def test_it_can_be_switched_on_in_a_live_run_with_one_command() -> None:
    wishes = {"off_policy.old_logprobs": "trainer", "off_policy.correction": "tis"}
    config = apply_settings(load_config("demo"), wishes)
    assert config.off_policy == TIS


@pytest.mark.parametrize("word", ["cap=0.9", "low=1.2", "high=0.8", "level=turn"])
def test_values_that_mean_nothing_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=word.split("=")[0]):
        load_config("demo", overrides=[f"off_policy.{word}"])
