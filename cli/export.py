"""echoscope export: the episodes of a run as files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from .terminal import print_json, printable, progress_bars

if TYPE_CHECKING:
    from echoscope.store.exporters.exporting import ExportReport
    from echoscope.store.exporters.format import Form, SplitChoice


def export(
    run: Annotated[Path, typer.Argument(help="The run, live or finished.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="See docs/exporting.md.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file or folder to write.")],
    where: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            help="Only episodes for which this holds: a condition over the columns of "
            "`trajectories`, for example 'is_success AND num_turns > 1'.",
        ),
    ] = "",
    steps: Annotated[
        str, typer.Option(metavar="A:B", help="Only these steps, both included; A:, :B or one.")
    ] = "",
    split: Annotated[
        str,
        typer.Option(
            metavar="train|eval|all",
            help="Training episodes, those of evaluations, or both. Default: all; train for "
            "formats that are trained on.",
        ),
    ] = "",
    best: Annotated[
        int | None,
        typer.Option(min=1, help="Of each group only so many with the highest return."),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(min=0, help="dpo: how much higher the chosen return must be at least."),
    ] = 0.0,
    form: Annotated[
        str, typer.Option(metavar="messages|prompt-completion", help="sft: form of a row.")
    ] = "messages",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an export wrote before.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Write the episodes of a run in the format of another tool.

    The file or folder appears when it is complete, or not at all. The report names what the format
    has no place for.
    """
    from echoscope.store.exporters.exporting import export_run
    from echoscope.store.exporters.format import Options

    first, last = _steps(steps)
    options = Options(
        where=where,
        first_step=first,
        last_step=last,
        split=_split(split),
        best=best,
        margin=margin,
        form=_form(form),
    )
    with progress_bars() as bar:
        report = export_run(
            run, to, output, options, is_overwriting=overwrite, progress=bar("exporting (episodes)")
        )
    if as_json:
        print_json(_as_json(report))
        return
    for line in words(report):
        typer.echo(printable(line))


def _steps(text: str) -> tuple[int | None, int | None]:
    from echoscope.store.exporters.format import ExportError

    first, colon, last = text.partition(":")
    bounds = [first, last if colon else first]
    if any(bound and not (bound.isascii() and bound.isdigit()) for bound in bounds):
        raise ExportError(f"--steps is {text!r}, but must be A:B, A:, :B or one step")
    start, end = (int(bound) if bound else None for bound in bounds)
    return start, end


def _split(text: str) -> SplitChoice | None:
    from echoscope.store.exporters.format import ExportError

    if text not in ("", "train", "eval", "all"):
        raise ExportError(f"--split is {text!r}, but must be train, eval or all")
    return cast("SplitChoice", text) if text else None


def _form(text: str) -> Form:
    from echoscope.store.exporters.format import ExportError

    if text not in ("messages", "prompt-completion"):
        raise ExportError(f"--form is {text!r}, but must be messages or prompt-completion")
    return cast("Form", text)


def words(report: ExportReport) -> list[str]:
    """The report in sentences."""
    from echoscope.text.amounts import counted

    steps = (
        f"step {report.first_step}"
        if report.first_step == report.last_step
        else f"steps {report.first_step} to {report.last_step}"
    )
    lines = [f"{report.path}: wrote {counted(report.num_rows, report.noun)} ({steps})."]
    if report.is_live:
        lines.append(
            f"The run is live: the export ends at step {report.cut}, the last one that was "
            "acknowledged when the export began."
        )
    for reason, times in report.skipped.items():
        lines.append(f"Left out {counted(times, 'episode')}: {reason}.")
    if report.num_other_split:
        other = "eval" if report.split == "train" else "train"
        lines.append(
            f"Left out {counted(report.num_other_split, 'episode')} of {other}; "
            f"--split {other} exports them."
        )
    lines += [f"Missing, because the run is damaged: {text}" for text in report.missing]
    if report.lost:
        lines.append(f"{report.format} has no place for: {'; '.join(report.lost)}.")
    return lines + list(report.notes)


def _as_json(report: ExportReport) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "format": report.format,
        "rows": report.num_rows,
        "episodes": report.num_episodes,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "is_live": report.is_live,
        "cut": report.cut,
        "skipped": dict(report.skipped),
        "left_out_by_split": report.num_other_split,
        "missing": report.missing,
        "lost": report.lost,
        "notes": report.notes,
    }
