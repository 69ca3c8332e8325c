"""echoscope preflight: is this run worth starting?"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, ConfigFile, Exit, Overrides, Recipe, required_recipe
from .terminal import grid_of_pairs, output_console, print_json, progress_bars

if TYPE_CHECKING:
    from echoscope.core.config.settings import RunConfig
    from echoscope.diagnostics.tools.preflight import Preflight, TrialSettings


def preflight(
    recipe: Recipe = None,
    overrides: Overrides = None,
    config: ConfigFile = None,
    groups: Annotated[
        int,
        typer.Option(min=1, help="Smallest number of groups to play, rounded up to whole steps."),
    ] = 32,
    as_json: AsJson = False,
) -> None:
    """Check a run before you start it: play its first tasks without learning.

    Nothing is stored. Exit code 0: start (warnings are possible); 3: do not start with these
    settings.
    """
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    from echoscope.core.config.loading import load_config
    from echoscope.core.run.trial import run_trial
    from echoscope.diagnostics.tools.preflight import judge
    from echoscope.envs.checks.players import has_expert

    recipe, assignments = required_recipe(recipe, overrides, config)
    settings = load_config(recipe, file=config, overrides=assignments)
    with progress_bars() as bar:
        bar_of = functools.cache(bar)
        batches, cost, signs = run_trial(
            settings,
            num_groups=groups,
            on_progress=lambda name, done, of: bar_of(name)(done, of),
        )
    can_demonstrate = all(map(has_expert, settings.envs.train))
    result = judge(
        batches,
        limits_of(settings),
        command=lambda changes: train_command(recipe, config, assignments, changes),
        warm_start=warm_start_command(recipe, config) if can_demonstrate else "",
        cost=cost,
        signs=signs,
    )
    if as_json:
        print_json(result.to_json())
    else:
        _show(result)
    raise typer.Exit(Exit.OK if result.is_go else Exit.DO_NOT_START)


def limits_of(settings: RunConfig) -> TrialSettings:
    """What the rollouts of this configuration are judged against."""
    from echoscope.diagnostics.tools.preflight import TrialSettings

    return TrialSettings(
        group_size=settings.envs.group_size,
        max_prompt_tokens=settings.context.max_prompt_tokens,
        max_response_tokens=settings.context.max_response_tokens,
        temperature=settings.sampling.temperature,
        selection=settings.selection,
        explains_format=settings.context.instructions or settings.context.format_hint,
        compares_siblings=settings.compares_siblings,
    )


def train_command(
    recipe: str | None,
    config: Path | None,
    assignments: Sequence[str],
    changes: Mapping[str, object],
) -> str:
    """The `train` command with settings changed.

    >>> train_command("demo", None, ["steps=9", "optim.lr=1"], {"optim.lr": 0.5})
    'echoscope train demo steps=9 optim.lr=0.5'
    """
    unchanged = [word for word in assignments if word.partition("=")[0].strip() not in changes]
    changed = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in changes.items()
    ]
    source = ([recipe] if recipe else []) + (["--config", str(config)] if config else [])
    return shlex.join(["echoscope", "train", *source, *unchanged, *changed])


def warm_start_command(recipe: str | None, config: Path | None) -> str:
    """Demonstrations of the run's own environments."""
    source = str(config) if config else recipe or ""
    return shlex.join(["echoscope", "sft", "generate", source, "-o", "demonstrations.jsonl"])


def _show(result: Preflight) -> None:
    from rich.text import Text

    console = output_console()
    console.print(grid_of_pairs([*result.lines.items()], per_row=1))
    colours = {"stop": "bold red", "warn": "yellow"}
    for finding in result.findings:
        head = Text(f"{finding.level.value}: {finding.name}. ", style=colours[finding.level.value])
        console.print(head + Text(f"{finding.text} {finding.advice}".strip(), style="default"))
        if finding.command:
            console.print(Text(f"  {finding.command}"), soft_wrap=True)
    console.print(Text(result.text, style="bold green" if result.is_go else "bold red"))
