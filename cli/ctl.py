"""echoscope ctl: steer a live run."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from . import alarms, branch
from .options import AsJson, Exit
from .terminal import print_json, print_lines, printable

if TYPE_CHECKING:
    from echoscope.store.reader import RunInfo


class _NamesTheRun(TyperGroup):
    """Hints of its commands name the run as it was typed, where typer puts `{run}`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """None for the commands below: `callback` has put the run into the name of the group."""
        return super().get_params(ctx) if ctx.command is self else []


app = typer.Typer(help="Steer a live run.", no_args_is_help=True, cls=_NamesTheRun)
Wait = Annotated[
    float,
    typer.Option(help="Seconds to wait for the trainer to apply the command; 0: do not wait."),
]
Reason = Annotated[str, typer.Option(help="Why, in your words. Stored with the command.")]


@app.callback()
def callback(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
) -> None:
    """Steer a live run; commands take effect between two steps."""
    context.obj = run
    context.info_name = f"ctl {shlex.quote(printable(str(run)))}"


app.command("branch")(branch.branch)
app.command("alarms")(alarms.alarms)


@app.command()
def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Print the status of the run: its step, pending commands and open alarms."""
    import time

    from echoscope.store.reader import open_run
    from echoscope.store.steer.settings import live_settings
    from echoscope.store.steer.steering import standing

    reader = open_run(context.obj)
    info = reader.info()
    now = standing(info, reader.commands(), live_settings(reader).now)
    stands = reader.status()
    out = {
        "run_id": info.run_id,
        "status": stands.status.value,
        "status_by": stands.by,
        "status_since": stands.since,
        "is_paused": now.is_paused,
        "step": info.last_step,
        "steps": now.steps,
        "attempt": info.attempt,
        "num_commands_waiting": len(now.waiting),
    }
    if as_json:
        print_json(out)
    else:
        status_line = printable(stands.words(time.time()))
        typer.echo(f"{info.run_id}: {status_line}, step {info.last_step} of {now.steps}")


def _add_plain(name: str, sentence: str) -> None:
    """A command that has nothing but a name."""

    @app.command(name, help=sentence)
    def send(
        context: typer.Context,
        reason: Reason = "",
        wait: Wait = 60,
        as_json: AsJson = False,
    ) -> None:
        _send(context.obj, name, {}, reason, wait, as_json)


_add_plain("pause", "Pause the run after the current step.")
_add_plain("resume", "Continue a paused run.")
_add_plain("checkpoint", "Write a checkpoint after the current step.")
_add_plain("evaluate", "Evaluate with the next step, whatever the schedule says.")


@app.command()
def stop(
    context: typer.Context,
    now: Annotated[
        bool,
        typer.Option("--now", help="Drop the current step; the checkpoint is of the last one."),
    ] = False,
    reason: Reason = "",
    wait: Wait = 60,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint after the current step, then end the run.

    Where the episodes of the step take longer than 12 s from now on, the step is dropped; the
    checkpoint is then of the last finished one.
    """
    _send(context.obj, "stop_now" if now else "stop", {}, reason, wait, as_json)


@app.command("set")
def set_values(
    context: typer.Context,
    settings: Annotated[
        list[str], typer.Argument(help="KEY=VALUE ... Either all settings change or none.")
    ],
    reason: Reason = "",
    wait: Wait = 60,
    as_json: AsJson = False,
) -> None:
    """Change settings of the live run from the next step on.

    `echoscope config schema --live` lists the settings that may change.
    """
    from echoscope.core.config.loading import parse_override

    values = dict(parse_override(word) for word in settings)
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise typer.BadParameter(f"{key} is {value}, but must be finite")
    _send(context.obj, "set", values, reason, wait, as_json)


@app.command()
def rewind(
    context: typer.Context,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="KEY=VALUE ... Default: what the guard asks for, or the first treatment that the "
            "run has not had."
        ),
    ] = None,
    checkpoint: branch.Checkpoint = None,
    reason: Reason = "",
    wait: Wait = 60,
    as_json: AsJson = False,
) -> None:
    """End the live run after this step, and go on from a checkpoint as a new run.

    The run keeps all its steps. The new run lies beside it and trains in the same process.
    """
    from echoscope.core.config.loading import parse_override
    from echoscope.store.steer.rewinds import rewind_settings

    values = dict(parse_override(word) for word in settings or ())
    if checkpoint is None or not values:
        checkpoint, proposed = _proposed(context.obj, checkpoint, is_treated=not values)
        values = values or proposed
    order = rewind_settings(checkpoint, values)
    _send(context.obj, "rewind", order, reason, wait, as_json)


