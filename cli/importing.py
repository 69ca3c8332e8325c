"""echoscope import: rollouts and metrics of another trainer become a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson, Meanings, MetricsRun, Output, mapping_of
from .terminal import print_json, print_lines, progress_bars

if TYPE_CHECKING:
    from echoscope.diagnostics.tools.importing import JointReport


def import_(
    path: Annotated[
        Path,
        typer.Argument(help="A file or folder of another trainer: rollouts, metrics, or both."),
    ],
    output: Output = None,
    run: MetricsRun = "",
    map_: Meanings = None,
    as_json: AsJson = False,
) -> None:
    """Import the rollouts and metrics of another trainer into a run, or add what is new to it.

    The format is told from the keys of the rows. What a format does not record stays empty, and
    what had to be guessed is marked in the data. Metrics are joined to the rollouts by their
    steps. A second import of the same files adds nothing; one that was interrupted goes on.
    """
    from echoscope.diagnostics.read.names import MetricNameError
    from echoscope.diagnostics.tools.importing import import_path
    from echoscope.store.log.layout import run_name

    try:
        mapping = mapping_of(map_)
    except MetricNameError as error:
        raise typer.BadParameter(str(error)) from None
    with progress_bars() as bar:
        report = import_path(
            path,
            output or Path("runs") / run_name(path),
            run=run,
            mapping=mapping,
            scanning=bar("reading (bytes)"),
            writing=bar("importing (rows)"),
        )
    if as_json:
        print_json(_as_json(report))
    else:
        print_lines(*words(report))


def words(joint: JointReport) -> list[str]:
    """The report in sentences."""
    from echoscope.diagnostics.measure.text.sample import MAX_TRAJECTORIES
    from echoscope.store.importers.draft import RECONSTRUCTIONS
    from echoscope.store.log.layout import shown_path
    from echoscope.text.amounts import counted
    from echoscope.text.sentences import capitalised

    report = joint.written
    run = shown_path(report.path)
    parts = []
    if report.num_kept:
        parts.append(f"{counted(report.num_kept, 'episode')} of {report.format}")
    if report.num_steps_with_numbers:
        parts.append(f"metrics of {counted(report.num_steps_with_numbers, 'step')}")
    lines = []
    if parts:
        steps = (
            f"step {report.first_step}"
            if report.num_steps == 1
            else f"steps {report.first_step} to {report.last_step}"
        )
        lines.append(f"{run}: added {' and '.join(parts)} ({steps}).")
    else:
        lines.append(f"{run}: nothing to add.")
    if report.num_there:
        lines.append(f"The run already had {counted(report.num_there, 'row')}.")
    elif report.num_steps_there:
        lines.append(f"The run already had {counted(report.num_steps_there, 'step')}.")
    if joint.num_measured:
        lines.append(
            f"Measured the text of {counted(joint.num_measured, 'step')}, at most "
            f"{MAX_TRAJECTORIES} episodes of each."
        )
    if joint.metrics:
        lines.append(f"Metrics from: {_listed(joint.metrics.files)}.")
        lines += [f"Metrics: {note}." for note in joint.metrics.table.notes]
    for reason, times in report.survey.refused_rows.counts.most_common():
        where = report.survey.refused_rows.places[reason]
        lines.append(f"Skipped {counted(times, 'row')}: {reason} (first: {where}).")
    for reason, times in joint.rows.counts.most_common():
        where = joint.rows.places[reason]
        lines.append(f"Left out {counted(times, 'row')} of metrics: {reason} (first: {where}).")
    lines += [f"{capitalised(sentence).rstrip('.')}." for sentence in joint.sentences()]
    for name, (times, where) in report.survey.others.items():
        lines.append(
            f"Left out {counted(times, 'row')} of {name}, another trainer's format (first file: "
            f"{where}); import that file into a run of its own."
        )
    for name, times in sorted(report.reconstructed.items(), key=lambda each: (-each[1], each[0])):
        lines.append(f"Reconstructed in {counted(times, 'episode')}: {RECONSTRUCTIONS[name]}.")
    lines.append(f"Next: echoscope diagnose {run}")
    return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more files" if len(names) > 4 else "")


def _as_json(joint: JointReport) -> dict[str, Any]:
    report = joint.written
    return {
        "run": str(report.path),
        "format": report.format,
        "trainer": report.trainer,
        "added": report.num_kept,
        "already_there": report.num_there,
        "steps": report.num_steps,
        "steps_already_there": report.num_steps_there,
        "steps_measured": joint.num_measured,
        "steps_with_metrics": report.num_steps_with_numbers,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "metrics_files": list(joint.metrics.files) if joint.metrics else [],
        "metrics_notes": list(joint.metrics.table.notes) if joint.metrics else [],
        "skipped_rows": dict(report.survey.refused_rows.counts),
        "left_out_metrics": dict(joint.rows.counts),
        "refused_files": dict(report.survey.refused_files.counts + joint.refused.counts),
        "passed_over_files": dict(joint.passed.counts),
        "left_out": {name: times for name, (times, _) in report.survey.others.items()},
        "reconstructed": dict(report.reconstructed),
        "sentences": words(joint),
    }
