"""echoscope runs: list, show, verify, pack, note, copy, catalog and remove what was stored."""

from __future__ import annotations

import shlex
import shutil
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson
from .terminal import interruptible, print_json, print_lines, printable_text, progress_bars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echoscope.store.reader import RunInfo, RunsReader
    from echoscope.store.status import RunStatus

app = typer.Typer(
    help="List, show, verify, pack, note, copy, catalog and remove runs.", no_args_is_help=True
)
Run = Annotated[Path, typer.Argument(help="The run's folder.")]

_LATEST = """
SELECT run_id, arg_max(return_mean, step) return_mean, arg_max(success_rate, step) success_rate,
       sum(num_trajectories)::BIGINT num_trajectories
FROM steps GROUP BY run_id
"""
STATUS_CHARS = 60
"""Of the list: a reason may be a paragraph, and `runs show` has it whole."""
_LEFT_OUT = ("tags", "parent", "return", "started", "verdict")
"""Columns of the list that a narrow terminal does without, the first one first."""
_COUNTS = """
SELECT (SELECT count(*) FROM trajectories) trajectories, (SELECT count(*) FROM turns) turns,
       (SELECT count(*) FROM alarms WHERE state = 'raised') alarms,
       (SELECT count(*) FROM commands) commands, (SELECT count(DISTINCT key) FROM metrics) metrics
"""


