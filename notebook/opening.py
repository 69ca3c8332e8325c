"""What a path holds: a run of ours, or files of another trainer, which become a run here."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from echoscope.dashboard.data.foreign import is_of_documents, is_source
from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.names import MetricNameError, parse_map
from echoscope.diagnostics.read.rollouts import notes_of
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.diagnostics.tools.importing import JointReport, SeveralRunsError, import_path
from echoscope.store.errors import NotARunError
from echoscope.store.importers.importing import KIND, ImportingError, ImportReport
from echoscope.store.importers.survey import Refusals
from echoscope.store.log.layout import Layout, run_meant, shown_path
from echoscope.store.reader import RunReader, open_run
from echoscope.text.amounts import counted

_QUIET_S = 2.0
"""An import that takes longer says how far it is."""
_IN_PYTHON = (
    (re.compile(r"name another folder with -o"), "name another folder with keep="),
    (re.compile(r"-o names the folder"), "keep= names the folder"),
    (re.compile(r"leave --run out"), "leave run= out"),
    (re.compile(r"--run NAME"), "run="),
    (re.compile(r"(?:give )?--map NAME=(\S+) for"), r'names={"NAME": "\1"} for'),
    (re.compile(r"--map '?([^'=\s]+)=([^'\s,;:)]+)'?"), r'names={"\1": "\2"}'),
    (re.compile(r"`echoscope diagnose ([^`]+)` reads it"), r"open it with Run('\1')"),
    (re.compile(r"--map"), "names="),
)
"""What an error says to somebody at a shell -> what it says at a Python prompt."""


@dataclass(slots=True)
class Source:
    """An open run, and where it came from."""

    reader: RunReader
    path: Path
    """What the caller named."""
    notes: Sequence[str] = ()
    """What is to be known of an import."""
    run: str = ""
    """Which run's metrics, where the files hold those of several."""
    mapping: Mapping[str, Meaning] = field(default_factory=dict)
    """What columns of metrics files mean, where their names do not say so."""
    folder: tempfile.TemporaryDirectory[str] | None = None
    """Of an import that is not kept: it goes when nothing refers to it any more."""

    @property
    def is_foreign(self) -> bool:
        """The caller named files of another trainer."""
        return self.reader.path != self.path.resolve()

    @property
    def is_kept(self) -> bool:
        return self.folder is None

    @property
    def typed(self) -> str:
        """How a command names it."""
        return shlex.quote(shown_path(self.reader.path if self.is_kept else self.path))

    def refresh(self) -> None:
        """Catch up with the files: those of a trainer that still writes are imported on."""
        if self.is_foreign:
            report = _imported(self.path, self.reader.path, self.run, self.mapping)
            self.notes = _notes(report, self.reader, self.path)
        self.reader.refresh()


def open_source(
    path: str | Path,
    keep: str | Path | None = None,
    run: str = "",
    names: Mapping[str, str] | None = None,
) -> Source:
    """Open a run, or import the files of another trainer into one.

    Args:
        path: A run, a file or folder of another trainer, or `wandb:ENTITY/PROJECT/RUN`.
        keep: Folder of the run that an import makes; None for one that goes when it is not used
            any more.
        run: Which run's metrics to take, where the files hold those of several.
        names: Column of a metrics file -> the metric that it is, where its name does not say so.

    Raises:
        MetricNameError: `names` names no metric.
        NotARunError: nothing there, or a folder of several runs.
        ImportingError: files that no importer reads; one line.
        StoreError: the run cannot be read.
    """
    if not isinstance(path, str | Path):
        raise TypeError(f"a run is named by its path, not by {type(path).__name__}")
    source = Path(path)
    if not is_address(source):
        _must_be_there(source)
    if Layout(source).run_json.is_file():
        if keep is not None or run or names:
            raise ValueError(
                f"{path}: is a run already; keep=, run= and names= are for files of another trainer"
            )
        reader = open_run(source)
        return Source(reader=reader, path=source, notes=_notes_of_import(reader, source))
    mapping = _mapping(names)
    folder = None
    if keep is None:
        folder = tempfile.TemporaryDirectory(prefix="echoscope-notebook-")
    target = Path(folder.name) / "run" if folder is not None else Path(keep or "")
    report = _imported(source, target, run, mapping)
    reader = open_run(target)
    return Source(
        reader=reader,
        path=source,
        notes=_notes(report, reader, source),
        run=run,
        mapping=mapping,
        folder=folder,
    )


def _mapping(names: Mapping[str, str] | None) -> Mapping[str, Meaning]:
    try:
        entries = [f"{name}={key}" for name, key in (names or {}).items()]
        return parse_map(entries, known_keys(), has_rollouts=True)
    except MetricNameError as error:
        raise MetricNameError(_in_python(str(error))) from None


