"""How every command prints: JSON, text of strangers, tables, and a bar for what takes long."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[int, int], None]
"""Takes how much is done, and of how much."""
PIPE_WIDTH = 140
"""Columns of a table that goes to a file or a pipe, which have no width of their own."""


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as strict JSON: records as objects; NaN and infinities as null."""
    from echoscope.text.strict_json import json_value

    typer.echo(json.dumps(json_value(value), indent=indent, allow_nan=False))


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters as `\\x1b` and the like."""
    return "".join(
        character if character.isprintable() or character == " " else repr(character)[1:-1]
        for character in text
    )


def output_console(pipe_width: int = PIPE_WIDTH, *, is_wrapped: bool = False) -> Console:
    """A console on the output. In a pipe, tables are wide, and lines stay whole if not wrapped."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(
        width=None if is_terminal else pipe_width,
        soft_wrap=not (is_terminal or is_wrapped),
        highlight=False,
    )


@contextmanager
def progress_bars() -> Iterator[Callable[[str], Report]]:
    """Makes bars by name on the error stream, while the block runs.

    A bar is seen from its first report on, and gone at the end. Nothing is drawn where the error
    stream is no terminal. A program that started this one may ask for lines (`progress_lines`).
    """
    from echoscope.store.importers.progress_lines import LINES, PROGRESS_VARIABLE, reporter

    if os.environ.get(PROGRESS_VARIABLE) == LINES:
        yield reporter
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:

        def bar(name: str) -> Report:
            task = progress.add_task(name, total=None, visible=False)
            return lambda done, of: progress.update(task, completed=done, total=of, visible=True)

        yield bar
