"""echoscope mirror: a stored run in W&B, TensorBoard or trackio."""

from __future__ import annotations

import shlex
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .terminal import print_lines, progress_bars


class To(StrEnum):
    """Where a run is copied."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"


def mirror(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    to: Annotated[To, typer.Option(help="The tool that gets the copy.")],
    online: Annotated[
        bool, typer.Option("--online", help="wandb: upload now, instead of a folder to sync.")
    ] = False,
    project: Annotated[str, typer.Option(help="wandb, trackio.")] = "echoscope",
    entity: Annotated[str, typer.Option(help="wandb: team or user; default: yours.")] = "",
) -> None:
    """Copy a stored run to W&B, TensorBoard or trackio: metrics, verdict, alarms, episodes.

    A second call copies what is new since the first. Delete RUN/sinks/NAME.json for another copy.
    """
    from echoscope.diagnostics.sinks.saved import mirror_run
    from echoscope.diagnostics.sinks.settings import SinksConfig
    from echoscope.diagnostics.tools.setting_errors import checked
    from echoscope.store.log.layout import shown_path
    from echoscope.text.amounts import counted

    mode = "online" if online else "offline"
    switch = mode if to is To.WANDB else True
    values = {to.value: switch, "project": project, "entity": entity}
    try:
        config = checked(SinksConfig, values, ("sinks",))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with progress_bars() as bar:
        status, num_steps = mirror_run(
            run,
            to.value,
            config,
            progress=bar("copying (steps)"),
            on_message=partial(print_lines, err=True),
        )
    where = status.where
    if not num_steps:
        text = f"Nothing to add: {to.value} has this run up to step {status.last_step} ({where})."
        print_lines(text)
        return
    copied = counted(num_steps, "step")
    look = {
        To.WANDB: f"Open: {where}" if online else f"Next: wandb sync {shlex.quote(where)}",
        To.TENSORBOARD: f"Next: tensorboard --logdir {shlex.quote(where)}",
        To.TRACKIO: f"Next: trackio show --project {project}",
    }
    print_lines(f"{shown_path(run)}: copied {copied} to {to.value}: {where}", look[to])
