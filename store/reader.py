"""Read a run, live or finished: SQL over views, and the records that were written.

    run = open_run("runs/my-run")
    run.sql("SELECT step, avg(episode_return) r FROM trajectories GROUP BY step ORDER BY step")
    run.trajectory("t00000120-00037")

A reader takes no lock and never disturbs the writer. It opens whatever the journal names when it
is asked, so an answer is as new as the last acknowledged step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from echoscope.text.pictures import picture_key

from .errors import NotARunError, StoreError
from .log.durable import stat_of
from .log.index import RunIndex
from .log.layout import Layout
from .log.remote.pulling import local_folder
from .query.check import checked_query
from .query.database import RunDatabase, run_row
from .query.rows import (
    ack_from_row,
    alarm_from_row,
    command_from_row,
    diagnostic_from_row,
    image_keys,
    outcome_from_rows,
    rebuilt,
    settings_from_row,
    trajectory_from_rows,
)
from .query.sql_process import RunningQuery, SqlLimits, ask
from .records import (
    REQUESTED,
    Alarm,
    CheckpointRecord,
    Command,
    CommandAck,
    DiagnosticRecord,
    SettingsRecord,
    Trajectory,
    TrajectoryOutcome,
    parse_trajectory_id,
)
from .schema import DATA_TABLES, arrow_schema
from .status import RECENT_STEPS, RUNNING, RunStatus, origin_of, pace_of, status_of

_JOURNAL = [("attempt", "ascending"), ("sequence", "ascending")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run at a glance."""

    run_id: str
    path: Path
    name: str
    status: str
    """running, finished, stopped, failed, interrupted, or crashed (ended without a word)."""
    created_at: float
    ended_at: float | None
    attempt: int
    last_step: int
    """-1 before the first acknowledged step."""
    base_model: str
    parent_run_id: str | None
    tags: tuple[str, ...]
    config: Mapping[str, Any]
    live_knobs: Mapping[str, Any]
    tokenizer: str | None = None
    """Hash of the vocabulary that the token ids belong to; None where nobody said."""
    is_starting: bool = False
    """The current attempt has no step yet."""
    heard_at: float = 0.0
    """When something was acknowledged last, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    """A command and what became of it; `ack` is None while it waits."""

    command: Command
    ack: CommandAck | None
    attempt: int | None = None
    """The attempt that answered it."""
    answered_at: float | None = None
    """In seconds since the epoch."""


def run_info(index: RunIndex) -> RunInfo:
    row = run_row(index)
    values = {field.name: row[field.name] for field in fields(RunInfo) if field.name in row} | {
        "path": index.layout.root,
        "name": row["name"] or "",
        "base_model": row["base_model"] or "",
        "tags": tuple(row["tags"] or ()),
        "config": json.loads(row["config"]),
        "live_knobs": json.loads(row["live_knobs"]),
    }
    stats = stat_of(index.layout.journal)
    heard_at = stats.st_mtime if stats else time.time()  # between two pieces of the journal
    return RunInfo(**values, is_starting=is_starting(index), heard_at=heard_at)


def info_status(
    info: RunInfo, states: Iterable[CommandState], *, step_s: float, now: float
) -> RunStatus:
    """How a run stands; `step_s` is how many seconds a step takes, NaN where nobody knows."""
    return status_of(
        info.status,
        info.attempt,
        states,
        is_starting=info.is_starting,
        heard_at=info.heard_at,
        step_s=step_s,
        now=now,
        origin=origin_of(info.config),
    )


def is_starting(index: RunIndex) -> bool:
    """Whether the current attempt has no step yet."""
    rewinds = index.state.rewinds
    return index.state.last_step == (rewinds[-1][1] if rewinds else -1)


def command_states(
    commands: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> list[CommandState]:
    """Every command with its latest acknowledgement, in the order of the journal.

    Args:
        commands: Rows of the table of that name, of one run.
        events: Rows of `command_events`, in the order of the journal.
    """
    command_of = {row["command_id"]: command_from_row(row, row["run_id"]) for row in commands}
    answered: dict[str, CommandState] = {}
    for row in events:
        command = command_of.get(row["command_id"])
        if command is not None:
            answered[command.command_id] = CommandState(
                command=command,
                ack=ack_from_row(row),
                attempt=row["attempt"],
                answered_at=row["wall_time"],
            )
    waiting = [CommandState(command=c, ack=None) for c in command_of.values()]
    waiting = [state for state in waiting if state.command.command_id not in answered]
    waiting.sort(key=lambda state: (state.command.issued_at, state.command.command_id))
    return [*answered.values(), *waiting]


class _SqlReader:
    """SQL over the views of one database, each query on a connection of its own."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database
        self._query = RunningQuery()

    def refresh(self) -> None:
        """Catch up with what was written. `sql` and the typed queries do that by themselves."""
        self._database.refresh()

    @property
    def has_duckdb(self) -> bool:
        """Whether a question has needed one."""
        return self._database.has_duckdb

    def sql(
        self,
        query: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        limits: SqlLimits | None = None,
    ) -> pa.Table:
        """Answer one read-only SQL statement over the views, after catching up.

        Views: runs, steps, metrics, trajectories, turns, tokens, diagnostics, alarms, commands,
        command_events, checkpoints, settings, images (columns in docs/store.md). The answer is an
        Arrow table: `.to_pylist()`, `.to_pandas()`. Nothing can be written, and no other file be
        reached.

        Args:
            limits: For SQL that this program did not write: it is answered by a process of its
                own, which ends with the time or the memory that it may take. None: in this
                process, where nothing ends DuckDB while it plans a query.

        Raises:
            QueryError: not one statement that reads, or DuckDB refuses it; one line.
        """
        self._query.begin()
        if limits is not None:
            database = self._database
            return ask(
                database.folder,
                query,
                params,
                limits=limits,
                all_attempts=database.all_attempts,
                running=self._query,
            ).table
        checked = checked_query(query)
        self.refresh()
        return self._database.run(checked, params, self._query)

    def interrupt(self) -> None:
        """From another thread: stop the query that this reader is answering, with a QueryError."""
        self._query.interrupt()

    @property
    def warnings(self) -> list[str]:
        """What could not be read so far and was left out, each naming its file."""
        return [text for index in self._database.indexes.values() for text in index.warnings]


