"""Advantages against hand-worked cases and an independent implementation in plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echoscope.core.config.settings import (
    BiLevelGaeConfig,
    GaeConfig,
    GroupRelativeConfig,
    ReinforcePpConfig,
)
from echoscope.core.update.advantages import estimate_advantages
from echoscope.core.update.batch import TokenBatch

GRPO = GroupRelativeConfig(kind="grpo")
DR_GRPO = GroupRelativeConfig(kind="dr_grpo")
RLOO = GroupRelativeConfig(kind="rloo")
BASELINE = GroupRelativeConfig(kind="reinforce_pp_baseline")


@dataclass
class Episode:
    """Turns as lists of token values; rewards one per turn, on its last token."""

    group: int
    values: list[list[float]]
    rewards: list[float]
    breaks: set[int] = field(default_factory=set)
    """Turns that start a new row."""


def make_batch(episodes: list[Episode], *, with_values: bool = True) -> TokenBatch:
    """Rows as `pack` lays them out: one prompt token before every turn, right padding."""
    rows = []
    for index, episode in enumerate(episodes):
        row: list[tuple[bool, int, float, float]] = []
        for turn, (values, reward) in enumerate(zip(episode.values, episode.rewards, strict=True)):
            if turn in episode.breaks and row:
                rows.append((index, episode.group, row))
                row = []
            row.append((False, -1, 0.0, 0.0))
            last = len(values) - 1
            row += [(True, turn, v, reward if t == last else 0.0) for t, v in enumerate(values)]
        rows.append((index, episode.group, row))
    width = max((len(row) for _, _, row in rows), default=0)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    turns = torch.full((len(rows), width), -1)
    values_BT = torch.zeros(len(rows), width)
    rewards_BT = torch.zeros(len(rows), width)
    for b, (_, _, row) in enumerate(rows):
        for t, (sampled, turn, value, reward) in enumerate(row):
            mask[b, t], turns[b, t] = sampled, turn
            values_BT[b, t], rewards_BT[b, t] = value, reward
    lengths = [sum(map(len, episode.values)) for episode in episodes]
    return TokenBatch(
        input_ids=torch.zeros(len(rows), width, dtype=torch.int64),
        attention_mask=torch.ones(len(rows), width, dtype=torch.bool),
        loss_mask=mask,
        turn_index=turns,
        behaviour_logprobs=torch.zeros(len(rows), width),
        token_rewards=rewards_BT,
        trajectory_index=torch.tensor([i for i, _, _ in rows], dtype=torch.int64),
        group_index=torch.tensor([g for _, g, _ in rows], dtype=torch.int64),
        trajectory_num_tokens=torch.tensor([lengths[i] for i, _, _ in rows], dtype=torch.int64),
        values=values_BT if with_values else None,
    )


def by_token(batch: TokenBatch, values_BT) -> list[list[float]]:
    """The values of every trajectory's sampled tokens in order."""
    out: dict[int, list[float]] = {}
    for row, index in enumerate(batch.trajectory_index.tolist()):
        out.setdefault(index, []).extend(values_BT[row][batch.loss_mask[row]].tolist())
    return [out[index] for index in sorted(out)]


def advantages_of(episodes, config, **options) -> list[list[float]]:
    batch = make_batch(episodes)
    advantages, _ = estimate_advantages(batch, config, **options)
    assert not advantages[~batch.loss_mask].any()
    return by_token(batch, advantages)


def flat(lists) -> list[float]:
    return [value for values in lists for value in values]


def single_turns(*scores: float, group: int = 0) -> list[Episode]:
    return [Episode(group, [[0.0, 0.0]], [score]) for score in scores]


