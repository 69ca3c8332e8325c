"""The command line: one module per noun. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from echoscope.text.extras import missing_package

from . import (
    bench,
    config,
    ctl,
    cure,
    dashboard,
    diagnose,
    envs,
    evaluate,
    export,
    importing,
    mirror,
    models,
    notify,
    plugins,
    preflight,
    query,
    report,
    runs,
    sft,
    train,
    watch,
    whatif,
)
from .terminal import print_error

app = typer.Typer(
    name="echoscope",
    help="Train LLM agents with multi-turn RL, keep every trajectory, and see collapse in time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes are for people at a terminal: without one, rich is not even imported.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from echoscope import __version__

        typer.echo(f"echoscope {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """What may stand before the name of a command."""


app.command("demo")(train.demo)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("preflight")(preflight.preflight)
app.command("query")(query.query)
app.command("diagnose")(diagnose.diagnose)
app.command("import")(importing.import_)
app.command("export", cls=export.ListsFormats)(export.export)
app.command("watch")(watch.watch)
app.command("mirror")(mirror.mirror)
app.command("whatif")(whatif.whatif)
app.command("cure")(cure.cure)
app.command("dashboard")(dashboard.dashboard)
app.command("report")(report.report)
app.add_typer(ctl.app, name="ctl")
app.add_typer(runs.app, name="runs")
app.add_typer(envs.app, name="envs")
app.add_typer(plugins.app, name="plugins")
app.add_typer(sft.app, name="sft")
app.add_typer(models.app, name="models")
app.add_typer(config.app, name="config")
app.add_typer(notify.app, name="notify")
app.add_typer(bench.app, name="bench")

_ADDRESS = re.compile(r"(s3|gs|gcs|abfss?|file)://")
_USER_ERRORS = (
    ("echoscope.store.errors", "StoreError"),
    ("echoscope.store.errors", "QueryError"),
    ("echoscope.store.errors", "AnnotationError"),
    ("echoscope.store.steer.steering", "SteeringError"),
    ("echoscope.envs.base", "EnvError"),
    ("echoscope.dashboard.web.gate", "ExposureError"),
    ("echoscope.core.config.loading", "ConfigError"),
    ("echoscope.diagnostics.read.names", "MetricNameError"),
    ("echoscope.diagnostics.tools.setting_errors", "SettingError"),
    ("echoscope.diagnostics.tools.whatif", "WhatIfError"),
    ("echoscope.diagnostics.notify.sending", "NotifyError"),
    ("echoscope.diagnostics.sinks.settings", "SinkError"),
    ("echoscope.core.rollout.chat", "ChatFormatError"),
    ("echoscope.core.warm_start.demonstrations", "SftError"),
    ("echoscope.text.user_code", "UserCodeError"),
    ("echoscope.core.engines.hf.sampling", "PolicyNumericsError"),
    ("echoscope.core.engines.base", "EngineError"),
    ("echoscope.core.update.learners.processes", "RankError"),
    ("echoscope.core.run.cluster", "ClusterError"),
    ("torch", "OutOfMemoryError"),
)
"""What a user can put right, as (module, class): looked up only once something failed."""


def _is_user_error(error: Exception) -> bool:
    classes = [
        vars(sys.modules[module])[name] for module, name in _USER_ERRORS if module in sys.modules
    ]
    is_link_loop = isinstance(error, RuntimeError) and str(error).startswith("Symlink loop")
    return is_link_loop or isinstance(error, (OSError, *classes))


def _leave_quietly(end: SystemExit) -> None:
    """Where whoever read the output has gone, as `head` does: no traceback, and that is no failure.

    Typer and rich end with 1 then, with the broken pipe as the cause.
    """
    is_gone = isinstance(end.__context__, BrokenPipeError) and _is_output_closed()
    try:
        sys.stdout.flush()  # now, or Python complains when it ends
    except BrokenPipeError:
        is_gone |= end.code == 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if is_gone:
        sys.exit(0)


def _is_output_closed() -> bool:
    """Whether nobody reads the output; rich has put the null device in its place by now."""
    if os.fstat(1).st_rdev == os.stat(os.devnull).st_rdev:
        return True
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _with_local_folders(arguments: list[str]) -> list[str]:
    """Addresses on object storage as the folders of their copies, which every command reads."""
    if arguments[:2] == ["runs", "copy"] or not any(map(_ADDRESS.match, arguments)):
        return arguments
    from echoscope.store.log.remote.pulling import local_folder

    return [str(local_folder(a)) if _ADDRESS.match(a) else a for a in arguments]


def main(run: Callable[[], None] = app) -> None:
    """Entry point: a user's mistake is one line and exit code 1, a bug of ours a traceback."""
    try:
        sys.argv[1:] = _with_local_folders(sys.argv[1:])
        run()
        return
    except SystemExit as end:
        _leave_quietly(end)
        raise
    except Exception as error:
        message: object = error
        if isinstance(error, ImportError):
            message = missing_package(error)
        elif isinstance(error, KeyError) and error.args:
            message = error.args[0]
        if message is None or not (isinstance(error, ImportError) or _is_user_error(error)):
            raise
    # Out here nothing holds the frames of the error, so an open database is closed before the end.
    print_error(message)
    sys.exit(1)
