"""The probe: a few fixed tasks, played the same way each time, which change nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bench import make_bench
from listening import Listener
from recorded import assert_same_recording, metric

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.rollout.sources import EnvSource, probe_groups
from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.envs.pool import EnvPool
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import RolloutBatch, Split
from echoscope.store.steer.commands import new_command, post

MakeConfig = Callable[..., RunConfig]
SUCCESS = "probe/frozen_lake/success_rate"
NO_EVALUATION = ("eval.every=0", "eval.before=false", "envs.eval=[]")


@pytest.fixture(scope="module")
def probed(
    make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Listener]:
    path, listener = tmp_path_factory.mktemp("runs") / "probed", Listener()
    config = make_config("probe.every=1", "checkpoint.every=1", "checkpoint.keep=9")
    assert start(config, path, listener) == "finished"
    return path, listener


@pytest.mark.long
def test_it_is_stored_beside_training_and_evaluation(probed: tuple[Path, Listener]) -> None:
    path, listener = probed
    reader = open_run(path)
    rows = reader.sql("SELECT split, step, id FROM trajectories ORDER BY ALL").to_pylist()
    assert [(row["step"], row["id"]) for row in rows if row["split"] == "probe"] == [
        (step, f"p{step:08d}-0000{index}") for step in range(5) for index in range(3)
    ]
    assert {row["step"] for row in rows if row["split"] == "eval"} == {0, 2, 4}
    assert set(metric(path, SUCCESS, phase="eval")) == {0, 1, 2, 3, 4}
    assert {
        "probe/frozen_lake/return_mean",
        "probe/frozen_lake/action_valid_frac",
        "probe/frozen_lake/num_tasks",
        "time/probe_s",
    } <= set(reader.metric_keys())
    assert [(seen.step, seen.phase) for seen in listener.seen[:5]] == [
        (0, "eval"),
        (0, "eval"),
        (1, "train"),
        (1, "eval"),
        (2, "train"),
    ]
    names = [(step, name) for step, name in listener.phases if step == 2]
    assert names == [
        (2, "rollout"),
        (2, "annotate"),
        (2, "diagnostics"),
        (2, "update"),
        (2, "evaluate"),
        (2, "probe"),
        (2, "checkpoint"),
    ]
    assert verify(path).problems == ()


def test_its_trajectories_never_train(probed: tuple[Path, Listener]) -> None:
    reader = open_run(probed[0])
    rows = reader.sql("SELECT kept, advantage FROM trajectories WHERE split = 'probe'").to_pylist()
    assert rows
    assert all(row == {"kept": None, "advantage": None} for row in rows)
    counted = reader.sql("SELECT DISTINCT num_trajectories FROM steps WHERE step > 0").to_pylist()
    assert counted == [{"num_trajectories": 8}]


def test_its_tasks_are_its_own_and_the_same_each_time(probed: tuple[Path, Listener]) -> None:
    rows = open_run(probed[0]).sql(
        "SELECT split, step, env_seed, noise_seed FROM trajectories ORDER BY id"
    )
    seeds: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in rows.to_pylist():
        here = seeds.setdefault((row["split"], row["step"]), [])
        here.append((row["env_seed"], row["noise_seed"]))
    of_probes = [pairs for (split, _), pairs in seeds.items() if split == "probe"]
    assert of_probes == [of_probes[0]] * 5
    assert len(set(of_probes[0])) == 3
    others = {pair for (split, _), pairs in seeds.items() if split != "probe" for pair in pairs}
    assert not others & set(of_probes[0])


def sampled_tokens(batch: RolloutBatch) -> list[list[int]]:
    return [
        turn.response_tokens.tolist()
        for trajectory in batch.trajectories
        for turn in trajectory.turns
        if turn.response_tokens is not None
    ]


def test_the_same_policy_plays_it_the_same_way_at_every_step(make_config: MakeConfig) -> None:
    """Tasks and random numbers are fixed: only the policy can change the figure. An evaluation
    plays the same tasks with other random numbers each time."""
    bench = make_bench(make_config())
    engine = HfEngine(bench.policy.model, config=bench.config.engine)
    sampled = {}
    for split in (Split.PROBE, Split.EVAL):
        source = EnvSource(
            EnvPool(probe_groups(bench.config), group_size=1, seed=0, split=split),
            engine,
            bench.chat,
            bench.config,
            split,
            on_finished=lambda finished: None,
            should_abort=lambda: False,
        )
        sampled[split] = [sampled_tokens(source.collect(step, bench.config)) for step in (1, 7)]
    assert sampled[Split.PROBE][0] == sampled[Split.PROBE][1]
    assert sampled[Split.EVAL][0] != sampled[Split.EVAL][1]


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [(), ("model.lora={rank: 4, alpha: 8}", "critic.kind=head", "advantage.kind=gae")],
    ids=["plain", "lora_critic"],
)
def test_training_is_the_same_with_and_without_it(
    make_config: MakeConfig, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Metrics and the weights of the last checkpoint, bit for bit."""
    for every in (0, 1):
        config = make_config(f"probe.every={every}", *settings)
        start(config, tmp_path / str(every), SilentEvents())
    query = (
        "SELECT step, key, value FROM metrics WHERE key NOT SIMILAR TO '(time|system)/.*' AND "
        "key NOT LIKE 'probe/%' ORDER BY ALL"
    )
    without, probed = (
        repr(open_run(tmp_path / name).sql(query).to_pylist()) for name in ("0", "1")
    )
    assert without == probed
    last = list_checkpoints(tmp_path / "0")[-1]
    for file in last.rglob("*.safetensors"):
        other = tmp_path / "1" / file.relative_to(tmp_path / "0")
        assert other.read_bytes() == file.read_bytes()


