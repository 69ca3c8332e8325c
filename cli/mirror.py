"""echoscope mirror: a stored run in W&B, TensorBoard or trackio."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .terminal import printable, progress_bars


class To(StrEnum):
    """Where a run is copied."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"


def mirror(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    to: Annotated[To, typer.Option("--to", help="The tool that gets the copy.")],
    online: Annotated[
        bool, typer.Option("--online", help="wandb: upload now, instead of a folder to sync.")
    ] = False,
    project: Annotated[
        str | None, typer.Option("--project", help="wandb, trackio. Default: echoscope.")
    ] = None,
    entity: Annotated[
        str | None, typer.Option("--entity", help="wandb: team or user; default: yours.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="wandb, trackio: name of the run there.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where files are written; default: RUN/sinks."),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", help="Episodes with text in a table; 0: none.")
    ] = None,
) -> None:
    """Copy a stored run to W&B, TensorBoard or trackio: metrics, verdict, alarms, episodes.

    A second call copies what is new since the first. Delete RUN/sinks/NAME.json for another copy.
    """
    from echoscope.diagnostics.sinks.saved import mirror_run
    from echoscope.diagnostics.sinks.settings import SinksConfig
    from echoscope.diagnostics.tools.setting_errors import checked
    from echoscope.store.log.layout import shown_path
    from echoscope.text.amounts import counted

    given = {
        "project": project,
        "entity": entity,
        "name": name,
        "folder": None if folder is None else str(folder.resolve()),
    }
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if to is To.WANDB:
        settings["mode"] = "online" if online else "offline"
    else:
        settings["enabled"] = True
        known = {To.TENSORBOARD: {"folder"}, To.TRACKIO: {"project", "name", "folder"}}[to]
        wrong = [key for key in given if key in settings and key not in known]
        if online or wrong:
            option = "--online" if online else f"--{wrong[0]}"
            raise typer.BadParameter(f"{option} is not for --to {to.value}")
    values: dict[str, Any] = {to.value: settings, "finish_s": 3600.0}
    if episodes is not None:
        values["episodes"] = episodes
    try:
        config = checked(SinksConfig, values, ("sinks",))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with progress_bars() as bar:
        mirrored = mirror_run(
            run,
            to.value,
            config,
            progress=bar("copying (steps)"),
            on_message=lambda text: typer.echo(printable(text), err=True),
        )
    status = mirrored.status
    if not mirrored.num_steps:
        typer.echo(
            printable(
                f"Nothing to add: {to.value} has this run up to step "
                f"{status.last_step} ({status.where})."
            )
        )
        return
    steps = counted(mirrored.num_steps, "step")
    typer.echo(printable(f"{shown_path(run)}: copied {steps} to {to.value}: {status.where}"))
    if status.num_lost:
        typer.echo(printable(f"{counted(status.num_lost, 'record')} not taken: {status.problem}"))
    typer.echo(printable(_next(to, status.where, config)))


def _next(to: To, where: str, config: Any) -> str:
    """What to type to look at the copy."""
    import shlex

    if to is To.WANDB:
        is_online = config.wandb.mode == "online"
        return f"Open: {where}" if is_online else f"Next: wandb sync {shlex.quote(where)}"
    if to is To.TENSORBOARD:
        return f"Next: tensorboard --logdir {shlex.quote(where)}"
    start = f"TRACKIO_DIR={shlex.quote(config.trackio.folder)} " if config.trackio.folder else ""
    return f"Next: {start}trackio show --project {config.trackio.project}"
