"""What a path holds: a run of ours, or files of another trainer, which become a run here."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echoscope.dashboard.data.foreign import is_of_documents, is_source
from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.names import MetricNameError, parse_map
from echoscope.diagnostics.read.rollouts import notes_of
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.errors import NotARunError
from echoscope.store.importers.importing import ImportingError
from echoscope.store.log.layout import Layout, run_meant, shown_path
from echoscope.store.reader import RunReader, open_run
from echoscope.text.amounts import listed

_IN_PYTHON = (
    (re.compile(r"leave --run out"), "leave run= out"),
    (re.compile(r"--run NAME"), "run=NAME"),
    (re.compile(r"(?:give )?--map NAME=(\S+) for"), r'names={"NAME": "\1"} for'),
    (re.compile(r"--map '?([^'=\s]+)=([^'\s,;:)]+)'?"), r'names={"\1": "\2"}'),
    (re.compile(r"--map"), "names="),
)
"""What an error says to somebody at a shell -> what it says at a Python prompt."""


@dataclass(slots=True)
class OpenedRun:
    """An open run, and where it came from."""

    reader: RunReader
    path: Path
    """What the caller named."""
    run: str = ""
    """Which run's metrics, where the files hold those of several."""
    mapping: Mapping[str, Meaning] = field(default_factory=dict)
    """What columns of metrics files mean, where their names do not say so."""
    notes: Sequence[str] = ()
    """What is to be known of the import."""
    folder: tempfile.TemporaryDirectory[str] | None = None
    """Of an import: it goes when nothing refers to it any more. None for a run of ours."""

    @property
    def typed(self) -> str:
        """How a command names it."""
        return shlex.quote(shown_path(self.reader.path if self.folder is None else self.path))

    def refresh(self) -> None:
        """Catch up with the files: those of a trainer that still writes are imported on."""
        if self.folder is not None:
            notes = _imported(self.path, self.reader.path, self.run, self.mapping)
            self.notes = list(dict.fromkeys([*self.notes, *notes]))
        self.reader.refresh()


def open_source(
    path: str | Path, run: str = "", names: Mapping[str, str] | None = None
) -> OpenedRun:
    """Open a run, or import the files of another trainer into one.

    Args:
        path: A run, a file or folder of another trainer, or `wandb:ENTITY/PROJECT/RUN`.
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
    if Layout(source).is_run:
        if run or names:
            raise ValueError(
                f"{path}: is a run already; run= and names= are for files of another trainer"
            )
        return OpenedRun(reader=open_run(source), path=source)
    if not is_address(source):
        _must_be_there(source)
    try:
        entries = [f"{name}={key}" for name, key in (names or {}).items()]
        mapping = parse_map(entries, known_keys(), has_rollouts=True)
    except MetricNameError as error:
        raise MetricNameError(_in_python(str(error))) from None
    folder = tempfile.TemporaryDirectory(prefix="echoscope-notebook-")
    target = Path(folder.name) / "run"
    notes = _imported(source, target, run, mapping)
    return OpenedRun(
        reader=open_run(target),
        path=source,
        run=run,
        mapping=mapping,
        notes=notes,
        folder=folder,
    )


def _must_be_there(source: Path) -> None:
    """Raises NotARunError where nothing is, and for a folder of runs."""
    if not source.exists():
        if run_meant(source):
            Layout(source).require_run()
        raise NotARunError(f"{source}: no such file or folder")
    if not source.is_dir():
        return
    runs = sorted(inner.name for inner in source.iterdir() if Layout(inner).is_run)
    if runs:
        raise NotARunError(f"{source}: holds runs ({listed(runs, 3)}). Name one of them")
    if is_of_documents(source) and not is_source(source):
        raise NotARunError(
            f"{source}: most of its files are documents or code, so metrics files in it may be "
            "examples and were not read. Open the file or folder inside it that the trainer wrote, "
            f"such as Run({str(source / 'train.log')!r})"
        )


def _imported(path: Path, target: Path, run: str, mapping: Mapping[str, Meaning]) -> Sequence[str]:
    """Import what is new; its notes, and ImportingErrors, name the arguments of `Run`."""
    try:
        report = import_path(path, target, run=run, mapping=mapping, is_packing=False)
    except ImportingError as error:
        raise ImportingError(_in_python(str(error))) from None
    return [_in_python(note) for note in notes_of(report, shlex.quote(str(path)))]


def _in_python(text: str) -> str:
    for pattern, note in _IN_PYTHON:
        text = pattern.sub(note, text)
    return text
