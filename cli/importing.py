"""echoscope import: rollouts of another trainer become a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import print_json, printable, progress_bars

if TYPE_CHECKING:
    from echoscope.store.importers.importing import ImportReport


def import_(
    path: Annotated[
        Path, typer.Argument(help="A file or folder with the rollouts of another trainer.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="RUN", help="The run's folder; default: runs/NAME."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Import the rollouts of another trainer into a run, or add what is new to it.

    The format is told from the keys of the rows. What a format does not record stays empty, and
    what had to be guessed is marked in the data. A second import of the same files adds nothing;
    one that was interrupted goes on.
    """
    from echoscope.store.importers.importing import import_run

    if output is None:
        output = Path("runs") / run_name(path)
    with progress_bars() as bar:
        report = import_run(
            path, output, scanning=bar("reading (bytes)"), writing=bar("importing (rows)")
        )
    if as_json:
        print_json(_as_json(report))
        return
    for line in words(report):
        typer.echo(printable(line))


def run_name(path: Path) -> str:
    """The name of the run that a path is imported as."""
    name = path.resolve().name
    for suffix in (".zst", ".gz", ".bz2", ".xz", ".zip", ".jsonl", ".json", ".parquet", ".eval"):
        name = name.removesuffix(suffix)
    return name or "imported"


def words(report: ImportReport) -> list[str]:
    """The report in sentences."""
    from echoscope.store.importers.draft import RECONSTRUCTIONS
    from echoscope.store.log.layout import shown_path
    from echoscope.text.amounts import counted

    run = shown_path(report.path)
    lines = []
    if report.num_kept:
        steps = (
            f"step {report.first_step}"
            if report.num_steps == 1
            else f"steps {report.first_step} to {report.last_step}"
        )
        lines.append(
            f"{run}: added {counted(report.num_kept, 'episode')} of {report.format} ({steps})."
        )
    else:
        lines.append(f"{run}: nothing to add.")
    if report.num_there:
        lines.append(f"The run already had {counted(report.num_there, 'row')}.")
    for reason, times in report.rows.counts.most_common():
        place = report.rows.places[reason]
        lines.append(f"Skipped {counted(times, 'row')}: {reason} (first: {place}).")
    for reason, times in report.files.counts.most_common():
        place = report.files.places[reason]
        lines.append(f"Refused {counted(times, 'file')}: {reason} (first: {place}).")
    for name, (times, place) in report.others.items():
        lines.append(
            f"Left out {counted(times, 'row')} of {name}, another trainer's format (first file: "
            f"{place}); import that file into a run of its own."
        )
    if report.num_unclean:
        lines.append(
            f"{counted(report.num_unclean, 'row')} had bytes that are not UTF-8; "
            "they were replaced by U+FFFD."
        )
    for name, times in report.reconstructed.most_common():
        lines.append(f"Reconstructed in {counted(times, 'episode')}: {RECONSTRUCTIONS[name]}.")
    lines.append(f"Next: echoscope diagnose {run}")
    return lines


def _as_json(report: ImportReport) -> dict[str, Any]:
    return {
        "run": str(report.path),
        "format": report.format,
        "trainer": report.trainer,
        "added": report.num_kept,
        "already_there": report.num_there,
        "steps": report.num_steps,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "skipped_rows": dict(report.rows.counts),
        "refused_files": dict(report.files.counts),
        "left_out": {name: times for name, (times, _) in report.others.items()},
        "reconstructed": dict(report.reconstructed),
    }
