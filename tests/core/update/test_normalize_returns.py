"""Returns on the scale that trains, and the rewards of siblings that selection left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.core.config.settings import RunConfig
from echoscope.core.update.advantages import left_out_rewards, normalize_returns
from echoscope.core.update.assemble import pack_kept
from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.store.records import RolloutBatch, StopReason, Trajectory, Turn


class TestNormalizeReturns:
    returns = np.array([[1.0, 0.0, 1.0], [2.0, 2.0, 2.0]])

    def test_arpo_leaves_returns(self):
        assert normalize_returns(self.returns, "arpo").tolist() == self.returns.tolist()

    def test_brpo_uses_the_whole_batch(self):
        # Mean 8/6, squared deviations sum to 10/3, variance 2/3.
        expected = (self.returns - 8 / 6) / (math.sqrt(2 / 3) + 1e-6)
        assert normalize_returns(self.returns, "brpo") == pytest.approx(expected)

    def test_grpo_uses_the_group_and_gives_0_to_equal_returns(self):
        out = normalize_returns(self.returns, "grpo")
        assert out[0] == pytest.approx([0.57735, -1.15470, 0.57735], abs=1e-5)
        assert out[1].tolist() == [0, 0, 0]

    def test_mean(self):
        out = normalize_returns(self.returns, "mean")
        assert out[0] == pytest.approx([1 / 3, -2 / 3, 1 / 3])

    def test_asym_clip_clamps_to_minus_1_and_3(self):
        out = normalize_returns(np.array([[0.0] * 15 + [1.0], [1.0] * 15 + [0.0]]), "asym_clip")
        assert out[0].max() == 3.0  # 3.75 before
        assert out[1].min() == -1.0

    def test_failed_siblings_do_not_count_and_become_0(self):
        trainable = np.array([[True, False, True], [True, False, False]])
        returns = np.array([[1.0, 99.0, 0.0], [5.0, 99.0, 99.0]])
        out = normalize_returns(returns, "mean", trainable_PG=trainable)
        assert out.tolist() == [[0.5, 0, -0.5], [0, 0, 0]]  # a lone survivor has no comparison
        assert normalize_returns(returns, "arpo", trainable_PG=trainable)[0].tolist() == [1, 0, 0]
        assert normalize_returns(returns, "brpo", trainable_PG=trainable)[0, 1] == 0

    def test_groups_of_one_cannot_be_compared(self):
        with pytest.raises(ValueError, match=r"groups have one member.*arpo or brpo"):
            normalize_returns(np.ones((4, 1)), "grpo")
        assert normalize_returns(np.ones((4, 1)), "arpo").tolist() == [[1]] * 4

    def test_no_groups(self):
        assert normalize_returns(np.zeros((0, 4)), "brpo").shape == (0, 4)


def stored(p: int, g: int, rewards: list[float], *, failed: bool = False) -> Trajectory:
    turns = tuple(
        Turn(
            index=k,
            observation="",
            response="",
            prompt_tokens=np.array([1]),
            response_tokens=np.array([2]),
            logprobs=np.array([0.0]),
            reward=reward,
        )
        for k, reward in enumerate(rewards)
    )
    return make_trajectory(
        *turns,
        index=3 * p + g,
        group_index=p,
        sibling_index=g,
        tag="bandit",
        prompt_key="0" * 16,
        stop_reason=StopReason.ENV_ERROR if failed else StopReason.TERMINATED,
    )


def test_rewards_of_left_out_siblings_are_collected_for_groups_that_train():
    batch = RolloutBatch(
        groups=(
            (stored(0, 0, [1.0, 2.0]), stored(0, 1, [0.5]), stored(0, 2, [9.0], failed=True)),
            (stored(1, 0, [1.0]), stored(1, 1, [2.0]), stored(1, 2, [3.0])),
        )
    )
    keep = np.array([[True, False, False], [False] * 3])
    normalized = np.full((2, 3), 7.0)
    turn = left_out_rewards(batch, keep, normalized, "turn")
    assert {group: [r.tolist() for r in rows] for group, rows in turn.items()} == {0: [[0.5]]}
    whole = left_out_rewards(batch, keep, normalized, "trajectory")
    assert whole[0][0].tolist() == [7.0]


def test_each_kept_trajectory_trains_on_its_own_return(make_config: Callable[..., RunConfig]):
    rollouts = RolloutBatch(
        groups=(
            (stored(0, 0, [1.0]), stored(0, 1, [2.0])),
            (stored(1, 0, [3.0]), stored(1, 1, [4.0])),
        )
    )
    keep_PG = np.array([[True, False], [True, True]])
    selection = replace(select_groups(rollouts, SelectionConfig()), keep_PG=keep_PG)
    config = make_config("reward.normalization=arpo")
    batch, left_out = pack_kept(rollouts, selection, config, SimpleNamespace(pad_token_id=0))
    assert batch.token_rewards.tolist() == [[0, 1], [0, 3], [0, 4]]  # on the sampled token
    assert batch.group_index.tolist() == [0, 1, 1]
    assert [[r.tolist() for r in rows] for rows in left_out.values()] == [[[2.0]]]
