"""Puts steps on the disk, in the order that makes a crash harmless.

Data files are written and fsynced first, then their folders, then one journal record that names
them. Only that record makes them exist; until then a reader sees nothing of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from ..query.rows import (
    EVENT_TABLE,
    EventRecord,
    diagnostics_table,
    event_row,
    images_of,
    images_table,
    plain,
    tokens_table,
    trajectories_table,
    turns_table,
)
from ..records import (
    Alarm,
    Command,
    CommandAck,
    DiagnosticRecord,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
)
from ..schema import DATA_TABLES, TABLES
from ..steer.commands import MailFolder
from .durable import new_id, sync_path
from .events import metric_values, step_row
from .index import RunIndex
from .journal import Journal, JournalState, complete_piece
from .layout import FileEntry, FileGroup, Layout, is_data_path
from .parquet import write_segment_file

MAX_KNOWN_IMAGES = 200_000
"""Pictures whose names are kept; when there are more, some are written a second time."""
ROTATE_BYTES = 4_000_000
"""A piece of the journal is complete at this size, or after `rotate_every` steps."""

_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContent:
    """Everything that one acknowledged step consists of."""

    step: int
    metrics: Sequence[StepMetrics]
    trajectories: Sequence[Trajectory]
    outcomes: Sequence[TrajectoryOutcome] = ()
    alarms: Sequence[Alarm] = ()
    diagnostics: Sequence[DiagnosticRecord] = ()


class Committer:
    """Writes one run, synchronously. When a method returns, its record is fsynced."""

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        state: JournalState,
        *,
        rotate_every: int,
        known_commands: Iterable[str] = (),
    ) -> None:
        """`known_commands`: ids of those whose body the journal already holds."""
        self._layout = layout
        self._journal = journal
        self.state = state
        self._rotate_every = rotate_every
        self._steps_in_piece = 0
        self._known_commands = set(known_commands)
        self._replaced: list[tuple[float, str]] = []
        self._sequence = itertools.count()
        self._known_images: set[str] = set()
        """Pictures that steps of this process hold. A resume begins anew: it may hide steps."""
        self._mail = MailFolder(layout.root, state.run_id)
        # zstd and fsync of one table overlap with building the next.
        self._pool = ThreadPoolExecutor(
            max_workers=len(DATA_TABLES), thread_name_prefix="echoscope-segments"
        )

    def commit_micro(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Make finished trajectories of an unfinished step visible."""
        content = StepContent(step=step, metrics=(), trajectories=trajectories)
        segment = self._write_segment(content)
        self._append({"kind": "micro", "step": step, "segment": segment.to_json()})

    def commit_step(self, content: StepContent) -> bool:
        """Acknowledge a step. Its micro-segments are replaced by its final segment.

        Returns whether a piece of the journal was completed, so that packing has work.
        """
        step = content.step
        replaced = [s.id for s in self.state.unfinished.values() if s.first_step == step]
        segment = None
        if content.trajectories or content.diagnostics:
            segment = self._write_segment(content)
        wall_time = time.time()
        outcomes = {outcome.trajectory_id: outcome for outcome in content.outcomes}
        row = step_row(step, wall_time, content.metrics, content.trajectories, outcomes)
        self._append(
            {
                "kind": "step",
                "step": step,
                "segment": None if segment is None else segment.to_json(),
                "replaces": replaced,
                "steps": [plain(row)],
                "metrics": [
                    {"phase": m.phase, "values": plain(metric_values(m))} for m in content.metrics
                ],
                **self._event_rows(content.alarms),
            }
        )
        self._known_images.update(images_of(content.trajectories))
        if len(self._known_images) > MAX_KNOWN_IMAGES:
            self._known_images.clear()
        self._replaced += [(time.monotonic(), identity) for identity in replaced]
        self._remove_replaced(_GRACE_S)
        self._steps_in_piece += 1
        if self._steps_in_piece >= self._rotate_every or self._journal.size >= ROTATE_BYTES:
            self.rotate()
            return True
        return False

    def commit_events(self, events: Iterable[EventRecord]) -> None:
        """Acknowledge events between two steps; commands that the journal has are left out."""
        acks: list[CommandAck] = []
        others: list[EventRecord] = []
        for event in events:
            if isinstance(event, CommandAck):
                acks.append(event)
            elif not isinstance(event, Command):
                others.append(event)
            elif event.command_id not in self._known_commands:
                self._known_commands.add(event.command_id)
                others.append(event)
        rows = self._event_rows([*acks, *others, *self._bodies(acks)])
        self._append({"kind": "event", "step": self.state.last_step, **rows})

    def _event_rows(self, events: Iterable[EventRecord]) -> dict[str, list[object]]:
        """The rows of events by table; those of some tables are numbered within the attempt."""
        wall_time = time.time()
        rows: dict[str, list[object]] = {table: [] for table in EVENT_TABLE.values()}
        for event in events:
            table = EVENT_TABLE[type(event)]
            row = event_row(event, wall_time=wall_time)
            if "sequence" in TABLES[table].column_names:
                row["sequence"] = next(self._sequence)
            rows[table].append(plain(row))
        return {table: of_table for table, of_table in rows.items() if of_table}

    def rewind(self, from_step: int, *, pid: int, host: str) -> None:
        """Begin the next attempt after step `from_step`; later steps are hidden from now on."""
        record = {"kind": "rewind", "from_step": from_step, "pid": pid, "host": host}
        self._append(record, attempt=self.state.attempt + 1)

    def end(self, status: str) -> None:
        """The run's last record."""
        self._append({"kind": "close", "status": status, "step": self.state.last_step})

    def rotate(self) -> None:
        """Complete the live piece of the journal, so that it may be packed."""
        self._journal.rotate(self.state.header(time.time()))
        self._steps_in_piece = 0

    def release(self) -> None:
        self._pool.shutdown()
        self._remove_replaced(0.0)
        self._journal.close()

    def _append(self, record: dict[str, object], *, attempt: int | None = None) -> None:
        record["attempt"] = self.state.attempt if attempt is None else attempt
        record.setdefault("wall_time", time.time())
        self._journal.append(record)
        self.state.apply(record)

    def _write_segment(self, content: StepContent) -> FileGroup:
        identity = new_id()
        run_id, attempt = self.state.run_id, self.state.attempt
        images = {
            key: png
            for key, png in images_of(content.trajectories).items()
            if key not in self._known_images
        }
        outcomes = {outcome.trajectory_id: outcome for outcome in content.outcomes}

        def tables() -> Iterator[tuple[str, pa.Table]]:
            trajectories = content.trajectories
            yield "tokens", tokens_table(run_id, attempt, trajectories, outcomes)
            yield "turns", turns_table(run_id, attempt, trajectories)
            yield "trajectories", trajectories_table(run_id, attempt, trajectories, outcomes)
            yield "diagnostics", diagnostics_table(run_id, attempt, content.diagnostics)
            yield "images", images_table(run_id, attempt, content.step, images)

        def write(table: str, rows: pa.Table) -> FileEntry:
            relative = f"seg/{table}/{content.step:08d}-{identity}.parquet"
            entry = write_segment_file(self._layout.root, relative, table, rows)
            sync_path(self._layout.root / "seg" / table)
            return entry

        waiting = [self._started(partial(write, *table)) for table in tables() if table[1].num_rows]
        files = tuple(result() for result in waiting)
        return FileGroup(
            id=identity,
            attempt=attempt,
            first_step=content.step,
            last_step=content.step,
            files=files,
        )

    def _started(self, write: Callable[[], FileEntry]) -> Callable[[], FileEntry]:
        """The result of a write in a thread of its own; in this one where the process ends.

        Python starts no work in pools while it exits, which is when a trainer without `close` has
        its last steps written.
        """
        try:
            return self._pool.submit(write).result
        except RuntimeError:
            return write

    def _remove_replaced(self, grace_s: float) -> None:
        """Delete micro-segments whose step was committed `grace_s` ago: queries may run on them."""
        limit = time.monotonic() - grace_s
        old = [identity for since, identity in self._replaced if since <= limit]
        self._replaced = self._replaced[len(old) :]
        for identity in old:
            for path in (self._layout.root / "seg").glob(f"*/*-{identity}.parquet"):
                path.unlink(missing_ok=True)

    def _bodies(self, acks: Sequence[CommandAck]) -> list[Command]:
        """Commands behind acknowledgements, from the mailbox, unless the journal has them."""
        new_ids = {ack.command_id for ack in acks} - self._known_commands
        if not new_ids:
            return []
        bodies = {c.command_id: c for c in self._mail.commands() if c.command_id in new_ids}
        self._known_commands.update(bodies)
        return [*bodies.values()]


