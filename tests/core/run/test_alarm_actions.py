"""An alarm that is set to act, in a real run: it ends with a checkpoint, and says who ended it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from alarm_events import alarm_event
from listening import Listener
from recorded import metric

from echoscope.core.config.loading import apply_settings, load_config, override
from echoscope.core.config.settings import RunConfig
from echoscope.core.run import build
from echoscope.core.run.branching import plan_branch
from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import (
    Judged,
    Observed,
    SilentEvents,
    StepObservation,
    StepObserver,
)
from echoscope.store.checkpoints import checkpoint_step
from echoscope.store.log.committer import Committer
from echoscope.store.log.verify import verify
from echoscope.store.reader import CommandState, open_run
from echoscope.store.records import (
    Alarm,
    CommandAction,
    CommandOutcome,
    StepMetrics,
)
from echoscope.store.steer.commands import new_command, post

MakeConfig = Callable[..., RunConfig]
UNMEASURED = tuple(f"diagnostics.{name}.every=0" for name in ("text", "information", "gradient"))


def raised(path: Path, rule: str) -> Alarm:
    return next(alarm for alarm in open_run(path).alarms() if alarm.rule == rule)


def only_command(path: Path) -> CommandState:
    (state,) = open_run(path).commands()
    return state


@pytest.mark.long
def test_lost_success_on_the_probe_stops_the_run(tmp_path: Path) -> None:
    """The shipped policy, driven apart by a learning rate a hundred times too high.

    Two prompts a step move success in training up and down by a quarter; the probe's tasks are
    always the same, so it is the probe that tells.
    """
    overrides = [
        *("steps=40", "envs.eval=[]", "checkpoint.every=0", "envs.group_size=8"),
        *(
            "envs.train.0.groups=2",
            "probe.every=1",
            "probe.tasks=24",
            "optim.lr=1e-2",
            "optim.warmup_steps=24",
        ),
        *("diagnostics.alarms.actions={LOW_SUCCESS: stop}", *UNMEASURED),
    ]
    path, listener = tmp_path / "run", Listener()
    assert start(load_config("bandit", overrides=overrides), path, listener) == "stopped"
    alarm, info = raised(path, "LOW_SUCCESS"), open_run(path).info()
    assert alarm.metric == "probe/bandit/success_rate"
    assert "success on the probe tasks: " in alarm.message
    success = metric(path, alarm.metric, phase="eval")
    assert success[alarm.step] < 0.5 * max(success.values())
    assert (info.status, info.last_step) == ("stopped", alarm.step)
    assert [read_state(checkpoint).step for checkpoint in list_checkpoints(path)] == [alarm.step]
    state = only_command(path)
    assert (state.command.action, state.command.issued_by) == (
        CommandAction.STOP,
        "alarm LOW_SUCCESS",
    )
    assert state.command.reason == alarm.message
    assert state.ack is not None
    assert (state.ack.outcome, state.ack.step) == (CommandOutcome.APPLIED, alarm.step + 1)
    assert any(text.endswith(alarm.message) for text in listener.messages)
    assert verify(path).problems == ()


@pytest.mark.long
def test_gradients_out_of_range_stop_the_run(make_config: MakeConfig, tmp_path: Path) -> None:
    """Rewards of 1e30: the squares in the gradient's norm are more than float32 can hold.

    Whoever resumes has seen the alarm: while it is open it stops the run only once more, when the
    warning becomes critical after three such steps.
    """
    path = tmp_path / "run"
    config = make_config(
        *("steps=4", "reward.shaping.0.weight=1e30", "advantage.kind=rloo", "checkpoint.every=0"),
        *("eval.every=0", "eval.before=false", *UNMEASURED),
        "diagnostics.alarms.actions={NON_FINITE: stop}",
    )
    assert start(config, path, SilentEvents()) == "stopped"
    alarm, info = raised(path, "NON_FINITE"), open_run(path).info()
    assert (info.status, info.last_step, alarm.step) == ("stopped", 1, 1)
    assert [read_state(checkpoint).step for checkpoint in list_checkpoints(path)] == [1]
    assert only_command(path).command.issued_by == "alarm NON_FINITE"
    assert resume(path, SilentEvents()) == "stopped"
    assert open_run(path).info().last_step == 3
    assert resume(path, SilentEvents()) == "finished"
    assert metric(path, "optim/num_skipped") == {1: 1, 2: 1, 3: 1, 4: 1}
    ids = [state.command.command_id.rpartition("-")[0] for state in open_run(path).commands()]
    assert ids == ["alarm-non_finite-00000001-1", "alarm-non_finite-00000001-3"]


def stops_at_step_1(make_config: MakeConfig, *overrides: str, action: str = "stop") -> RunConfig:
    return make_config(
        *("steps=4", "reward.shaping.0.weight=1e30", "advantage.kind=rloo", "checkpoint.every=0"),
        *("eval.every=0", "eval.before=false", *UNMEASURED, *overrides),
        f"diagnostics.alarms.actions={{NON_FINITE: {action}}}",
    )


class KilledError(BaseException):
    """Stands for SIGKILL: nothing after it is written."""


@pytest.fixture
def no_last_record(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Runs end without a last word in the journal, as a kill leaves them, until it is called."""
    monkeypatch.setattr(Committer, "end", lambda committer, status: None)
    return monkeypatch.undo


