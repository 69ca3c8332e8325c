"""echoscope export: the episodes of a run as files of other tools."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand

from .options import AsJson, step_range
from .terminal import print_json, print_lines, progress_bars

if TYPE_CHECKING:
    from echoscope.store.exporters.exporting import ExportReport
    from echoscope.store.exporters.format import SplitChoice


class ListsFormats(TyperCommand):
    """A command whose help ends with the formats, one a line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from echoscope.store.exporters.format import ABOUT

        lines = [f"  {name:<10}{about}" for name, about in ABOUT.items()]
        # Without rich, this mark keeps the lines of a paragraph; rich keeps them without it.
        keep = "\b\n" if self.rich_markup_mode is None else ""
        self.epilog = keep + "\n".join(["Formats (docs/exporting.md says more):", *lines])
        super().format_help(ctx, formatter)


def export(
    run: Annotated[Path, typer.Argument(help="The run, live or finished.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="One of the formats below.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file or folder to write.")],
    where: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            help='Only episodes for which this condition holds, such as "success AND tag = '
            "'bandit'\". Columns: docs/store.md, table trajectories.",
        ),
    ] = "",
    steps: Annotated[
        str, typer.Option(metavar="A:B", help="Only these steps, both included; A:, :B or one.")
    ] = "",
    split: Annotated[
        str,
        typer.Option(
            metavar="train|eval|all",
            help="train: episodes of training, imported ones too. eval: those of evaluations and "
            "on probe tasks. Default: all; train for sft and dpo.",
        ),
    ] = "",
    best: Annotated[
        int | None,
        typer.Option(help="Only so many episodes of each group, those with the highest return."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Only episodes with this label (page Replay); again for another one."),
    ] = None,
    over: Annotated[
        str,
        typer.Option(
            metavar="LABEL",
            help="dpo: prefer episodes of --label to siblings with this label, whatever they "
            "returned.",
        ),
    ] = "",
    margin: Annotated[
        float,
        typer.Option(
            show_default="any difference above 0",
            help="dpo: how much higher the chosen return must be at least.",
        ),
    ] = 0.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that exists; never a folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the episodes of a run in the format of another tool.

    The file or folder appears when it is complete, or not at all. The report names what the format
    has no place for.
    """
    from echoscope.store.exporters.exporting import export_run
    from echoscope.store.exporters.format import ExportError, Options

    first, last = step_range(steps, ExportError)
    options = Options(
        where=where,
        first_step=first,
        last_step=last,
        split=_split(split),
        best=best,
        margin=margin,
        labels=tuple(label or ()),
        over=over,
    )
    # The report names damaged files: the log would only name them twice.
    logging.getLogger("echoscope.store").addHandler(logging.NullHandler())
    with progress_bars() as bar:
        report = export_run(
            run,
            to,
            output,
            options,
            is_overwriting=overwrite,
            progress=bar("exporting (episodes)"),
        )
    if as_json:
        print_json(_as_json(report))
    else:
        print_lines(*words(report))


def _split(text: str) -> SplitChoice | None:
    from echoscope.store.exporters.format import ExportError

    if text not in ("", "train", "eval", "all"):
        raise ExportError(f"--split is {text!r}, but must be train, eval or all")
    return cast("SplitChoice", text) if text else None


def words(report: ExportReport) -> list[str]:
    """The report in sentences."""
    from echoscope.store.exporters.exporting import way_out_of_damage
    from echoscope.text.amounts import counted, step_words

    steps = step_words((report.first_step, report.last_step))
    taken = sum(report.taken.values())
    lines = [
        f"{report.path}: wrote {counted(report.num_rows, report.noun)} ({steps}).",
        f"Took {taken} of {counted(report.num_all, 'episode')} ({_splits(report.taken)}).",
    ]
    if report.is_live:
        lines.append(
            f"The run is live: the export ends at step {report.cut}, the last one that was "
            "finished when the export began."
        )
    for reason, times in report.skipped.items():
        lines.append(f"Left out {counted(times, 'episode')}: {reason}.")
    lines += report.missing
    if report.missing:
        lines.append(f"{way_out_of_damage(report.run)}.")
    if report.leaves_out:
        lines.append(f"Not in the export ({report.format}): {report.leaves_out}.")
    return lines + list(report.notes)


_SPLIT_WORDS = {
    "train": "in training",
    "import": "imported",
    "eval": "in evaluations",
    "probe": "on probe tasks",
}


def _splits(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return _SPLIT_WORDS[next(iter(counts))]
    return ", ".join(f"{count} {_SPLIT_WORDS[split]}" for split, count in counts.items())


def _as_json(report: ExportReport) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "format": report.format,
        "rows": report.num_rows,
        "episodes": sum(report.taken.values()),
        "episodes_by_split": dict(report.taken),
        "episodes_in_run": report.num_all,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "is_live": report.is_live,
        "cut": report.cut,
        "skipped": dict(report.skipped),
        "missing": report.missing,
        "leaves_out": report.leaves_out,
        "notes": report.notes,
    }
