"""Bandit: one prompt per group, payouts as configured, success by choice and not by luck."""

from __future__ import annotations

from typing import Any

import pytest
from pools import begin

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.bandit import Bandit, BanditConfig


def test_a_group_reads_one_prompt_and_groups_differ() -> None:
    group = EnvGroup(tag="b", env="bandit", groups=16)
    with EnvPool([group], group_size=8, seed=0, split="train") as envs:
        slots = begin(envs, 0)
    prompts = [{s.observation.text for s in slots[p * 8 : p * 8 + 8]} for p in range(16)]
    assert all(len(texts) == 1 for texts in prompts)
    assert len(set.union(*prompts)) > 5


def test_the_order_of_the_arms_carries_no_information() -> None:
    env = Bandit()
    first = 0
    for seed in range(400):
        arms = env.reset(seed, 0).text.removeprefix("Arms: ").rstrip(".").split(", ")
        first += arms[0] == (env.solve() or [""])[0]
    assert abs(first - 200) < 50  # five standard deviations


def test_train_and_test_names_are_disjoint() -> None:
    names = [
        {name for pair in BanditConfig(pairs=pairs).name_pairs for name in pair}
        for pairs in ("train", "test")
    ]
    assert not names[0] & names[1]
    assert (len(names[0]), len(names[1])) == (24, 16)


def test_payouts_follow_the_configuration() -> None:
    env = Bandit()
    paid = []
    for noise_seed in range(2000):
        env.reset(5, noise_seed)
        result = env.step((env.solve() or [""])[0])
        assert (result.terminated, result.success) == (True, True)
        paid.append(result.reward)
    assert set(paid) == {0.0, 1.0}
    assert abs(sum(paid) - 500) < 97  # 2000 x 0.25, five standard deviations
    env.reset(5, 0)
    low = next(arm for arm in env.legal_actions() if [arm] != env.solve())
    result = env.step(low)
    assert (result.reward, result.terminated, result.success) == (0.1, True, False)
    assert result.observation.text == f"{low} paid 0.1."
    assert env.solve() is None


def test_own_arms_and_any_spelling() -> None:
    env = Bandit(BanditConfig(arms=(("Slow Boat", "Fast Car"),), high_probability=1.0))
    assert env.reset(0, 0).text in ("Arms: Slow Boat, Fast Car.", "Arms: Fast Car, Slow Boat.")
    assert env.step(" fast CAR\n").reward == 1.0


def test_an_unknown_arm_is_said_and_does_not_end_the_episode() -> None:
    env = Bandit(BanditConfig(arms=(("A", "B"),)))
    before = env.reset(0, 0).text
    result = env.step("C")
    assert result.observation.text == f'Invalid action "C". {before}'
    assert (result.terminated, result.success, result.is_valid) == (False, False, False)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"high_probability": 1.2}, "high_probability is 1.2"),
        ({"low_payout": 0.3}, "pays 0.25 on average, but must pay more"),
        ({"high_payout": float("inf")}, "must be finite"),
        ({"arms": []}, "arms is empty"),
        ({"arms": [["a", "A "]]}, "two different names"),
        ({"arms": [["a"]]}, "but must be a list of"),
        ({"pairs": "val"}, "'train', 'test'"),
    ],
)
def test_bad_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvParamsError, match=message):
        registry.make("bandit", **params)
