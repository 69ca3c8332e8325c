"""The loss against hand-worked tokens, an implementation in plain loops, and derivatives."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from echoscope.core.config.loss import CispoLossConfig, ClipLossConfig, GspoLossConfig
from echoscope.core.update.batch import PolicyOutputs, TokenBatch
from echoscope.core.update.losses import Denominators, compute_loss, importance_ratio
from echoscope.core.update.metrics import MetricTotals

AGGREGATIONS = [
    "token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_mean",
    "seq_mean_token_sum_norm",
]
KINDS = [ClipLossConfig, GspoLossConfig, CispoLossConfig]
NORM_TOKENS = 10


def make_batch(mask, *, trajectories=None, **columns) -> TokenBatch:
    """Rows with the given loss mask; every row its own trajectory unless said otherwise."""
    mask = torch.tensor(mask, dtype=torch.bool)
    owners = torch.tensor(trajectories or range(len(mask)))
    counts = torch.tensor([int(mask[owners == owner].sum()) for owner in owners])
    zeros = torch.zeros(mask.shape, dtype=torch.float64)
    columns = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in columns.items()}
    base = TokenBatch(
        input_ids=torch.zeros(mask.shape, dtype=torch.int64),
        attention_mask=torch.ones_like(mask),
        loss_mask=mask,
        turn_index=torch.where(mask, 0, -1),
        behaviour_logprobs=zeros,
        token_rewards=zeros,
        trajectory_index=owners,
        group_index=torch.zeros_like(owners),
        trajectory_num_tokens=counts,
        advantages=zeros,
    )
    return replace(base, **columns)


def outputs_of(logprobs, entropies=None, values=None) -> PolicyOutputs:
    logprobs = torch.as_tensor(logprobs, dtype=torch.float64)
    entropies = torch.zeros_like(logprobs) if entropies is None else torch.as_tensor(entropies)
    values = None if values is None else torch.as_tensor(values, dtype=torch.float64)
    return PolicyOutputs(logprobs=logprobs, entropies=entropies, values=values)


def loss_of(outputs, batch, config, denominators=None):
    return compute_loss(outputs, batch, config, denominators or Denominators.of(batch, NORM_TOKENS))


def one_token(ratio: float, advantage: float, config) -> tuple[float, float, dict[str, float]]:
    """Loss, d loss / d log pi and metrics of one token with the given importance ratio."""
    batch = make_batch([[False, True]], advantages=[[0, advantage]])
    logprobs = torch.tensor([[0.0, math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    terms = loss_of(outputs_of(logprobs), batch, config)
    terms.total.backward()
    totals = MetricTotals()
    totals.add(terms)
    return float(terms.named["policy"].detach()), float(logprobs.grad[0, 1]), totals.result()


class TestClip:
    """Bounds .8 and 1.28, dual clip 3."""

    @pytest.mark.parametrize(
        ("ratio", "advantage", "loss", "slope"),
        [
            (1.1, 2.0, -2.2, -2.2),  # inside: -A r, slope -A r
            (1.5, 2.0, -2.56, 0.0),  # too high already: clipped
            (0.5, 2.0, -1.0, -1.0),  # low and good: still pulled up
            (0.5, -2.0, 1.6, 0.0),  # low already: clipped
            (1.5, -2.0, 3.0, 3.0),  # high and bad: pushed down
            (4.0, -2.0, 6.0, 0.0),  # beyond the dual clip: -A c
            (4.0, 2.0, -2.56, 0.0),
        ],
    )
    def test_by_hand(self, ratio, advantage, loss, slope):
        computed = one_token(ratio, advantage, ClipLossConfig())
        assert computed[:2] == (pytest.approx(loss), pytest.approx(slope))

    def test_without_dual_clip(self):
        loss, slope, _ = one_token(4.0, -2.0, ClipLossConfig(dual_clip=None))
        assert (loss, slope) == (pytest.approx(8), pytest.approx(8))

    def test_fractions_count_the_tokens_whose_gradient_is_cut(self):
        def cut(ratio, advantage):
            metrics = one_token(ratio, advantage, ClipLossConfig())[2]
            return [metrics[f"policy/clip_{side}_frac"] for side in ("low", "high", "dual")]

        assert cut(1.1, 2.0) == [0, 0, 0]
        assert cut(1.5, 2.0) == [0, 1, 0]
        assert cut(1.5, -2.0) == [0, 0, 0]
        assert cut(0.5, -2.0) == [1, 0, 0]
        assert cut(4.0, -2.0) == [0, 0, 1]

    def test_an_absurd_ratio_stays_finite(self):
        loss, slope, _ = one_token(math.exp(700), -1.0, ClipLossConfig(dual_clip=None))
        assert loss == pytest.approx(math.exp(20))
        assert slope == 0


class TestCispo:
    @pytest.mark.parametrize(
        ("ratio", "weight"), [(1.1, 1.1), (1.5, 1.28), (0.5, 0.5), (4.0, 1.28)]
    )
    @pytest.mark.parametrize("advantage", [2.0, -2.0])
    def test_every_token_keeps_a_gradient_with_the_clipped_weight(self, ratio, weight, advantage):
        loss, slope, _ = one_token(ratio, advantage, CispoLossConfig())
        assert slope == pytest.approx(-advantage * weight)
        assert loss == pytest.approx(-advantage * weight * math.log(ratio))

    def test_fractions_count_clipped_weights_of_either_sign(self):
        for advantage in (2.0, -2.0):
            metrics = one_token(1.5, advantage, CispoLossConfig())[2]
            assert metrics["policy/clip_high_frac"] == 1
            bounded = CispoLossConfig(clip_low=0.2)
            assert one_token(0.5, advantage, bounded)[2]["policy/clip_low_frac"] == 1


class TestGspo:
    def test_the_ratio_is_the_geometric_mean_of_the_row(self):
        batch = make_batch([[False, True, True], [False, True, False]])
        logprobs = torch.tensor([[0, 0.3, -0.1], [0, 0.2, 9.0]], dtype=torch.float64)
        mask = batch.loss_mask
        ratio = importance_ratio(
            logprobs[mask], torch.zeros(3), mask.nonzero()[:, 0], GspoLossConfig()
        )
        assert ratio.tolist() == pytest.approx([math.exp(0.1), math.exp(0.1), math.exp(0.2)])

    def test_with_one_advantage_the_gradient_goes_through_the_mean(self):
        batch = make_batch([[False, True, True, True]], advantages=[[0, 2.0, 2.0, 2.0]])
        start = torch.tensor([[0, 0.2, -0.1, 0.05]], dtype=torch.float64)
        config = GspoLossConfig(aggregation="seq_mean_token_sum", clip_low=0.2, clip_high=0.28)
        logprobs = start.clone().requires_grad_()
        loss_of(outputs_of(logprobs), batch, config).total.backward()
        plain = start.clone().requires_grad_()
        (-2.0 * 3 * plain[0, 1:].mean().exp()).backward()
        torch.testing.assert_close(logprobs.grad, plain.grad)

    def test_with_several_each_token_keeps_its_own(self):
        batch = make_batch([[False, True, True]], advantages=[[0, 2.0, -1.0]])
        logprobs = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
        config = GspoLossConfig(aggregation="seq_mean_token_sum")
        loss_of(outputs_of(logprobs), batch, config).total.backward()
        assert logprobs.grad.tolist() == [[0, -2, 1]]

    def test_the_whole_sequence_is_clipped_or_none_of_it(self):
        batch = make_batch([[False, True, True]], advantages=[[0, 1.0, 1.0]])
        config = GspoLossConfig(clip_low=0.1, clip_high=0.1)
        for values, is_cut in (([0, 0.5, 0.0], True), ([0, 0.5, -0.4], False)):
            logprobs = torch.tensor([values], dtype=torch.float64, requires_grad=True)
            loss_of(outputs_of(logprobs), batch, config).total.backward()
            assert (logprobs.grad[0, 1:] == 0).tolist() == [is_cut, is_cut]


class TestAggregation:
    """Trajectory 0: one row of one token. Trajectory 1: rows of two and one tokens. All r = 1."""

    batch = make_batch(
        [[False, True, False], [False, True, True], [False, True, False]],
        trajectories=[0, 1, 1],
        advantages=[[0, -4.0, 0], [0, -1.0, -1.0], [0, -1.0, 0]],
    )

    @pytest.mark.parametrize(
        ("aggregation", "expected"),
        [
            ("token_mean", 7 / 4),
            ("seq_mean_token_sum", (4 + 3) / 2),
            ("seq_mean_token_mean", (4 / 1 + 3 / 3) / 2),
            ("seq_mean_token_sum_norm", (4 + 3) / 2 / NORM_TOKENS),
        ],
    )
    def test_by_hand(self, aggregation, expected):
        config = ClipLossConfig(aggregation=aggregation)
        terms = loss_of(outputs_of(torch.zeros(3, 3)), self.batch, config)
        assert float(terms.total) == pytest.approx(expected)

    def test_a_runaway_reply_does_not_scale_the_others_down(self):
        """Dr. GRPO's divisor is a constant, not the longest trajectory of the step."""
        config = ClipLossConfig(aggregation="seq_mean_token_sum_norm")
        gradients = []
        for length in (2, 40):  # of the second trajectory
            mask = [
                [False] + [True] * 2 + [False] * 38,
                [False] + [True] * length + [False] * (40 - length),
            ]
            batch = make_batch(mask, advantages=[[1.0] * 41] * 2)
            logprobs = torch.zeros(2, 41, dtype=torch.float64, requires_grad=True)
            loss_of(outputs_of(logprobs), batch, config).total.backward()
            gradients.append(float(logprobs.grad[0].sum()))
        assert gradients[0] == gradients[1] == pytest.approx(-2 / 2 / NORM_TOKENS)

    def test_denominators(self):
        sums = Denominators.of(self.batch, NORM_TOKENS)
        assert (sums.num_tokens, sums.num_trajectories, sums.norm_tokens) == (4, 2, NORM_TOKENS)