class RunReader(_SqlReader):
    """One run. Not for several threads at once: give each its own `cursor()`."""

    def __init__(self, database: RunDatabase, index: RunIndex) -> None:
        super().__init__(database)
        self._index = index

    def cursor(self) -> RunReader:
        """A reader for another thread, over the same database and journal position."""
        return RunReader(self._database, self._index)

    @property
    def path(self) -> Path:
        return self._index.layout.root

    @property
    def run_id(self) -> str:
        return self._index.run_id

    def info(self) -> RunInfo:
        """Name, status, configuration and progress."""
        self._database.follow(self._index)
        return run_info(self._index)

    def steps(self) -> pa.Table:
        """The table `steps`, in order."""
        return self._events("steps").sort_by("step")

    def metrics(self, key: str, *, phase: str | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """One metric over the run: steps (int64) and values (float64), both (number of steps,)."""
        rows = self.points([key])
        if phase is not None:
            rows = rows.filter(pc.equal(rows.column("phase"), phase))
        rows = rows.sort_by([("step", "ascending"), ("phase", "ascending")])
        return rows.column("step").to_numpy().astype(np.int64), rows.column("value").to_numpy()

    def points(self, keys: Sequence[str] | None = None) -> pa.Table:
        """The rows of `metrics` of some keys, None for all of them; in no order."""
        return self._events("metrics", keys)

    def metric_keys(self) -> list[str]:
        rows = self._database.few_rows(self._index, "metrics")
        if rows is None:
            rows = self.sql("SELECT DISTINCT key FROM metrics WHERE run_id = $1", [self.run_id])
        return sorted(set(rows.column("key").to_pylist()))

    def _events(self, name: str, keys: Sequence[str] | None = None) -> pa.Table:
        """All visible rows of an event table, or those of `metrics` with some keys."""
        rows = self._database.few_rows(self._index, name, keys)
        if rows is not None:
            return rows
        of_keys = "" if keys is None else "AND list_contains($2, key)"
        params = [self.run_id] if keys is None else [self.run_id, list(keys)]
        return self.sql(f"SELECT * FROM {name} WHERE run_id = $1 {of_keys}", params)

    def listing(self, step: int) -> pa.Table:
        """The rows of `trajectories` of one step, by id. Opens the files of that step only."""
        return self.rows_of_step("trajectories", step).sort_by("id")

    def rows_of_step(self, table: str, step: int) -> pa.Table:
        """As `rows_of_steps`, of one step."""
        return self.rows_of_steps(table, step, step)

    def rows_of_steps(
        self, table: str, first: int, last: int, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of some steps of a data table: `DATA_TABLES` of the schema. Opens their files
        only.

        Args:
            columns: Only these; None for all.

        Raises:
            ValueError: not such a table.
        """
        if table not in DATA_TABLES:
            raise ValueError(f"{table!r} is none of the data tables {', '.join(DATA_TABLES)}")
        return self._database.step_rows(self._index, table, (first, last), columns)

    def trajectories_of_step(self, step: int) -> list[Trajectory]:
        """The full records of one step, by id."""
        turns, tokens = (
            grouped(self.rows_of_step(table, step).sort_by("turn"), "attempt", "trajectory_id")
            for table in ("turns", "tokens")
        )
        rows = self.listing(step).to_pylist()
        images = self.images(image_keys(chain(rows, *turns.values())))
        return [
            trajectory_from_rows(row, turns.get(key, []), tokens.get(key, []), images)
            for row, key in ((r, (r["attempt"], r["id"])) for r in rows)
        ]

    def images(self, keys: Collection[str]) -> dict[str, bytes]:
        """The pictures with these keys, as the bytes of PNG files.

        A key that the run does not have is left out, and so are bytes that are not the picture
        which their key names.
        """
        if not keys:
            return {}
        rows = self.sql(
            "SELECT key, png FROM images WHERE run_id = $1 AND list_contains($2, key)",
            [self.run_id, sorted(keys)],
        )
        pairs = zip(rows.column("key").to_pylist(), rows.column("png").to_pylist(), strict=True)
        return {key: png for key, png in pairs if picture_key(png) == key}

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One full record, tokens included.

        Raises:
            KeyError: the run has no such trajectory, or none that is visible.
            ValueError: not a trajectory id.
        """
        row, tokens = self._row_and_tokens(trajectory_id)
        turns = self._rows_of("turns", row)
        return trajectory_from_rows(row, turns, tokens, self.images(image_keys([row, *turns])))

    def outcome(self, trajectory_id: str) -> TrajectoryOutcome | None:
        """What the update learned about a trajectory; None where it has not seen it.

        Raises as `trajectory`.
        """
        return outcome_from_rows(*self._row_and_tokens(trajectory_id))

    def commands(self) -> list[CommandState]:
        """Every command with its latest acknowledgement, in the order of the journal.

        That is the order in which the trainer answered them, whatever the clocks said. Those that
        still wait come last, by the time they were issued.
        """
        commands = self._events("commands").to_pylist()
        return command_states(
            commands, self._events("command_events").sort_by(_JOURNAL).to_pylist()
        )

    def status(self) -> RunStatus:
        """How the run stands now."""
        info, step_s = self.info(), math.nan
        if info.status == RUNNING:
            times = self.steps().filter(pc.field("attempt") == info.attempt).column("wall_time")
            step_s = pace_of(sorted(times.to_pylist()[-RECENT_STEPS - 1 :]))
        return info_status(info, self.commands(), step_s=step_s, now=time.time())

    def settings(self) -> list[SettingsRecord]:
        """The live settings whenever they changed, in order (`live_settings` asks for a step)."""
        rows = self._events("settings").sort_by([("step", "ascending"), *_JOURNAL])
        return [settings_from_row(row) for row in rows.to_pylist()]

    def alarms(self) -> list[Alarm]:
        """Every alarm raised or cleared, by step."""
        order = [("step", "ascending"), ("alarm_id", "ascending"), ("state", "descending")]
        return [alarm_from_row(row) for row in self._events("alarms").sort_by(order).to_pylist()]

    def checkpoints(self) -> list[CheckpointRecord]:
        """Checkpoints that exist, by step: the last event of each path, deletions left out.

        One that a person asked for has the reason `command`, also where a schedule wrote it first.
        """
        rows = self._events("checkpoints").sort_by(_JOURNAL).to_pylist()
        last: dict[str, CheckpointRecord] = {}
        for row in rows:
            record = rebuilt(CheckpointRecord, row)
            before = last.get(record.path)
            if before is not None and before.reason == REQUESTED and not record.is_deleted:
                record = replace(record, reason=REQUESTED)  # it was asked for, and still is
            last[record.path] = record
        return sorted((c for c in last.values() if not c.is_deleted), key=lambda c: c.step)

    def diagnostics(self, step: int) -> list[DiagnosticRecord]:
        """The diagnostic arrays of one step."""
        rows = self.rows_of_step("diagnostics", step).sort_by("kind").to_pylist()
        return [diagnostic_from_row(row) for row in rows]

    def _row_and_tokens(self, trajectory_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        _, step, _ = parse_trajectory_id(trajectory_id)
        rows = self.rows_of_step("trajectories", step)
        matching = rows.filter(pc.equal(rows.column("id"), trajectory_id))
        if not matching.num_rows:
            raise KeyError(f"run {self.run_id} has no trajectory {trajectory_id}")
        row = matching.sort_by("attempt").to_pylist()[-1]
        return row, self._rows_of("tokens", row)

    def _rows_of(self, table: str, trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows of one trajectory of one attempt, by turn."""
        rows = self.rows_of_step(table, trajectory["step"])
        is_it = pc.and_(
            pc.equal(rows.column("trajectory_id"), trajectory["id"]),
            pc.equal(rows.column("attempt"), trajectory["attempt"]),
        )
        turn_rows: list[dict[str, Any]] = rows.filter(is_it).sort_by("turn").to_pylist()
        return turn_rows


_BAD_RUN = (
    StoreError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    pa.ArrowException,
)
"""What the files of one bad run may raise: it is left out by itself, with the reason."""


class RunsReader(_SqlReader):
    """Several runs as one: the same views, told apart by `run_id`."""

    def __init__(
        self,
        database: RunDatabase,
        root: Path,
        unreadable: dict[Path, str],
    ) -> None:
        super().__init__(database)
        self._root = root
        self.unreadable = unreadable
        """Folders that look like runs and cannot be read, with the reason."""

    def cursor(self) -> RunsReader:
        """A reader for another thread, over the same database."""
        return RunsReader(self._database, self._root, self.unreadable)

    def refresh(self) -> None:
        """Catch up, runs that appeared since the last call included."""
        self.unreadable.clear()
        for index in list(self._database.indexes.values()):
            if not index.layout.is_run:
                self._database.remove(index.run_id)
                continue
            try:
                self._database.follow(index)
            except _BAD_RUN as error:
                self._database.remove(index.run_id)
                self._refuse(index.layout.root, error)
        seen = {index.layout.root for index in self._database.indexes.values()}
        new = []
        for path in _run_folders(self._root):
            if path.resolve() in seen or path.resolve() in self.unreadable:
                continue
            try:
                index = RunIndex(path)
                run_info(index)
                pa.Table.from_pylist([run_row(index)], schema=arrow_schema("runs"))
            except _BAD_RUN as error:
                self._refuse(path.resolve(), error)
            else:
                new.append(index)
        # Of folders with one run id, that with the id for a name is the original.
        for index in sorted(new, key=lambda index: index.layout.root.name != index.run_id):
            try:
                self._database.add(index)
            except _BAD_RUN as error:
                self._refuse(index.layout.root, error)
        super().refresh()

    def _refuse(self, path: Path, error: BaseException) -> None:
        text = " ".join(str(error).split())[:300]
        is_told = isinstance(error, StoreError)
        self.unreadable[path] = text if is_told else f"{path}: damaged ({text})"

    def infos(self) -> list[RunInfo]:
        """All readable runs, the newest last."""
        self.refresh()
        infos = [run_info(index) for index in self._database.indexes.values()]
        return sorted(infos, key=lambda info: (info.created_at, info.run_id))

    def statuses(self) -> dict[str, RunStatus]:
        """How every readable run stands now, by run id."""
        return {info.run_id: self.run(info.run_id).status() for info in self.infos()}

    def run(self, run_id: str) -> RunReader:
        """A reader of one of the runs, over the same database.

        Raises:
            NotARunError: no run with that id.
        """
        index = self._database.indexes.get(run_id)
        if index is None:
            raise NotARunError(f"{self._root}: no run with id {run_id!r}")
        return RunReader(self._database, index)


def open_run(path: str | Path, *, all_attempts: bool = False, memory_limit: str = "") -> RunReader:
    """Open a run for reading, live or finished.

    `all_attempts` shows the steps that a later rewind hid, too: tell them apart by `attempt`.
    `memory_limit` bounds what queries may use, for example `"1GB"`, and keeps them off the disk.

    Raises:
        NotARunError: no run there.
        StoreVersionError: written by a newer major version.
        StoreError: its journal cannot be read.
    """
    try:
        index = RunIndex(local_folder(path), all_attempts=all_attempts)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be read now ({error.strerror or error})") from error
    database = RunDatabase(index.layout.root, [index], memory_limit, all_attempts=all_attempts)
    return RunReader(database, index)


def open_runs(root: str | Path, *, memory_limit: str = "") -> RunsReader:
    """Open the runs directly under a folder as one; `memory_limit` as for `open_run`.

    Raises:
        NotARunError: no such folder.
    """
    folder = local_folder(root)
    if not folder.is_dir():
        raise NotARunError(f"{folder}: no such folder")
    reader = RunsReader(RunDatabase(folder, [], memory_limit), folder, {})
    reader.refresh()
    return reader


def grouped(rows: pa.Table, *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Rows by the values of some columns, in their order."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows.to_pylist(maps_as_pydicts="lossy"):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def _run_folders(root: Path) -> Iterator[Path]:
    """The runs in a folder; hidden ones are being started."""
    visible = (path for path in sorted(root.iterdir()) if not path.name.startswith("."))
    return (path for path in visible if Layout(path).is_run)
