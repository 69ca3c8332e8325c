"""The curriculum: groups go where success is near one half, and a resumed run repeats it."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pools import begin
from recorded import assert_same_recording, metric

from echoscope.core.config.loading import ConfigError, apply_settings, load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.plugins.checks import made_up_rollouts
from echoscope.core.rollout.curriculum import (
    curriculum_metrics,
    divide,
    group_counts,
    note_success,
)
from echoscope.core.run.branching import plan_branch, start_branch
from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup

MakeConfig = Callable[..., RunConfig]
THREE = (
    "envs.train=[{env: bandit, tag: a, groups: 4}, {env: bandit, tag: b, groups: 4}, "
    "{env: bandit, tag: c, groups: 8}]"
)
ON = "curriculum={by: success}"


def three(*overrides: str) -> RunConfig:
    return load_config(overrides=[THREE, ON, *overrides])


# -- the shares ----------------------------------------------------------------------------------


def test_by_hand() -> None:
    # 4 p (1 - p): a 0.36, b solved, so 0.1, c 1. Times 4, 4, 8 groups: 1.44, 0.4, 8 of 9.84.
    success = {"a": 0.1, "b": 1.0, "c": 0.5}
    assert group_counts(three(), success) == [2, 1, 13]  # 16 x 0.146, 0.041, 0.813
    assert group_counts(three(), {}) == [4, 4, 8]  # nothing is known yet
    assert group_counts(three("curriculum.by=none"), success) == [4, 4, 8]


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    st.integers(0, 40),
)
def test_whole_shares_are_as_near_to_the_weights_as_they_can_be(weights, more):
    total = len(weights) + more
    shares = divide(total, weights)
    assert sum(shares) == total
    assert min(shares) >= 1
    ideal = [total * weight / sum(weights) for weight in weights]
    if min(ideal) >= 1:  # else the least of 1 costs the others some
        assert all(abs(share - each) < 1 + 1e-9 for share, each in zip(shares, ideal, strict=True))
        naive = [math.floor(each) for each in ideal]
        for k in sorted(range(len(ideal)), key=lambda k: (naive[k] - ideal[k], k)):
            naive[k] += sum(naive) < total
        assert shares == naive
    order = np.argsort(weights, kind="stable")
    assert all(shares[a] <= shares[b] + 1 for a, b in itertools.pairwise(order))


def test_the_running_success_forgets_slowly() -> None:
    rollouts = made_up_rollouts()  # lake: groups 0 and 2, bandit: group 1, solved
    rates = {}
    for tag in ("lake", "bandit"):
        outcomes = [t.is_success for t in rollouts.trajectories if t.tag == tag]
        outcomes = [float(success) for success in outcomes if success is not None]
        rates[tag] = sum(outcomes) / len(outcomes)
    first = note_success({"old": 0.3}, rollouts)
    assert first == pytest.approx({"old": 0.3, **rates})
    second = note_success({"lake": 0.9, "bandit": 0.5}, rollouts)
    assert second == pytest.approx(
        {"lake": 0.8 * 0.9 + 0.2 * rates["lake"], "bandit": 0.8 * 0.5 + 0.2 * rates["bandit"]}
    )


def test_metrics_say_what_it_did() -> None:
    metrics = curriculum_metrics(three(), [2, 1, 13], {"a": 0.1})
    assert metrics == {
        "curriculum/a/group_frac": 2 / 16,
        "curriculum/a/success": 0.1,
        "curriculum/b/group_frac": 1 / 16,
        "curriculum/c/group_frac": 13 / 16,
    }
    assert curriculum_metrics(three("curriculum.by=none"), [4, 4, 8], {"a": 0.1}) == {}


# -- the pool ------------------------------------------------------------------------------------


def pool_of(*counts: int) -> EnvPool:
    entries = [
        EnvGroup(env="bandit", tag="a", groups=counts[0]),
        EnvGroup(env="frozen_lake", tag="b", groups=counts[1], params={"size": 4}),
    ]
    return EnvPool(entries, group_size=2, seed=5, split="train")


def test_a_pool_that_shares_anew_is_a_pool_that_was_built_so() -> None:
    with pool_of(3, 2) as pool:
        for step, counts in enumerate([(3, 2), (1, 4), (4, 1), (3, 2), (1, 4)]):
            pool.share(counts)
            with pool_of(*counts) as fresh:
                assert begin(pool, step) == begin(fresh, step)
            tags = [slot.tag for slot in begin(pool, step)[::2]]
            assert tags == ["a"] * counts[0] + ["b"] * counts[1]
        assert [tag for tag, _ in pool.varieties()] == ["a", "b"]


@pytest.mark.parametrize("counts", [(5,), (5, 0), (3, 3), (-1, 6)])
def test_shares_that_cannot_be(counts: tuple[int, ...]) -> None:
    with pool_of(3, 2) as pool, pytest.raises(ValueError, match="are not shares of 5 groups"):
        pool.share(counts)


# -- a run ---------------------------------------------------------------------------------------

LAKES = (
    "envs.train=[{env: frozen_lake, tag: near, groups: 3, max_turns: 3, max_actions_per_turn: 1, "
    "params: {size: 4, holes: 2, slip: 0.0, min_distance: 2, max_distance: 3, observation: "
    "relative}}, {env: frozen_lake, tag: far, groups: 3, max_turns: 1, max_actions_per_turn: 1, "
    "params: {size: 4, holes: 2, slip: 0.0, min_distance: 4, max_distance: 6, observation: "
    "relative}}]"
)
QUICK = (
    *("steps=3", "envs.group_size=2", "envs.eval=[]", "probe.every=0", "diagnostics.enabled=false"),
    *("checkpoint.every=1", "checkpoint.keep=9", "context.max_response_tokens=24"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The far goal cannot be reached in one turn; the shipped policy often reaches the near one."""
    path = tmp_path_factory.mktemp("curriculum") / "run"
    on = "curriculum={by: success}"
    assert start(load_config("frozen_lake", overrides=[*QUICK, LAKES, on]), path, SilentEvents())
    return path


