"""Selecting again on stored rollouts: what was kept comes out again, and what would have been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.judge.advice.luck import luck_words
from echoscope.diagnostics.read.table import steps_with_groups
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.diagnostics.selection.payoff import Worth, payoff_of
from echoscope.diagnostics.tools.whatif import WhatIfError, apply_changes, simulate
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import (
    CommandAction,
    RolloutBatch,
    Split,
    StepMetrics,
    StopReason,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

MakeConfig = Callable[..., RunConfig]


# -- rollouts by hand ----------------------------------------------------------------------------


def episode(
    p: int, g: int, value: float, *, step: int = 1, size: int = 2, split: Split = Split.TRAIN
) -> Trajectory:
    """One turn of `size` sampled tokens with that reward; 1 and above is a success."""
    tokens = {
        "prompt_tokens": np.arange(3),
        "response_tokens": np.arange(size),
        "logprobs": np.zeros(size),
        "entropies": np.full(size, float(p)),
    }
    return make_trajectory(
        Turn(index=0, observation="", response="x", reward=value, **tokens),
        step=step,
        split=split,
        index=p * 10 + g,
        group_index=p,
        sibling_index=g,
        tag="lake",
        env_seed=p,
        noise_seed=g,
        prompt_key=str(p),
        is_success=value >= 1,
    )


def write(
    path: Path, steps: Sequence[Sequence[Trajectory]], kept: Callable[[Trajectory], bool] | None
) -> RunReader:
    writer = RunWriter.create(path, run_id=path.name, config={}, is_packing=False)
    for number, trajectories in enumerate(steps, start=1):
        metrics = StepMetrics(
            run_id=path.name,
            step=number,
            phase="train",
            policy_version=0,
            wall_time=0.0,
            values={"loss/total": 0.0},
        )
        outcomes = [
            TrajectoryOutcome(trajectory_id=t.id, advantage=None, kept=kept(t))
            for t in trajectories
            if kept is not None
        ]
        writer.commit_step(metrics=[metrics], trajectories=trajectories, outcomes=outcomes)
    writer.close(status="finished")
    return open_run(path)


def step_of(returns: Sequence[Sequence[float]], step: int = 1) -> list[Trajectory]:
    return [
        episode(p, g, value, step=step)
        for p, group in enumerate(returns)
        for g, value in enumerate(group)
    ]


def rule(strategy: str, value: float, **more: object) -> dict[str, object]:
    settings = {"strategy": strategy, "value": value, **more}
    return {f"selection.{name}": setting for name, setting in settings.items()}


RETURNS = [[0, 2], [0, 1], [1, 1], [0, 0]]
"""Reward std sqrt(2), sqrt(1/2), 0 (solved), 0 (hopeless)."""


def test_a_worked_example(tmp_path: Path) -> None:
    """top_p 0.5: the first group has 2/3 of all reward std, so it alone is kept."""
    reader = write(tmp_path / "run", [step_of(RETURNS)], kept=lambda t: True)
    report = simulate(reader, rule("top_p", 0.5))
    (row,) = report.rows
    assert [group.would_keep for group in row.groups] == [True, False, False, False]
    assert [group.why_dropped for group in row.groups] == ["", "ranked out", "solved", "hopeless"]
    assert row.simulated.signal_frac == pytest.approx(2 / 3)
    assert row.simulated.tokens_saved_frac == 0.75
    assert row.recorded is not None
    assert (row.recorded.kept_frac, row.recorded.signal_frac) == (1, 1)
    assert row.num_changed == 3
    assert report.simulated.drops == {"solved": 1, "hopeless": 1, "ranked out": 1}


def test_ties_select_again_what_the_run_selected(tmp_path: Path) -> None:
    """Six equal groups."""
    step = [replace(t, env_seed=77 + t.group_index) for t in step_of([[0, 1]] * 6)]
    batch = RolloutBatch(groups=tuple((step[2 * p], step[2 * p + 1]) for p in range(6)))
    selection = select_groups(batch, SelectionConfig(strategy="top_k", value=0.34))
    kept = {step[2 * p + g].id for p, g in np.argwhere(selection.keep_PG)}
    assert len(kept) == 4
    reader = write(tmp_path / "run", [step], kept=lambda t: t.id in kept)
    assert simulate(reader, rule("top_k", 0.34)).num_changed == 0


def test_totals_are_ratios_of_sums(tmp_path: Path) -> None:
    """Step 2 has no signal: it counts no share, but an update less."""
    steps = [step_of(RETURNS), step_of([[0, 0], [0, 0], [0, 0], [1, 1]], step=2)]
    reader = write(tmp_path / "run", steps, kept=None)
    report = simulate(reader, rule("top_p", 0.5))
    assert np.isnan(report.rows[1].simulated.signal_frac)
    assert report.rows[1].reason.startswith("empty: reward_std is zero for all 4 groups")
    assert report.simulated.signal_frac == pytest.approx(2 / 3)
    assert (report.simulated.num_empty, report.simulated.num_steps) == (1, 2)
    assert report.simulated.kept_frac == 1 / 8
    assert report.recorded is None
    assert "2 of 2 steps do not say what was kept" in report.notes


def test_other_metrics(tmp_path: Path) -> None:
    """Entropy is p for every token of group p: the largest is the last."""
    reader = write(tmp_path / "run", [step_of(RETURNS)], kept=None)
    row = simulate(reader, rule("top_k", 0.25, metric="entropy")).rows[0]
    assert [group.would_keep for group in row.groups] == [False, False, False, True]


def test_what_cannot_train_and_what_is_not_defined(tmp_path: Path) -> None:
    failed = [replace(t, stop_reason=StopReason.TIMEOUT) for t in step_of([[0, 1]])]
    lonely = [episode(1, 0, 1.0)]  # a group of one among groups of two
    fine = [episode(2, 0, 1.0), episode(2, 1, 0.0)]
    reader = write(tmp_path / "run", [[*failed, *lonely, *fine]], kept=None)
    row = simulate(reader, rule("top_p", 0.9)).rows[0]
    assert [group.why_dropped for group in row.groups] == ["cannot train", "metric not defined", ""]


def test_imported_text_without_tokens(tmp_path: Path) -> None:
    bare = {"prompt_tokens": None, "response_tokens": None, "logprobs": None, "entropies": None}
    imported = [
        replace(t, split=Split.IMPORT, turns=tuple(replace(turn, **bare) for turn in t.turns))
        for t in step_of(RETURNS)
    ]
    report = simulate(write(tmp_path / "run", [imported], kept=None))
    assert report.simulated.num_groups_kept == 4
    assert np.isnan(report.simulated.tokens_saved_frac)
    assert any("no token counts" in note for note in report.notes)


def test_evaluations_are_not_selected_from(tmp_path: Path) -> None:
    trained = step_of(RETURNS)
    reader = write(tmp_path / "run", [[*trained, episode(9, 0, 1.0, split=Split.EVAL)]], kept=None)
    assert simulate(reader).simulated.num_groups == 4


def test_progress_and_steps(tmp_path: Path) -> None:
    reader = write(tmp_path / "run", [step_of(RETURNS, s) for s in (1, 2, 3)], kept=None)
    seen: list[tuple[int, int]] = []
    report = simulate(reader, steps=[2, 3], progress=lambda done, of: seen.append((done, of)))
    assert [row.step for row in report.rows] == [2, 3]
    assert seen == [(1, 2), (2, 2)]
    with pytest.raises(WhatIfError, match="no training trajectories at step 7"):
        simulate(reader, steps=[7])


def test_a_step_in_progress_is_left_out(tmp_path: Path) -> None:
    """Its first episodes can be read, but groups are not whole."""
    path = tmp_path / "run"
    writer = RunWriter.create(path, run_id="run", config={}, is_packing=False)
    metrics = StepMetrics(
        run_id="run",
        step=1,
        phase="train",
        policy_version=0,
        wall_time=0.0,
        values={"loss/total": 0.0},
    )
    writer.commit_step(metrics=[metrics], trajectories=step_of(RETURNS), outcomes=[])
    writer.add_trajectories(step_of(RETURNS, 2)[:3])
    writer.flush()
    reader = open_run(path)
    seen = reader.sql("SELECT DISTINCT step FROM trajectories ORDER BY step")
    assert seen.column("step").to_pylist() == [1, 2]
    assert steps_with_groups(reader) == [1]
    assert steps_with_groups(reader, with_tokens=True) == [1]
    assert [row.step for row in simulate(reader).rows] == [1]
    writer.close(status="stopped")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection.valu": 1}, "did you mean 'selection.value'"),
        ({"value": 1}, "did you mean 'selection.value'"),
        ({"optim.lr": 1}, "no setting of the selection"),
        ({"selection.value": -1}, r"selection\.value is -1, but must be above 0|more than 0"),
        ({"selection.strategy": "top_k", "selection.value": 3}, "between 0 and 1 .*, not 3"),
        ({"selection.strategy": "top_p", "selection.value": 2}, "strategy=top_p, not 2"),
        ({"selection.value": float("nan")}, "finite"),
    ],
)
def test_changes_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(WhatIfError, match=message):
        apply_changes({}, changes)


# -- a real run ----------------------------------------------------------------------------------


class Sets(SilentEvents):
    """Changes a setting once step 2 is done."""

    def __init__(self, path: Path, settings: dict[str, object]) -> None:
        self.path, self.settings = path, settings

    def metrics(self, metrics: StepMetrics) -> None:
        if metrics.step == 2 and metrics.phase == "train":
            post(
                self.path,
                new_command(self.path.name, CommandAction.SET, settings=self.settings),
            )


@pytest.fixture(scope="module")
def recorded(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of six groups; from step 3 on two of them are kept; resumed after step 4."""
    path = tmp_path_factory.mktemp("runs") / "run"
    config = make_config(
        "steps=4",
        "envs.train.0.groups=6",
        "eval.every=0",
        "eval.before=false",
        "diagnostics.enabled=false",
        "selection.strategy=top_p",
        "selection.value=0.6",
    )
    start(config, path, Sets(path, {"selection.strategy": "top_k_abs", "selection.value": 2}))
    assert resume(path, SilentEvents(), settings={"steps": 6}) == "finished"
    return path