def load_committer(layout: Layout, *, rotate_every: int) -> tuple[Committer, set[str]]:
    """Go on with an existing run. The caller holds the writer lock.

    What a crash left behind the last journal record is cut off, and segment files that no record
    names are removed. A live piece that is damaged stays as it is: the run goes on in a new piece.
    Returns the committer and the ids of commands that have an acknowledgement.
    """
    for leftover in layout.leftovers():
        leftover.unlink(missing_ok=True)
    index = RunIndex(layout.root)
    state, live, chain = index.state, index.live, index.chain
    if state.description is None:
        state.description = index.run
    if index.is_live_whole:
        journal = Journal(layout, live.number, chain, live.good_end)
    else:
        number = live.number
        if live.inode is not None:
            complete_piece(layout, number)
            number += 1
        chain.seq = max(chain.seq or 0, index.num_acknowledged)
        journal = Journal.create(layout, state.header(time.time()), number, chain)
    ids = {row["command_id"] for row in index.event_rows("commands")}
    committer = Committer(layout, journal, state, rotate_every=rotate_every, known_commands=ids)
    _remove_orphans(index)
    return committer, {row["command_id"] for row in index.event_rows("command_events")}


def _remove_orphans(index: RunIndex) -> None:
    """Delete segments that nothing names: work that a crash cut off."""
    layout = index.layout
    is_packing_unfinished = set(layout.piece_numbers()) & index.packs.keys()
    if index.problems or is_packing_unfinished:
        return  # a damaged record may have named them, or the next pack removes them
    named = {entry.path for segment in index.segments for entry in segment.files}
    for path in (layout.root / "seg").glob("*/*"):
        relative = str(path.relative_to(layout.root))
        if relative not in named and is_data_path(relative):
            path.unlink(missing_ok=True)
