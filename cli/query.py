"""echoscope query: SQL over a run, or over all runs of a folder."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import print_json, print_lines, printable, printable_text

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE_ROWS = 100
_CELL_CHARS = 200
_PIPE_WIDTH = 100_000


class OutputFormat(StrEnum):
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
    format: Annotated[
        OutputFormat, typer.Option(help="How to print the answer.")
    ] = OutputFormat.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"Rows at most; {_TABLE_ROWS} in a table, else all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=1e6, help="Seconds that the query may take.")
    ] = 300,
    memory: Annotated[
        str, typer.Option(help="Memory that the query may take, for example 500MB or 4GB.")
    ] = "4GB",
) -> None:
    """Run one SQL query over a run, live or finished. The query can only read."""
    from echoscope.store.query.sql_process import OWN, ask

    advice = "--timeout and --memory allow more"
    limits = replace(OWN, seconds=timeout, memory=memory, advice=advice)
    result = ask(run, sql, limits=limits)
    answer = result.table
    print_lines(*(f"warning: {warning}" for warning in result.warnings), err=True)
    chosen = OutputFormat.JSON if as_json else format
    most = _TABLE_ROWS if limit is None and chosen is OutputFormat.TABLE else limit
    head = answer if most is None else answer.slice(0, min(most, answer.num_rows))
    if chosen is OutputFormat.JSON:
        print_json(json_rows(head), indent=1)
    elif chosen is OutputFormat.CSV:
        rows = [
            [json.dumps(v) if isinstance(v, dict | list) else v for v in row.values()]
            for row in json_rows(head)
        ]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(head.column_names)
        writer.writerows(rows)
    else:
        _print_table(head)
    if head.num_rows < answer.num_rows:
        typer.echo(
            f"{head.num_rows} of {answer.num_rows} rows; --limit {answer.num_rows} shows all",
            err=True,
        )


def json_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as strict JSON can hold them: NaN as null, maps as objects, `a`, `a_2` for two columns
    `a`.

    Raises:
        QueryError: a date or time that has no such form.
    """
    from echoscope.store.errors import QueryError
    from echoscope.text.strict_json import json_value

    named = table.rename_columns(_each_once(table.column_names))
    try:
        rows: list[dict[str, Any]] = json_value(named.to_pylist(maps_as_pydicts="lossy"))
    except (OverflowError, ValueError) as error:
        raise QueryError(
            f"a date or a time of the answer cannot be printed ({error}); ask for its text: "
            "CAST(x AS VARCHAR)"
        ) from error
    return rows


def _each_once(names: list[str]) -> list[str]:
    """Names of columns, a number added to those that stood before.

    >>> _each_once(["a", "a", "a_2", "b"])
    ['a', 'a_3', 'a_2', 'b']
    """
    out: list[str] = []
    for name in names:
        number, free = 1, name
        while free in out or (number > 1 and free in names):
            number += 1
            free = f"{name}_{number}"
        out.append(free)
    return out


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}..."


def _print_table(rows: pa.Table) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in rows.column_names:
        table.add_column(printable_text(name))
    for row in json_rows(rows):
        table.add_row(*[printable_text(_cell(value)) for value in row.values()])
    # A pipe has no width to fit into.
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)
