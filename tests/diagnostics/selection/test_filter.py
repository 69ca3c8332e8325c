"""Selection as a specification: which units train, for which numbers, and why none does."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from trajectories import make_trajectory

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.selection.filter import (
    arrays_of,
    group_values,
    mean_entropy,
    select_groups,
)
from echoscope.diagnostics.selection.rules import select
from echoscope.store.records import FinishReason, RolloutBatch, StopReason, Trajectory, Turn


def of_groups(batch, metric):
    return group_values(arrays_of(batch, metric), metric)


def config(**changes) -> SelectionConfig:
    return SelectionConfig(**changes)


def linear(value: float, **changes) -> SelectionConfig:
    return config(strategy="top_p", value=value, **changes)


def kept(values, rule: SelectionConfig) -> list[int]:
    return np.flatnonzero(select(np.array(values, dtype=float), rule)).tolist()


def trajectory(
    p: int,
    g: int,
    reward: float,
    *,
    num_tokens: int = 2,
    entropy: float | None = 1.0,
    success: bool | None = None,
    stop: StopReason = StopReason.TERMINATED,
    finish: FinishReason = FinishReason.STOP,
) -> Trajectory:
    entropies = None if entropy is None else np.full(num_tokens, entropy)
    turn = Turn(
        index=0,
        observation="",
        response="",
        prompt_tokens=np.array([1]),
        response_tokens=np.arange(num_tokens),
        logprobs=np.zeros(num_tokens),
        entropies=entropies,
        reward=reward,
        finish_reason=finish,
    )
    return make_trajectory(
        turn,
        index=p * 8 + g,
        group_index=p,
        sibling_index=g,
        tag="bandit",
        env_seed=p,
        noise_seed=g,
        prompt_key="0" * 16,
        stop_reason=stop,
        is_success=success,
    )


def rollouts(returns, **fields) -> RolloutBatch:
    """Groups with the given returns; further fields as nested lists of the same shape."""
    return RolloutBatch(
        groups=tuple(
            tuple(
                trajectory(p, g, r, **{name: rows[p][g] for name, rows in fields.items()})
                for g, r in enumerate(row)
            )
            for p, row in enumerate(returns)
        )
    )


class TestLinearTopP:
    """The shortest prefix of the ranking with (value - eps) of the sum."""

    @pytest.mark.parametrize(
        ("values", "value", "expected"),
        [
            ([4, 3, 2, 1], 0.6, [0, 1]),  # target .59 * 10 = 5.9: 4, 7
            ([10, 1, 0, 0], 0.9, [0]),  # .89 * 11 = 9.79: 10
            ([4, 2, 0, 0], 0.9, [0, 1]),  # .89 * 6 = 5.34: 4, 6
            ([3, 1, 1, 0], 0.9, [0, 1, 2]),  # .89 * 5 = 4.45: 3, 4, 5
            ([1] * 8, 0.9, list(range(8))),  # 7.12: 7 is too little
            ([1] * 8, 0.875, list(range(7))),  # 6.92
            ([1] * 8, 0.5, [0, 1, 2, 3]),  # 3.92
            ([8.061, 0, 0, 8.344], 0.9, [0, 3]),
            ([1, 2, 3, 4], 0.6, [2, 3]),  # the order of the units does not matter
        ],
    )
    def test_worked_examples(self, values, value, expected):
        assert kept(values, linear(value)) == expected

    def test_nothing_has_mass(self):
        assert kept([0, 0, 0], linear(0.9)) == []
        assert kept([0, 0, 0], linear(0.9, include_zero=True)) == []

    def test_value_1_keeps_every_candidate(self):
        assert kept([5, 0, 1], linear(1.0, include_zero=True)) == [0, 1, 2]
        assert kept([5, 0, 1], linear(1.0)) == [0, 2]

    def test_eps_is_relative_so_a_small_scale_changes_nothing(self):
        # With an absolute eps of .01 the reference system keeps nothing here.
        assert kept([0.004, 0.003, 0.002], linear(0.9)) == [0, 1, 2]
        assert kept([0.004, 0.003, 0.002], linear(0.75)) == [0, 1]

    def test_a_tiny_value_still_keeps_the_best(self):
        assert kept([1, 5, 2], linear(0.001)) == [1]

    def test_smallest_walks_up_and_takes_the_zeros_on_its_way(self):
        # The reference system keeps nothing as soon as one value is zero.
        assert kept([3, 0, 1, 0], linear(0.2, keep="smallest", include_zero=True)) == [1, 2, 3]
        assert kept([3, 0, 1, 0], linear(0.2, keep="smallest")) == [2]
        assert kept([4, 3, 2, 1], linear(0.3, keep="smallest")) == [2, 3]  # 2.9: 1, 3

    def test_negative_values_are_measured_from_the_smallest(self):
        # Masses 0, 4, 2; target .89 * 6 = 5.34.
        assert kept([-1, 3, 1], linear(0.9)) == [1, 2]
        # Masses 2, 1, 0; target .49 * 3.
        assert kept([-1, -2, -3], linear(0.5)) == [0]
        assert kept([-1, -1, -1, -1], linear(0.5)) == [0, 1]


class TestTopK:
    def test_the_fraction_is_of_all_units_not_of_the_candidates(self):
        # Half of 4 units, though only 3 are candidates.
        assert kept([10, 6, 7, 0], config(strategy="top_k", value=0.5)) == [0, 2]
        assert kept([5, 0, 0, 0], config(strategy="top_k", value=0.5)) == [0]

    def test_at_least_one_and_rounded_down(self):
        assert kept([1, 2, 3], config(strategy="top_k", value=0.1)) == [2]
        assert kept([1, 2, 3, 4, 5], config(strategy="top_k", value=0.5)) == [3, 4]

    def test_a_fraction_that_floats_miss_by_a_bit_is_exact(self):
        # .29 * 100 is 28.999999999999996.
        assert len(kept(np.arange(1, 101), config(strategy="top_k", value=0.29))) == 29

    def test_absolute_numbers(self):
        assert kept([1, 3, 2], config(strategy="top_k_abs", value=2)) == [1, 2]
        assert kept([1, 3, 2], config(strategy="top_k_abs", value=9)) == [0, 1, 2]
        assert kept([1, 3, 2], config(strategy="top_k_abs", value=0.5)) == [1]

    def test_smallest(self):
        assert kept([1, 3, 2], config(strategy="top_k_abs", value=2, keep="smallest")) == [0, 2]

    def test_ties_go_to_the_earlier_unit_where_no_order_is_given(self):
        assert kept([2, 1, 2, 2], config(strategy="top_k_abs", value=2)) == [0, 2]

    def test_ties_go_by_the_given_order_and_rounding_makes_no_difference(self):
        ties = np.array([9, 0, 3, 5], dtype=np.uint64)
        rule = config(strategy="top_k_abs", value=2)
        for values in ([0.3, 0.1, 0.3, 0.3], [0.3, 0.1, 0.1 + 0.2, 0.3]):
            assert np.flatnonzero(select(values, rule, ties=ties)).tolist() == [2, 3]


class TestMinP:
    def test_within_a_factor_of_the_largest(self):
        assert kept([10, 5, 4.9, 0], config(strategy="min_p", value=0.5)) == [0, 1]

    def test_within_a_factor_of_the_smallest(self):
        assert kept([1, 2, 2.1], config(strategy="min_p", value=0.5, keep="smallest")) == [0, 1]

    def test_negative_values_are_measured_from_the_worst(self):
        # The reference system's threshold, .5 * -1, lies above every value.
        assert kept([-1, -2, -3], config(strategy="min_p", value=0.5)) == [0, 1]
        assert kept([-1, -2, -3], config(strategy="min_p", value=0.6)) == [0]
        smallest = config(strategy="min_p", value=0.5, keep="smallest")
        assert kept([-1, -2, -3], smallest) == [1, 2]
        assert kept([-1, -1], config(strategy="min_p", value=0.9)) == [0, 1]

    @pytest.mark.parametrize("strategy", ["top_p", "top_k", "min_p"])
    def test_a_fraction_above_1_is_refused(self, strategy):
        message = (
            f"selection.value must be between 0 and 1 with selection.strategy={strategy}, not 4. "
            "For a count of groups set selection.strategy=top_k_abs."
        )
        with pytest.raises(ValidationError, match=re.escape(message)):
            config(strategy=strategy, value=4)
        config(strategy=strategy, value=1.0)  # every group
        config(strategy="top_k_abs", value=4)


class TestSelect:
    def test_none_keeps_all_even_the_undefined(self):
        assert kept([0, math.nan, -1], config(strategy="none")) == [0, 1, 2]

    @pytest.mark.parametrize("strategy", ["top_p", "top_k", "top_k_abs", "min_p"])
    def test_undefined_values_are_never_kept(self, strategy):
        values = [math.nan, 1.0, math.inf, -math.inf]
        assert kept(values, config(strategy=strategy, value=1.0)) == [1]
        assert kept([math.nan], config(strategy=strategy, value=1.0)) == []
        assert kept([], config(strategy=strategy, value=1.0)) == []


STRATEGIES = st.sampled_from(["top_p", "top_k", "top_k_abs", "min_p"])
SCORES = arrays(float, st.integers(1, 12), elements=st.integers(0, 6).map(float))


@settings(deadline=None)
@given(SCORES, STRATEGIES, st.floats(0.05, 1.0), st.sampled_from(["largest", "smallest"]))
def test_what_is_kept_is_never_worse_than_what_is_not(values, strategy, value, keep):
    mask = select(values, config(strategy=strategy, value=value, keep=keep))
    assert not mask[values == 0].any()
    assert mask.any() == (values > 0).any()
    dropped = ~mask & (values > 0)
    if mask.any() and dropped.any():
        if keep == "largest":
            assert values[mask].min() >= values[dropped].max()
        else:
            assert values[mask].max() <= values[dropped].min()


@settings(deadline=None)
@given(SCORES, STRATEGIES, st.floats(0.05, 1.0), st.floats(1e-3, 1e3))
def test_the_scale_of_the_metric_does_not_matter(values, strategy, value, scale):
    rule = config(strategy=strategy, value=value)
    # A value that ties with its threshold may fall either way by rounding: stay off the ties.
    if strategy in ("min_p", "top_p"):
        rule = config(strategy=strategy, value=min(value + 1e-4 * math.pi, 1.0))
    assert (select(values, rule) == select(values * scale, rule)).all()


@settings(deadline=None)
@given(SCORES, st.floats(0.02, 0.98))
def test_linear_top_p_is_the_shortest_prefix_that_holds_its_share(values, value):
    mask = select(values, linear(value))
    total = values.sum()
    if total == 0:
        assert not mask.any()
        return
    assert values[mask].sum() >= (value - 0.01) * total - 1e-9
    without_last = values[mask].sum() - values[mask].min()
    assert without_last < (value - 0.01) * total + 1e-9


class TestGroups:
    def test_reward_std_is_unbiased_and_zero_groups_are_counted(self):
        batch = rollouts([[10.9, -0.5], [10.9, 10.9], [-0.5, -0.5], [10.8, -1.0]])
        selection = select_groups(batch, linear(0.9))
        assert selection.values_P == pytest.approx([8.061, 0, 0, 8.344], abs=1e-3)
        assert selection.keep_P.tolist() == [True, False, False, True]
        metrics = selection.metrics()
        assert metrics["selection/kept_frac"] == 0.5
        assert metrics["selection/num_zero_variance"] == 2
        assert metrics["selection/metric_mean"] == pytest.approx(4.101, abs=1e-3)
        assert metrics["selection/metric_mean_kept"] == pytest.approx(8.202, abs=1e-3)
        assert metrics["selection/threshold"] == pytest.approx(8.061, abs=1e-3)
        assert selection.reason == ""

    def test_reward_sum(self):
        # Sums 10, 6, 7, 1.
        batch = rollouts([[4, 6], [2, 4], [3, 4], [0, 1]])
        rule = config(strategy="top_k", value=0.5, metric="reward_sum")
        selection = select_groups(batch, rule)
        assert selection.keep_P.tolist() == [True, False, True, False]
        metrics = selection.metrics()
        assert metrics["selection/metric_mean"] == 6.0
        assert metrics["selection/metric_mean_kept"] == 8.5

    def test_reward_mean_prefers_the_mean_over_the_spread(self):
        batch = rollouts([[10, 11], [0, 5]])  # means 10.5 and 2.5
        rule = config(strategy="top_k", value=0.5, metric="reward_mean")
        assert select_groups(batch, rule).keep_P.tolist() == [True, False]

    def test_entropy_and_length(self):
        batch = rollouts(
            [[0, 0], [0, 0]], entropy=[[1.0, 2.0], [0.5, 0.5]], num_tokens=[[3, 1], [9, 7]]
        )
        assert of_groups(batch, "entropy").tolist() == [1.5, 0.5]
        assert of_groups(batch, "length").tolist() == [2.0, 8.0]

    def test_returns_that_differ_by_rounding_have_no_variance(self):
        batch = rollouts([[0.1 + 0.2, 0.3], [0.0, 1.0]])
        assert select_groups(batch, linear(0.9)).values_P[0] == 0.0

    def test_everything_is_kept_without_a_strategy(self):
        selection = select_groups(rollouts([[0, 0], [1, 2]]), config())
        assert selection.keep_PG.all()
        assert math.isnan(selection.metrics()["selection/threshold"])

    def test_solved_and_hopeless_are_told_apart(self):
        batch = rollouts(
            [[1, 1], [0, 0], [0.5, 0.5], [0, 1], [2, 2]],
            success=[[True, True], [False, False], [True, False], [False, True], [None, None]],
        )
        metrics = select_groups(batch, linear(0.9)).metrics()
        assert metrics["selection/num_zero_variance"] == 4
        assert metrics["selection/num_solved"] == 1
        assert metrics["selection/num_hopeless"] == 1


class TestFailures:
    def test_a_failed_sibling_counts_in_no_metric_and_is_not_kept(self):
        done, error = StopReason.TERMINATED, StopReason.ENV_ERROR
        batch = rollouts([[0, 1, 99], [0, 0, 0]], stop=[[done, done, error], [done] * 3])
        selection = select_groups(batch, linear(0.9))
        assert selection.values_P == pytest.approx([math.sqrt(0.5), 0])
        assert selection.keep_PG.tolist() == [[True, True, False], [False] * 3]
        assert selection.drop_reason(0, 0) is None
        assert "failed" in selection.drop_reason(0, 2)
        assert selection.drop_reason(1, 0) == "reward_std of the group is zero"

    def test_a_group_with_one_survivor_has_no_spread_to_rank_by(self):
        done, error = StopReason.TERMINATED, StopReason.ENV_ERROR
        batch = rollouts([[0, 1], [5, 0]], stop=[[done, done], [done, error]])
        selection = select_groups(batch, linear(0.9))
        assert math.isnan(selection.values_P[1])
        assert selection.keep_P.tolist() == [True, False]
        assert selection.metrics()["selection/num_undefined"] == 1
        assert selection.drop_reason(1, 0) == "reward_std of the group is not defined"
        # Without a strategy it trains all the same.
        assert select_groups(batch, config()).keep_PG.tolist() == [[True, True], [True, False]]

    def test_missing_entropies_are_undefined_not_zero(self):
        batch = rollouts([[0, 1]], entropy=[[None, 1.0]])
        assert math.isnan(mean_entropy(batch.groups[0][0]))
        selection = select_groups(batch, config(strategy="top_k", value=1, metric="entropy"))
        assert selection.reason == (
            "empty: entropy is not defined for any of the 1 groups; no entropies were recorded"
        )

    def test_a_drop_below_the_threshold_says_the_value(self):
        selection = select_groups(rollouts([[0, 1], [0, 8]]), config(strategy="top_k", value=0.5))
        assert selection.drop_reason(0, 1) == (
            "reward_std of the group is 0.7071, below what top_k keeps"
        )


class TestEmpty:
    def test_zero_variance_everywhere(self):
        batch = rollouts([[1, 1], [0, 0]], success=[[True, True], [False, False]])
        selection = select_groups(batch, linear(0.9))
        assert selection.is_empty
        assert selection.reason.startswith(
            "empty: reward_std is zero for all 2 groups where it is defined "
            "(1 groups solved, 1 hopeless)"
        )
        assert selection.metrics()["selection/is_empty"] == 1

    def test_groups_of_one(self):
        selection = select_groups(rollouts([[1], [2]]), linear(0.9))
        assert "needs at least two siblings" in selection.reason

    def test_nothing_can_train(self):
        batch = rollouts([[1, 2]], num_tokens=[[0, 0]])
        for rule in (config(), linear(0.9)):
            assert "none of the 2 trajectories can train" in select_groups(batch, rule).reason

    def test_no_groups_at_all(self):
        selection = select_groups(RolloutBatch(groups=()), linear(0.9))
        assert selection.is_empty
        assert math.isnan(selection.metrics()["selection/kept_frac"])


@settings(deadline=None)
@given(
    arrays(float, (3, 4), elements=st.sampled_from([0.0, 0.5, 1.0, -0.1])),
    STRATEGIES,
    st.sampled_from(["reward_std", "reward_mean", "reward_sum", "entropy", "length"]),
    st.floats(0.05, 1.0),
)
def test_keep_masks_agree_with_each_other(returns, strategy, metric, value):
    rule = config(strategy=strategy, metric=metric, value=value)
    selection = select_groups(rollouts(returns), rule)
    assert (selection.keep_P == selection.keep_PG.any(axis=1)).all()
    assert not (selection.keep_PG & ~selection.trainable_PG).any()
    assert bool(selection.reason) == selection.is_empty
    assert set(selection.metrics()) == set(select_groups(rollouts(returns), config()).metrics())
    for p, g in np.ndindex(*returns.shape):
        assert (selection.drop_reason(p, g) is None) == selection.keep_PG[p, g]
    assert (selection.keep_PG == selection.keep_P[:, None]).all()


class TestSeveralEnvironments:
    """A9: no place in the batch and no scale of rewards decides who trains."""

    @staticmethod
    def of_step(step, tags, spreads) -> RolloutBatch:
        groups = []
        for p, (tag, spread) in enumerate(zip(tags, spreads, strict=True)):
            pair = (trajectory(p, g, spread * g) for g in range(2))
            seeds = {"env_seed": 1000 * step + p, "tag": tag}
            groups.append(tuple(replace(sibling, **seeds) for sibling in pair))
        return RolloutBatch(groups=tuple(groups))

    @pytest.mark.long
    def test_equal_groups_are_kept_alike_wherever_they_stand(self):
        """Of eight equal groups top_k .25 keeps two; over 2,000 steps each group about 500 times.

        The standard deviation of such a count is sqrt(2000 x .25 x .75) = 19.4.
        """
        rule = config(strategy="top_k", value=0.25)
        counts = sum(
            select_groups(self.of_step(step, ["a"] * 8, [1.0] * 8), rule).keep_P.astype(int)
            for step in range(2000)
        )
        assert counts.sum() == 4000
        assert np.abs(counts - 500).max() < 4 * 19.4

    def test_the_order_among_equals_is_that_of_the_seeds(self):
        rule = config(strategy="top_k", value=0.25)
        groups, again, other = (self.of_step(step, ["a"] * 8, [1.0] * 8) for step in (1, 1, 2))
        first = select_groups(groups, rule).keep_PG
        assert select_groups(again, rule).keep_PG.tolist() == first.tolist()
        assert select_groups(other, rule).keep_PG.tolist() != first.tolist()

    def test_a_drop_says_that_it_was_a_tie_or_whose_rule_it_was(self):
        batch = self.of_step(1, ["a"] * 4, [1.0] * 4)
        selection = select_groups(batch, config(strategy="top_k", value=0.25))
        dropped = int(np.flatnonzero(~selection.keep_P)[0])
        assert "equal to some of what top_k keeps" in selection.drop_reason(dropped, 0)


class TestTimeouts:
    @pytest.mark.parametrize("stop", [StopReason.TIMEOUT, StopReason.ENV_ERROR, StopReason.ABORTED])
    @pytest.mark.parametrize("strategy", ["none", "top_p"])
    def test_a_failed_episode_never_trains(self, stop, strategy):
        done = StopReason.TERMINATED
        batch = rollouts([[0, 1, 99], [0, 1, 1]], stop=[[done, done, stop], [done] * 3])
        selection = select_groups(batch, config(strategy=strategy))
        assert not selection.keep_PG[0, 2]
        assert selection.drop_reason(0, 2) == "failed, or has no sampled tokens"
        assert selection.reward_std_P[0] == pytest.approx(math.sqrt(0.5))


class TestDapo:
    """The filters of DAPO: mixed groups, whole replies, no more groups than asked for."""

    returns = ((1, 1), (0, 1), (0, 0.5), (0, 0), (1, 0))
    success = ((True, True), (False, True), (False, False), (False, False), (True, False))
    batch = rollouts(returns, success=success)

    def test_mixed_by_return(self):
        chosen = select_groups(self.batch, config(mixed="return"))
        assert chosen.keep_P.tolist() == [False, True, True, False, True]
        assert chosen.drop_reason(0, 1) == "the siblings' returns are equal"
        assert chosen.metrics()["selection/num_mixed"] == 3
        assert select_groups(self.batch, config()).metrics()["selection/num_mixed"] == 3

    def test_mixed_by_success_looks_past_shaped_rewards(self):
        chosen = select_groups(self.batch, config(mixed="success"))
        assert chosen.keep_P.tolist() == [False, True, False, False, True]

    def test_a_sibling_that_failed_makes_no_group_mixed(self):
        stops = [[StopReason.TIMEOUT, StopReason.TERMINATED]]
        failed = rollouts([[0, 1]], success=[[False, True]], stop=stops)
        for mixed in ("return", "success"):
            assert select_groups(failed, config(mixed=mixed)).is_empty

    def test_the_first_groups_train_and_the_others_are_too_many(self):
        chosen = select_groups(self.batch, config(mixed="return", max_groups=2))
        assert chosen.keep_P.tolist() == [False, True, True, False, False]
        assert chosen.drop_reason(4, 0) == "2 groups before it train"

    def test_a_rule_ranks_only_what_is_mixed(self):
        # Spreads of groups 1, 2 and 4: .71, .35, .71. Half of the mass is in two of them.
        chosen = select_groups(self.batch, linear(0.7, mixed="return"))
        assert chosen.keep_P.tolist() == [False, True, False, False, True]
        mean = config(strategy="top_k_abs", value=1, metric="reward_mean", mixed="return")
        assert not select_groups(self.batch, mean).keep_P[0]  # the best mean, but solved

    def test_a_cut_reply_does_not_train_and_its_group_does(self):
        finish = [[FinishReason.LENGTH, FinishReason.STOP], [FinishReason.LENGTH] * 2]
        cut = rollouts([[0, 1], [1, 0]], finish=finish)
        chosen = select_groups(cut, config(overlong="drop"))
        assert chosen.keep_PG.tolist() == [[False, True], [False, False]]
        assert chosen.drop_reason(0, 0) == "a reply was cut at its longest"
        assert chosen.reward_std_P == pytest.approx([math.sqrt(0.5)] * 2)  # it still counts there
        assert chosen.metrics()["selection/num_overlong"] == 3
        assert select_groups(cut, config()).keep_PG.all()

    def test_why_nothing_is_left(self):
        solved = rollouts([[1, 1]], success=[[True, True]])
        reason = select_groups(solved, config(mixed="return")).reason
        assert reason.startswith("empty: the siblings' returns are equal in each")
        cut = rollouts([[0, 1]], finish=[[FinishReason.LENGTH] * 2])
        assert (
            "raise context.max_response_tokens"
            in select_groups(cut, config(overlong="drop")).reason
        )
