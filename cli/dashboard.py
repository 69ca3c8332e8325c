"""echoscope dashboard: watch, replay, diagnose and steer runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from echoscope.dashboard.web.server import Listening

DEFAULT_ROOT = Path("runs")


def dashboard(
    root: Annotated[
        Path,
        typer.Argument(
            help="Folder of runs, one run, or rollouts or metrics of another trainer: these are "
            "imported into a run under runs/."
        ),
    ] = DEFAULT_ROOT,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Default: 8501, or the next free port."),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Any address but loopback needs a password or --read-only."
        ),
    ] = "127.0.0.1",
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Viewers can read, but not steer, write notes or branch."),
    ] = False,
    no_branch: Annotated[
        bool, typer.Option("--no-branch", help="Viewers cannot start new runs.")
    ] = False,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token",
            help="Let every account of this machine open the dashboard. By default only "
            "the printed link opens the dashboard.",
        ),
    ] = False,
    until_stdin_ends: Annotated[
        bool, typer.Option("--until-stdin-ends", hidden=True, help="End when stdin does.")
    ] = False,
) -> None:
    """Open the dashboard for a folder of runs, live or finished.

    Prints a link that ends in a token. Only people with this link can open the dashboard. If the
    environment variable ECHOSCOPE_PASSWORD is set, the dashboard asks for that password instead.
    """
    from echoscope.dashboard.web.server import serve
    from echoscope.dashboard.web.settings import DashboardSettings
    from echoscope.store.log.layout import Layout

    if until_stdin_ends:
        _end_with_stdin()
    is_run = Layout(root).is_run
    folder = root.resolve().parent if is_run else root.absolute()
    sources: tuple[Path, ...] = ()
    if not is_run and root != DEFAULT_ROOT and root.exists() and _is_of_another_trainer(root):
        if read_only:
            raise typer.BadParameter(
                f"a read-only dashboard imports nothing; run `echoscope import {root}` first"
            )
        sources, folder = (root.resolve(),), DEFAULT_ROOT.absolute()
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        _say_missing(root, is_beside=until_stdin_ends)
    settings = DashboardSettings(
        root=folder,
        sources=sources,
        is_read_only=read_only,
        may_branch=not (read_only or no_branch),
    )

    def ready(where: Listening) -> None:
        typer.echo(where.link("/live", run=root.resolve().name) if is_run else where.link())

    serve(settings, address=address, port=port, has_token=not no_token, on_ready=ready)


def _is_of_another_trainer(path: Path) -> bool:
    """Whether a path is to be imported; NotARunError for a file that holds nothing known."""
    from echoscope.dashboard.data.foreign import is_root, is_source
    from echoscope.store.errors import NotARunError

    if path.is_dir():
        return not is_root(path) and is_source(path)
    if is_source(path):
        return True
    raise NotARunError(
        f"{path}: holds neither rollouts nor metrics that are known; `echoscope import {path}` "
        "says why"
    )


def _say_missing(root: Path, *, is_beside: bool) -> None:
    """NotARunError, unless the folder may come: the default, or that of a run just starting."""
    from echoscope.store.errors import NotARunError
    from echoscope.store.log.layout import Layout, run_meant

    if is_beside or root == DEFAULT_ROOT:
        typer.echo(
            f"there is no folder {root} yet; `echoscope demo --root {root}` makes a first run",
            err=True,
        )
        return
    if run_meant(root):
        Layout(root).require_run()
    raise NotARunError(
        f"there is no folder {root}; give the folder that holds your runs, or make a first run "
        f"with `echoscope demo --root {root}`"
    )


def _end_with_stdin() -> None:
    """Whoever started this process holds the other end: once it is gone, so are we."""
    import os
    import signal
    import sys
    import threading

    descriptor = sys.stdin.fileno()

    def watch() -> None:
        while os.read(descriptor, 4096):  # not sys.stdin: its lock would hinder our own end
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stdin", daemon=True).start()