def test_a_stop_that_a_crash_cut_off_acts_again_when_the_alarm_is_raised_again(
    make_config: MakeConfig, tmp_path: Path, no_last_record: Callable[[], None]
) -> None:
    """Killed while the stop's checkpoint was written: step 1 is trained and judged again."""
    path = tmp_path / "run"
    with pytest.raises(KilledError):
        start(stops_at_step_1(make_config), path, KilledIn("checkpoint"))
    assert list_checkpoints(path) == []
    assert open_run(path).info().status == "crashed"
    no_last_record()
    assert resume(path, SilentEvents()) == "stopped"
    assert open_run(path).info().last_step == 1
    answers = [state.ack and (state.ack.step, state.ack.outcome) for state in run_commands(path)]
    assert answers == [(2, CommandOutcome.APPLIED)] * 2


@pytest.mark.long
def test_a_crash_during_a_pause_does_not_lose_it(
    make_config: MakeConfig, tmp_path: Path, no_last_record: Callable[[], None]
) -> None:
    """The scheduled checkpoint of step 1 knows the alarm already, so it is not raised again."""
    path = tmp_path / "run"
    config = stops_at_step_1(make_config, "checkpoint.every=1", action="pause")
    with pytest.raises(KilledError):
        start(config, path, KilledIn("paused by alarm NON_FINITE"))
    no_last_record()
    assert resume(path, StopOnPause(path)) == "stopped"
    assert open_run(path).info().last_step == 1
    authors = [(s.command.issued_by, s.command.action.value) for s in run_commands(path)]
    assert authors == [("alarm NON_FINITE", "pause")] * 2 + [("test", "stop")]
    # Whoever stopped it has seen the alarm: the next resume trains on.
    resume(path, StopOnPause(path))
    assert open_run(path).info().last_step > 1


def test_a_crash_after_the_stop_was_answered_does_not_lose_it(
    make_config: MakeConfig, tmp_path: Path, no_last_record: Callable[[], None]
) -> None:
    """The checkpoint of step 1 was there already: only the run's last record is missing."""
    path = tmp_path / "run"
    config = stops_at_step_1(make_config, "checkpoint.every=1")
    assert start(config, path, SilentEvents()) == "stopped"
    assert open_run(path).info().status == "crashed"
    no_last_record()
    assert resume(path, SilentEvents()) == "stopped"
    assert open_run(path).info().last_step == 1


class KilledIn(SilentEvents):
    """Ends the run at the beginning of a phase."""

    def __init__(self, phase: str) -> None:
        self.name = phase

    def phase(self, step: int, name: str) -> None:
        if name == self.name:
            raise KilledError