class TestEntropyAndKl:
    batch = make_batch(
        [[False, True, True]], advantages=[[0, 0, 0]], ref_logprobs=[[0, -1.0, -2.0]]
    )

    def test_the_bonus_lowers_the_loss(self):
        outputs = outputs_of([[0.0, -1.0, -1.0]], [[9.0, 0.5, 1.5]])
        terms = loss_of(outputs, self.batch, ClipLossConfig(entropy_coef=0.1))
        assert float(terms.named["entropy"]) == pytest.approx(-0.1)
        assert terms.metrics["entropy"] == 2.0

    def test_kl_is_importance_weighted(self):
        # d = ln pi - ln ref = 0 and 1, behaviour = 1 so the weight is pi = 1/e at both.
        outputs = outputs_of([[0.0, -1.0, -1.0]])
        terms = loss_of(outputs, self.batch, ClipLossConfig(kl_coef=0.5, kl_estimator="k1"))
        assert float(terms.named["kl"]) == pytest.approx(0.5 * math.exp(-1) / 2)

    def test_a_coefficient_of_0_leaves_the_term_out_but_not_the_metric(self):
        terms = loss_of(outputs_of([[0.0, -1.0, -1.0]]), self.batch, ClipLossConfig())
        assert "kl" not in terms.named
        assert "entropy" not in terms.named
        assert "value" not in terms.named
        assert list(terms.named) == ["policy"]
        assert float(terms.metrics["ref_kl"]) > 0