@app.command("list")
def list_runs(
    root: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder: pinned runs at the top, then the others, the newest last."""
    from echoscope.diagnostics.judge.alarms import RunState
    from echoscope.store.reader import open_runs
    from echoscope.store.status import has_ended, origin_of

    reader = open_runs(root)
    infos = reader.infos()
    latest = {row["run_id"]: row for row in reader.sql(_LATEST).to_pylist()}
    stands = reader.statuses()
    verdicts = _verdicts(reader, infos)
    rows = [
        _summary(info, stands[info.run_id])
        | _numbers(latest.get(info.run_id))
        | {"verdict": verdicts.get(info.run_id, ""), "parent_run_id": info.parent_run_id}
        | _noted(info)
        for info in infos
    ]
    rows.sort(key=lambda row: not row["is_pinned"])
    if as_json:
        print_json(rows, indent=1)
    elif rows:
        origins = {info.run_id: origin_of(info.config) for info in infos}
        for row in rows:  # in words
            stand = stands[row["run_id"]]
            row["status"] = textwrap.shorten(stand.words(time.time()), STATUS_CHARS)
            if row["verdict"]:
                is_over = has_ended(stand.status, origins[row["run_id"]])
                row["verdict"] = RunState(row["verdict"]).words(has_ended=is_over)
        _print_runs(rows)
    else:
        typer.echo(f"no runs in {root}")
    print_lines(*(f"not listed: {why}" for why in reader.unreadable.values()), err=True)


@app.command()
def show(run: Run, as_json: AsJson = False) -> None:
    """Show one run: its status, what it stores and which commands it received."""
    from echoscope.diagnostics.judge.advice.fate import fate_of
    from echoscope.diagnostics.sinks.mirror import all_statuses
    from echoscope.store.reader import open_run

    reader = open_run(run)
    info = reader.info()
    fate = fate_of(reader, shlex.quote(str(run)))
    last = reader.sql("SELECT * FROM steps ORDER BY step DESC LIMIT 1").to_pylist()
    value: dict[str, Any] = _summary(info, reader.status()) | {
        "host": reader.sql("SELECT host FROM runs").to_pylist()[0]["host"],
        "parent_run_id": info.parent_run_id,
        **_noted(info),
        "megabytes": round(_size(info.path) / 1e6, 1),
        "holds": reader.sql(_COUNTS).to_pylist()[0],
        "checkpoints": [checkpoint.path for checkpoint in reader.checkpoints()],
        "latest": last[0] if last else None,
        "to_go_on": " ".join(part for part in (fate.way_on, fate.command) if part)
        if fate
        else None,
        "sinks": {status.sink: status.in_words() for status in all_statuses(info.path)},
        "config": dict(info.config),
        "warnings": reader.warnings,
    }
    if as_json:
        print_json(value, indent=1)
    else:
        _print_run(value)


@app.command()
def verify(run: Run, as_json: AsJson = False) -> None:
    """Check every file of a run, its checkpoints included. Exit code 1 if one is bad."""
    from echoscope.store.log.verify import verify as check

    report = check(run)
    if as_json:
        print_json(report, indent=1)
    else:
        for problem in report.problems:
            print_lines(f"{problem.path}: {problem.what}; lost: {problem.lost}")
        verdict = f"{len(report.problems)} bad" if report.problems else "all good"
        typer.echo(
            f"{report.num_files} files, {report.num_bytes / 1e6:.1f} MB, "
            f"{report.num_trajectories} trajectories: {verdict}"
        )
        if report.problems:
            typer.echo(f"Whole steps: {report.whole_steps or 'none'}. Readers leave out the rest.")
    if report.problems:
        raise typer.Exit(1)


@app.command()
def pack(run: Run, as_json: AsJson = False) -> None:
    """Merge the small files of a run into larger ones. Safe while the run is live."""
    from echoscope.store.log.packing import pack as pack_run

    report = pack_run(run)
    if as_json:
        print_json(report, indent=1)
        return
    print_lines(*(f"left as it is: {text}" for text in report.damaged), err=True)
    typer.echo(
        f"packed {report.num_steps} steps: {report.num_files_before} files became "
        f"{report.num_files_after}"
        if report.num_steps
        else "nothing to pack"
    )


@app.command()
def note(
    run: Run,
    text: Annotated[str | None, typer.Option(help="Text of the note; empty removes it.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Add a tag.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Remove a tag.")] = None,
    pin: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="Pin to the top of the list.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tag, pin or annotate a run. A live run is not disturbed."""
    from echoscope.store.log.layout import Layout
    from echoscope.store.steer import annotations
    from echoscope.store.steer.steering import os_user

    Layout(run).require_run()
    mark: dict[str, Any] = {"author": os_user(), "at": time.time()}
    changes: list[annotations.Change] = []
    changes += [annotations.RemoveTag(**mark, tag=name) for name in untag or ()]
    changes += [annotations.AddTag(**mark, tag=name) for name in tag or ()]
    if text is not None:
        changes.append(annotations.SetNote(**mark, note=text))
    if pin is not None:
        changes.append(annotations.Pin(**mark, is_pinned=pin))
    if changes:
        annotations.annotate(run, *changes)
    notes = annotations.read_annotations(run)
    if as_json:
        print_json(notes)
    else:
        lines = [", ".join(notes.tags), *notes.note.splitlines(), "pinned" * notes.is_pinned]
        print_lines(*filter(None, lines))


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder, or its address.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="Root such as s3://team/runs; or, for a run there, a new folder."
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until Ctrl-C or the end of the run.")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Copy the checkpoints, too.")
    ] = False,
) -> None:
    """Copy a run to object storage, or from there. A second copy takes only what is new.

    A run may copy itself while it trains: trainer.copy_to=s3://team/runs.
    """
    from echoscope.store.log.durable import is_locked
    from echoscope.store.log.layout import Layout
    from echoscope.store.log.remote.bucket import remote_address
    from echoscope.store.log.remote.pulling import bring_home
    from echoscope.store.log.remote.pushing import EVERY_S, Pushing

    there, url = remote_address(source), remote_address(target)
    if (there is None) == (url is None):
        raise typer.BadParameter("one of RUN and TO must be an address such as s3://team/runs")
    if there is not None:
        with progress_bars() as bar:
            path = bring_home(there, Path(target), bar("objects"))
        typer.echo(f"copied {there} to {path}")
        return
    assert url is not None
    pushing = Pushing(Path(source), url, takes_checkpoints=checkpoints)
    with interruptible() as pressed:
        is_live = True
        while is_live:
            is_live = follow and is_locked(Layout(Path(source)).writer_lock)
            num_written = pushing.push()
            pushing.take_mail()
            if num_written or not follow:
                typer.echo(f"{time.strftime('%H:%M:%S')} {num_written} objects copied to {url}")
            if is_live and pressed.wait(EVERY_S):
                return