class StopOnPause(Listener):
    """Stops a run once it is paused."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def phase(self, step: int, name: str) -> None:
        if name.startswith("paused"):
            post(self.path, new_command(self.path.name, "stop", issued_by="test"))


def run_commands(path: Path) -> list[CommandState]:
    return open_run(path).commands()


def test_a_pause_by_an_alarm_writes_a_checkpoint_and_says_how_to_go_on(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    listener = StopOnPause(path)
    assert start(stops_at_step_1(make_config, action="pause"), path, listener) == "stopped"
    (record,) = open_run(path).checkpoints()
    assert (record.step, record.reason) == (1, "alarm")
    message = next(text for text in listener.messages if text.startswith("alarm NON_FINITE paused"))
    assert f"`echoscope ctl {path} resume` goes on" in message


@pytest.mark.parametrize("overrides", [[], ["diagnostics.alarms.actions={LOW_SUCCESS: stop}"]])
def test_an_empty_mapping_takes_back_the_actions_of_a_recipe(overrides: list[str]) -> None:
    clear = "diagnostics.alarms.actions={}"
    config = load_config("collapse-template", overrides=overrides)
    assert config.diagnostics.alarms.actions
    assert not override(config, [clear]).diagnostics.alarms.actions  # at branching
    assert not apply_settings(  # live
        config, {"diagnostics.alarms.actions": {}}
    ).diagnostics.alarms.actions
    added = override(config, ["diagnostics.alarms.actions={KL_DRIFT: stop}"])
    assert len(added.diagnostics.alarms.actions) == len(config.diagnostics.alarms.actions) + 1


class RaisesAtFour(StepObserver):
    """A critical alarm at step 4 whose change may have begun at an earlier step."""

    name = "raises"

    def __init__(self, earliest_onset_step: int) -> None:
        self.earliest = earliest_onset_step

    def observe(self, seen: StepObservation) -> Observed:
        return Observed()

    def judge(self, metrics: Sequence[StepMetrics], config: RunConfig) -> Judged:
        if metrics[0].step != 4:
            return Judged()
        alarm = alarm_event(
            "low_success-4",
            4,
            "critical",
            rule="LOW_SUCCESS",
            onset_step=4,
            metric="rollout/success_rate",
            baseline=1.0,
            threshold=0.5,
            message="success was lost",
            earliest_onset_step=self.earliest,
        )
        return Judged(alarms=[alarm])

    def state(self) -> None:
        return None

    def restore(self, state: object) -> None:
        pass


class AsksForOne(Listener):
    """Asks for a checkpoint after step 1, where the schedule writes one anyway."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def metrics(self, metrics: StepMetrics) -> None:
        if metrics.step == 1:
            post(self.path, new_command(self.path.name, "checkpoint"))


@pytest.mark.long
def test_the_checkpoint_before_the_onset_and_a_requested_one_are_never_deleted(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 7 checkpoints `keep` leaves the newest; 3 is from before the onset, 1 was asked for."""
    path = tmp_path / "run"
    config = make_config(
        *("steps=7", "checkpoint.every=1", "checkpoint.keep=2", "eval.every=0", *UNMEASURED),
        # Replies of this policy are cut off, and that alarm would keep a checkpoint of its own.
        *("eval.before=false", "probe.every=0", "diagnostics.alarms.disabled=[LENGTH_SATURATION]"),
    )
    listener = AsksForOne(path)
    watcher = RaisesAtFour(earliest_onset_step=4)
    monkeypatch.setattr(build, "user_observers", lambda config: [watcher])
    start(config, path, listener)
    assert [checkpoint_step(checkpoint) for checkpoint in list_checkpoints(path)] == [1, 3, 6, 7]
    records = open_run(path).checkpoints()
    assert [(r.step, r.reason) for r in records][:2] == [(1, "command"), (3, "schedule")]
    assert any("the checkpoint of step 3 is from before step 4" in m for m in listener.messages)
    plan = plan_branch(path, overrides=["steps=9"])
    assert (plan.step, plan.choice) == (
        3,
        "It is the newest from before step 4, where the change may have begun.",
    )
    assert plan_branch(path, checkpoint=7, overrides=["steps=9"]).choice == ""


@pytest.mark.parametrize(
    ("onset", "hint"), [(2, " A shorter checkpoint.every (2) helps."), (1, "")]
)
def test_a_critical_alarm_without_a_checkpoint_before_it_says_so(
    onset: int,
    hint: str,
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No checkpoint can be from between the start and step 1."""
    path = tmp_path / "run"
    config = make_config("steps=4", "checkpoint.every=2", "checkpoint.keep=1", *UNMEASURED)
    listener = Listener()
    watcher = RaisesAtFour(earliest_onset_step=onset)
    monkeypatch.setattr(build, "user_observers", lambda config: [watcher])
    start(config, path, listener)
    sentence = f"No checkpoint is left from before step {onset}, where the change may have begun."
    assert sentence + hint in listener.messages