class TestGae:
    def test_one_turn_by_hand(self):
        # values .5 .2, reward 1 on the last token, gamma .9, lam .5:
        # A1 = 1 - .2 = .8; A0 = .9 * .2 - .5 + .45 * .8 = .04.
        config = GaeConfig(gamma=0.9, lam=0.5, whiten=False)
        assert advantages_of([Episode(0, [[0.5, 0.2]], [1.0])], config) == [
            pytest.approx([0.04, 0.8])
        ]

    def test_prompts_between_turns_and_rows_are_skipped(self):
        one_turn = [Episode(0, [[0.5, 0.2, 0.1]], [1.0])]
        two_rows = [Episode(0, [[0.5], [0.2, 0.1]], [0.0, 1.0], breaks={1})]
        config = GaeConfig(gamma=0.9, lam=0.7, whiten=False)
        assert advantages_of(one_turn, config)[0] == pytest.approx(
            advantages_of(two_rows, config)[0]
        )

    def test_gamma_lam_1_is_the_return_to_go_minus_the_value(self):
        episode = Episode(0, [[0.5, 0.2], [0.1]], [0.25, 1.0])
        out = advantages_of([episode], GaeConfig(whiten=False))
        assert out == [pytest.approx([0.75, 1.05, 0.9])]

    def test_returns_are_advantages_plus_values_before_whitening(self):
        batch = make_batch([Episode(0, [[0.5, 0.2], [0.1]], [0.25, 1.0])])
        _, returns = estimate_advantages(batch, GaeConfig(whiten=True))
        assert by_token(batch, returns) == [pytest.approx([1.25, 1.25, 1.0])]
        assert not returns[~batch.loss_mask].any()

    def test_whitening_is_over_all_tokens(self):
        episodes = [Episode(0, [[0.0]], [1.0]), Episode(1, [[0.0, 0.0]], [0.0])]
        # 1, 0, 0: mean 1/3, variance 1/3.
        expected = [(x - 1 / 3) / math.sqrt(1 / 3) for x in (1, 0, 0)]
        assert flat(advantages_of(episodes, GaeConfig())) == pytest.approx(expected)

    def test_a_single_token_whitens_to_0(self):
        assert advantages_of([Episode(0, [[0.3]], [1.0])], GaeConfig()) == [[0.0]]


class TestBiLevelGae:
    def test_two_turns_by_hand(self):
        # Turn ends e0 (value .2) and e1 (value .1), rewards 0 and 1, turn_gamma .5, lam .8.
        # H1 = 1 - .1 = .9; H0 = 0 + .5 * .1 - .2 + .4 * .9 = .21.
        # Inside turn 0, gamma .9: A(e0) = H0 = .21, then .9 * .2 - .5 + .72 * .21 = -.1688.
        config = BiLevelGaeConfig(gamma=0.9, lam=0.8, turn_gamma=0.5, whiten=False)
        out = advantages_of([Episode(0, [[0.5, 0.2], [0.1]], [0.0, 1.0])], config)
        assert out == [pytest.approx([-0.1688, 0.21, 0.9])]

    def test_a_turn_ends_where_its_index_ends_even_with_reward_0(self):
        # The reference system takes non-zero rewards for turn ends and fails on this episode.
        config = BiLevelGaeConfig(turn_gamma=0.5, whiten=False)
        out = advantages_of([Episode(0, [[0.4], [0.2]], [0.0, 0.0])], config)
        # H1 = -.2; H0 = .5 * .2 - .4 + .5 * -.2 = -.4.
        assert out == [pytest.approx([-0.4, -0.2])]

    def test_a_break_between_rows_changes_nothing(self):
        config = BiLevelGaeConfig(gamma=0.9, lam=0.8, turn_gamma=0.7)
        turns, rewards = [[0.5, 0.2], [0.1], [0.3, 0.3]], [0.1, 0.0, 1.0]
        whole = advantages_of([Episode(0, turns, rewards)], config)
        broken = advantages_of([Episode(0, turns, rewards, breaks={1, 2})], config)
        assert whole[0] == pytest.approx(broken[0])

    def test_without_discounts_it_is_gae(self):
        episode = Episode(0, [[0.5, 0.2], [0.1]], [0.25, 1.0])
        out = advantages_of([episode], BiLevelGaeConfig(turn_gamma=1.0, whiten=False))
        assert out == [pytest.approx([0.75, 1.05, 0.9])]


