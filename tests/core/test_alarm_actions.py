"""An alarm that is set to act, in a real run: it ends with a checkpoint, and says who ended it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from listening import Listener
from recorded import metric

from echoscope.core.checkpoint import list_checkpoints, read_state
from echoscope.core.config import RunConfig
from echoscope.core.config_loading import load_config
from echoscope.core.events import SilentEvents
from echoscope.core.runs import resume, start
from echoscope.store.reader import CommandState, open_run
from echoscope.store.records import Alarm, CommandAction, CommandOutcome
from echoscope.store.verify import verify

MakeConfig = Callable[..., RunConfig]
UNMEASURED = tuple(f"diagnostics.{name}.every=0" for name in ("text", "information", "gradient"))


def raised(path: Path, rule: str) -> Alarm:
    return next(alarm for alarm in open_run(path).alarms() if alarm.rule == rule)


def only_command(path: Path) -> CommandState:
    (state,) = open_run(path).commands()
    return state


def test_lost_success_on_the_probe_stops_the_run(tmp_path: Path) -> None:
    """The shipped policy, driven apart by a learning rate a hundred times too high.

    Two prompts a step move success in training up and down by a quarter; the probe's tasks are
    always the same, so it is the probe that tells.
    """
    words = [
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
    assert start(load_config("bandit", overrides=words), path, listener) == "stopped"
    alarm, info = raised(path, "LOW_SUCCESS"), open_run(path).info()
    assert alarm.metric == "probe/bandit/success_rate"
    assert "success on the probe tasks fell from" in alarm.message
    success = metric(path, alarm.metric, phase="eval")
    assert success[alarm.step] < 0.5 * max(success.values())
    assert (info.status, info.last_step) == ("stopped", alarm.step)
    assert [read_state(found).step for found in list_checkpoints(path)] == [alarm.step]
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
    assert [read_state(found).step for found in list_checkpoints(path)] == [1]
    assert only_command(path).command.issued_by == "alarm NON_FINITE"
    assert resume(path, SilentEvents()) == "stopped"
    assert open_run(path).info().last_step == 3
    assert resume(path, SilentEvents()) == "finished"
    assert metric(path, "optim/num_skipped") == {1: 1, 2: 1, 3: 1, 4: 1}
    assert [state.command.command_id for state in open_run(path).commands()] == [
        "alarm-non_finite-00000001-1",
        "alarm-non_finite-00000001-3",
    ]
