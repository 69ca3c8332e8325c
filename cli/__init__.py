"""The command line: one module per noun. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from . import (
    bench,
    config,
    ctl,
    dashboard,
    diagnose,
    envs,
    envs_data,
    envs_serve,
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

app = typer.Typer(
    name="echoscope",
    help="Train LLM agents with multi-turn RL, keep every trajectory, and see collapse in time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes are for people at a terminal: without one, rich is not even imported.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(train.demo)
app.command("train")(train.train)
app.command("preflight")(preflight.preflight)
app.command("query")(query.query)
app.command("diagnose")(diagnose.diagnose)
app.command("import")(importing.import_)
app.command("export", cls=export.ListsFormats)(export.export)
app.command("watch")(watch.watch)
app.command("mirror")(mirror.mirror)
app.command("whatif")(whatif.whatif)
app.command("dashboard")(dashboard.dashboard)
app.command("report")(report.report)
app.add_typer(ctl.app, name="ctl")
app.add_typer(runs.app, name="runs")
envs.app.command("serve")(envs_serve.serve)
envs.app.command("export")(envs_data.export)
envs.app.command("data")(envs_data.data)
app.add_typer(envs.app, name="envs")
app.add_typer(plugins.app, name="plugins")
app.add_typer(sft.app, name="sft")
app.add_typer(models.app, name="models")
app.add_typer(config.app, name="config")
app.add_typer(notify.app, name="notify")
app.add_typer(bench.app, name="bench")

_USER_ERRORS = (
    ("echoscope.store.errors", "StoreError"),
    ("echoscope.store.errors", "QueryError"),
    ("echoscope.store.errors", "AnnotationError"),
    ("echoscope.core.pretrained.names", "ModelNameError"),
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
    ("torch", "OutOfMemoryError"),
)
"""What a user can put right, as (module, class): looked up only once something failed."""


def _is_user_error(error: Exception) -> bool:
    classes = [
        vars(sys.modules[module])[name] for module, name in _USER_ERRORS if module in sys.modules
    ]
    is_link_loop = isinstance(error, RuntimeError) and str(error).startswith("Symlink loop")
    return is_link_loop or isinstance(error, (OSError, *classes))


def main(run: Callable[[], None] = app) -> None:
    """Entry point: a user's mistake is one line and exit code 1, a bug of ours a traceback."""
    try:
        run()
        return
    except Exception as error:
        if not _is_user_error(error):
            raise
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        # A path need not be valid UTF-8, but what is printed must be.
        text = " ".join(str(message).split()).encode(errors="backslashreplace").decode()
    # Out here nothing holds the frames of the error, so an open database is closed before the end.
    typer.echo(f"error: {text}", err=True)
    sys.exit(1)
