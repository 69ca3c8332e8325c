"""Evaluation's tasks are its own: no other split plays them, whatever the seed, step or run."""

from __future__ import annotations

import dataclasses
import re

import pytest
from pools import begin

from echoscope.envs import registry
from echoscope.envs.base import (
    EnvParamsError,
    EnvSpec,
    Observation,
    StepResult,
    TextEnv,
    hash_task,
)
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.pool import EnvPool
from echoscope.envs.reserving import EVALUATION_SHARE, MIN_TASKS, few_tasks, is_reserved
from echoscope.envs.settings import EnvGroup
from echoscope.envs.streams import episode_seed

SMALL_LAKE = {"size": 4, "holes": 2, "slip": 0.0, "min_distance": 2, "max_distance": 5}
SMALL_ROOM = {"size": (5, 5), "min_solution": 2, "max_solution": 6}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NumbersConfig:
    how_many: int = 1000
    declared: int | None = None
    names_tasks: bool = True


class Numbers(TextEnv):
    """Task n of `how_many`, shown as it is."""

    spec = EnvSpec(
        id="numbers",
        config_type=NumbersConfig,
        max_turns=1,
        max_actions_per_turn=1,
        description="Numbered tasks.",
    )

    def __init__(self, config: NumbersConfig) -> None:
        super().__init__(config)
        self._config = config
        self._number = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._number = int(hash_task(seed), 16) % self._config.how_many
        return Observation(text=f"task {self._number}")

    def step(self, action: str) -> StepResult:
        return StepResult(
            observation=Observation(text="over"),
            reward=0.0,
            terminated=True,
            success=False,
            is_valid=True,
            is_effective=True,
            info={},
        )

    def instructions(self) -> str:
        return "Act."

    def task_key(self) -> str | None:
        return hash_task("numbers", self._number) if self._config.names_tasks else None

    @property
    def num_tasks(self) -> int | None:
        return self._config.declared


@pytest.fixture(autouse=True)
def _numbers_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILTIN, "numbers", f"{__name__}:Numbers")


def pool(
    env: str, params: dict[str, object], split: str, *, groups: int = 64, seed: int = 0
) -> EnvPool:
    group = EnvGroup(tag=env, env=env, groups=groups, params=params)
    return EnvPool([group], group_size=1, seed=seed, split=split)


def keys(
    env: str,
    params: dict[str, object],
    split: str,
    *,
    groups: int = 64,
    steps: int = 1,
    seed: int = 0,
) -> set[str | None]:
    with pool(env, params, split, groups=groups, seed=seed) as envs:
        return {slot.task_key for step in range(steps) for slot in begin(envs, step)}


MANY_TASKS = [
    ("frozen_lake", SMALL_LAKE),
    ("frozen_lake", {}),
    ("frozen_lake", {"size": 3}),
    ("sokoban", SMALL_ROOM),
    ("sokoban", {}),
    ("gymnasium", {"env": "Taxi-v4"}),
    ("numbers", {"how_many": 400}),
    ("numbers", {"how_many": 400, "names_tasks": False}),
]
"""Environments with enough tasks: all that ship, in the small sizes that repeat themselves most."""


@pytest.mark.long
@pytest.mark.parametrize(("env", "params"), MANY_TASKS)
@pytest.mark.parametrize("split", ["train", "probe"])
def test_no_evaluation_task_occurs_in_6400_training_tasks(
    env: str, params: dict[str, object], split: str
) -> None:
    evaluation = keys(env, params, "eval", groups=200)
    others = keys(env, params, split, groups=64, steps=100 if split == "train" else 1, seed=1)
    assert evaluation
    assert None not in evaluation | others
    assert not evaluation & others


def test_another_format_or_slip_is_still_the_same_board() -> None:
    """Evaluation on slippery boards in words does not meet training on safe boards in pictures."""
    training = keys("frozen_lake", SMALL_LAKE, "train", steps=20)
    harder = SMALL_LAKE | {"slip": 0.3, "observation": "coord"}
    assert not keys("frozen_lake", harder, "eval", groups=200) & training
    lake, other = (registry.make("frozen_lake", **params) for params in (SMALL_LAKE, harder))
    lake.reset(5, 0)
    other.reset(5, 9)
    assert lake.task_key() == other.task_key()


def test_another_board_has_another_key() -> None:
    room = registry.make("sokoban", **SMALL_ROOM)
    texts, keys = set(), set()
    for seed in range(300):
        texts.add(room.reset(seed, 0).text)
        keys.add(room.task_key())
    assert len(keys) == len(texts)


