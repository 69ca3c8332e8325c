"""echoscope watch: follow what another trainer writes, live."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from .diagnose import Exit, FailOn, exit_code

if TYPE_CHECKING:
    from echoscope.diagnostics.config import DiagnosticsConfig
    from echoscope.watch.watching import Watch

    from .watch_view import View

_VARIABLE = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)


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
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="RUN", help="The run's folder; default: runs/NAME."),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Open the dashboard beside it.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Read what is there, judge it and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: steps, verdicts, alarms.")
    ] = False,
    on_alarm: Annotated[
        list[str] | None,
        typer.Option(
            "--on-alarm",
            metavar="ACTION",
            help="notify: tell people (always done). exit: end with code 3. command:COMMAND: run "
            "it by sh, with the alarm as JSON on its standard input. Repeat for more.",
        ),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            metavar="TARGET",
            help="Who is told: slack:VARIABLE, discord:, teams: or webhook: with the environment "
            "variable that holds the address, desktop, or command:COMMAND. Repeat for more.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A YAML file with `diagnostics`: notify, alarms."),
    ] = None,
    severity: Annotated[
        Severity | None,
        typer.Option(
            "--severity",
            help="The mildest alarm that --notify and --on-alarm count. Default: critical, or what "
            "--config says.",
        ),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="NAME=KEY",
            help="Meaning of a column, such as ent=policy/entropy. Repeat for more.",
        ),
    ] = None,
    step_wait: Annotated[
        float,
        typer.Option(
            "--step-wait",
            min=0.5,
            metavar="SECONDS",
            help="Only for rollouts that are written row by row, without metrics: the newest step "
            "is complete when nothing was written for so long.",
        ),
    ] = 10.0,
    fail_on: Annotated[
        FailOn,
        typer.Option(
            "--fail-on",
            help="collapse: exit code 3 for collapsing, collapsed and not learning. "
            "watch: for watch as well.",
        ),
    ] = FailOn.COLLAPSE,
) -> None:
    """Follow the growing files of another trainer: verdict, alarms and dashboard, live.

    The trainer needs nothing of Echoscope, and Echoscope cannot stop it; --on-alarm
    'command:kill -INT PID' can. Ctrl-C ends the watch, not the trainer. The run that is written
    stays, and the next watch of PATH goes on with it.

    Exit codes: 0 healthy, converged or watch. 1 an option has a wrong value. 2 an unknown option or
    choice. 3 collapsing, collapsed or not learning, or --on-alarm exit ended it. 4 with --once,
    PATH does not exist. 5 too early to tell, or no step was read.
    """
    from echoscope.watch.acting import Acting, parse_actions
    from echoscope.watch.steps import Waits
    from echoscope.watch.watching import Watch

    from .beside import dashboard_beside
    from .watch_view import viewed

    run = output or Path("runs") / _run_name(path)
    actions = parse_actions(on_alarm or ())
    settings = _settings(config, notify or (), severity)
    names = _mapping(map_ or ())
    if once and not str(path).startswith(("-", "wandb:")) and not path.exists():
        typer.echo(f"error: {path}: no such file or folder", err=True)
        raise typer.Exit(Exit.UNREADABLE)
    with ExitStack() as stack:
        view = stack.enter_context(viewed(path, run, is_json=as_json, is_live=not once))
        acting = Acting(
            actions=actions,
            run=run.name,
            severity=settings.notify.severity,
            say=view.message,
        )

        def on_alarms(alarms, verdict):  # type: ignore[no-untyped-def]
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
            on_judged=view.judged,
            on_alarms=on_alarms,
        )
        view.watch = following
        beside = stack.enter_context(dashboard_beside(run.parent, is_wanted=dashboard))
        if beside is not None:
            beside.announce(view.link, run.name)
        _follow(following, view, acting, is_once=once)
        acting.wait()
        if not following.num_judged:
            view.nothing()
            raise typer.Exit(Exit.INSUFFICIENT)
        verdict = following.verdict()
        view.end(verdict)
    raise typer.Exit(Exit.COLLAPSE if acting.should_exit else exit_code(verdict, fail_on))


def _follow(following: Watch, view: View, acting: object, *, is_once: bool) -> None:
    """Until Ctrl-C, the end of standard input, an alarm that ends it, or one whole look."""
    num_idle = 0
    with _interrupted() as is_interrupted:
        while not is_interrupted.is_set():
            following.look()
            view.looked()
            is_over = following.is_ended and not following.is_behind
            if acting.should_exit or is_over:  # type: ignore[attr-defined]
                break
            num_idle = 0 if following.is_behind else num_idle + 1
            if is_once and num_idle >= 2 and not following.is_pipe:
                break
            is_interrupted.wait(following.rest_s)
    following.close("finished")


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C, so that none is lost in a library's callback and no step is cut
    in two; the second one ends the program at once.
    """
    pressed = threading.Event()

    def press(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _run_name(path: Path) -> str:
    from .importing import run_name

    name = "stdin" if str(path) == "-" else run_name(path)
    return name.removesuffix(".log").removesuffix(".txt").removesuffix(".csv") or name


def _mapping(words: list[str] | tuple[str, ...]):  # type: ignore[no-untyped-def]
    from echoscope.diagnostics.judge.channels import known_keys
    from echoscope.diagnostics.read.names import parse_map

    return parse_map(words, known_keys())


def _settings(
    config: Path | None, notify: list[str] | tuple[str, ...], severity: Severity | None
) -> DiagnosticsConfig:
    from echoscope.core.config.loading import load_diagnostics
    from echoscope.diagnostics.config import DiagnosticsConfig, NotifyConfig
    from echoscope.diagnostics.tools.setting_errors import checked

    targets = [*map(_target, notify)]
    settings = DiagnosticsConfig() if config is None else load_diagnostics(file=config)[1]
    told = settings.notify.model_dump(mode="json")
    told["targets"] = [*told["targets"], *targets]
    if severity is not None:
        told["severity"] = severity.value
    return settings.model_copy(update={"notify": checked(NotifyConfig, told, ("notify",))})


def _target(words: str) -> dict[str, str]:
    """A target of `--notify`.

    >>> _target("slack:SLACK_HOOK"), _target("desktop")
    ({'kind': 'slack', 'url_env': 'SLACK_HOOK'}, {'kind': 'desktop'})

    Raises:
        SettingError: it is none.
    """
    from echoscope.diagnostics.tools.setting_errors import SettingError

    kind, _, value = words.partition(":")
    if words == "desktop":
        return {"kind": kind}
    if kind == "command" and value:
        return {"kind": kind, "command": value}
    if kind in ("slack", "discord", "teams", "webhook"):
        if _VARIABLE.fullmatch(value):
            return {"kind": kind, "url_env": value}
        raise SettingError(  # what stands there may be a secret
            f"--notify {kind}: takes the NAME of an environment variable that holds the address, "
            f"such as --notify {kind}:MY_HOOK; run: export MY_HOOK=ADDRESS"
        )
    if kind == "email":
        raise SettingError(
            "--notify takes no email: a mail needs a host and a sender; give them in a file with "
            "--config (docs/alarms.md)"
        )
    given = "an address" if "://" in words else repr(words[:80])
    raise SettingError(
        f"--notify is {given}, but must be desktop, command:COMMAND, or slack:, discord:, "
        "teams: or webhook: with the name of an environment variable, such as slack:SLACK_HOOK"
    )