class TestGroupRelative:
    def test_grpo(self):
        out = flat(advantages_of(single_turns(1, 0, 1), GRPO))
        assert out == pytest.approx([0.57735] * 2 + [-1.15470] * 2 + [0.57735] * 2, abs=1e-4)

    def test_dr_grpo(self):
        out = flat(advantages_of(single_turns(1, 0, 1), DR_GRPO))
        assert out == pytest.approx([1 / 3] * 2 + [-2 / 3] * 2 + [1 / 3] * 2)

    def test_rloo_is_the_score_minus_the_mean_of_the_others(self):
        out = flat(advantages_of(single_turns(1, 0, 4), RLOO))
        assert out == pytest.approx([1 - 2] * 2 + [0 - 2.5] * 2 + [4 - 0.5] * 2)

    @pytest.mark.parametrize("config", [GRPO, DR_GRPO, RLOO])
    def test_a_lone_trajectory_gets_0(self, config):
        # The reference system hands it its raw score.
        episodes = [*single_turns(5), *single_turns(1, 0, group=1)]
        assert advantages_of(episodes, config)[0] == [0, 0]

    @pytest.mark.parametrize("config", [GRPO, DR_GRPO, RLOO])
    def test_equal_scores_get_0(self, config):
        assert flat(advantages_of(single_turns(0.3, 0.3, 0.3), config)) == pytest.approx([0] * 6)

    def test_scores_that_differ_by_float32_noise_are_equal_for_grpo(self):
        episodes = [Episode(0, [[0.0]], [0.3]), Episode(0, [[0.0], [0.0]], [0.1, 0.2])]
        assert flat(advantages_of(episodes, GRPO)) == [0, 0, 0]

    def test_each_trajectory_counts_once_however_long_and_however_many_rows(self):
        long = Episode(0, [[0.0] * 5, [0.0] * 3], [0.0, 1.0], breaks={1})
        short = Episode(0, [[0.0]], [0.0])
        assert advantages_of([long, short], DR_GRPO) == [[0.5] * 8, [-0.5]]

    def test_groups_do_not_mix(self):
        episodes = [*single_turns(1, 0, group=7), *single_turns(10, 0, group=3)]
        out = advantages_of(episodes, DR_GRPO)
        assert [values[0] for values in out] == [0.5, -0.5, 5, -5]

    def test_critic_targets_are_returns_to_go_where_there_are_values(self):
        batch = make_batch([Episode(0, [[0.0], [0.0]], [0.5, 1.0]), *single_turns(0)])
        _, returns = estimate_advantages(batch, GRPO)
        assert by_token(batch, returns) == [[1.5, 1.0], [0, 0]]
        _, nothing = estimate_advantages(replace(batch, values=None), GRPO)
        assert nothing is None


class TestTurnCredit:
    def test_returns_to_go_are_compared_turn_by_turn(self):
        # Returns-to-go: (1, .5, 1) and, ended after one turn, (.4, 0, 0).
        episodes = [Episode(0, [[0.0], [0.0], [0.0]], [0.5, -0.5, 1.0]), Episode(0, [[0.0]], [0.4])]
        out = advantages_of(episodes, DR_GRPO, credit="turn")
        assert out == [pytest.approx([0.3, 0.25, 0.5]), pytest.approx([-0.3])]

    def test_trajectory_credit_gives_every_turn_the_whole_comparison(self):
        episodes = [Episode(0, [[0.0], [0.0], [0.0]], [0.5, -0.5, 1.0]), Episode(0, [[0.0]], [0.4])]
        out = advantages_of(episodes, DR_GRPO)
        assert out == [pytest.approx([0.3] * 3), pytest.approx([-0.3])]

    def test_grpo_divides_by_one_scale_per_group(self):
        # Turn 0: 1 and 0, variance .5; turn 1: .1 and 0, variance .005. The larger one counts.
        episodes = [Episode(0, [[0.0], [0.0]], [0.9, 0.1]), Episode(0, [[0.0]], [0.0])]
        out = advantages_of(episodes, GRPO, credit="turn")
        scale = math.sqrt(0.5)
        assert out == [
            pytest.approx([0.5 / scale, 0.05 / scale], abs=1e-5),
            pytest.approx([-0.5 / scale], abs=1e-5),
        ]

    def test_equal_totals_at_different_times_do_not_blow_up(self):
        episodes = [Episode(0, [[0.0], [0.0]], [1.0, 0.0]), Episode(0, [[0.0], [0.0]], [0.0, 1.0])]
        out = advantages_of(episodes, GRPO, credit="turn")
        # Returns-to-go (1, 0) and (1, 1): turn 0 equal, turn 1 variance .5.
        half = math.sqrt(0.5)
        assert out == [pytest.approx([0, -half], abs=1e-5), pytest.approx([0, half], abs=1e-5)]

    def test_one_turn_is_the_same_under_both_credits(self):
        for config in (GRPO, DR_GRPO, RLOO):
            turn = advantages_of(single_turns(1, 0, 4), config, credit="turn")
            assert turn == advantages_of(single_turns(1, 0, 4), config)


