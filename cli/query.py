"""echoscope query: SQL over a run, or over all runs of a folder."""

from __future__ import annotations

import csv
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import print_json, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from echoscope.store.reader import RunReader, RunsReader

_TABLE_ROWS = 100
_CELL_CHARS = 200
_PIPE_WIDTH = 100_000


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def query(
    run: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")],
    sql: Annotated[
        str,
        typer.Argument(
            help="One SELECT over runs, steps, metrics, trajectories, turns, tokens, diagnostics, "
            "alarms, commands, command_events, checkpoints, settings, images."
        ),
    ],
    format: Annotated[Format, typer.Option(help="How to print the answer.")] = Format.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"Rows at most; {_TABLE_ROWS} in a table, else all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Run one SQL query over a run, live or finished. The query can only read."""
    reader = open_either(run)
    answer = reader.sql(sql)
    for warning in reader.warnings:
        typer.echo(f"warning: {printable(warning)}", err=True)
    chosen = Format.JSON if as_json else format
    most = _TABLE_ROWS if limit is None and chosen is Format.TABLE else limit
    shown = answer if most is None else answer.slice(0, most)
    if chosen is Format.JSON:
        print_json(json_rows(shown), indent=1)
    elif chosen is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(shown.column_names)
        writer.writerows(_csv_row(row) for row in json_rows(shown))
    else:
        _print_table(shown)
    if shown.num_rows < answer.num_rows:
        typer.echo(
            f"{shown.num_rows} of {answer.num_rows} rows; --limit {answer.num_rows} shows all",
            err=True,
        )


def open_either(path: Path) -> RunReader | RunsReader:
    """A reader of a run, or of the runs in a folder that is none."""
    from echoscope.store.errors import NotARunError
    from echoscope.store.log.layout import Layout
    from echoscope.store.reader import open_run, open_runs

    if Layout(path).run_json.is_file() or not path.is_dir():
        return open_run(path)
    reader = open_runs(path)
    if not reader.infos():
        raise NotARunError(f"{path}: not a run, and holds none")
    return reader


def json_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as strict JSON can hold them: NaN as null, maps as objects."""
    from echoscope.text.strict_json import json_value

    rows: list[dict[str, Any]] = json_value(table.to_pylist(maps_as_pydicts="lossy"))
    return rows


def _csv_row(row: dict[str, Any]) -> list[Any]:
    return [json.dumps(v) if isinstance(v, dict | list) else v for v in row.values()]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}..."


def _print_table(shown: pa.Table) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in shown.column_names:
        table.add_column(Text(printable(name)))
    for row in json_rows(shown):
        table.add_row(*[Text(_cell(value)) for value in row.values()])
    # A pipe has no width to fit into.
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)