@app.command()
def catalog(
    address: Annotated[
        str,
        typer.Argument(help="The catalog: a file, or 'postgres:host=db dbname=team'."),
    ],
    root: Annotated[Path, typer.Argument(help="Folder of runs, or its address.")] = Path("runs"),
) -> None:
    """Let DuckLake read all runs of a folder as one SQL database. Nothing is copied.

    Run it again to add what was packed since. It needs DuckDB's extension ducklake.
    """
    from echoscope.store.log.layout import shown_path
    from echoscope.store.query.catalog import Catalog
    from echoscope.store.query.database import quote
    from echoscope.store.reader import open_runs

    reader = open_runs(root)
    with progress_bars() as bar, Catalog(address, root) as shared:
        advance, num_runs = bar("runs"), len(reader.infos())
        adoptions = []
        for adoption in shared.adopt(reader):
            adoptions.append(adoption)
            advance(len(adoptions), num_runs)
        missing = shared.missing(reader)
    for adoption in adoptions:
        print_lines(*(f"left out until it is whole: {why}" for why in adoption.waiting), err=True)
    if missing:
        print_lines(
            f"{', '.join(missing)}: in the catalog, but no longer in {shown_path(root)}. "
            "Queries that need these files fail; begin a new catalog to leave them out.",
            err=True,
        )
    num_packs = sum(adoption.num_packs for adoption in adoptions)
    typer.echo(f"{len(adoptions)} runs, {num_packs} new packs")
    typer.echo(f"ATTACH {quote(f'ducklake:{address}')} AS team (READ_ONLY);")


