"""echoscope train, echoscope demo."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

Root = Annotated[Path, typer.Option("--root", help="Folder that holds the runs.")]
Headless = Annotated[
    bool, typer.Option("--headless", help="Print a line a step instead of the live view.")
]
EXIT_CODES = {"finished": 0, "stopped": 0, "failed": 1}


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe name; `echoscope config show` lists them.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE ..., for example optim.lr=1e-4.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A YAML file.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="A run to continue from its last checkpoint.")
    ] = None,
    from_run: Annotated[
        Path | None, typer.Option("--from-run", help="Learn from a stored run's trajectories.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Folder of the new run.")] = None,
    root: Root = Path("runs"),
    headless: Headless = False,
) -> None:
    """Train a policy with StarPO.

    Ctrl-C stops after the step with a checkpoint, a second one at once.
    """
    sys.path.append(os.getcwd())  # last: `module:Class` may name a file beside the user
    words = [word for word in (recipe, *(overrides or ())) if word is not None]
    recipe = words.pop(0) if words and "=" not in words[0] else None
    if resume is not None:
        if recipe is not None or config is not None or from_run is not None or run is not None:
            raise typer.BadParameter("--resume takes only KEY=VALUE words beside it")
        _resume(resume, words, headless)
        return
    if recipe is None and config is None:
        raise typer.BadParameter("name a recipe, or give --config FILE.yaml or --resume RUN")

    from ..core.config_loading import load_config
    from ..core.runs import new_run_path, start
    from .terminal import watch

    if from_run is not None:
        words.append(f"from_run={from_run.resolve()}")
    settings = load_config(recipe, file=config, overrides=words)
    path = run or new_run_path(root, settings.name)
    with watch(settings, is_live=_is_live(headless)) as events:
        status = start(settings, path, events)
    events.summary(path, status)
    raise typer.Exit(EXIT_CODES[status])


def _resume(path: Path, words: list[str], headless: bool) -> None:
    sys.path.append(os.getcwd())
    from ..core.config_loading import apply_settings, parse_override, validate
    from ..core.runs import resume
    from ..store.reader import open_run
    from .terminal import watch

    settings = dict(parse_override(word) for word in words)
    reader = open_run(path)
    config = validate(reader.info().config)
    if settings:
        config = apply_settings(config, settings)
    with watch(config, is_live=_is_live(headless)) as events:
        status = resume(path, events, settings=settings)
    events.summary(path, status)
    raise typer.Exit(EXIT_CODES[status])


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE ...")] = None,
    root: Root = Path("runs"),
    headless: Headless = False,
) -> None:
    """Train the shipped small policy for about three minutes and watch it learn."""
    train(
        recipe="demo",
        overrides=overrides,
        config=None,
        resume=None,
        from_run=None,
        run=None,
        root=root,
        headless=headless,
    )


def _is_live(headless: bool) -> bool:
    return not headless and sys.stdout.isatty()
