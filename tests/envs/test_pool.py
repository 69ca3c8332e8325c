"""EnvPool: shapes, seeds, siblings, limits, and failures that stay in their place."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from pools import begin
from pydantic import ValidationError

from echoscope.envs import registry
from echoscope.envs.base import (
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    Observation,
    SiblingMismatchError,
    StepResult,
    TextEnv,
)
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.streams import episode_seed, stream_word
from echoscope.envs.turns.turn import TurnEnv, TurnResult
from echoscope.envs.workers.processes import ProcessTurns, WorkerProcesses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FaultyConfig:
    fault: str = "none"
    wait_s: float = 0.0


class Faulty(TextEnv):
    """A world that goes wrong on request."""

    spec = EnvSpec(
        id="faulty",
        config_type=FaultyConfig,
        max_turns=3,
        max_actions_per_turn=2,
        description="Goes wrong on request.",
    )

    def __init__(self, config: FaultyConfig) -> None:
        super().__init__(config)
        self._fault, self._wait_s = config.fault, config.wait_s

    def reset(self, seed: int, noise_seed: int) -> Observation:
        if self._fault == "reset" or (self._fault == "some resets" and noise_seed % 8 < 4):
            raise OSError("no data")
        return Observation(text=f"n {noise_seed}" if self._fault == "siblings" else "start")

    def step(self, action: str) -> StepResult:
        if self._fault == "step" and action == "break":
            raise KeyError("lost")
        time.sleep(self._wait_s)
        return StepResult(
            observation=Observation(text="went on"),
            reward=1.0,
            terminated=False,
            success=None,
            is_valid=True,
            is_effective=True,
            info={},
        )

    def instructions(self) -> str:
        return "Act."


@pytest.fixture(autouse=True)
def _faulty_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILTIN, "faulty", f"{__name__}:Faulty")


def pool(group_size: int = 2, **group: object) -> EnvPool:
    return EnvPool(
        [EnvGroup(**{"tag": "t", "env": "faulty", "groups": 1, **group})],
        group_size=group_size,
        seed=0,
        split="train",
    )


LAKE = EnvGroup(tag="lake", env="frozen_lake", groups=2, params={"slip": 0.5})
ARMS = EnvGroup(tag="arms", env="bandit", groups=1)


def test_slots_are_numbered_group_by_group() -> None:
    with EnvPool([LAKE, ARMS], group_size=3, seed=1, split="train") as envs:
        slots = begin(envs, 0)
        assert (envs.num_groups, envs.group_size) == (3, 3)
        assert [slot.index for slot in slots] == list(range(9))
        assert [(s.group_index, s.sibling_index) for s in slots[2:5]] == [(0, 2), (1, 0), (1, 1)]
        assert [slot.tag for slot in slots] == ["lake"] * 6 + ["arms"] * 3
        assert slots[8].env_id == "bandit"


def test_siblings_share_the_task_and_draw_their_own_noise() -> None:
    with EnvPool([LAKE], group_size=4, seed=1, split="train") as envs:
        group = begin(envs, 5)[:4]
    assert len({slot.env_seed for slot in group}) == 1
    assert len({slot.observation for slot in group}) == 1
    assert len({slot.noise_seed for slot in group}) == 4


def test_tasks_are_a_pure_function_of_seed_split_step_and_group() -> None:
    with EnvPool([LAKE], group_size=2, seed=3, split="train") as used:
        for step in range(4):
            begin(used, step)
        again = begin(used, 2)
    with EnvPool([LAKE], group_size=2, seed=3, split="train") as fresh:
        assert begin(fresh, 2) == again
    with EnvPool([LAKE], group_size=8, seed=3, split="train") as wider:
        # The number of siblings changes neither the tasks nor the first siblings' luck.
        assert [s.env_seed for s in begin(wider, 2)[::8]] == [s.env_seed for s in again[::2]]


def test_another_round_of_a_step_plays_other_tasks_and_numbers_go_on() -> None:
    with EnvPool([LAKE, ARMS], group_size=2, seed=3, split="train") as envs:
        first, second = begin(envs, 5), begin(envs, 5, 1)
        assert begin(envs, 5) == first
    assert [slot.index for slot in second] == list(range(6))
    assert [slot.episode_index for slot in [*first, *second]] == list(range(12))
    assert [slot.group_index for slot in [*first, *second]] == [p // 2 for p in range(12)]
    assert not {slot.env_seed for slot in first} & {slot.env_seed for slot in second}
    assert not {slot.noise_seed for slot in first} & {slot.noise_seed for slot in second}


def test_evaluation_has_one_round() -> None:
    with (
        EnvPool([ARMS], group_size=2, seed=3, split="eval") as envs,
        pytest.raises(EnvParamsError, match="the tasks of 'eval' are fixed: there is one round"),
    ):
        begin(envs, 0, 1)


@pytest.mark.parametrize("split", ["eval", "probe"])
def test_evaluation_tasks_do_not_depend_on_the_step(split: str) -> None:
    with EnvPool([LAKE], group_size=2, seed=3, split=split) as envs:
        assert begin(envs, 0) == begin(envs, 700)


def test_seeds_of_two_splits_never_meet() -> None:
    # The two lowest bits name the split, so this holds for every seed, not only for these.
    for step in range(20):
        assert episode_seed(9, "train", "tasks", step, 0, 0) % 4 == 0
        assert episode_seed(9, "train", "noise", step, 0, 3) % 4 == 0
    assert episode_seed(9, "eval", "tasks", 0, 0, 0) % 4 == 1
    assert episode_seed(9, "probe", "tasks", 0, 0, 0) % 4 == 2


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**70])
@pytest.mark.parametrize("index", [0, 5, 2**32 - 1, 2**32])
def test_a_word_is_that_of_numpys_seed_sequence(seed: int, index: int) -> None:
    numpys = np.random.SeedSequence(entropy=seed, spawn_key=(1, 0, 3, index))
    assert stream_word(seed, "eval", "tasks", 3, index) == numpys.generate_state(1, np.uint64)[0]


def test_seeds_fit_in_63_bits_and_differ() -> None:
    seeds = [episode_seed(0, "train", "tasks", step, p, 0) for step in range(50) for p in range(8)]
    seeds += [episode_seed(0, "train", "noise", 0, p, g) for p in range(20) for g in range(20)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == len(seeds)


MOVES = ("down", "right", "up", "left")
SLIPPERY = EnvGroup(env="frozen_lake", groups=2, params={"slip": 0.5}, max_turns=6)


def episodes(make_turns: Callable[[EnvGroup], TurnEnv] | None = None) -> list[list[TurnResult]]:
    """What each slot went through, with one action a turn."""
    with EnvPool([SLIPPERY], group_size=4, seed=2, split="train", make_turns=make_turns) as envs:
        running = [slot.index for slot in begin(envs, 0)]
        seen: list[list[TurnResult]] = [[] for _ in running]
        while running:
            results = {i: envs.step_one(i, [MOVES[i % 4]], True) for i in running}
            for i, result in results.items():
                seen[i].append(result)
            running = [i for i in running if results[i].stop_reason is None]
    return seen


def test_processes_change_nothing() -> None:
    processes = WorkerProcesses(2)
    try:
        make_turns = partial(ProcessTurns, limit_s=60.0, processes=processes)
        assert episodes(make_turns) == episodes()
    finally:
        processes.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_slots_are_stepped_changes_nothing(seed: int) -> None:
    """Every episode at a pace of its own, in random order."""
    rng = np.random.default_rng(seed)
    with EnvPool([SLIPPERY], group_size=4, seed=2, split="train") as envs:
        running = [slot.index for slot in begin(envs, 0)]
        seen: list[list[TurnResult]] = [[] for _ in running]
        while running:
            i = running[int(rng.integers(len(running)))]
            seen[i].append(envs.step_one(i, (MOVES[i % 4],), True))
            if seen[i][-1].stop_reason is not None:
                running.remove(i)
    assert seen == episodes()


def test_a_finished_slot_cannot_be_stepped() -> None:
    with EnvPool([ARMS], group_size=2, seed=0, split="train") as envs:
        with pytest.raises(ValueError, match="slot 0 has no running episode"):
            envs.step_one(0, (), True)
        begin(envs, 0)
        assert envs.step_one(0, (), True).stop_reason == "max_turns"
        with pytest.raises(ValueError, match="slot 0 has no running episode"):
            envs.step_one(0, (), True)
        assert envs.step_one(1, (), True).error is None


def test_siblings_that_differ_are_refused() -> None:
    with (
        pool(params={"fault": "siblings"}) as envs,
        pytest.raises(SiblingMismatchError, match="draw the task from seed alone"),
    ):
        begin(envs, 0)


def test_an_environment_that_raises_ends_its_own_episode_only() -> None:
    with pool(params={"fault": "step"}) as envs:
        begin(envs, 0)
        results = [envs.step_one(0, ["go", "break", "go"], True), envs.step_one(1, ["go"], True)]
        failed, fine = results[0], results[1]
        assert failed.stop_reason == "env_error"
        assert failed.error == "KeyError: 'lost'"
        assert failed.observation.text == "Environment error: KeyError: 'lost'"
        assert (failed.actions, failed.reward, failed.success) == (("go",), 1.0, None)
        assert fine.stop_reason is None
        assert fine.reward == 1.0
        # The next reset builds a new world.
        begin(envs, 1)
        assert envs.step_one(0, ["go"], True).reward == 1.0


def test_one_failed_reset_is_data_and_all_failed_is_a_broken_setup() -> None:
    with (
        pool(params={"fault": "reset"}) as envs,
        pytest.raises(EnvUnavailableError, match="no episode of 't' could start: OSError: no data"),
    ):
        begin(envs, 0)
    with pool(group_size=16, params={"fault": "some resets"}) as envs:
        slots = begin(envs, 0)
        broken = [s.index for s in slots if s.observation.text.startswith("Environment error")]
        assert 0 < len(broken) < 16
        result = envs.step_one(broken[0], ["go"], True)
        assert (result.stop_reason, result.error) == ("env_error", "OSError: no data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 0}, r"groups\n.*greater than or equal to 1 .*input_value=0"),
        ({"tag": " "}, r"tag\n.*should match pattern"),
        ({"max_turns": 0}, r"max_turns\n.*greater than or equal to 1 .*input_value=0"),
        ({"max_actions": 0}, r"max_actions\n.*greater than or equal to 1 .*input_value=0"),
        ({"format_penalty": 0.1}, r"format_penalty\n.*less than or equal to 0 .*input_value=0.1"),
        ({"max_turn": 1}, r"max_turn\n.*Extra inputs are not permitted"),
        ({"env": "no_such_world"}, "no environment 'no_such_world'"),
        ({"params": {"fautl": "x"}}, "did you mean 'fault'"),
    ],
)
def test_bad_groups_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises((ValidationError, EnvParamsError, KeyError), match=message):
        pool(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_size": 0}, "group_size is 0"),
        ({"split": "test"}, "split is 'test'"),
        ({"seed": -1}, "seed is -1"),
        ({"groups": []}, "at least one environment group"),
    ],
)
def test_bad_pools_are_refused(change: dict[str, object], message: str) -> None:
    settings = {"groups": [ARMS], "group_size": 2, "seed": 0, "split": "train", **change}
    groups = settings.pop("groups")
    with pytest.raises(EnvParamsError, match=message):
        EnvPool(groups, **settings)


def test_a_negative_step_is_refused() -> None:
    envs = EnvPool([ARMS], group_size=1, seed=0, split="train")
    with pytest.raises(EnvParamsError, match="step is -1"):
        begin(envs, -1)


def test_a_reply_is_one_action_where_one_is_allowed_or_the_world_says_so() -> None:
    groups = [
        EnvGroup(env="sokoban", groups=1, max_actions_per_turn=2),
        EnvGroup(env="sokoban", groups=1, max_actions_per_turn=1),
        EnvGroup(env="deepcoder", groups=1, params={"unsafe": True}),
    ]
    with EnvPool(groups, group_size=1, seed=0, split="train") as pool:
        assert [slot.is_one_action for slot in begin(pool, 0)] == [False, True, True]


def test_a_world_that_takes_one_action_refuses_a_limit_of_more() -> None:
    with pytest.raises(EnvParamsError, match="max_actions_per_turn is 2, but deepcoder takes each"):
        EnvGroup(env="deepcoder", max_actions_per_turn=2).settings()
