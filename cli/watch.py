"""echoscope watch: follow what another trainer writes, live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Exit, FailOn, FailOnOption, Meanings, Output, exit_code, mapping_of
from .terminal import fail, interruptible

if TYPE_CHECKING:
    from echoscope.diagnostics.config import DiagnosticsConfig
    from echoscope.diagnostics.judge.record import Verdict
    from echoscope.store.records import Alarm
    from echoscope.watch.watching import Watch

    from .watch_view import LineView


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


def watch(
    path: Annotated[
        Path,
        typer.Argument(
            help="What the trainer writes: a folder of rollouts, metrics and logs, one such file, "
            "- for standard input, or wandb:ENTITY/PROJECT/RUN."
        ),
    ],
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
    exit_on_alarm: Annotated[
        bool, typer.Option("--exit-on-alarm", help="End the watch with exit code 3 at an alarm.")
    ] = False,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help="Who is told: slack:VARIABLE, discord:, teams: or webhook: with the environment "
            "variable that holds the address, desktop, or command:COMMAND. Repeat for more.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A YAML file with `diagnostics`: notify, alarms."),
    ] = None,
    severity: Annotated[
        Severity | None,
        typer.Option(
            help="Lowest alarm level that --notify and --exit-on-alarm react to. "
            "Default: critical, or the one in the --config file.",
        ),
    ] = None,
    map_: Meanings = None,
    fail_on: FailOnOption = FailOn.COLLAPSE,
) -> None:
    """Follow the growing files of another trainer: verdict, alarms and dashboard, live.

    The trainer needs nothing of Echoscope, and Echoscope cannot stop it; --notify
    'command:kill -INT PID' can. Ctrl-C ends the watch, not the trainer. The run that is written
    stays, and the next watch of PATH goes on with it.

    Exit codes: 0 healthy, converged or watch. 1 an option has a wrong value, the run cannot be
    written, or W&B refuses the key or the address. 2 an unknown option or choice. 3 collapsing,
    collapsed or not learning, or --exit-on-alarm ended the watch. 4 with --once, PATH does not
    exist. 5 too early to tell, or no step was read, also because W&B did not answer.
    """
    from echoscope.store.records import AlarmSeverity
    from echoscope.watch.watching import Watch

    from .beside import DashboardBeside
    from .watch_view import JsonView, LineView

    run = output or Path("runs") / _name_of(path)
    settings = _settings(config, notify or (), severity)
    names = mapping_of(map_)
    if once and not str(path).startswith(("-", "wandb:")) and not path.exists():
        fail(f"{path}: no such file or folder", Exit.UNREADABLE)
    view = JsonView(path, run) if as_json else LineView(path, run)
    worth = {AlarmSeverity.CRITICAL, AlarmSeverity(settings.notify.severity)}
    is_over = False

    def on_alarms(alarms: Sequence[Alarm], verdict: Verdict) -> None:
        nonlocal is_over
        view.alarms(alarms, verdict)
        is_over |= exit_on_alarm and any(alarm.severity in worth for alarm in alarms)

    following = Watch(
        path,
        run,
        settings=settings,
        mapping=names,
        on_message=view.message,
        on_step=view.step,
        on_alarms=on_alarms,
    )
    with DashboardBeside(run.parent) as beside:
        if dashboard:
            beside.announce(view.message, run.name)
        try:
            _follow(following, view, is_once=once, is_over=lambda: is_over)
        finally:
            following.close("finished")
        if not following.is_begun:
            view.nothing()
            raise typer.Exit(Exit.INSUFFICIENT)
        verdict = following.verdict()
        view.end(verdict)
    raise typer.Exit(Exit.COLLAPSE if is_over else exit_code(verdict, fail_on))


def _settings(
    config: Path | None, notify: Sequence[str], severity: Severity | None
) -> DiagnosticsConfig:
    """What is measured and judged, and who is told: of a file, with the targets of the options."""
    from echoscope.core.config.loading import load_diagnostics
    from echoscope.diagnostics.config import DiagnosticsConfig, NotifyConfig
    from echoscope.diagnostics.tools.setting_errors import checked

    settings = DiagnosticsConfig() if config is None else load_diagnostics(file=config)[1]
    told = settings.notify.model_dump(mode="json")
    told["targets"] = [*told["targets"], *notify]
    if severity is not None:
        told["severity"] = severity.value
    return settings.model_copy(update={"notify": checked(NotifyConfig, told, ("notify",))})


def _name_of(path: Path) -> str:
    from echoscope.store.log.layout import run_name

    name = "stdin" if str(path) == "-" else run_name(path)
    return name.removesuffix(".log").removesuffix(".txt").removesuffix(".csv") or name


def _follow(
    following: Watch, view: LineView, *, is_once: bool, is_over: Callable[[], bool]
) -> None:
    """Until Ctrl-C, the end of standard input, an alarm that ends it, or one whole look."""
    num_idle = 0
    with interruptible() as interrupted:
        while not interrupted.is_set():
            following.look()
            view.looked(following.source.num_bytes_left)
            if is_over() or (following.source.is_ended and not following.is_behind):
                break
            is_coming = following.is_behind and not following.source.is_unanswered
            num_idle = 0 if is_coming else num_idle + 1
            if is_once and num_idle >= 2 and not following.is_pipe:
                break
            interrupted.wait(following.rest_s)
