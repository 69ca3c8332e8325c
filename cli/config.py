"""echoscope config: what a recipe resolves to, and what may be set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Show resolved settings and their schema.", no_args_is_help=True)


@app.command()
def show(
    recipe: Annotated[str | None, typer.Argument(help="Recipe name.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE ...")] = None,
    file: Annotated[Path | None, typer.Option("--config", help="A YAML file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """Print the full configuration of a recipe with your changes, defaults included."""
    import json

    import yaml

    from ..core.config_loading import load_config, recipe_description, recipe_names

    if recipe is None and file is None:
        for name in recipe_names():
            typer.echo(f"{name:<24} {recipe_description(name)}")
        return
    if recipe is not None and "=" in recipe:
        overrides, recipe = [recipe, *(overrides or [])], None
    values = load_config(recipe, file=file, overrides=overrides or ()).model_dump(mode="json")
    typer.echo(json.dumps(values, indent=2) if as_json else yaml.safe_dump(values, sort_keys=False))


@app.command()
def schema(
    live: Annotated[bool, typer.Option(help="Only settings that may change live.")] = False,
) -> None:
    """Print the JSON Schema of a run's configuration."""
    import json

    from ..core.config import RunConfig
    from ..core.config_loading import live_fields

    if live:
        for key, info in sorted(live_fields().items()):
            typer.echo(f"{key:<28} {info.description or ''}")
        return
    typer.echo(json.dumps(RunConfig.model_json_schema(), indent=2))