def _must_be_there(source: Path) -> None:
    """Raises NotARunError where nothing is, and for a folder of runs."""
    if not source.exists():
        if run_meant(source):
            Layout(source).require_run()
        raise NotARunError(f"{source}: no such file or folder")
    if not source.is_dir() or Layout(source).run_json.is_file():
        return
    runs = sorted(inner.name for inner in source.iterdir() if Layout(inner).run_json.is_file())
    if not runs and is_of_documents(source) and not is_source(source):
        raise NotARunError(
            f"{source}: most of its files are documents or code, so metrics files in it may be "
            "examples and were not read. Open the file or folder inside it that the trainer wrote, "
            f"such as Run({str(source / 'train.log')!r})"
        )
    if runs:
        more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
        raise NotARunError(
            f"{source}: holds runs ({', '.join(runs[:3])}{more}). Name one of them, or list them "
            f"with Runs({str(source)!r})"
        )


def _imported(path: Path, target: Path, run: str, mapping: Mapping[str, Meaning]) -> JointReport:
    """Import what is new.

    Raises:
        ImportingError: with the arguments of `Run` in place of a shell's options.
    """
    progress = _Progress(path.name)
    try:
        return import_path(
            path, target, run=run, mapping=mapping, writing=progress, is_packing=False
        )
    except SeveralRunsError as error:
        listed = ", ".join(map(repr, error.runs[:8]))
        raise ImportingError(
            f"{path}: holds metrics of {len(error.runs)} runs ({listed}); name one of them: "
            f"Run({str(path)!r}, run={error.runs[0]!r})"
        ) from error
    except ImportingError as error:
        raise ImportingError(_in_python(str(error))) from None
    finally:
        progress.end()


def _in_python(text: str) -> str:
    for pattern, words in _IN_PYTHON:
        text = pattern.sub(words, text)
    return text


def _notes(report: JointReport, reader: RunReader, path: Path) -> Sequence[str]:
    """What is to be known of an import, of what was there before it as well."""
    written, metrics = report.written, report.metrics
    rows, reconstructed = _told_by_steps(reader)
    skipped = Refusals(counts=Counter(written.rows.counts), places=dict(written.rows.places))
    for reason, times in rows.items():
        skipped.counts[reason] = max(times, skipped.counts[reason])
    whole = replace(report, written=replace(written, rows=skipped, reconstructed=reconstructed))
    episodes = written.num_kept + written.num_there - rows.total()
    parts = [f"{counted(episodes, 'episode')} of {written.format}"] if episodes else []
    if metrics is not None:
        parts.append(f"metrics of {counted(metrics.table.num_rows, 'row')}")
    return (
        f"read from {' and '.join(parts)}",
        *(_in_python(note) for note in notes_of(whole, shlex.quote(str(path)))[1:]),
    )


def _notes_of_import(reader: RunReader, path: Path) -> Sequence[str]:
    """What is to be known of a stored run that an import made; empty for one that was trained."""
    imported = reader.info().config.get("imported")
    if not isinstance(imported, dict):
        return ()
    rows, reconstructed = _told_by_steps(reader)
    written = ImportReport(
        path=path,
        format="",
        trainer="",
        rows=_refusals(imported.get("skipped_rows"), rows),
        reconstructed=reconstructed,
    )
    notes = notes_of(JointReport(written=written, metrics=None), shlex.quote(str(path)))
    files = _refusals(imported.get("refused_files"), {}).counts
    return [
        f"imported from {imported.get('source')}",
        *(f"refused {counted(times, 'file')}: {reason}" for reason, times in files.items()),
        *notes[1:],
    ]


def _told_by_steps(reader: RunReader) -> tuple[Counter[str], Counter[str]]:
    """Rows that were skipped by reason, and episodes by what had to be guessed of them."""
    skipped: Counter[str] = Counter()
    reconstructed: Counter[str] = Counter()
    rows = reader.sql("SELECT payload FROM diagnostics WHERE kind = $1", [KIND])
    for text in rows.column("payload").to_pylist():
        record = json.loads(text)
        skipped.update(record.get("skipped", {}))
        reconstructed.update(record.get("reconstructed", {}))
    return skipped, reconstructed


def _refusals(stored: Any, counts: Mapping[str, int]) -> Refusals:
    """Reasons with their counts, of what a configuration says and of what the steps say."""
    in_config = stored if isinstance(stored, dict) else {}
    refused = Refusals()
    for reason in dict.fromkeys([*in_config, *counts]):
        times = in_config.get(reason)
        refused.add(reason, "", max(times if isinstance(times, int) else 0, counts.get(reason, 0)))
    return refused


class _Progress:
    """One line on stderr that counts up, once an import takes a while."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next = time.monotonic() + _QUIET_S
        self._is_shown = False

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next, self._is_shown = now + 1.0, True
            sys.stderr.write(f"\rimporting {self._name!a}: {done:,} of {of:,} rows")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_shown:
            sys.stderr.write("\n")
