"""echoscope notify: are people told?"""

from __future__ import annotations

import typer

from .options import ConfigFile, Overrides, Recipe, required_recipe

app = typer.Typer(help="Messages about alarms.", no_args_is_help=True)


@app.callback()
def callback() -> None:
    """Messages about alarms: docs/alarms.md."""


@app.command("test")
def send_test(
    recipe: Recipe = None,
    overrides: Overrides = None,
    config: ConfigFile = None,
) -> None:
    """Send a test message to every target of diagnostics.notify, once. Exit code 1 if one fails."""
    import os

    from echoscope.core.config.loading import load_diagnostics
    from echoscope.diagnostics.notify.message import trial
    from echoscope.diagnostics.notify.sending import NotifyError, SendError, name_of, sender

    recipe, assignments = required_recipe(recipe, overrides, config)
    name, diagnostics = load_diagnostics(recipe, file=config, overrides=assignments)
    notify = diagnostics.notify
    if not notify.targets:
        raise NotifyError("diagnostics.notify.targets is empty: docs/alarms.md shows what to write")
    message, num_failed = trial(name, notify.dashboard_url), 0
    for target in notify.targets:
        try:
            sender(target, os.environ)(message)
        except (NotifyError, SendError) as error:
            num_failed += 1
            typer.echo(f"{name_of(target)}: not sent: {error}")
        else:
            typer.echo(f"{name_of(target)}: sent")
    raise typer.Exit(1 if num_failed else 0)
