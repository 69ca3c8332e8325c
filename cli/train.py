"""echoscope train, echoscope demo."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .options import ConfigFile, Headless, Overrides, Recipe, Root, new_run_path, recipe_and_words

if TYPE_CHECKING:
    from echoscope.core.config.settings import RunConfig
    from echoscope.core.run.observers import TrainEvents
    from echoscope.store.reader import RunReader

EXIT_CODES = {"finished": 0, "stopped": 0, "failed": 1}


def train(
    recipe: Recipe = None,
    overrides: Overrides = None,
    config: ConfigFile = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this run from its last checkpoint.")
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(help="With --resume: step of the checkpoint to continue from."),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(help="Train on the stored trajectories of this run instead of sampling."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="RUN", help="The run's folder; default: a new one in --root."
        ),
    ] = None,
    root: Root = Path("runs"),
    headless: Headless = False,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="Also open the dashboard, on this machine only. It stays open until Ctrl-C.",
        ),
    ] = False,
) -> None:
    """Train a policy with StarPO.

    Ctrl-C writes a checkpoint after the current step and stops. A second one
    drops the step, a third exits at once.
    """
    from echoscope.text.user_code import search_working_folder

    search_working_folder()
    recipe, words = recipe_and_words(recipe, overrides)
    from echoscope.core.update.learners.launched import PARENT, launched_rank, launched_words

    if launched_rank():  # torchrun or Ray has started the run's other ranks as well
        from echoscope.core.update.learners.worker import follow

        raise typer.Exit(follow())
    if PARENT in os.environ:
        from echoscope.core.update.learners.processes import end_with_parent

        end_with_parent()
    words += launched_words(words)
    if resume is not None:
        if recipe is not None or config is not None or from_run is not None or output is not None:
            raise typer.BadParameter("--resume takes only KEY=VALUE words beside it")
        _resume(resume, words, checkpoint, headless, dashboard)
        return
    if checkpoint is not None:
        raise typer.BadParameter("--checkpoint names a checkpoint of the run given with --resume")
    if recipe is None and config is None:
        raise typer.BadParameter("name a recipe, or give --config FILE.yaml or --resume RUN")

    from echoscope.core.config.loading import load_config

    if from_run is not None:
        words.append(f"from_run={from_run.resolve()}")
    settings = load_config(recipe, file=config, overrides=words)
    path = output or new_run_path(root, settings.name)
    if _is_for_cluster(settings):
        if path.exists():
            raise typer.BadParameter(f"-o is {path}, but a new run needs a folder of its own")
        begin = [*([recipe] if recipe else []), *words]
        begin += ["--config", str(config.absolute())] if config is not None else []
        begin += ["-o", str(path.absolute())]
        _on_cluster(settings, path, begin, ["--resume", str(path.absolute())], dashboard)

    def train_it(events: TrainEvents) -> str:
        from echoscope.core.run.launch import start

        return start(settings, path, events)

    _watched(settings, path, train_it, headless, dashboard)


def _resume(
    path: Path, words: list[str], checkpoint: int | None, headless: bool, dashboard: bool
) -> None:
    from echoscope.core.config import loading
    from echoscope.store.reader import open_run
    from echoscope.store.status import EVALUATION

    settings = dict(loading.parse_override(word) for word in words)
    path, is_rewound = _what_became_of(path, settings) if checkpoint is None else (path, False)
    reader = open_run(path)
    if EVALUATION in reader.info().config:
        raise loading.ConfigError(
            f"{path} is an evaluation: `echoscope eval --resume {path}` goes on"
        )
    config, changes = loading.placed(loading.validate(reader.info().config), settings)
    if changes:
        config = loading.apply_settings(config, changes)
    done = _nothing_to_train(reader, settings) if checkpoint is None else ""
    if done:
        typer.echo(f"{path}: {done}")
        return
    if _is_for_cluster(config):
        go_on = ["--resume", str(path.absolute()), *words]
        _on_cluster(config, path, go_on, go_on, dashboard)

    def train_it(events: TrainEvents) -> str:
        from echoscope.core.run.launch import resume

        if is_rewound:
            return reader.info().status
        return resume(path, events, settings=settings, checkpoint=checkpoint)

    _watched(config, path, train_it, headless, dashboard)


def _what_became_of(path: Path, settings: Mapping[str, Any]) -> tuple[Path, bool]:
    """The run that a run goes on as, and whether that one is still to be rewound."""
    from echoscope.core.config.loading import ConfigError
    from echoscope.store.reader import open_run
    from echoscope.store.steer.rewinds import last_of_line, rewind_of

    last = last_of_line(path)
    if last != path:
        typer.echo(f"{path} was rewound and goes on as {last}")
    rewind = rewind_of(open_run(last))
    if rewind is not None and settings:
        raise ConfigError(
            f"{last} is to be rewound to checkpoint {rewind.checkpoint}, and takes no other "
            f"settings before that: leave out {', '.join(settings)}, or say --checkpoint to train "
            "it on as it was"
        )
    return last, rewind is not None


def _is_for_cluster(config: RunConfig) -> bool:
    """Whether this process is the driver of a run on Ray, and none of its ranks."""
    from echoscope.core.update.learners.launched import launched_size

    return config.trainer.launcher == "ray" and not launched_size()


def _on_cluster(
    config: RunConfig, path: Path, begin: list[str], go_on: list[str], dashboard: bool
) -> NoReturn:
    """Train on ranks that Ray places, which print a line a step here."""
    from echoscope.core.run.cluster import train_on_cluster

    from .beside import DashboardBeside

    with DashboardBeside(path.absolute().parent) as beside:
        if dashboard:
            beside.announce(typer.echo, path.name)
        plain = ["--headless"]
        status = train_on_cluster(config, path, begin + plain, go_on + plain, typer.echo)
    typer.echo(f"run {path}: {status}")
    raise typer.Exit(EXIT_CODES.get(status, 1))


def _nothing_to_train(reader: RunReader, settings: Mapping[str, Any]) -> str:
    """Why resuming a finished run trains nothing, and what to add; empty where it trains."""
    from echoscope.store.steer.settings import live_settings

    info = reader.info()
    now = {**live_settings(reader).now, **settings}
    steps = now.get("steps", info.config.get("steps"))
    if info.status != "finished" or not isinstance(steps, int) or steps > info.last_step:
        return ""
    return (
        f"already at step {info.last_step} of {steps}; to train on add steps={2 * info.last_step}"
    )


def _watched(
    config: RunConfig,
    path: Path,
    train_it: Callable[[TrainEvents], str],
    headless: bool,
    dashboard: bool,
) -> None:
    """Train before the eyes of whoever started it, with a dashboard beside it or not."""
    from .beside import DashboardBeside
    from .training_view import treatments_of, watch

    with DashboardBeside(path.absolute().parent) as beside:
        with watch(config, is_live=_is_live(headless)) as events:
            if dashboard:
                beside.announce(events.message, path.name)
            from echoscope.core.run.branching import go_on  # torch: seconds, which the view shows

            path, status = go_on(path, events, train_it(events))
        events.summary(path, status, treatments_of(path))
        if dashboard and sys.stdout.isatty() and not _was_interrupted(path):
            beside.stay(events.message)
    raise typer.Exit(EXIT_CODES[status])


def _was_interrupted(path: Path) -> bool:
    """Whether this attempt was stopped in the terminal, and not by someone at the dashboard."""
    from echoscope.store.reader import open_run
    from echoscope.store.records import CommandAction

    reader = open_run(path)
    attempt = reader.info().attempt
    stops = (CommandAction.STOP, CommandAction.STOP_NOW)
    return any(
        state.command.action in stops
        and state.command.issued_by == "terminal"
        and state.attempt == attempt
        for state in reader.commands()
    )


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE ...")] = None,
    root: Root = Path("runs"),
    headless: Headless = False,
) -> None:
    """Train the shipped small policy for about three minutes.

    In a terminal the dashboard opens too (on this machine only) and stays until Ctrl-C.
    """
    typer.echo("demo: the shipped small policy learns FrozenLake; this takes about three minutes")
    if not _is_live(headless):
        why = "--headless" if headless else "the output is no terminal"
        opens = shlex.join(["echoscope", "dashboard", str(root)])
        typer.echo(f"no dashboard ({why}); `{opens}` in another terminal opens one")
    train(
        recipe="demo",
        overrides=overrides,
        root=root,
        headless=headless,
        dashboard=_is_live(headless),
    )


def _is_live(headless: bool) -> bool:
    return not headless and sys.stdout.isatty()
