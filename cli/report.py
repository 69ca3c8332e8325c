"""echoscope report: one file that tells what happened to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Exit, Overwrite
from .terminal import fail


def report(
    run: Annotated[Path, typer.Argument(help="The run's folder, live or finished.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    trajectories: Annotated[
        list[str] | None,
        typer.Option("-t", "--trajectory", help="A trajectory to include. Repeat for more."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write verdict, charts, alarms, commands and telling trajectories into one HTML file."""
    from rich.console import Console

    from echoscope.dashboard.report.report import make_report
    from echoscope.store.errors import QueryError, StoreError
    from echoscope.store.log.layout import Layout

    console = Console(stderr=True)
    if output.exists() and not overwrite:
        raise typer.BadParameter(f"{output} exists; --overwrite replaces it, -o names another")
    with console.status("report") as status:
        try:
            Layout(run).require_run()
            text = make_report(
                run.resolve(),
                chosen=trajectories or (),
                progress=lambda what: status.update(f"report: {what}"),
            )
        except (StoreError, QueryError) as error:
            fail(error, Exit.UNREADABLE)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    size = max(0.1, len(text.encode()) / 1e6)
    typer.echo(f"{output}: {size:.1f} MB, opens in any browser, offline")