def _proposed(run: Path, checkpoint: int | None, *, is_treated: bool) -> tuple[int, dict[str, Any]]:
    """The checkpoint to go back to, and the first treatment where one is wanted."""
    from echoscope.core.config.loading import ConfigError, validate
    from echoscope.core.run.guard import next_proposal  # loads torch
    from echoscope.store.checkpoints import last_good_checkpoint
    from echoscope.store.reader import open_run
    from echoscope.store.steer.rewinds import CHECKPOINT, asked_rewind

    reader = open_run(run)
    if is_treated:
        asked = dict(asked_rewind(reader) or {})
        if asked:
            step = asked.pop(CHECKPOINT)
            return step if checkpoint is None else checkpoint, asked
        config = validate(reader.info().config)
        tried = [] if config.branched_from is None else config.branched_from.treatments
        proposal, why = next_proposal(run, tried)
        if proposal is None:
            raise ConfigError(f"nothing to rewind with: {why} Give --checkpoint and KEY=VALUE")
        step = proposal.checkpoint if checkpoint is None else checkpoint
        return step, dict(proposal.settings)
    choice = last_good_checkpoint(reader)
    if choice.step is None:
        raise ConfigError(f"{choice.reason} Name one with --checkpoint")
    return choice.step, {}


def _send(
    run: Path, name: str, settings: dict[str, Any], reason: str, wait: float, as_json: bool
) -> None:
    from echoscope.store.reader import open_run
    from echoscope.store.records import CommandAction, CommandOutcome
    from echoscope.store.steer import steering
    from echoscope.store.steer.commands import wait_for_ack
    from echoscope.store.steer.settings import live_settings

    action, reader = CommandAction(name), open_run(run)
    info = reader.info()
    out: dict[str, Any] = {"run_id": info.run_id, "action": name, "changed": False}
    if settings:
        out["settings"] = settings
    try:
        command = steering.prepare(
            info, action, settings=settings, issued_by=steering.os_user(), reason=reason
        )
        if action is CommandAction.SET:
            now = live_settings(reader).now
            out["warnings"] = steering.setting_warnings(info, now, command.settings)
            if not as_json:
                for warning in out["warnings"]:
                    typer.echo(f"warning: {warning}", err=True)
        steering.send(run, command)
    except steering.WrongSettingError as error:
        _report(out | {"outcome": "not_sent", "detail": str(error), "advice": ""}, as_json)
        raise typer.Exit(Exit.USAGE) from None
    except steering.SteeringError as error:
        advice = _instead(run, info, settings)
        _report(out | {"outcome": "not_sent", "detail": str(error), "advice": advice}, as_json)
        raise typer.Exit(Exit.REJECTED) from None
    out["command_id"] = command.command_id
    ack = wait_for_ack(run, command.command_id, timeout_s=wait) if wait else None
    if ack is None:
        _report(out | {"outcome": "sent", "detail": "no answer yet"}, as_json)
        raise typer.Exit(Exit.NOT_ANSWERED if wait else Exit.OK)
    applied = ack.outcome is CommandOutcome.APPLIED
    changed = applied and not ack.detail.startswith(steering.NO_CHANGE)
    out |= {
        "outcome": ack.outcome.value,
        "step": ack.step,
        "detail": ack.detail,
        "changed": changed,
    }
    _report(out, as_json)
    raise typer.Exit(Exit.OK if applied else Exit.REJECTED)


def _instead(run: Path, info: RunInfo, settings: dict[str, Any]) -> str:
    """What to type to train an ended run with other settings; empty for any other command."""
    from echoscope.store.steer.rewinds import CHECKPOINT
    from echoscope.store.steer.steering import override_words

    changed = dict(settings)
    if CHECKPOINT in settings:
        checkpoint = f"--checkpoint={changed.pop(CHECKPOINT)}"
        way, command = "To go on from there, branch", ["ctl", str(run), "branch", checkpoint]
    elif not settings or info.status == "running":
        return ""
    elif info.status != "finished":
        way, command = "To go on with these settings", ["train", "--resume", str(run)]
    else:
        way, command = "To change settings, branch", ["ctl", str(run), "branch"]
        if info.last_step > 0:
            changed.setdefault("steps", 2 * info.last_step)
    return f"{way}: {shlex.join(['echoscope', *command, *override_words(changed)])}"


def _report(out: dict[str, Any], as_json: bool) -> None:
    from echoscope.store.status import after_step

    if as_json:
        print_json(out)
        return
    if out["outcome"] == "not_sent":
        advice = f". {out['advice']}" if out["advice"] else ""
        print_lines(f"{out['action']} not sent: {out['detail']}{advice}", err=True)
        return
    when = f" {after_step(out['step'] - 1)}" if "step" in out else ""
    typer.echo(
        f"{out['action']}: {out['outcome']}{when}, {out['detail']}",
        err=out["outcome"] == "rejected",
    )
