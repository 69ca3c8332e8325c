"""A branch goes on where its parent's checkpoint was, with other settings, and hurts nobody."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import assert_same_recording, metric, recorded
from whole_files import contents

from echoscope.core.config.beside_training import BranchedFrom
from echoscope.core.config.loading import ConfigError, validate
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.branching import plan_branch, start_branch
from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.checkpoints import checkpoint_path
from echoscope.store.errors import NotARunError
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import StepMetrics
from echoscope.store.steer.commands import new_command, post

MakeConfig = Callable[..., RunConfig]
UNWATCHED = ("diagnostics.enabled=false", "checkpoint.every=1", "checkpoint.keep=9")
"""The monitor of a branch starts afresh, so what it measures when is not its parent's."""


@pytest.fixture(scope="module")
def parent(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "parent"
    settings = (*UNWATCHED, "probe.every=2", "critic.kind=head", "advantage.kind=gae")
    start(make_config(*settings), path, SilentEvents())
    return path


def later(path: Path, step: int) -> dict[str, list[str]]:
    """What a run recorded after a step."""
    reader = open_run(path)
    return {
        "metrics": [
            repr(row)
            for row in reader.sql(
                "SELECT step, phase, key, value FROM metrics WHERE step > $1 AND "
                "key NOT SIMILAR TO '(time|system)/.*' ORDER BY ALL",
                [step],
            ).to_pylist()
        ],
        "tokens": [
            repr(row)
            for row in reader.sql(
                "SELECT * EXCLUDE (run_id, attempt) FROM tokens WHERE step > $1 "
                "ORDER BY trajectory_id, turn",
                [step],
            ).to_pylist()
        ],
    }


@pytest.mark.long
def test_without_changes_it_is_the_parent_going_on(parent: Path, tmp_path: Path) -> None:
    """Weights, optimizer, critic and random numbers: bit for bit."""
    plan = plan_branch(parent, checkpoint=2)
    assert plan.changed == {}
    assert start_branch(plan, tmp_path / "branch", SilentEvents()) == "finished"
    assert later(tmp_path / "branch", 2) == later(parent, 2)
    for file in checkpoint_path(parent, 4).rglob("*.safetensors"):
        assert (tmp_path / "branch" / file.relative_to(parent)).read_bytes() == file.read_bytes()


def test_it_says_where_it_comes_from(parent: Path, tmp_path: Path) -> None:
    before = contents(parent)
    path = tmp_path / "branch"
    plan = plan_branch(parent, checkpoint=2, overrides=["optim.lr=0.01", "seed=7"], name="hotter")
    assert plan.changed == {"seed": (0, 7), "optim.lr": (0.001, 0.01)}
    start_branch(plan, path, SilentEvents())
    reader = open_run(path)
    info = reader.info()
    assert (info.name, info.parent_run_id) == ("hotter", "parent")
    assert validate(info.config).branched_from == BranchedFrom(run_id="parent", step=2)
    assert json.loads((path / "run.json").read_text())["parent_run_id"] == "parent"
    first = reader.checkpoints()[0]
    assert (first.step, first.reason) == (2, "branch")
    assert set(metric(path, "optim/lr").items()) == {(3, 0.01), (4, 0.01)}
    rows = reader.sql("SELECT DISTINCT step FROM steps ORDER BY step").to_pylist()
    assert [row["step"] for row in rows] == [3, 4]
    assert later(path, 2)["tokens"] != later(parent, 2)["tokens"]
    assert verify(path).problems == ()
    assert contents(parent) == before  # the parent is as it was


def test_the_last_checkpoint_is_where_it_starts_by_default(parent: Path, tmp_path: Path) -> None:
    plan = plan_branch(parent, overrides=["steps=5", "envs.train.0.groups=3"])
    assert (plan.step, plan.changed) == (4, {"steps": (4, 5), "envs.train.0.groups": (2, 3)})
    start_branch(plan, tmp_path / "branch", SilentEvents())
    assert metric(tmp_path / "branch", "rollout/num_trajectories") == {5: 12.0}


def test_settings_that_were_changed_live_come_along(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    class SetsAtStepOne(SilentEvents):
        def metrics(self, metrics: StepMetrics) -> None:
            if (metrics.step, metrics.phase) == (1, "train"):
                post(path, new_command("run", "set", settings={"optim.lr": 0.5}))

    path = tmp_path / "run"
    start(make_config(*UNWATCHED), path, SetsAtStepOne())
    assert plan_branch(path, checkpoint=1).config.optim.lr == 0.001
    assert plan_branch(path, checkpoint=2).config.optim.lr == 0.5


class DiesAfter(SilentEvents):
    def __init__(self, step: int) -> None:
        self.step = step

    def phase(self, step: int, name: str) -> None:
        if (step, name) == (self.step + 1, "rollout"):
            raise KeyboardInterrupt


@pytest.mark.long
@pytest.mark.parametrize("done", [2, 3], ids=["before its first step", "after it"])
def test_it_is_resumed_however_early_it_died(parent: Path, tmp_path: Path, done: int) -> None:
    plan = plan_branch(parent, checkpoint=2, overrides=["optim.lr=0.01", "checkpoint.every=0"])
    start_branch(plan, tmp_path / "whole", SilentEvents())
    path = tmp_path / "branch"
    with pytest.raises(KeyboardInterrupt):
        start_branch(plan, path, DiesAfter(done))
    assert resume(path, SilentEvents()) == "finished"
    assert_same_recording(tmp_path / "whole", path)
    assert recorded(path)["metrics"]


def test_without_its_first_checkpoint_it_is_not_started_from_scratch(
    parent: Path, tmp_path: Path
) -> None:
    path = tmp_path / "branch"
    with pytest.raises(KeyboardInterrupt):
        start_branch(plan_branch(parent, checkpoint=2), path, DiesAfter(2))
    shutil.rmtree(checkpoint_path(path, 2))
    with pytest.raises(ConfigError, match=r"lost the checkpoint of step 2.*branch parent again"):
        resume(path, SilentEvents())


@pytest.mark.long
def test_a_branch_of_a_branch(parent: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    start_branch(plan_branch(parent, checkpoint=2), first, SilentEvents())
    plan = plan_branch(first, checkpoint=3, overrides=["optim.lr=0.01"])
    assert plan.changed == {"optim.lr": (0.001, 0.01)}
    start_branch(plan, second, SilentEvents())
    origin = validate(open_run(second).info().config).branched_from
    assert origin == BranchedFrom(run_id="first", step=3)


def test_without_links_the_checkpoint_is_copied(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refused)
    start_branch(plan_branch(parent, checkpoint=3), tmp_path / "branch", SilentEvents())
    own = checkpoint_path(tmp_path / "branch", 3) / "optimizer.safetensors"
    assert own.read_bytes() == (checkpoint_path(parent, 3) / own.name).read_bytes()
    assert own.stat().st_ino != (checkpoint_path(parent, 3) / own.name).stat().st_ino


@pytest.mark.parametrize(
    ("checkpoint", "overrides", "message"),
    [
        (None, (), "steps is 4 and the checkpoint is of step 4"),
        (9, (), "has no checkpoint of step 9; there are: 0, 1, 2, 3, 4"),
        (2, ("model.path=tiny",), "model.path cannot change in a branch"),
        (2, ("model.lora={rank: 4}",), "model.lora.* cannot change in a branch"),
        (2, ("critic.kind=model",), "critic.kind cannot change in a branch"),
        (2, ("optim.lrr=1",), "unknown key 'optim.lrr'"),
        (2, ("optim.lr=-1",), "optim.lr is -1"),
        (2, ("branched_from={run_id: x, step: 1}",), "branched_from is what"),
        (2, ("steps",), "is not KEY=VALUE"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    parent: Path, checkpoint: int | None, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_branch(parent, checkpoint=checkpoint, overrides=overrides)
    assert "\n" not in str(caught.value)


def test_a_damaged_checkpoint_starts_nothing(parent: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(parent, copy)
    (checkpoint_path(copy, 2) / "optimizer.safetensors").write_bytes(b"torn")
    plan = plan_branch(copy, checkpoint=2)
    with pytest.raises(ConfigError, match=r"is damaged: optimizer\.safetensors has 4 bytes"):
        start_branch(plan, tmp_path / "branch", SilentEvents())
    assert not (tmp_path / "branch").exists()


def test_nothing_to_branch_from(make_config: MakeConfig, parent: Path, tmp_path: Path) -> None:
    with pytest.raises(NotARunError):
        plan_branch(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(parent, copy)
    for checkpoint in list_checkpoints(copy):
        assert read_state(checkpoint).config.branched_from is None
        shutil.rmtree(checkpoint)
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        plan_branch(copy)
    config = make_config("branched_from={run_id: x, step: 1}")
    with pytest.raises(ConfigError, match="set by `echoscope ctl RUN branch`"):
        start(config, tmp_path / "new", SilentEvents())