class TestLeftOut:
    """Siblings that selection dropped still belong to the baseline."""

    def test_they_count_in_mean_and_spread(self):
        kept = single_turns(3, 0)
        others = {0: [np.array([1.0]), np.array([0.0])]}
        out = [a[0] for a in advantages_of(kept, DR_GRPO, left_out=others)]
        assert out == pytest.approx([2, -1])
        out = [a[0] for a in advantages_of(kept, RLOO, left_out=others)]
        assert out == pytest.approx([3 - 1 / 3, -4 / 3])
        full = advantages_of(single_turns(3, 0, 1, 0), GRPO)
        assert advantages_of(kept, GRPO, left_out=others) == full[:2]

    def test_turn_by_turn(self):
        kept = [Episode(0, [[0.0]], [1.0])]
        others = {0: [np.array([0.0, 0.0, 3.0])]}
        # Returns-to-go at turn 0: 1 and 3. The later turns of the other one do not matter here.
        out = advantages_of(kept, DR_GRPO, credit="turn", left_out=others)
        assert out == [[-1.0]]


class TestReinforcePp:
    def test_token_level_returns_whitened_over_the_batch(self):
        episodes = [Episode(0, [[0.0], [0.0]], [0.0, 1.0]), Episode(1, [[0.0]], [0.0])]
        # Returns-to-go with gamma .5: .5, 1, 0; mean .5, variance .25.
        out = flat(advantages_of(episodes, ReinforcePpConfig(gamma=0.5)))
        assert out == pytest.approx([0, 1, -1])


@pytest.mark.parametrize(
    "config",
    [
        GaeConfig(),
        BiLevelGaeConfig(),
        GRPO,
        DR_GRPO,
        RLOO,
        ReinforcePpConfig(),
    ],
)
def test_an_empty_batch_is_no_error(config):
    batch = make_batch([])
    advantages, returns = estimate_advantages(batch, config)
    assert advantages.shape == returns.shape == batch.loss_mask.shape


# An independent implementation: one trajectory at a time, one token at a time, no arrays.


def slow_gae(values, rewards, gamma, lam):
    out, advantage = [], 0.0
    for t in reversed(range(len(values))):
        after = values[t + 1] if t + 1 < len(values) else 0.0
        advantage = rewards[t] + gamma * after - values[t] + gamma * lam * advantage
        out.insert(0, advantage)
    return out


def slow_bi_level(episode, gamma, lam, turn_gamma):
    last_values = [turn[-1] for turn in episode.values]
    high = slow_gae(last_values, episode.rewards, turn_gamma, lam)
    out = []
    for turn, advantage in zip(episode.values, high, strict=True):
        rewards = [0.0] * (len(turn) - 1) + [advantage + turn[-1]]
        out += slow_gae(turn, rewards, gamma, lam)
    return out


def slow_whiten(lists):
    values = flat(lists)
    if len(values) < 2:
        return [[0.0 for _ in values] for values in lists]
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return [[(v - mean) / math.sqrt(variance + 1e-8) for v in values] for values in lists]


def token_rewards(episode):
    return flat(
        [0.0] * (len(turn) - 1) + [reward]
        for turn, reward in zip(episode.values, episode.rewards, strict=True)
    )


