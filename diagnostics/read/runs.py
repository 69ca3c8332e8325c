"""The metrics files of a folder as runs: which files are metrics, and which belong to one run.

Files are told apart by what they say. Two files are of one run unless they have names of different
runs in them, have the names of different trainers, or say different things of the same steps.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath

import numpy as np

from echoscope.store.importers.sources import (
    MAX_FILES,
    NO_DATA,
    PICKLED,
    files_of,
    is_note_on_rollouts,
)
from echoscope.store.importers.survey import Progress, Refusals
from echoscope.store.records import FloatArray64, IntArray64
from echoscope.text.amounts import listed

from ..judge.advice.actions import trainer_of
from .foreign_names import Meaning
from .forms.wandb_file import is_kept_beside
from .metrics_file import NO_TEXT, NOT_METRICS, read_metrics
from .names import is_ours
from .records import ExportedFileError, MetricsFileError, is_named, no_such_run, run_names
from .table import MetricTable, named_table

MAX_METRICS_FILES = 2_000
"""Of a folder: a run has a handful, and a folder of runs some hundreds."""
MAX_FILE_BYTES = 1 << 30
_TOO_LARGE = "more than 1 GB; if it holds metrics, give it by itself"
_LOOKS_LIKE_METRICS = re.compile(
    r"\.(?:csv|tsv|db|sqlite3?|wandb)(?:\.\w+)?$|tfevents|metrics|history|trainer_state|^train.*\.log$",
    re.IGNORECASE,
)
"""Names of files that should hold metrics: why one cannot be read is worth saying."""
NO_KNOWN_COLUMN = (
    "no column has a known name; give the file by itself, with --map NAME=KEY for its columns"
)
_TOLERANCE = 0.02
"""A console rounds, so that two files may say the same with this relative difference."""
_FEWEST_QUANTITIES = 2
"""Quantities under other names in two files that must differ before the files are of two runs. One
is not enough: a reward before and after the KL penalty is two columns of one run."""
NEITHER = "neither rollouts nor metrics of a known form"
_OF_WANDB = "kept by W&B beside its run"
_BY_ENDING = "code, pictures, weights or documents, by their ending"
_NO_DATA = NO_DATA | {".bin", ".npz", ".npy", ".ipynb", ".conf", ".crt", ".pem", ".xml"}
_NO_METRICS = _NO_DATA | PICKLED | {".duckdb", ".parquet", ".eval"}
"""Endings of files that hold no metrics in any form that is read."""
_GENERIC = (NO_TEXT, NOT_METRICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """The metrics of one run, from one file or several."""

    name: str
    """What its files call it, else the folder or file that it stands in."""
    table: MetricTable
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFolder:
    """What the metrics files of a path hold."""

    runs: tuple[RunMetrics, ...] = ()
    """The one with most rows first."""
    refused: Refusals = field(default_factory=partial(Refusals, max_named=MAX_FILES))
    """Files that look like metrics and cannot be read or used."""
    passed: dict[str, str] = field(default_factory=dict)
    """Files of a folder that hold no metrics -> why."""

    def chosen(self, path: Path, name: str) -> RunMetrics | None:
        """The run that a user means, or the only one; None where there is none.

        Raises:
            MetricsFileError: no run has this name, or several are there and none is named.
        """
        names = [run.name for run in self.runs]
        if name:
            exact = [run for run in self.runs if run.name == name]
            meant = next((run for run in (*exact, *self.runs) if is_named(name, run.name)), None)
            if meant is None:
                raise MetricsFileError(f"{path}: {no_such_run(name, names)}")
            return meant
        if len(names) > 1:  # the names come last, because there may be hundreds
            has_files = len({file for run in self.runs for file in run.files}) > 1
            by_file = ", or give the file of one of them" if has_files else ""
            raise MetricsFileError(
                f"{path}: holds metrics of {len(names)} runs. Choose one with --run NAME{by_file}. "
                f"The runs: {run_names(names)}"
            )
        return self.runs[0] if names else None


def read_runs(
    path: Path,
    mapping: Mapping[str, Meaning] | None = None,
    *,
    skipped: Collection[str] = (),
    needs_steps: bool = False,
    progress: Progress | None = None,
) -> MetricsFolder:
    """All runs whose metrics a file or folder holds.

    Args:
        mapping: as of `read_metrics`; for files of a folder that have such a column.
        skipped: Files of the folder that are something else, relative to it.
        needs_steps: Refuse files in which no step is written: their rows cannot be laid beside
            the steps of rollouts.
        progress: Called with (bytes, of bytes).

    Raises:
        MetricsFileError: the path is a file without metrics.
        OSError: it cannot be read.
    """
    folder, mapping = MetricsFolder(), mapping or {}
    pieces: list[RunMetrics] = []
    if path.is_dir():
        candidates = list(_candidates(path, skipped, folder))
        total, done = sum(size for _, _, size in candidates), 0
        for file, name, size in candidates:
            tables = _tables_or_reason(file, str(name), mapping, folder)
            pieces += [RunMetrics(name=t.run, table=t, files=(str(name),)) for t in tables]
            done += size
            if progress:
                progress(done, total)
    else:
        tables = _of_all_runs(path, mapping, read_metrics(path, mapping))
        pieces = [RunMetrics(name=t.run, table=t, files=(path.name,)) for t in tables]
    if len(pieces) > 1 or needs_steps:
        for piece in (piece for piece in pieces if piece.table.is_counted):
            why = "no step is written, so its rows belong to no step"
            folder.refused.add(why, piece.files[0])
        pieces = [piece for piece in pieces if not piece.table.is_counted]
    clusters = _clusters(pieces)
    runs = zip(clusters, _names(clusters, path), strict=True)
    return replace(folder, runs=tuple(_merged(run, mapping, name) for run, name in runs))


def _tables_or_reason(
    file: Path, name: str, mapping: Mapping[str, Meaning], folder: MetricsFolder
) -> list[MetricTable]:
    """The tables of a file of a folder; one that has none is refused if it should have some."""
    try:
        try:
            first = read_metrics(file, mapping)
        except MetricsFileError:
            if not mapping:
                raise
            mapping = {}  # a column that is mapped stands in another file
            first = read_metrics(file)
        if not (why := _why_no_metrics(first)):
            return _of_all_runs(file, mapping, first)
        folder.passed[name] = why
    except OSError as error:
        folder.refused.add(error.strerror or str(error).removeprefix(f"{file}: "), name)
    except MetricsFileError as error:
        reason = str(error).removeprefix(f"{file}: ")
        if isinstance(error, ExportedFileError) or _LOOKS_LIKE_METRICS.search(file.name):
            folder.refused.add(reason, name)
        else:
            folder.passed[name] = NEITHER if reason in _GENERIC else reason
    return []


def _candidates(
    path: Path, skipped: Collection[str], folder: MetricsFolder
) -> Iterator[tuple[Path, PurePath, int]]:
    """Files of a folder that may hold metrics, in natural order, and their sizes in bytes."""
    number = 0
    for file, problem in files_of(path):
        relative, suffix = file.relative_to(path), file.suffix.lower()
        if problem:
            folder.refused.add(problem, str(relative))
        elif str(relative) in skipped or is_note_on_rollouts(file):
            continue
        elif suffix in _NO_METRICS:
            folder.passed[str(relative)] = _BY_ENDING if suffix in _NO_DATA else NEITHER
        elif is_kept_beside(file):
            folder.passed[str(relative)] = _OF_WANDB
        else:
            number += 1
            if number > MAX_METRICS_FILES:
                why = f"more than {MAX_METRICS_FILES:,} files without rollouts"
                folder.refused.add(why, str(relative))
                return
            size = file.stat().st_size
            if size > MAX_FILE_BYTES:
                folder.refused.add(_TOO_LARGE, str(relative))
            else:
                yield file, relative, size


def _of_all_runs(
    file: Path, mapping: Mapping[str, Meaning], first: MetricTable
) -> list[MetricTable]:
    """The tables of all runs of a file, of which the first was read."""
    others = (run for run in first.runs if run != first.run)
    return [first, *(read_metrics(file, mapping, run=run) for run in others)]


def _why_no_metrics(table: MetricTable) -> str:
    """Why the table of a file in a folder is not taken for metrics; "" where it is."""
    if not any(map(is_ours, table.keys())):
        return NO_KNOWN_COLUMN
    return "a single row without a step" if table.is_counted and table.num_rows < 2 else ""


def _clusters(pieces: Sequence[RunMetrics]) -> list[list[RunMetrics]]:
    """What single files say of each run, the run with most rows first."""
    runs: list[list[RunMetrics]] = []
    for piece in pieces:
        own = next((run for run in runs if all(_may_be_one(piece, p) for p in run)), [])
        runs += [] if own else [own]
        own.append(piece)
    return sorted(runs, key=lambda run: -max(piece.table.num_rows for piece in run))


def _may_be_one(first: RunMetrics, second: RunMetrics) -> bool:
    """Whether what two files, or one, say may be of one run."""
    names = first.name, second.name
    if first.files == second.files or (all(names) and _fields(names[0]) == _fields(names[1])):
        return names[0] == names[1]
    trainers = {trainer_of(list(piece.table.raw)) for piece in (first, second)} - {""}
    if len(trainers) > 1:
        return False
    _, a_R, b_R = np.intersect1d(first.table.steps, second.table.steps, return_indices=True)
    if 2 * len(a_R) <= min(first.table.num_rows, second.table.num_rows):
        return True  # one goes on where the other ended
    counts = _compared(first.table.raw, a_R, second.table.raw, b_R)
    if counts:
        return sum(different for _, different in counts) <= sum(same for same, _ in counts)
    counts = _compared(first.table.columns, a_R, second.table.columns, b_R)
    differing = sum(different > same for same, different in counts)
    return differing < max(_FEWEST_QUANTITIES, len(counts) / 2)


def _compared(
    first: Mapping[str, FloatArray64],
    a_R: IntArray64,
    second: Mapping[str, FloatArray64],
    b_R: IntArray64,
) -> list[tuple[int, int]]:
    """Of each varying column of both: how many rows of steps that both have agree, and differ."""
    counts = []
    for name in sorted(first.keys() & second.keys()):
        a, b = first[name][a_R], second[name][b_R]
        is_there = np.isfinite(a) & np.isfinite(b)
        a, b = a[is_there], b[is_there]
        if len(a) and (np.ptp(a) > 0 or np.ptp(b) > 0):
            is_same = np.abs(a - b) <= _TOLERANCE * np.maximum(np.abs(a), np.abs(b)) + 1e-9
            counts.append((int(is_same.sum()), int((~is_same).sum())))
    return counts


def _fields(run: str) -> list[str]:
    """The fields that a run's name is made of: none where it is a bare name.

    >>> _fields("seed=1, model=a"), _fields("lake-1")
    (['seed', 'model'], [''])
    """
    return [part.partition("=")[0] if "=" in part else "" for part in run.split(", ")]


def _merged(pieces: Sequence[RunMetrics], mapping: Mapping[str, Meaning], name: str) -> RunMetrics:
    """One table of all pieces; of two values of a column at one step the later file's counts."""
    if len(pieces) == 1:
        return replace(pieces[0], name=name)
    files = tuple(dict.fromkeys(file for piece in pieces for file in piece.files))
    steps = np.unique(np.concatenate([piece.table.steps for piece in pieces]))
    raw: dict[str, FloatArray64] = {}
    for piece in pieces:
        at_R = np.searchsorted(steps, piece.table.steps)
        for key, values in piece.table.raw.items():
            column = raw.setdefault(key, np.full(len(steps), np.nan))
            is_there = ~np.isnan(values)
            column[at_R[is_there]] = values[is_there]
    own_mapping = {column: meaning for column, meaning in mapping.items() if column in raw}
    notes = [f"metrics of {len(files)} files were joined by their steps: {listed(files)}"]
    joined = named_table(steps, raw, own_mapping, notes)
    return RunMetrics(name=name, table=replace(joined, run=name), files=files)


def _names(clusters: Sequence[Sequence[RunMetrics]], path: Path) -> list[str]:
    """What the runs are called, each otherwise: as their files say, or after a folder or file."""
    own = [next((piece.name for piece in run if piece.name), "") for run in clusters]
    if len(clusters) == 1:
        return [own[0] or path.resolve().name]
    folders = [{str(PurePath(piece.files[0]).parent) for piece in run} for run in clusters]
    places = [inside.copy().pop() if len(inside) == 1 else "" for inside in folders]
    names: list[str] = []
    for run, name, folder_name in zip(clusters, own, places, strict=True):
        is_own = bool(name) and own.count(name) == 1
        is_folder = folder_name not in ("", ".") and places.count(folder_name) == 1
        names.append(name if is_own else folder_name if is_folder else run[0].files[0])
    return [name if names.count(name) == 1 else f"{name} ({n})" for n, name in enumerate(names, 1)]
