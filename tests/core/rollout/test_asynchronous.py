"""Episodes at their own pace: the trajectories of lock-step; slow and dead worlds are bounded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from bench import make_bench
from costs import without_hanging
from pools import worker_pids
from waiting_worlds import is_chosen

from echoscope.core.config.loading import ConfigError, load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.sources import EnvSource, StepDroppedError, turns_maker
from echoscope.envs.base import EnvUnavailableError
from echoscope.envs.pool import EnvPool
from echoscope.envs.workers.processes import WorkerProcesses
from echoscope.store.records import RolloutBatch, Split, StopReason, Trajectory, Turn

MakeConfig = Callable[..., RunConfig]
ASYNC = "collection.mode=async"
FOUR_TURNS = "{params: {size: 3, holes: 1, slip: 0.0}, max_turns: 4, groups: 4"


def world(name: str) -> str:
    return f"envs.train=[{FOUR_TURNS}, env: 'waiting_worlds:{name}'}}]"


@contextmanager
def source_of(
    config: RunConfig,
    *,
    processes: WorkerProcesses | None = None,
    **options: Any,
) -> Iterator[EnvSource]:
    bench = make_bench(config)
    envs = config.envs
    pool = EnvPool(
        envs.train,
        group_size=envs.group_size,
        seed=config.seed,
        split=Split.TRAIN,
        make_turns=turns_maker(config.collection, processes),
    )
    options = {"on_finished": lambda ended: None, "should_abort": lambda: False} | options
    engine = HfEngine(bench.policy.model, config=config.engine)
    source = EnvSource(
        pool, engine, bench.chat, config, Split.TRAIN, processes=processes, **options
    )
    try:
        yield source
    finally:
        source.close()


def played(config: RunConfig, **options: Any) -> RolloutBatch:
    with source_of(config, **options) as source:
        return source.collect(1, config)


@pytest.fixture(scope="module")
def lockstep(make_config: MakeConfig) -> RolloutBatch:
    """The waiting lakes, played in step with each other."""
    return played(make_config(world("WaitingLake")))


def assert_same_turn(left: Turn, right: Turn) -> None:
    for name in Turn.__dataclass_fields__:
        first, other = getattr(left, name), getattr(right, name)
        if name in ("logprobs", "entropies"):
            np.testing.assert_allclose(first, other, atol=1e-4)
        elif isinstance(first, np.ndarray):
            assert first.tolist() == other.tolist()
        elif name != "support":
            assert first == other, name


def assert_same(left: Trajectory, right: Trajectory) -> None:
    for name in Trajectory.__dataclass_fields__:
        if name not in ("turns", "duration_s"):
            assert getattr(left, name) == getattr(right, name), name
    assert len(left.turns) == len(right.turns)
    for first, other in zip(left.turns, right.turns, strict=True):
        assert_same_turn(first, other)


def assert_same_batch(left: RolloutBatch, right: RolloutBatch) -> None:
    assert [len(group) for group in left.groups] == [len(group) for group in right.groups]
    for first, other in zip(left.trajectories, right.trajectories, strict=True):
        assert_same(first, other)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("collection.env_timeout_s=null",),
        ("collection.max_in_flight=4", "collection.num_workers=2"),
        (
            "engine.max_batch_rows=3",
            "sampling.top_k=5",
            "context.max_episode_tokens=25",
            "sampling.stop=['e']",
        ),
    ],
    ids=lambda settings: ",".join(settings) or "defaults",
)
def test_the_trajectories_are_those_of_lockstep(
    make_config: MakeConfig, lockstep: RolloutBatch, settings: tuple[str, ...]
) -> None:
    common = [each for each in settings if not each.startswith("collection")]
    expected = played(make_config(world("WaitingLake"), *common)) if common else lockstep
    assert_same_batch(played(make_config(world("WaitingLake"), ASYNC, *settings)), expected)


@pytest.mark.long
def test_worlds_in_processes_play_the_same_and_leave_no_process(
    make_config: MakeConfig, lockstep: RolloutBatch
) -> None:
    processes = WorkerProcesses(2)
    config = make_config(world("WaitingLake"), ASYNC, "collection.workers=processes")
    with source_of(config, processes=processes) as source:
        assert_same_batch(source.collect(1, config), lockstep)
        pids = worker_pids(processes)
    assert len(pids) == 2
    assert [pid for pid in pids if is_running(pid)] == []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def by_fate(batch: RolloutBatch) -> tuple[list[Trajectory], list[Trajectory]]:
    """The chosen episodes, and the others."""
    chosen = [each for each in batch.trajectories if is_chosen(each.noise_seed)]
    others = [each for each in batch.trajectories if not is_chosen(each.noise_seed)]
    assert chosen
    assert others
    return chosen, others


@pytest.mark.parametrize(
    ("name", "what"), [("HangingLake", "the turn"), ("SleepyLake", "the reset")]
)
def test_a_world_that_hangs_costs_its_episode_and_the_message_names_it(
    make_config: MakeConfig, lockstep: RolloutBatch, name: str, what: str
) -> None:
    config = make_config(world(name), ASYNC, "collection.env_timeout_s=0.2")
    with source_of(config) as source:
        with without_hanging():
            chosen, others = by_fate(source.collect(1, config))
        for each in chosen:
            assert each.stop_reason is StopReason.TIMEOUT
            assert each.is_success is None
            assert each.final_observation == (
                f"Environment error: waiting_worlds:{name}: {what} took more than 0.2 s "
                "(collection.env_timeout_s)"
            )
        expected = by_fate(lockstep)[1]
        for left, right in zip(others, expected, strict=True):
            assert [t.response for t in left.turns] == [t.response for t in right.turns]
            assert left.stop_reason is right.stop_reason
        again = source.collect(2, config)  # with new worlds in their places
        assert {t.stop_reason for t in by_fate(again)[1]} == {StopReason.MAX_TURNS}


@pytest.mark.long
def test_a_dead_worker_costs_its_episodes_and_is_replaced(make_config: MakeConfig) -> None:
    told: list[str] = []
    processes = WorkerProcesses(2, told.append)
    config = make_config(world("DyingLake"), ASYNC, "collection.workers=processes")
    with source_of(config, processes=processes) as source:
        chosen, _ = by_fate(source.collect(1, config))
        first = worker_pids(processes)
        for each in chosen:
            assert each.stop_reason is StopReason.ENV_ERROR
            assert "the worker process of the environment died (exit code 7)" in (
                each.final_observation
            )
        source.collect(2, config)
        assert "a worker process of the environments died, with " in told[0]
        pids = {*first, *worker_pids(processes)}
    assert [pid for pid in pids if is_running(pid)] == []


def test_a_worker_that_cannot_begin_ends_the_run_with_a_sentence(make_config: MakeConfig) -> None:
    config = make_config(world("DeadLake"), ASYNC, "collection.workers=processes")
    with (
        source_of(config, processes=WorkerProcesses(1)) as source,
        pytest.raises(EnvUnavailableError, match="died before it had begun: play with collection"),
    ):
        source.collect(1, config)


def test_a_dropped_step_leaves_the_engine_free(make_config: MakeConfig) -> None:
    config = make_config(world("WaitingLake"), ASYNC)
    ended: list[Trajectory] = []
    with source_of(config, on_finished=ended.extend, should_abort=lambda: len(ended) > 3) as source:
        with pytest.raises(StepDroppedError):
            source.collect(1, config)
        assert ended[-1].stop_reason is StopReason.ABORTED


def test_who_waits_for_whom_is_counted(make_config: MakeConfig) -> None:
    config = make_config(world("WaitingLake"), ASYNC)
    with source_of(config) as source:
        source.collect(1, config)
        values = source.take_metrics()
        assert source.take_metrics() == {}
    seconds = values["collection/update_wait_s"]
    assert 0 < values["collection/engine_wait_s"] < seconds
    assert 0 <= values["collection/env_wait_s"] < seconds
    assert 0 < values["collection/num_env_calls_mean"] <= 16
    assert 0 < values["collection/num_requests_mean"] <= 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["collection.workers=processes"], "collection.workers is processes, which holds for"),
        (["collection.max_staleness=1"], "collection.max_staleness is 1, which holds for"),
        (["collection.env_timeout_s=3"], "collection.env_timeout_s is 3"),
        ([ASYNC, "collection.max_in_flight=3"], "set it to at least envs.group_size=4"),
        ([ASYNC, "from_run=somewhere"], "from_run has its episodes already"),
        ([ASYNC, "collection.max_staleness=1"], "set off_policy.old_logprobs=trainer and"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    make_config: MakeConfig, settings: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(*settings)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["lockstep", "async"])
def test_the_shipped_policy_samples_the_tokens_that_were_recorded(mode: str) -> None:
    """Recorded with the code before episodes could go at their own pace."""
    config = load_config(
        "frozen_lake",
        overrides=[
            "envs.train=[{env: frozen_lake, params: {size: 4}, max_turns: 4, groups: 3}]",
            "envs.group_size=4",
            f"model.path={resolve_model('tiny')}",
            "model.device=cpu",
            "context.max_response_tokens=24",
            f"collection.mode={mode}",
        ],
    )
    digest = hashlib.sha256()
    with source_of(config) as source:
        for step in (1, 2):
            for each in source.collect(step, config).trajectories:
                for turn in each.turns:
                    digest.update(turn.response_tokens.tobytes())
    assert digest.hexdigest()[:32] == "6f4fe3c36ca871bdadafaed035155eb3"
