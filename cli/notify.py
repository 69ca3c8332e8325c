"""echoscope notify: are people told?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Messages about alarms.", no_args_is_help=True)


@app.callback()
def callback() -> None:
    """Messages about alarms: docs/alarms.md."""


@app.command("test")
def send_test(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe name; `echoscope config show` lists them.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE ..., as for `echoscope train`.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A YAML file.")] = None,
) -> None:
    """Send a test message to every target of diagnostics.notify, once. Exit code 1 if one fails."""
    import os

    from echoscope.core.config.loading import load_diagnostics
    from echoscope.diagnostics.notify.message import trial
    from echoscope.diagnostics.notify.sending import NotifyError, SendError, name_of, sender

    words = [word for word in (recipe, *(overrides or ())) if word is not None]
    recipe = words.pop(0) if words and "=" not in words[0] else None
    if recipe is None and config is None:
        raise typer.BadParameter("name a recipe, or give --config FILE.yaml")
    name, diagnostics = load_diagnostics(recipe, file=config, overrides=words)
    notify = diagnostics.notify
    if not notify.targets:
        raise NotifyError("diagnostics.notify.targets is empty: docs/alarms.md shows what to write")
    message, num_failed = trial(name, notify.dashboard_url), 0
    for target in notify.targets:
        try:
            sender(target, os.environ, notify.timeout_s)(message)
        except (NotifyError, SendError) as error:
            num_failed += 1
            typer.echo(f"{name_of(target)}: not sent: {error}")
        else:
            typer.echo(f"{name_of(target)}: sent")
    raise typer.Exit(1 if num_failed else 0)
