"""echoscope config: what a recipe resolves to, and what may be set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, ConfigFile, Overrides, Recipe, recipe_and_words
from .terminal import print_json

if TYPE_CHECKING:
    from echoscope.core.config.settings import RunConfig

app = typer.Typer(help="Show resolved settings and their schema.", no_args_is_help=True)


@app.command()
def show(
    recipe: Recipe = None,
    overrides: Overrides = None,
    file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the full configuration of a recipe with your changes, defaults included.

    A comment at the end says how much memory the run needs.
    """
    import yaml

    from echoscope.core.config.loading import load_config, recipe_description, recipe_names

    if recipe is None and file is None:
        for name in recipe_names():
            typer.echo(f"{name:<24} {recipe_description(name)}")
        return
    recipe, settings = recipe_and_words(recipe, overrides)
    config = load_config(recipe, file=file, overrides=settings)
    values = config.model_dump(mode="json")
    if as_json:
        print_json(values, indent=2)
        return
    typer.echo(yaml.safe_dump(values, sort_keys=False))
    typer.echo(f"# memory: {memory_words(config)}")


def memory_words(config: RunConfig) -> str:
    """What the run needs on the device that it would use here, or why nobody knows."""
    from echoscope.core.config.loading import ConfigError
    from echoscope.core.memory import estimate_memory, likely_device

    try:
        return estimate_memory(config, likely_device(config.model.device)).text
    except ConfigError as error:
        return str(error)


@app.command()
def schema(
    live: Annotated[
        bool, typer.Option("--live", help="Only settings that may change live.")
    ] = False,
) -> None:
    """Print the JSON Schema of a run's configuration."""
    from echoscope.core.config.loading import live_fields
    from echoscope.core.config.settings import RunConfig

    if live:
        for key, info in sorted(live_fields().items()):
            typer.echo(f"{key:<28} {info.description or ''}")
        return
    print_json(RunConfig.model_json_schema(), indent=2)
