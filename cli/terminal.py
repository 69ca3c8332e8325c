"""How every command talks: JSON, text of strangers, errors, tables, progress bars and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

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


def print_lines(*lines: str, err: bool = False) -> None:
    """Print text of strangers line by line, each as `printable`."""
    for line in lines:
        typer.echo(printable(line), err=err)


def printable_text(text: str, style: str = "") -> Text:
    """As `printable`, for a console, which takes nothing in it for its own markup."""
    from rich.text import Text

    return Text(printable(text), style)


def print_error(error: object) -> None:
    """Print one line on the error stream, as `error: what is wrong`."""
    # A path need not be valid UTF-8, but what is printed must be.
    text = " ".join(str(error).split()).encode(errors="backslashreplace").decode()
    typer.echo(f"error: {text}", err=True)


def fail(error: object, code: int) -> NoReturn:
    """End the command with an error in one line and an exit code."""
    print_error(error)
    raise typer.Exit(code)


def output_console(pipe_width: int = PIPE_WIDTH, *, is_wrapped: bool = False) -> Console:
    """A console on the output. In a pipe, tables are wide, and lines stay whole if not wrapped."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(
        width=None if is_terminal else pipe_width,
        soft_wrap=not (is_terminal or is_wrapped),
        highlight=False,
    )


def table_of(
    head: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: Collection[str] = ()
) -> Table:
    """A table without lines. Cells may be text of strangers.

    Args:
        right: The columns that are aligned at the right.
    """
    from rich.table import Table

    table = Table(box=None)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(printable_text(c) if isinstance(c, str) else c for c in row))
    return table


def grid_of_pairs(pairs: Sequence[tuple[str, RenderableType]], per_row: int = 2) -> Table:
    """Names and values, so many of them a row."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for _ in range(per_row):
        table.add_column(style="dim")
        table.add_column()
    for start in range(0, len(pairs), per_row):
        table.add_row(*chain.from_iterable(pairs[start : start + per_row]))
    return table


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C, so that the block ends where nothing is cut in two, and none is lost
    in a library's callback; the second one ends the program at once.
    """
    pressed = threading.Event()

    def press(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress_bars() -> Iterator[Callable[[str], Report]]:
    """Makes bars by name on the error stream, while the block runs.

    A bar is seen from its first report on, and gone at the end. Nothing is drawn where the error
    stream is no terminal. A program that started this one may ask for lines (`progress_lines`).
    """
    from echoscope.text.progress_lines import LINES, PROGRESS_VARIABLE, reporter

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