class TestValue:
    batch = make_batch(
        [[False, True, True]], returns=[[0, 1.0, 1.0]], values=[[0, 0.0, 0.9]], advantages=[[0] * 3]
    )
    outputs = outputs_of([[0.0] * 3], values=[[7.0, 0.8, 0.95]])

    def test_the_larger_of_two_errors_by_hand(self):
        # Token 1: (.8 - 1)^2 = .04 against .5 (0 kept within .5) off by .5: .25. Token 2: .0025.
        config = ClipLossConfig(value_coef=0.5, value_clip=0.5)
        terms = loss_of(self.outputs, self.batch, config)
        assert float(terms.named["value"]) == pytest.approx(0.5 * 0.5 * (0.25 + 0.0025) / 2)

    def test_without_clip(self):
        config = ClipLossConfig(value_coef=2.0, value_clip=None)
        terms = loss_of(self.outputs, self.batch, config)
        assert float(terms.named["value"]) == pytest.approx((0.04 + 0.0025) / 2)

    @pytest.mark.parametrize("aggregation", AGGREGATIONS)
    def test_it_is_a_mean_over_tokens_whatever_the_aggregation(self, aggregation):
        config = ClipLossConfig(value_clip=None, aggregation=aggregation)
        terms = loss_of(self.outputs, self.batch, config)
        assert float(terms.named["value"]) == pytest.approx(0.25 * (0.04 + 0.0025) / 2)

    def test_explained_variance_is_of_the_values_before_the_update(self):
        batch = replace(self.batch, returns=torch.tensor([[0, 1.0, 3.0]]).double())
        totals = MetricTotals()
        totals.add(loss_of(self.outputs, batch, ClipLossConfig()))
        # Residuals 1 and 2.1, variance .3025; returns 1 and 3, variance 1.
        assert totals.result()["critic/explained_variance"] == pytest.approx(1 - 0.3025)

    def test_it_is_nan_where_all_returns_are_equal(self):
        totals = MetricTotals()
        totals.add(loss_of(self.outputs, self.batch, ClipLossConfig()))
        assert math.isnan(totals.result()["critic/explained_variance"])


