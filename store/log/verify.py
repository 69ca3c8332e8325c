"""Check every file of a run against what was promised when it was acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from echoscope.text.png import picture_key

from ..checkpoints import checkpoint_damage, checkpoint_folders
from ..records import parse_trajectory_id
from ..schema import DATA_TABLES
from .durable import is_locked
from .index import Problem, RunIndex
from .integrity import damage_of
from .layout import FileEntry, Layout, Pack, Segment
from .packs.salvage import Salvage, salvage


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The outcome of `verify`. Hidden steps of earlier attempts are checked, too."""

    num_files: int
    num_bytes: int
    num_trajectories: int
    problems: tuple[Problem, ...]
    leftovers: tuple[Path, ...] = ()
    """Files that killed processes left. They hold nothing of the run, and the next one removes
    them."""


def verify(path: str | Path) -> VerifyReport:
    """Check sizes, hashes, row counts and ids of all data files and checkpoints.

    Raises:
        NotARunError: no run there.
        StoreError: `run.json`, the manifest or the journal's first record cannot be read.
    """
    index = RunIndex(Path(path), all_attempts=True)
    root = index.layout.root
    problems = list(index.problems)
    num_files = num_bytes = num_trajectories = 0
    units: tuple[Pack | Segment, ...] = (*index.manifest.packs, *index.segments)
    for unit in units:
        bad = []
        for entry in unit.files:
            num_files, num_bytes = num_files + 1, num_bytes + entry.num_bytes
            why = damage_of(root, entry)
            if why:
                left = proven_rest(root, entry)
                lost = lost_rows(unit, entry, left)
                bad.append(Problem(path=root / entry.path, what=why, lost=lost))
            elif entry.table == "trajectories":
                num_trajectories += entry.num_rows
        problems += bad or [
            Problem(path=root / entry.path, what=what, lost="nothing, but it is inconsistent")
            for entry, what in inconsistencies(root, unit)
        ]
    for folder in checkpoint_folders(index.layout.checkpoints):
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        num_files, num_bytes = num_files + len(sizes), num_bytes + sum(sizes)
        why = checkpoint_damage(folder, run_id=index.run_id)
        if why:
            lost = f"the checkpoint of step {int(folder.name.removeprefix('step_'))}"
            problems.append(Problem(path=folder, what=why, lost=lost))
    return VerifyReport(
        num_files=num_files,
        num_bytes=num_bytes,
        num_trajectories=num_trajectories,
        problems=tuple(problems),
        leftovers=_leftovers(index.layout),
    )


def _leftovers(layout: Layout) -> tuple[Path, ...]:
    """Files of processes that are gone: those of a process that holds its lock are in use."""
    packing = [] if is_locked(layout.pack_lock) else layout.left_by_packing()
    writing = [] if is_locked(layout.writer_lock) else layout.left_by_writer()
    return (*packing, *writing)


def proven_rest(root: Path, entry: FileEntry) -> Salvage | None:
    """What can be proven of a damaged file; None where that is nothing, or it cannot be read."""
    try:
        return salvage(root, entry)
    except OSError:
        return None


def lost_rows(unit: Pack | Segment, entry: FileEntry, left: Salvage | None = None) -> str:
    """What cannot be read of one damaged file of a segment or pack, in words."""
    if left is not None:
        return left.lost(entry, unit.attempt)
    first, last = unit.first_step, unit.last_step
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{entry.table} of {steps}, attempt {unit.attempt} ({entry.num_rows} rows)"


def inconsistencies(root: Path, unit: Pack | Segment) -> Iterator[tuple[FileEntry, str]]:
    """Contradictions between the files of one segment or pack, which are whole one by one."""
    entries = {entry.table: entry for entry in unit.files if entry.table in DATA_TABLES}
    if "images" in entries:
        images = pq.read_table(root / entries["images"].path, columns=["key", "png"])
        pairs = zip(images.column(0).to_pylist(), images.column(1).to_pylist(), strict=True)
        if any(picture_key(png) != key for key, png in pairs):
            yield entries["images"], "a picture is not the one that its key names"
    if "trajectories" not in entries:
        return

    def column(table: str, name: str) -> list[Any]:
        if table not in entries:
            return []
        values: list[Any] = (
            pq.read_table(root / entries[table].path, columns=[name]).column(0).to_pylist()
        )
        return values

    rows = entries["trajectories"]
    ids = column("trajectories", "id")
    first, last = unit.first_step, unit.last_step
    if len(set(ids)) != len(ids):
        yield rows, "a trajectory id occurs twice"
    if any(not first <= parse_trajectory_id(identity)[1] <= last for identity in ids):
        yield rows, f"a trajectory id names a step outside {first} to {last}"
    num_turns = dict(zip(ids, column("trajectories", "num_turns"), strict=True))

    def is_other(table: str, counted: Counter[str], expected: Mapping[str, int]) -> bool:
        """Whether a table has not what the trajectories count, where no row is known to be lost."""
        pair = rows, entries[table]
        return any(
            counted[identity] != expected.get(identity, 0)
            for identity in counted.keys() | expected.keys()
            if not any(e.has_lost(parse_trajectory_id(identity)[1]) for e in pair)
        )

    # A repaired run has no entry for a file that was lost.
    turns = Counter(column("turns", "trajectory_id"))
    if "turns" in entries and is_other("turns", turns, num_turns):
        yield entries["turns"], "its turns are not those that the trajectories count"
    num_tokens: Counter[str] = Counter()
    if "tokens" in entries:
        tokens = pq.read_table(
            root / entries["tokens"].path, columns=["trajectory_id", "response_tokens"]
        )
        lengths = pc.list_value_length(tokens.column("response_tokens")).to_pylist()
        for identity, length in zip(tokens.column(0).to_pylist(), lengths, strict=True):
            num_tokens[identity] += length
    expected = dict(zip(ids, column("trajectories", "num_sampled_tokens"), strict=True))
    if "tokens" in entries and is_other("tokens", num_tokens, expected):
        yield entries["tokens"], "its tokens are not those that the trajectories count"