@pytest.mark.long
def test_a_resumed_run_repeats_it(probed: tuple[Path, Listener], tmp_path: Path) -> None:
    whole = probed[0]
    for step in (0, 1, 3):
        again = tmp_path / f"from_{step}"
        shutil.copytree(whole, again)
        for checkpoint in list_checkpoints(again):
            if read_state(checkpoint).step > step:
                shutil.rmtree(checkpoint)
        assert resume(again, SilentEvents()) == "finished"
        assert_same_recording(whole, again)


@pytest.mark.long
def test_it_needs_no_evaluation(make_config: MakeConfig, tmp_path: Path) -> None:
    """The starting policy is probed as step 0 all the same; a resume does not repeat that."""
    config = make_config("probe.every=2", "steps=3", "checkpoint.every=0", *NO_EVALUATION)
    start(config, tmp_path / "run", SilentEvents())
    assert set(metric(tmp_path / "run", SUCCESS, phase="eval")) == {0, 2}
    for checkpoint in list_checkpoints(tmp_path / "run"):
        shutil.rmtree(checkpoint)
    listener = Listener()
    resume(tmp_path / "run", listener)
    assert (0, "probe") not in listener.phases
    assert set(metric(tmp_path / "run", SUCCESS, phase="eval")) == {0, 2}


def test_the_alarms_on_success_can_see(make_config: MakeConfig, tmp_path: Path) -> None:
    """TRAIN_EVAL_DIVERGENCE has nothing to judge by where no tasks are fixed."""
    warnings = {}
    for every in (0, 9):
        listener = Listener()
        config = make_config(f"probe.every={every}", "steps=1", *NO_EVALUATION)
        start(config, tmp_path / str(every), listener)
        warnings[every] = " ".join(text for text in listener.messages if "cannot raise" in text)
    assert "TRAIN_EVAL_DIVERGENCE" in warnings[0]
    assert "TRAIN_EVAL_DIVERGENCE" not in warnings[9]


class Steering(Listener):
    """Posts a command when a phase of a step begins."""

    def __init__(
        self, path: Path, moment: tuple[int, str], action: str, **settings: object
    ) -> None:
        super().__init__()
        self.path, self.moment, self.action, self.settings = path, moment, action, settings

    def phase(self, step: int, name: str) -> None:
        super().phase(step, name)
        if (step, name) == self.moment:
            post(self.path, new_command(self.path.name, self.action, settings=self.settings))


def test_its_interval_changes_while_the_run_is_going(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """A run that began without worlds for it makes them then."""
    path = tmp_path / "run"
    config = make_config("probe.every=0", "steps=5")
    start(config, path, Steering(path, (1, "update"), "set", **{"probe.every": 2}))
    assert set(metric(path, SUCCESS, phase="eval")) == {2, 4}


@pytest.mark.long
def test_stop_now_drops_it_and_keeps_the_step(make_config: MakeConfig, tmp_path: Path) -> None:
    path, config = tmp_path / "run", make_config("probe.every=3", "eval.every=3")
    listener = Steering(path, (3, "probe"), "stop_now")
    assert start(config, path, listener) == "stopped"
    assert listener.messages[-1] == "the probe of step 3 was dropped"
    assert set(metric(path, SUCCESS, phase="eval")) == {0}
    assert set(metric(path, "eval/frozen_lake/success_rate", phase="eval")) == {0, 3}
    assert resume(path, SilentEvents()) == "finished"  # with step 4: the stop wrote a checkpoint
    start(config, tmp_path / "whole", SilentEvents())
    whole, parts = metric(tmp_path / "whole", "optim/grad_norm"), metric(path, "optim/grad_norm")
    assert whole == parts


def test_its_tasks_are_spread_over_the_environments_of_training(make_config: MakeConfig) -> None:
    bandits = "envs.train=[{env: bandit, tag: a}, {env: bandit, tag: b}, {env: bandit, tag: c}]"

    def sizes(*settings: str) -> dict[str, int]:
        groups = probe_groups(make_config(bandits, *settings))
        return {group.name: group.groups for group in groups}

    assert sizes("probe.tasks=32") == {"a": 11, "b": 11, "c": 10}
    assert sizes("probe.tasks=2") == {"a": 1, "b": 1}


def test_an_untrained_policy_scores_what_chance_gives(probed: tuple[Path, Listener]) -> None:
    """Random bytes are no action: success is 0 of 3, with Wilson's interval around it."""
    values = next(seen.values for seen in probed[1].seen if SUCCESS in seen.values)
    assert values[SUCCESS] == 0
    assert values["probe/frozen_lake/num_tasks"] == 3
    np.testing.assert_allclose(values[f"{SUCCESS}_high"], 0.5615, atol=1e-4)