@app.command()
def rm(
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a run for ever. A live run is refused."""
    from echoscope.store.log.durable import FileLock
    from echoscope.store.log.layout import Layout

    layout = Layout(run.resolve())
    layout.require_run()
    lock = FileLock(layout.writer_lock)
    lock.acquire()
    try:
        size = _size(layout.root) / 1e6
        if not yes:
            typer.confirm(f"Delete {layout.root} ({size:.1f} MB) for good?", abort=True)
        # First, so that an interrupted removal leaves no half run that looks whole.
        layout.run_json.unlink()
        shutil.rmtree(layout.root)
    finally:
        lock.release()
    typer.echo(f"deleted {layout.root}")


_ALARMS = "SELECT run_id, alarm_id, rule, severity, state FROM alarms ORDER BY step, alarm_id"
_SUCCESS = """
SELECT run_id, step, avg(value) AS success FROM metrics
WHERE phase = 'eval' AND key LIKE 'eval/%/success_rate' AND NOT isnan(value)
GROUP BY run_id, step ORDER BY run_id, step
"""


def _verdicts(reader: RunsReader, infos: Sequence[RunInfo]) -> dict[str, str]:
    """Run id to the state that the run's own alarms leave; nothing for one that was not judged."""
    from echoscope.diagnostics.judge.alarms import RunState
    from echoscope.diagnostics.judge.verdict import recorded_state
    from echoscope.store.status import Origin, origin_of

    alarms: dict[str, list[tuple[str, str, str, str]]] = {}
    for row in reader.sql(_ALARMS).to_pylist():
        event = (row["alarm_id"], row["rule"], row["severity"], row["state"])
        alarms.setdefault(row["run_id"], []).append(event)
    success: dict[str, list[float]] = {}
    for row in reader.sql(_SUCCESS).to_pylist():
        success.setdefault(row["run_id"], []).append(row["success"])
    out = {}
    for info in infos:
        settings = info.config.get("diagnostics")
        if origin_of(info.config) is Origin.EVALUATED:
            out[info.run_id] = RunState.EVALUATION.value
        elif info.run_id in alarms or (isinstance(settings, dict) and settings.get("enabled")):
            out[info.run_id] = recorded_state(
                alarms.get(info.run_id, ()),
                last_step=info.last_step,
                success=success.get(info.run_id, ()),
            ).value
    return out


def _summary(info: RunInfo, stands: RunStatus) -> dict[str, Any]:
    return {
        "run_id": info.run_id,
        "name": info.name,
        "status": stands.status.value,
        "status_by": stands.by,
        "last_step": info.last_step,
        "attempt": info.attempt,
        "created_at": info.created_at,
        "ended_at": info.ended_at,
        "base_model": info.base_model,
        "path": str(info.path),
    }


def _noted(info: RunInfo) -> dict[str, Any]:
    """Tags given at the start and since, note and pin."""
    from echoscope.store.errors import StoreError
    from echoscope.store.steer.annotations import Annotations, read_annotations

    try:
        notes = read_annotations(info.path)
    except StoreError as error:
        print_lines(f"tags and note not shown: {error}", err=True)
        notes = Annotations()
    tags = list(dict.fromkeys([*info.tags, *notes.tags]))
    return {"tags": tags, "note": notes.note, "is_pinned": notes.is_pinned}


def _numbers(row: dict[str, Any] | None) -> dict[str, Any]:
    from echoscope.text.strict_json import finite_or_none

    names = ("return_mean", "success_rate", "num_trajectories")
    return dict.fromkeys(names) if row is None else {n: finite_or_none(row[n]) for n in names}


def _size(folder: Path) -> int:
    """Bytes below a folder; files that go away meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def _print_runs(rows: list[dict[str, Any]]) -> None:
    """A table whose cells are never cut: what a narrow terminal has no room for is left out."""
    from rich.console import Console
    from rich.table import Table

    from echoscope.text.amounts import percent

    columns: dict[str, list[str]] = {
        "run": [row["run_id"] for row in rows],
        "status": [row["status"] for row in rows],
        "verdict": [row["verdict"] for row in rows],
        "step": [str(row["last_step"]) if row["last_step"] >= 0 else "" for row in rows],
        "return": ["" if (r := row["return_mean"]) is None else f"{r:.3f}" for row in rows],
        "training success": [
            "" if (r := row["success_rate"]) is None else percent(r) for row in rows
        ],
        "started": [time.strftime("%m-%d %H:%M", time.localtime(r["created_at"])) for r in rows],
        "parent": [row["parent_run_id"] or "" for row in rows],
        "tags": [", ".join(row["tags"]) for row in rows],
    }
    run_columns = {
        name: [printable_text(cell) for cell in cells]
        for name, cells in columns.items()
        if any(cells)
    }
    widths = {
        name: max(len(name), *(cell.cell_len for cell in cells)) + 1
        for name, cells in run_columns.items()
    }
    console = Console()
    for name in _LEFT_OUT:
        if name in run_columns and sum(widths.values()) > console.width:
            del run_columns[name], widths[name]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in run_columns:
        table.add_column(name, no_wrap=True)
    for cells in zip(*run_columns.values(), strict=True):
        table.add_row(*cells)
    # Long names are copied whole: the terminal breaks such a line, and nothing of it is lost.
    Console(width=max(console.width, sum(widths.values()))).print(table)


def _print_run(value: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, entry in value.items():
        if name == "config" or entry in (None, "", [], {}, False):
            continue
        if name in ("created_at", "ended_at"):
            entry = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry))
        if isinstance(entry, dict):
            entry = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
                for k, v in entry.items()
                if v is not None and k not in ("run_id", "wall_time")
            )
        elif isinstance(entry, list):
            entry = ", ".join(str(item) for item in entry)
        table.add_row(name, printable_text(str(entry)))
    Console().print(table)
