"""Episodes played while the update runs: never too old, corrected, and nothing lost or kept."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import metric
from started import started
from waiting import wait_until

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.rollout.ahead import AheadSource, SharedEngine
from echoscope.core.run.checkpoint import list_checkpoints
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAction, Split
from echoscope.store.steer.commands import new_command, post

MakeConfig = Callable[..., RunConfig]
WORLD = (
    "envs.train=[{env: 'waiting_worlds:WaitingLake', params: {size: 3, holes: 1, slip: 0.0}, "
    "max_turns: 3, groups: 2}]"
)
AHEAD = (
    WORLD,
    "steps=6",
    "collection={mode: async, max_staleness: 1}",
    "off_policy={old_logprobs: trainer, correction: tis}",
    "diagnostics.enabled=false",
)


@pytest.mark.long
def test_turns_are_at_most_so_many_updates_old_and_each_says_its_version(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert start(make_config(*AHEAD), run, SilentEvents()) == "finished"
    largest = metric(run, "rollout/staleness_max")
    assert set(largest) == {1, 2, 3, 4, 5, 6}
    assert largest[1] == 0
    assert set(largest.values()) <= {0, 1}
    assert max(largest.values()) == 1
    assert set(metric(run, "collection/num_steps_ahead").values()) <= {0, 1}
    assert metric(run, "collection/update_wait_s")[6] >= 0
    assert metric(run, "off_policy/weight_mean")[6] == pytest.approx(1, abs=0.5)
    threads = [thread.name for thread in threading.enumerate()]
    assert "echoscope-ahead" not in threads


@pytest.mark.long
def test_evaluation_has_the_weights_of_its_step(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(make_config(*AHEAD, "eval.every=1"), run, SilentEvents())
    rows = open_run(run).sql(
        "select distinct step, policy_version from trajectories where split = 'eval' order by step"
    )
    assert rows.column("policy_version").to_pylist() == rows.column("step").to_pylist()


@pytest.mark.long
def test_a_stopped_run_goes_on_where_it_was(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"

    class StopAt3(SilentEvents):
        def metrics(self, metrics: object) -> None:
            if (metrics.step, metrics.phase) == (3, "train"):
                post(run, new_command(open_run(run).run_id, CommandAction.STOP, issued_by="test"))

    assert start(make_config(*AHEAD), run, StopAt3()) == "stopped"
    stopped_after = open_run(run).info().last_step
    assert 3 <= stopped_after < 6
    assert resume(run, SilentEvents()) == "finished"
    reader = open_run(run)
    assert reader.info().last_step == 6
    per_step = reader.sql(
        "select step, count(*) as n from trajectories where split = 'train' group by step "
        "order by step"
    )
    assert per_step.column("n").to_pylist() == [8] * 6


@pytest.mark.long
def test_a_live_setting_holds_from_its_step_on(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"

    class HotAt2(SilentEvents):
        def metrics(self, metrics: object) -> None:
            if (metrics.step, metrics.phase) == (2, "train"):
                post(
                    run,
                    new_command(
                        open_run(run).run_id,
                        CommandAction.SET,
                        settings={"sampling.temperature": 1.5},
                        issued_by="test",
                    ),
                )

    start(make_config(*AHEAD), run, HotAt2())
    reader = open_run(run)
    [state] = reader.commands()
    for step in range(1, 7):
        temperatures = {
            turn.temperature
            for trajectory in reader.trajectories_of_step(step)
            if trajectory.split is Split.TRAIN
            for turn in trajectory.turns
        }
        assert temperatures == {1.5 if step >= state.ack.step else 1.0}, step


class Episodes:
    """A source whose batch says by what it was played."""

    def __init__(self) -> None:
        self.played: list[tuple[int, float]] = []

    def collect(self, step: int, config: RunConfig) -> tuple[int, float]:
        self.played.append((step, config.sampling.temperature))
        return self.played[-1]

    def take_metrics(self) -> dict[str, float]:
        return {}


def test_what_was_played_ahead_by_old_settings_is_played_again(make_config: MakeConfig) -> None:
    inner, shared = Episodes(), SharedEngine(object())
    source = AheadSource(inner=inner, shared=shared, is_cancelled=threading.Event())
    cool, hot = make_config(*AHEAD), make_config(*AHEAD, "sampling.temperature=1.5")
    assert [source.collect(1, cool), source.collect(2, cool)] == [(1, 1.0), (2, 1.0)]
    assert source.collect(3, hot) == (3, 1.5)
    shared.settle()
    assert inner.played == [(1, 1.0), (2, 1.0), (3, 1.0), (3, 1.5), (4, 1.5)]


@pytest.mark.long
def test_an_error_of_the_episodes_ends_the_run(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(
        *AHEAD, WORLD.replace("WaitingLake", "DeadLake"), "collection.workers=processes"
    )
    with pytest.raises(Exception, match="died"):
        start(config, tmp_path / "run", SilentEvents())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["off_policy.correction=none"], "set off_policy.old_logprobs=trainer and off_policy"),
        (
            [
                "envs.train=[{env: bandit, tag: a}, {env: bandit, tag: b}]",
                "curriculum.by=success",
            ],
            "chooses the next tasks after each update",
        ),
    ],
)
def test_what_is_unsound_with_old_samples_is_refused(
    make_config: MakeConfig, settings: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(*AHEAD, *settings)


@pytest.mark.slow
def test_after_kill_9_no_worker_process_is_left_and_the_run_goes_on(
    config_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    overrides = [*AHEAD, "collection.workers=processes", "collection.num_workers=2", "steps=2000"]
    overrides.append("checkpoint.every=1")
    command = "from echoscope.cli import main; main()"
    arguments = ["train", "--config", str(config_file), "-o", str(run), "--headless", *overrides]
    with (tmp_path / "out").open("wb") as out:
        process = started(
            subprocess.Popen([sys.executable, "-c", command, *arguments], stdout=out, stderr=out)
        )
    wait_until(lambda: list_checkpoints(run) != [])
    workers = [each for each in children(process.pid) if "spawn_main" in each.read_text()]
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_until(lambda: not any(each.exists() for each in workers))
    done = open_run(run).info().last_step
    assert resume(run, SilentEvents(), settings={"steps": done + 1}) == "finished"
    assert open_run(run).info().last_step == done + 1


def children(pid: int) -> list[Path]:
    """The command lines of a process's children, as files that are there while they are."""
    ids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{child}/cmdline") for child in ids]