def test_on_policy_the_gradient_is_the_policy_gradient():
    batch = make_batch([[False, True, True]], advantages=[[0, 2.0, -1.0]])
    batch = replace(batch, behaviour_logprobs=torch.tensor([[0, -0.5, -1.5]]).double())
    for kind in KINDS:
        logprobs = batch.behaviour_logprobs.clone().requires_grad_()
        loss_of(outputs_of(logprobs), batch, kind()).total.backward()
        assert logprobs.grad.tolist() == [[0, -1.0, 0.5]]


def test_metrics_of_a_step_without_tokens_are_nan_not_missing():
    empty = MetricTotals().result()
    totals = MetricTotals()
    totals.add(loss_of(outputs_of([[0.0, -1.0]]), make_batch([[False, True]]), ClipLossConfig()))
    assert set(empty) == set(totals.result())
    assert all(math.isnan(value) for value in empty.values())
    nothing = make_batch([[False, False]])
    terms = loss_of(outputs_of([[0.0, 0.0]]), nothing, ClipLossConfig(entropy_coef=1.0))
    assert float(terms.total) == 0


def test_losses_are_averaged_over_optimizer_steps():
    batch = make_batch([[False, True]], advantages=[[0, -1.0]])
    totals = MetricTotals()
    for _ in range(2):
        totals.add(loss_of(outputs_of(torch.zeros(1, 2)), batch, ClipLossConfig()))
    metrics = totals.result(num_updates=2)
    assert metrics["loss/policy"] == metrics["loss/total"] == 1
    assert metrics["policy/ratio_mean"] == metrics["policy/ratio_max"] == 1
    assert metrics["policy/advantage_mean"] == -1


# Random batches: rows of up to 4 columns, several rows a trajectory.

NUMBERS = st.integers(-16, 16).map(lambda i: i / 8)


