"""echoscope models: the models that come with the package."""

from __future__ import annotations

from typing import Annotated

import typer

from .terminal import print_json

app = typer.Typer(help="Models that come with Echoscope.", no_args_is_help=True)


@app.callback()
def models() -> None:
    """Models that come with Echoscope."""


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Print every shipped model: the name to use for `model.path`, and its size."""
    from rich.console import Console
    from rich.table import Table

    from echoscope.store.models import list_shipped

    shipped = list_shipped()
    if as_json:
        print_json({"models": shipped}, indent=2)
        return
    table = Table("name", "parameters", "size", "description", box=None)
    for model in shipped:
        size = f"{model.num_bytes / 1e6:.1f} MB" if model.is_present else "missing: make policy"
        table.add_row(model.name, f"{model.num_parameters / 1e6:.2f} M", size, model.description)
    Console().print(table)
