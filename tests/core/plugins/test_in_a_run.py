"""Plug-ins in a run: they train, they are asked for again, and a bad one ends the run cleanly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from listening import Listener
from recorded import metric

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.branching import plan_branch, start_branch
from echoscope.core.run.checkpoint import list_checkpoints
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.tools.whatif import WhatIfError, simulate
from echoscope.store.reader import open_run
from echoscope.text import user_code
from echoscope.text.user_code import UserCodeError, load

MakeConfig = Callable[..., RunConfig]
UNWATCHED = ("diagnostics.enabled=false", "envs.eval=[]", "checkpoint.every=0", "steps=3")
OWN = (
    "advantage={kind: custom, function: 'own_plugins:grpo'}",
    "loss={kind: custom, function: 'own_plugins:clip'}",
    "selection={strategy: custom, function: 'own_plugins:undecided', params: {least: 0.001}}",
    "observers=['own_plugins:Counting', {function: 'own_plugins:Counting', params: {start: 5}}]",
)
BUILT_IN = (
    "advantage={kind: grpo}",
    "loss={kind: clip, dual_clip: null}",
    "selection={strategy: top_k, value: 1.0}",
)


@pytest.fixture(scope="module")
def own_run(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "own"
    config = make_config(*UNWATCHED, *OWN[:3], "observers=['own_plugins:Counting']")
    assert start(config, path, SilentEvents()) == "finished"
    return path


@pytest.mark.long
def test_own_parts_that_do_what_the_built_in_ones_do_train_alike(
    make_config: MakeConfig, own_run: Path, tmp_path: Path
) -> None:
    config = make_config(*UNWATCHED, *BUILT_IN)
    assert start(config, tmp_path / "built_in", SilentEvents()) == "finished"
    for key in (
        "reward/return_mean",
        "loss/policy",
        "optim/grad_norm",
        "selection/num_groups_kept",
    ):
        assert metric(own_run, key) == pytest.approx(
            metric(tmp_path / "built_in", key), rel=1e-4, abs=1e-6
        )
    assert metric(own_run, "custom/episodes/total") == {1: 8.0, 2: 16.0, 3: 24.0}
    # What a loss of one's own clips is not known.
    assert all(value != value for value in metric(own_run, "policy/clip_high_frac").values())


def test_two_observers_may_not_give_one_metric(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(*UNWATCHED, OWN[3])
    with pytest.raises(UserCodeError, match="two observers return custom/episodes/total"):
        start(config, tmp_path / "run", SilentEvents())


def test_a_bad_one_is_refused_before_anything_is_written(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(*UNWATCHED, "loss={kind: custom, function: 'own_plugins:one_number'}")
    with pytest.raises(UserCodeError, match=r"the shape \(\), but must return one loss for each"):
        start(config, tmp_path / "run", SilentEvents())
    assert not (tmp_path / "run").exists()


def test_one_that_fails_during_a_run_ends_it_after_the_last_whole_step(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = make_config(*UNWATCHED, "observers=['own_plugins:Late']")
    with pytest.raises(
        UserCodeError, match=r"'own_plugins:Late' failed in line \d+ of own_plugins.py: .*disk is"
    ):
        start(config, run, SilentEvents())
    info = open_run(run).info()
    assert (info.status, info.last_step) == ("failed", 2)
    assert [path.name for path in list_checkpoints(run)] == ["step_000002"]
    with pytest.raises(UserCodeError, match="disk is full"):  # it begins with the third step
        resume(run, SilentEvents())
    assert metric(run, "custom/step") == {1: 1.0, 2: 2.0}


def test_a_loss_that_fails_in_the_only_update_of_a_step_leaves_the_weights(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    late = "loss={kind: custom, function: 'own_plugins:late_loss'}"
    with pytest.raises(UserCodeError, match=r"'own_plugins:late_loss' is NaN or infinite at \d+ "):
        start(make_config(*UNWATCHED, late), tmp_path / "run", SilentEvents())
    assert open_run(tmp_path / "run").info().status == "failed"


def test_resuming_and_branching_need_the_same_plug_ins(
    own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_branch(own_run, checkpoint=3, overrides=["steps=4"])
    events = Listener()
    assert start_branch(plan, tmp_path / "branch", events) == "finished"
    # The observer went on counting where the parent's checkpoint had it.
    assert metric(tmp_path / "branch", "custom/episodes/total") == {4: 32.0}
    monkeypatch.setitem(sys.modules, "own_plugins", None)
    for again in (
        lambda: resume(own_run, SilentEvents(), settings={"steps": 5}),
        lambda: start_branch(plan, tmp_path / "other", SilentEvents()),
    ):
        with pytest.raises(UserCodeError, match="cannot import 'own_plugins'"):
            again()
    assert open_run(own_run).info().status == "finished"
    assert not (tmp_path / "other").exists()


def test_a_rule_is_there_for_a_live_change_if_the_run_began_with_its_name(
    make_config: MakeConfig,
) -> None:
    from echoscope.core.config.loading import apply_settings

    config = make_config("selection.function=own_plugins:undecided")
    assert apply_settings(config, {"selection.strategy": "custom"}).selection.strategy == "custom"
    with pytest.raises(ConfigError, match="needs your own rule: start the run with"):
        apply_settings(make_config(), {"selection.strategy": "custom"})
    with pytest.raises(ConfigError, match=r"selection\.function cannot change while the run"):
        apply_settings(config, {"selection.function": "own_plugins:positive"})


def test_a_stored_run_never_makes_whatif_import_its_rule(
    own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code, "_loaded", {})
    monkeypatch.setattr(user_code, "import_named", lambda name: pytest.fail(f"imported {name}"))
    reader = open_run(own_run)
    with pytest.raises(WhatIfError, match="whatif runs a rule only if you name it yourself"):
        simulate(reader)
    report = simulate(reader, {"selection.strategy": "top_p"})
    assert report.recorded is not None
    assert report.recorded.num_groups == 6
    monkeypatch.undo()
    load("selection", "own_plugins:undecided")  # what `whatif --set selection.function=` does
    assert simulate(reader).num_changed == 0