def test_what_is_hopeless_draws_less(run: Path) -> None:
    share = metric(run, "curriculum/far/group_frac")
    assert share[1] == 1 / 2
    success = metric(run, "curriculum/near/success")
    assert metric(run, "curriculum/far/success") == {1: 0, 2: 0, 3: 0}
    assert 0 < success[1] < 1
    assert share[2] == 1 / 6
    assert share[3] == 1 / 6


@pytest.mark.long
def test_a_resumed_run_and_a_branch_repeat_it(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(run, again)
    for checkpoint in list_checkpoints(again):
        if read_state(checkpoint).step > 1:
            shutil.rmtree(checkpoint)
    assert resume(again, SilentEvents()) == "finished"
    assert_same_recording(run, again)
    plan = plan_branch(run, checkpoint=2)
    assert start_branch(plan, tmp_path / "branch", SilentEvents()) == "finished"
    for key in ("curriculum/near/success", "curriculum/far/group_frac", "loss/policy"):
        assert metric(tmp_path / "branch", key)[3] == metric(run, key)[3]


# -- settings ------------------------------------------------------------------------------------


def test_it_chooses_between_tags(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"these are \['frozen_lake'\]: give it two en"):
        make_config("curriculum.by=success")
    with pytest.raises(ConfigError, match="two entries or more, each with a tag of its own"):
        load_config(overrides=["envs.train=[{env: bandit}, {env: bandit}]", ON])
    with pytest.raises(ConfigError, match="but from_run has its groups already"):
        three("from_run=somewhere")
    off = three("curriculum.by=none")
    assert apply_settings(off, {"curriculum.by": "success"}).curriculum.by == "success"
    with pytest.raises(ConfigError, match="give it two entries or more"):
        apply_settings(make_config(), {"curriculum.by": "success"})