def test_the_first_draw_counts_where_no_other_split_owns_it() -> None:
    """Tasks that need no second draw keep the seed that names their place."""
    with pool("frozen_lake", SMALL_LAKE, "train") as envs:
        slots = begin(envs, 3)
    first_seeds = [episode_seed(0, "train", "tasks", 3, p, 0) for p in range(64)]
    num_redrawn = sum(s.env_seed != f for s, f in zip(slots, first_seeds, strict=True))
    assert 0 < num_redrawn < 64 / EVALUATION_SHARE * 3
    lake = registry.make("frozen_lake", **SMALL_LAKE)
    for slot, seed in zip(slots, first_seeds, strict=True):
        lake.reset(seed, 0)
        assert is_reserved(lake.task_key() or "") == (slot.env_seed != seed)


@pytest.mark.parametrize("split", ["train", "eval", "probe"])
def test_the_recorded_seed_replays_the_task(split: str) -> None:
    with pool("sokoban", SMALL_ROOM, split) as envs:
        slots = begin(envs, 2)
        begin(envs, 3)
        assert begin(envs, 2) == slots
    with pool("sokoban", SMALL_ROOM, split) as fresh:
        assert begin(fresh, 2) == slots
    room = registry.make("sokoban", **SMALL_ROOM)
    for slot in slots:
        assert room.reset(slot.env_seed, slot.noise_seed) == slot.observation
        assert room.task_key() == slot.task_key


@pytest.mark.parametrize(
    ("env", "params", "is_enough"),
    [
        ("bandit", {}, False),  # 24 prompts
        ("frozen_lake", {"size": 2}, False),
        ("frozen_lake", {"size": 3}, True),
        ("gymnasium", {"env": "CliffWalking-v1"}, False),
        ("gymnasium", {"env": "FrozenLake-v1"}, False),
        ("gymnasium", {"env": "Blackjack-v1"}, False),
        ("gymnasium", {"env": "Taxi-v4"}, True),
        ("numbers", {"how_many": 64}, False),
        ("numbers", {"declared": MIN_TASKS - 1}, False),
        ("numbers", {"how_many": 64, "declared": MIN_TASKS}, True),
    ],
)
def test_tasks_are_reserved_where_there_are_enough(
    env: str, params: dict[str, object], is_enough: bool
) -> None:
    with pool(env, params, "train", groups=1) as envs:
        [(tag, variety)] = envs.varieties()
    assert (tag, variety.is_enough) == (env, is_enough)


def test_few_tasks_are_said_in_one_line() -> None:
    lakes = EnvGroup(tag="pond", env="frozen_lake", groups=1, params={"size": 2})
    rooms = EnvGroup(tag="room", env="sokoban", groups=1)
    arms = EnvGroup(tag="arms", env="bandit", groups=2)
    with EnvPool([rooms, lakes, arms], group_size=2, seed=0, split="train") as envs:
        line = few_tasks(envs.varieties())
    assert re.search(r"fewer than 256 are different: 'pond' \(\d+\), 'arms' \(24\)\.", line)
    with EnvPool([rooms], group_size=2, seed=0, split="train") as envs:
        assert few_tasks(envs.varieties()) == ""


def test_a_world_that_declares_more_tasks_than_it_has_says_so() -> None:
    params = {"how_many": 1, "declared": MIN_TASKS}
    is_evaluation = is_reserved(hash_task("numbers", 0))
    with (
        pool("numbers", params, "train" if is_evaluation else "eval", groups=1) as envs,
        pytest.raises(EnvParamsError, match=r"256 seeds in a row .* num_tasks"),
    ):
        begin(envs, 1)


def test_the_checker_refuses_a_key_that_is_not_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tasks" in check_env("numbers").passed
    broken = {
        "same key": lambda self: hash_task("all"),
        "not what hash_task": lambda self: "task",
        "noise": lambda self: hash_task(id(self)),
    }
    messages = ["have the same key", "must return what hash_task", "depends on the instance"]
    for task_key, message in zip(broken.values(), messages, strict=True):
        monkeypatch.setattr(Numbers, "task_key", task_key)
        assert message in check_env("numbers").failed["tasks"]


def test_the_checker_refuses_a_number_of_tasks_that_is_too_small() -> None:
    assert "64 different" not in str(check_env("numbers", {"declared": 1000}).failed)
    assert "num_tasks is 3" in check_env("numbers", {"declared": 3}).failed["tasks"]