def slow_group(episodes, kind, credit):
    out = []
    for episode in episodes:
        siblings = [other for other in episodes if other.group == episode.group]
        longest = max(len(other.rewards) for other in siblings)
        turns = range(longest if credit == "turn" else 1)
        n = len(siblings)
        variances = []
        for k in turns:
            scores = [sum(other.rewards[k:]) for other in siblings]
            mean = sum(scores) / n
            variances.append(sum((s - mean) ** 2 for s in scores) / max(n - 1, 1))
        std = math.sqrt(max(variances))
        tokens = []
        for k, turn in enumerate(episode.values):
            k = k if credit == "turn" else 0
            own = sum(episode.rewards[k:])
            others = [sum(other.rewards[k:]) for other in siblings if other is not episode]
            if not others:
                advantage = 0.0
            elif kind == "rloo":
                advantage = own - sum(others) / len(others)
            else:
                advantage = own - (own + sum(others)) / n
                if kind == "grpo":
                    advantage = 0.0 if std < 1e-9 else advantage / (std + 1e-6)
            tokens += [advantage] * len(turn)
        out.append(tokens)
    return out


@st.composite
def episode_lists(draw):
    episodes = []
    for _ in range(draw(st.integers(1, 5))):
        num_turns = draw(st.integers(1, 4))
        tenths = st.integers(-20, 20).map(lambda i: i / 8)
        values = draw(
            st.lists(
                st.lists(tenths, min_size=1, max_size=4), min_size=num_turns, max_size=num_turns
            )
        )
        rewards = draw(st.lists(tenths, min_size=num_turns, max_size=num_turns))
        breaks = draw(st.sets(st.integers(1, 3)))
        episodes.append(Episode(draw(st.integers(0, 2)), values, rewards, breaks))
    return episodes


UNIT = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(episode_lists(), UNIT, UNIT, UNIT, st.booleans())
def test_critic_estimators_agree_with_the_slow_ones(episodes, gamma, lam, turn_gamma, whiten):
    plain = [slow_gae(flat(e.values), token_rewards(e), gamma, lam) for e in episodes]
    levels = [slow_bi_level(e, gamma, lam, turn_gamma) for e in episodes]
    discounted = [
        slow_gae([0.0] * len(flat(e.values)), token_rewards(e), gamma, 1) for e in episodes
    ]
    if whiten:
        plain, levels = slow_whiten(plain), slow_whiten(levels)
    gae = GaeConfig(gamma=gamma, lam=lam, whiten=whiten)
    assert flat(advantages_of(episodes, gae)) == pytest.approx(flat(plain), abs=1e-4)
    bi = BiLevelGaeConfig(gamma=gamma, lam=lam, turn_gamma=turn_gamma, whiten=whiten)
    assert flat(advantages_of(episodes, bi)) == pytest.approx(flat(levels), abs=1e-4)
    rpp = flat(advantages_of(episodes, ReinforcePpConfig(gamma=gamma)))
    assert rpp == pytest.approx(flat(slow_whiten(discounted)), abs=1e-4)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(episode_lists(), st.sampled_from(["trajectory", "turn"]))
def test_group_estimators_agree_with_the_slow_ones(episodes, credit):
    for config in (GRPO, DR_GRPO, RLOO):
        expected = flat(slow_group(episodes, config.kind, credit))
        out = flat(advantages_of(episodes, config, credit=credit))
        assert out == pytest.approx(expected, rel=1e-4, abs=1e-5)


class TestReinforcePpBaseline:
    def test_distances_from_the_group_are_whitened_over_all_tokens(self):
        # Group 0: returns 1 and 0, distances .5 and -.5 on one and on three tokens; group 1: 0.
        episodes = [
            Episode(0, [[0.0]], [1.0]),
            Episode(0, [[0.0, 0.0, 0.0]], [0.0]),
            *single_turns(2.0, 2.0, group=1),
        ]
        raw = [0.5, -0.5, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0]
        mean = sum(raw) / 8
        std = math.sqrt(sum((x - mean) ** 2 for x in raw) / 7 + 1e-8)
        out = flat(advantages_of(episodes, BASELINE))
        assert out == pytest.approx([(x - mean) / std for x in raw])