@pytest.mark.long
def test_the_runs_own_settings_give_what_it_kept(recorded: Path) -> None:
    reader = open_run(recorded)
    report = simulate(reader)
    assert [row.settings.strategy for row in report.rows] == ["top_p"] * 2 + ["top_k_abs"] * 4
    assert [row.simulated.num_groups_kept for row in report.rows][2:] == [2] * 4
    assert report.num_changed == 0
    assert report.recorded == report.simulated


@pytest.mark.parametrize("metric", ["entropy", "length", "reward_mean"])
def test_every_metric_selects_as_training_would(
    metric: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(
        "steps=2",
        "envs.train.0.groups=5",
        "eval.before=false",
        "eval.every=0",
        "selection.strategy=top_p",
        "selection.value=0.7",
        f"selection.metric={metric}",
    )
    start(config, tmp_path / "run", SilentEvents())
    report = simulate(open_run(tmp_path / "run"))
    assert report.recorded == report.simulated
    assert 0 < report.simulated.num_groups_kept < 10


def test_a_change_on_top_of_the_runs_own(recorded: Path) -> None:
    reader = open_run(recorded)
    report = simulate(reader, {"selection.keep": "smallest"})
    assert {row.settings.keep for row in report.rows} == {"smallest"}
    assert [row.settings.strategy for row in report.rows[1:3]] == ["top_p", "top_k_abs"]
    assert report.num_changed > 0
    assert report.recorded is not None
    assert report.simulated.signal_kept < report.recorded.signal_kept


# -- does it pay? --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stds", "worth"),
    [
        ([0.0] * 6 + [0.5] * 2, Worth.PAYS),  # mean 1/8, std sqrt(3/56): ratio 1.85
        ([0.2, 0.8] * 4, Worth.UNCLEAR),  # mean 0.5, std 0.32: ratio 0.64
        ([0.4, 0.5] * 4, Worth.COSTS),
        ([0.0] * 8, Worth.UNKNOWN),
        ([0.1, 0.5, float("nan")], Worth.UNKNOWN),
    ],
)
def test_whether_filtering_pays(stds: list[float], worth: Worth) -> None:
    payoff = payoff_of(np.array(stds))
    assert payoff.worth is worth
    assert payoff.text.endswith(".")


def test_dashboard_h5_where_luck_decides_a_filter_never_pays() -> None:
    """The verdict says that the task must change: a filter would train on the most noise."""
    stds = np.array([0.0] * 6 + [0.5] * 2)
    luck = luck_words(float("nan"), [{"params": {"slip": 0.9}}])
    payoff = payoff_of(stds, luck=luck)
    assert payoff.worth is Worth.NOISE
    assert payoff.text == (
        "Do not filter by reward spread here: it would keep the groups with the most noise. "
        "Randomness decides much of the reward: envs.train.0.params.slip is 0.9."
    )
    assert payoff_of(stds, luck=luck_words(0.1)).worth is Worth.PAYS


def test_the_ratio() -> None:
    assert payoff_of(np.array([0.0] * 6 + [0.5] * 2)).ratio == pytest.approx(
        np.sqrt(3 / 56) / 0.125
    )
