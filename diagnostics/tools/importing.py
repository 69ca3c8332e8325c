"""Import what another trainer wrote: its rollouts, its metrics, or both, as one run.

    from echoscope.diagnostics.tools.importing import import_path
    report = import_path(Path("outputs/my-verl-run"), Path("runs/my-verl-run"))

`store.importers` imports rollouts. It may not know what a metric of another trainer means, so the
two are joined here. `echoscope import`, a notebook and a verdict of files call `import_path`.

A step that has rollouts and metrics is one step of the run. A step with metrics alone is a step
without trajectories. Metrics are stored under the trainer's own names, and under ours where
`diagnostics.read` understands a name: `critic/score/mean` and `reward/return_mean`.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import numpy as np

from echoscope.store.importers.importing import (
    ImportingError,
    ImportReport,
    check_paths,
    import_surveyed,
)
from echoscope.store.importers.lines import conversion
from echoscope.store.importers.sources import files_of, holds_metrics_too, name_pattern
from echoscope.store.importers.steps.episodes import StepEpisodes, step_values
from echoscope.store.importers.steps.metrics import Beside
from echoscope.store.importers.survey import (
    Progress,
    Refusals,
    Survey,
    look,
    survey,
)
from echoscope.store.records import MAX_STEP, DiagnosticRecord
from echoscope.store.writer import RunWriter
from echoscope.text.amounts import bounds, counted

from ..judge.advice.actions import trainer_of
from ..judge.rules.metrics_needed import TRAINERS
from ..measure.outcomes import evaluation_metrics
from ..measure.text import sample as text_sample
from ..read.foreign_names import Meaning
from ..read.names import is_ours
from ..read.records import (
    ExportedFileError,
    MetricsFileError,
)
from ..read.rollouts import ONE_EVALUATION, metrics_mapping, no_rollouts, roles_of
from ..read.runs import MetricsFolder, RunMetrics, read_runs
from ..read.table import MetricTable
from ..read.unread import file_sentences, file_unread, folder_unread, passed_over
from ..read.wandb_address import is_address, read_address
from .foreign_step import ForeignStep

_CLOCKS = ("_timestamp", "timestamp", "wall_time", "wall time", "time")
"""Columns that may hold seconds since the epoch."""
_EPOCH_S = (1e9, 4e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointReport:
    """What an import of rollouts and metrics did."""

    written: ImportReport
    """What was added to the run; of its fields, those about rows and files are of rollouts."""
    metrics: RunMetrics | None
    """The metrics that were joined; None where the path holds none."""
    rows: Refusals = field(default_factory=Refusals)
    num_measured: int = 0
    """Steps that were added whose text was measured."""
    refused: Refusals
    """Files that look like metrics and cannot be read, and without rollouts those of any kind."""
    passed: Refusals
    """Files that hold neither rollouts nor metrics."""

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.written.path

    def sentences(self) -> list[str]:
        """What is said of rollouts without steps, and of the files that were not imported."""
        rollouts = self.written.survey
        sentences = [ONE_EVALUATION] if rollouts.is_evaluation else []
        sentences += file_sentences((rollouts.refused_files, self.refused), self.passed)
        if num := rollouts.num_unclean:
            sentences.append(
                f"{counted(num, 'row')} had bytes that are not UTF-8; U+FFFD stands for them. If "
                f"their text matters, {conversion('ENCODING')}, and import NEW into a new run"
            )
        return sentences


def import_path(
    path: Path,
    run_path: Path,
    *,
    run: str = "",
    mapping: Mapping[str, Meaning] | None = None,
    scanning: Progress | None = None,
    writing: Progress | None = None,
    is_packing: bool = True,
) -> JointReport:
    """Import the rollouts and metrics that a file or folder holds into a run's folder.

    Call it again when files grew: steps that are the same are left alone, and steps that are new
    or changed are written, in order. So it is idempotent, and an import that was killed goes on.
    Each call reads all files again, and each call that writes is an attempt of the run.

    Args:
        path: Rollouts of any format that `store.importers` knows, metrics of any form that
            `diagnostics.read` knows, or a folder with both.
        run_path: The run's folder: new, empty, or of an earlier import of the same files.
        run: Which run's metrics to take where the files hold those of several.
        mapping: Column of metrics or key of rollouts -> what it means, where its name does not
            say so (`names.parse_map`).
        scanning: Called with (bytes, of bytes) while files are read.
        writing: Called with (rows, of rows), or of steps where there are metrics alone.
        is_packing: Merge the files of every 256 steps, in a process of its own.

    Raises:
        ImportingError: nothing to import; metrics of several runs, and `run` names none; or the
            folder is not the run of such an import. One sentence with the way out.
        OSError: a file cannot be read, or the disk refuses.
    """
    try:
        if is_address(path):
            if problem := no_rollouts(path, mapping):
                raise ImportingError(problem)
            metrics, none = read_address(str(path), mapping), Refusals()
            return _write(str(path), run_path, metrics, Survey(), none, none, writing, is_packing)
        check_paths(path, run_path)
        with tempfile.TemporaryDirectory(prefix="echoscope-import-") as spool:
            rollouts, folder, both = _joined(path, run, mapping, scanning)
            # Traces name runs of their own.
            chosen = None if both and not folder.runs else folder.chosen(path, run)
            rest, is_surveyed = Survey(), bool(rollouts) or chosen is None
            if is_surveyed:
                as_metrics = {file for metrics_run in folder.runs for file in metrics_run.files}
                if path.is_dir():  # refused once, for the reason that `diagnose` gives
                    as_metrics |= {n for names in folder.refused.names.values() for n in names}
                skipped, roles = as_metrics - both, roles_of(mapping)
                rest = survey(path, Path(spool), scanning, skipped=skipped, roles=roles, run=run)
            with closing(rest):
                passed = passed_over(path, folder, rest.without_rows if is_surveyed else None)
                for copy, original in rest.copies.items():
                    passed.add(f"a copy: its rows are those of {original}", copy)
                if chosen is None and not rest.num_rows:
                    raise ImportingError(_unread(path, folder, passed, rest))
                if not is_surveyed and (problem := no_rollouts(path, mapping)):
                    raise ImportingError(problem)
                refused = folder.refused
                return _write(path, run_path, chosen, rest, refused, passed, writing, is_packing)
    except MetricsFileError as error:
        raise ImportingError(str(error)) from None


_ENOUGH = 3
"""After so many files with names of one pattern, the others of the pattern hold the same."""


def _joined(
    path: Path, run: str, mapping: Mapping[str, Meaning] | None, scanning: Progress | None
) -> tuple[list[str], MetricsFolder, set[str]]:
    """Files with rollouts, the metrics of all others, and the files that hold both.

    Raises:
        ExportedFileError: the path is an export that is not meant to be read back.
    """
    is_folder, roles = path.is_dir(), roles_of(mapping)
    rollouts: list[str] = []
    patterns: Counter[PurePath] = Counter()
    for file, problem in files_of(path):
        name = file.relative_to(path) if is_folder else PurePath(file.name)
        pattern = name_pattern(name)
        is_usual = patterns[pattern] >= _ENOUGH
        if not problem and (is_usual or look(file, roles, run).is_rollouts):
            patterns[pattern] += 1
            rollouts.append(str(name))
    both = {name for name in rollouts if holds_metrics_too(path / name if is_folder else path)}
    if rollouts and not is_folder and not both:
        return rollouts, MetricsFolder(), both
    try:
        metrics = read_runs(
            path,
            metrics_mapping(mapping),
            skipped=set(rollouts) - both,
            needs_steps=bool(rollouts),
            progress=scanning,
        )
    except ExportedFileError:
        raise
    except MetricsFileError as error:  # of a single file, which may still hold rollouts
        metrics = MetricsFolder()
        metrics.refused.add(str(error).removeprefix(f"{path}: "), path.name)
    return rollouts, metrics, both


def _unread(path: Path, folder: MetricsFolder, passed: Refusals, rest: Survey) -> str:
    """Why nothing of a path can be imported."""
    if not path.is_dir():
        return file_unread(path, next(iter(folder.refused.counts), ""))
    refused = (rest.refused_rows, rest.refused_files, folder.refused)
    return folder_unread(path, *refused, passed)


def _write(
    source: Path | str,
    run_path: Path,
    metrics: RunMetrics | None,
    rollouts: Survey,
    refused: Refusals,
    passed: Refusals,
    writing: Progress | None,
    is_packing: bool,
) -> JointReport:
    """Write metrics and rollouts that were read; arguments and errors as of `import_path`."""
    rows = Refusals()
    beside = _beside_of(metrics, len(rollouts.digests), rows)
    # Measures that the files hold are of the policy's own sampling, and are not mixed with others.
    has_measures = any(key.startswith(("text/", "info/")) for key in beside.counts)
    chosen = (
        () if has_measures else text_sample.evenly(sorted(rollouts.digests), text_sample.MAX_STEPS)
    )
    num_measured = 0

    def write(writer: RunWriter, content: StepEpisodes, record: DiagnosticRecord) -> None:
        """With what the evaluation episodes of a step say, and what the text of the others does."""
        nonlocal num_measured
        number = content.step
        step = ForeignStep(
            content=content,
            values=beside.joined(number, step_values(content.trajectories)),
            records=[record],
            at=beside.wall_times.get(number) or time.time(),
        )
        if not beside.has_evaluations:
            step.values |= evaluation_metrics(content.trajectories)
        texts = text_sample.to_measure(content.trajectories) if number in chosen else []
        if texts:
            num_measured += 1
            report = text_sample.measure_sample(texts)
            step.values |= report.metrics()
            step.records.append(report.record(number))
        step.write(writer)

    written = import_surveyed(
        source, run_path, rollouts, beside, write, writing=writing, is_packing=is_packing
    )
    return JointReport(
        written=written,
        metrics=metrics,
        refused=refused,
        passed=passed,
        rows=rows,
        num_measured=num_measured,
    )


def _beside_of(metrics: RunMetrics | None, num_rollouts: int, left_out: Refusals) -> Beside:
    """The metrics of a run as the importer takes them; `left_out` takes impossible steps.

    Args:
        num_rollouts: Steps that have rollouts.
    """
    if metrics is None:
        return Beside(num_steps_with_rollouts=num_rollouts)
    table = metrics.table
    own = {name: values for name, values in table.raw.items() if not is_ours(name)}
    every_name = replace(table, columns={**table.raw, **table.columns, **own})
    steps: dict[int, dict[str, float]] = {}
    for step, values in every_name.rows():
        if not 0 <= step <= MAX_STEP:
            left_out.add(f"a step must be {bounds(0, MAX_STEP)}", f"step {step}")
        elif values:
            steps[step] = values
    return Beside(
        steps=steps,
        wall_times=_clock(table),
        trainer=TRAINERS.get(trainer_of(list(table.raw)), ""),
        description={
            "run": metrics.name,
            "files": list(metrics.files)[:50],
            "num_files": len(metrics.files),
            "names": {k: s for k, s in table.sources.items() if k != s},
            "notes": list(table.notes)[:50],
        },
        num_steps_with_rollouts=num_rollouts,
    )


def _clock(table: MetricTable) -> dict[int, float]:
    """When steps ended, in seconds since the epoch; empty where no column says it."""
    low, high = _EPOCH_S
    for name, values in table.raw.items():
        present = values[np.isfinite(values)]
        if name.lower() in _CLOCKS and len(present) and low < present.min() <= present.max() < high:
            is_there = ~np.isnan(values)
            return dict(zip(table.steps[is_there].tolist(), values[is_there].tolist(), strict=True))
    return {}