@st.composite
def cases(draw):
    num_rows, width = draw(st.integers(1, 5)), draw(st.integers(2, 4))

    def matrix(elements):
        return [draw(st.lists(elements, min_size=width, max_size=width)) for _ in range(num_rows)]

    mask = [[False, *row[1:]] for row in matrix(st.booleans())]
    owners, owner = [], 0
    for _ in range(num_rows):
        owners.append(owner)
        owner += draw(st.booleans())
    names = ("behaviour_logprobs", "advantages", "ref_logprobs", "values", "returns")
    batch = make_batch(mask, trajectories=owners, **{name: matrix(NUMBERS) for name in names})
    outputs = outputs_of(matrix(NUMBERS), torch.tensor(matrix(NUMBERS)).double(), matrix(NUMBERS))
    kind = draw(st.sampled_from(KINDS))
    config = kind(
        aggregation=draw(st.sampled_from(AGGREGATIONS)),
        kl_coef=draw(st.sampled_from([0.0, 0.3])),
        kl_estimator=draw(st.sampled_from(["k1", "k2", "k3"])),
        entropy_coef=draw(st.sampled_from([0.0, 0.1])),
        value_clip=draw(st.sampled_from([None, 0.5])),
    )
    return batch, outputs, config


def slow_loss(outputs, batch, config) -> dict[str, float]:
    """The loss, one token at a time."""
    owners = batch.trajectory_index.tolist()
    mask = batch.loss_mask.tolist()
    length_of = {
        owner: sum(sum(mask[b]) for b in range(len(mask)) if owners[b] == owner) for owner in owners
    }
    num_tokens = max(sum(length_of.values()), 1)
    out = {"policy": 0.0, "kl": 0.0, "entropy": 0.0, "value": 0.0}
    for b, row in enumerate(mask):
        logs = {
            t: float(outputs.logprobs[b, t] - batch.behaviour_logprobs[b, t])
            for t, on in enumerate(row)
            if on
        }
        for t, log_ratio in logs.items():
            ratio = math.exp(log_ratio)
            if config.kind == "gspo":
                ratio = math.exp(sum(logs.values()) / len(logs))
            advantage = float(batch.advantages[b, t])
            clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            if config.kind == "cispo":
                loss = -clipped * advantage * float(outputs.logprobs[b, t])
            else:
                loss = -min(ratio * advantage, clipped * advantage)
                if config.kind == "clip" and advantage < 0:
                    loss = min(loss, -advantage * config.dual_clip)
            weight = {
                "token_mean": 1 / num_tokens,
                "seq_mean_token_sum": 1 / len(length_of),
                "seq_mean_token_mean": 1 / len(length_of) / length_of[owners[b]],
                "seq_mean_token_sum_norm": 1 / len(length_of) / NORM_TOKENS,
            }[config.aggregation]
            out["policy"] += weight * loss
            d = float(outputs.logprobs[b, t] - batch.ref_logprobs[b, t])
            kl = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[config.kl_estimator]
            out["kl"] += config.kl_coef * weight * min(math.exp(log_ratio), 10) * kl
            out["entropy"] -= config.entropy_coef * weight * float(outputs.entropies[b, t])
            value, old = float(outputs.values[b, t]), float(batch.values[b, t])
            target = float(batch.returns[b, t])
            error = (value - target) ** 2
            if config.value_clip is not None:
                near = old + min(max(value - old, -config.value_clip), config.value_clip)
                error = max(error, (near - target) ** 2)
            out["value"] += 0.5 * config.value_coef * error / num_tokens
    return out


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(cases())
def test_the_loss_agrees_with_the_slow_one(case):
    batch, outputs, config = case
    terms = loss_of(outputs, batch, config)
    for name, expected in slow_loss(outputs, batch, config).items():
        term = terms.named.get(name, torch.tensor(0.0))
        assert float(term) == pytest.approx(expected, rel=1e-9, abs=1e-9), name
    assert float(terms.total) == pytest.approx(sum(slow_loss(outputs, batch, config).values()))


