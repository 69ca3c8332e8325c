"""echoscope watch: follow what another trainer writes, live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_codes import Exit, FailOn, exit_code
from .options import FailOnOption, Meanings, Output, mapping_of, run_name
from .terminal import fail, interruptible
from .watch_settings import Severity, watch_settings

if TYPE_CHECKING:
    from echoscope.diagnostics.judge.record import Verdict
    from echoscope.store.records import Alarm
    from echoscope.watch.acting import Acting
    from echoscope.watch.watching import Watch

    from .watch_view import View

Watched = Annotated[
    Path,
    typer.Argument(
        help="What the trainer writes: a folder of rollouts, metrics and logs, one such file, "
        "- for standard input, or wandb:ENTITY/PROJECT/RUN."
    ),
]
OnAlarm = Annotated[
    list[str] | None,
    typer.Option(
        "--on-alarm",
        metavar="ACTION",
        help="What to do at an alarm, beside the messages of --notify. exit: end the watch with "
        "exit code 3. command:COMMAND: run COMMAND with sh; it gets the alarm as JSON on its "
        "standard input. Repeat for more.",
    ),
]
Notify = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        metavar="TARGET",
        help="Who is told: slack:VARIABLE, discord:, teams: or webhook: with the environment "
        "variable that holds the address, desktop, or command:COMMAND. Repeat for more.",
    ),
]
Mildest = Annotated[
    Severity | None,
    typer.Option(
        "--severity",
        help="Lowest alarm level that --notify and --on-alarm react to. Default: critical, or "
        "the one in the --config file.",
    ),
]
StepWait = Annotated[
    float,
    typer.Option(
        "--step-wait",
        min=0.5,
        metavar="SECONDS",
        help="Only for rollouts that are written row by row, without metrics: the newest step "
        "is complete when nothing was written for so long.",
    ),
]


def watch(
    path: Watched,
    output: Output = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Also start the dashboard.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Read what is there, judge it and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: steps, verdicts, alarms.")
    ] = False,
    on_alarm: OnAlarm = None,
    notify: Notify = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A YAML file with `diagnostics`: notify, alarms."),
    ] = None,
    severity: Mildest = None,
    map_: Meanings = None,
    step_wait: StepWait = 10.0,
    fail_on: FailOnOption = FailOn.COLLAPSE,
) -> None:
    """Follow the growing files of another trainer: verdict, alarms and dashboard, live.

    The trainer needs nothing of Echoscope, and Echoscope cannot stop it; --on-alarm
    'command:kill -INT PID' can. Ctrl-C ends the watch, not the trainer. The run that is written
    stays, and the next watch of PATH goes on with it.

    Exit codes: 0 healthy, converged or watch. 1 an option has a wrong value, the run cannot be
    written, or W&B refuses the key or the address. 2 an unknown option or choice. 3 collapsing,
    collapsed or not learning, or --on-alarm exit ended the watch. 4 with --once, PATH does not
    exist. 5 too early to tell, or no step was read, also because W&B did not answer.
    """
    from echoscope.watch.acting import Acting, parse_actions
    from echoscope.watch.ledger import Waits
    from echoscope.watch.watching import Watch

    from .beside import dashboard_beside
    from .watch_view import viewed

    run = output or Path("runs") / _name_of(path)
    actions = parse_actions(on_alarm or ())
    settings = watch_settings(config, notify or (), severity)
    names = mapping_of(map_)
    if once:
        _require_path(path)
    with viewed(path, run, is_json=as_json, is_live=not once) as view:
        acting = Acting(
            actions=actions, run=run.name, severity=settings.notify.severity, say=view.message
        )

        def on_alarms(alarms: Sequence[Alarm], verdict: Verdict) -> None:
            view.alarms(alarms, verdict)
            acting(alarms, verdict)

        following = Watch(
            path,
            run,
            settings=settings,
            mapping=names,
            waits=Waits(quiet_s=step_wait),
            on_message=view.message,
            on_step=view.step,
            on_alarms=on_alarms,
        )
        view.watch = following
        with dashboard_beside(run.parent, is_wanted=dashboard) as beside:
            if beside is not None:
                beside.announce(view.link, run.name)
            _follow(following, view, acting, is_once=once)
            acting.wait()
            if not following.is_begun:
                view.nothing()
                raise typer.Exit(Exit.INSUFFICIENT)
            verdict = following.verdict()
            view.end(verdict)
    raise typer.Exit(Exit.COLLAPSE if acting.should_exit else exit_code(verdict, fail_on))


def _require_path(path: Path) -> None:
    """One line and the exit code where there is nothing to look at."""
    if not str(path).startswith(("-", "wandb:")) and not path.exists():
        fail(f"{path}: no such file or folder", Exit.UNREADABLE)


def _name_of(path: Path) -> str:
    name = "stdin" if str(path) == "-" else run_name(path)
    return name.removesuffix(".log").removesuffix(".txt").removesuffix(".csv") or name


def _follow(following: Watch, view: View, acting: Acting, *, is_once: bool) -> None:
    """Until Ctrl-C, the end of standard input, an alarm that ends it, or one whole look."""
    try:
        _look_on(following, view, acting, is_once=is_once)
    finally:
        following.close("finished")


def _look_on(following: Watch, view: View, acting: Acting, *, is_once: bool) -> None:
    num_idle = 0
    with interruptible() as interrupted:
        while not interrupted.is_set():
            following.look()
            view.looked()
            is_over = following.is_ended and not following.is_behind
            if acting.should_exit or is_over:
                break
            is_coming = following.is_behind and not following.is_unanswered
            num_idle = 0 if is_coming else num_idle + 1
            if is_once and num_idle >= 2 and not following.is_pipe:
                break
            interrupted.wait(following.rest_s)