def rows_of(batch, rows: list[int]):
    """Some rows of a batch or of outputs."""
    parts = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{n: x[rows] for n, x in parts.items() if isinstance(x, Tensor)})


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_microbatches_add_up_to_the_whole_step(case, data):
    batch, outputs, config = case
    order = data.draw(st.permutations(range(batch.num_rows)))
    cut = data.draw(st.integers(0, batch.num_rows))
    denominators = Denominators.of(batch, NORM_TOKENS)
    whole, parts = MetricTotals(), MetricTotals()
    whole.add(loss_of(outputs, batch, config))
    total = 0.0
    for rows in (order[:cut], order[cut:]):
        terms = loss_of(rows_of(outputs, rows), rows_of(batch, rows), config, denominators)
        parts.add(terms)
        total += float(terms.total)
    assert total == pytest.approx(float(loss_of(outputs, batch, config).total), abs=1e-12)
    assert parts.result() == pytest.approx(whole.result(), nan_ok=True, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_gradients_of_clip_and_entropy_and_value_are_finite_differences(case):
    """KL, GSPO and CISPO have gradients that are not those of their values; see their own tests."""
    batch, outputs, config = case
    if config.kind != "clip":
        config = ClipLossConfig(aggregation=config.aggregation, entropy_coef=0.1)
    config = config.model_copy(update={"kl_coef": 0.0})
    # A kink of the loss at exactly this point would have no derivative: step off the grid.
    logprobs = (outputs.logprobs + 0.0123).requires_grad_()
    values = (outputs.values + 0.0231).requires_grad_()
    shifted = PolicyOutputs(logprobs=logprobs, entropies=outputs.entropies, values=values)
    loss_of(shifted, batch, config).total.backward()
    step = 1e-6
    for tensor in (logprobs, values):
        for b, t in batch.loss_mask.nonzero().tolist()[:3]:
            sides = []
            for sign in (1, -1):
                moved = tensor.detach().clone()
                moved[b, t] += sign * step
                name = "logprobs" if tensor is logprobs else "values"
                sides.append(
                    float(loss_of(replace(shifted, **{name: moved}), batch, config).total.detach())
                )
            slope = (sides[0] - sides[1]) / (2 * step)
            assert float(tensor.grad[b, t]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_gspo_averages_over_sequences_as_in_its_paper():
    """Zheng et al. 2025, equation 5: 1/G sum_i min(s_i A_i, clip(s_i) A_i), each sequence once."""
    assert GspoLossConfig().aggregation == "seq_mean_token_mean"
    mask = [[False, True, False, False], [False, True, True, True]]
    batch = make_batch(mask, advantages=[[0.0, 2.0, 0.0, 0.0], [0.0, -1.0, -1.0, -1.0]])
    terms = loss_of(outputs_of(torch.zeros(2, 4)), batch, GspoLossConfig())
    assert float(terms.named["policy"]) == pytest.approx(-(2.0 - 1.0) / 2)


def test_cispo_has_no_lower_bound_unless_one_is_set():
    """MiniMax-M1 clips importance weights from above only."""
    batch = make_batch([[False, True, True]], advantages=[[0.0, 1.0, 1.0]])
    logprobs = torch.tensor([[0.0, -3.0, 3.0]], dtype=torch.float64, requires_grad=True)
    config = CispoLossConfig(aggregation="seq_mean_token_sum")
    terms = loss_of(outputs_of(logprobs), batch, config)
    terms.total.backward()
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, -math.exp(-3.0), -1.28])
    assert float(terms.metrics["clip_low"]) == 0
    bounded = loss_of(outputs_of(logprobs.detach()), batch, CispoLossConfig(clip_low=0.2))
    assert float(bounded.metrics["clip_low"]) == 1
