"""echoscope export: the episodes of a run as files of other tools."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand

from .options import AsJson
from .terminal import print_json, printable, progress_bars

if TYPE_CHECKING:
    from echoscope.store.exporters.exporting import ExportReport
    from echoscope.store.exporters.format import Form, SplitChoice


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
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="One of the formats below.")],
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
            "on probe tasks. Default: all; train for sft, dpo and trl.",
        ),
    ] = "",
    best: Annotated[
        int | None,
        typer.Option(help="Only so many episodes of each group, those with the highest return."),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            show_default="any difference above 0",
            help="dpo: how much higher the chosen return must be at least.",
        ),
    ] = 0.0,
    keep_same_actions: Annotated[
        bool,
        typer.Option(
            "--keep-same-actions",
            help="dpo: also pairs whose siblings executed the same actions. Their returns differ "
            "by chance or by a penalty.",
        ),
    ] = False,
    form: Annotated[
        str, typer.Option(metavar="messages|prompt-completion", help="sft: form of a row.")
    ] = "messages",
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the output if it exists. Any file is replaced; a folder only if an "
            "export wrote it.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the episodes of a run in the format of another tool.

    The file or folder appears when it is complete, or not at all. The report names what the run
    holds and the export does not.
    """
    from echoscope.store.exporters.exporting import export_run
    from echoscope.store.exporters.format import ExportError, Options, OutputExistsError

    first, last = _steps(steps)
    options = Options(
        where=where,
        first_step=first,
        last_step=last,
        split=_split(split),
        best=best,
        margin=margin,
        is_keeping_same_actions=keep_same_actions,
        form=_form(form),
    )
    # The report names damaged files: the log would only name them twice.
    logging.getLogger("echoscope.store").addHandler(logging.NullHandler())
    with progress_bars() as bar:
        try:
            report = export_run(
                run,
                to,
                output,
                options,
                is_overwriting=overwrite,
                progress=bar("exporting (episodes)"),
            )
        except OutputExistsError as error:
            raise ExportError(
                f"{error.path} exists; choose another name, or add --overwrite"
            ) from error
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
    from echoscope.store.exporters.exporting import way_out_of_damage
    from echoscope.text.amounts import counted

    steps = (
        f"step {report.first_step}"
        if report.first_step == report.last_step
        else f"steps {report.first_step} to {report.last_step}"
    )
    rows = counted(report.num_rows, report.noun) + (
        f" as epochs of {report.whole}" if report.whole else ""
    )
    lines = [f"{report.path}: wrote {rows} ({steps})."]
    if report.is_live:
        lines.append(
            f"The run is live: the export ends at step {report.cut}, the last one that was "
            "finished when the export began."
        )
    lines += _choice_words(report)
    for reason, times in report.skipped.items():
        who = f"{reason.option} left out" if reason.option else "Left out"
        lines.append(f"{who} {counted(times, 'episode')}: {reason.why}.")
    lines += report.missing
    if report.missing:
        lines.append(f"{way_out_of_damage(report.run)}.")
    if report.lost:
        lines.append(f"Not in the export ({report.format}): {'; '.join(report.lost)}.")
    return lines + list(report.notes)


def _choice_words(report: ExportReport) -> list[str]:
    """How many episodes were taken, and what left out the others."""
    from echoscope.text.amounts import counted

    choice = report.choice
    taken = sum(report.taken.values())
    lines = [f"Took {taken} of {counted(choice.num_all, 'episode')} ({_splits(report.taken)})."]
    if choice.by_steps:
        lines.append(f"--steps left out {counted(choice.by_steps, 'episode')}.")
    if choice.by_split:
        count = counted(sum(choice.by_split.values()), "episode")
        lines.append(
            f"--split {report.split} left out {count} ({_splits(choice.by_split)}); --split all "
            "takes them, too."
        )
    if choice.by_where:
        lines.append(f"--where left out {counted(choice.by_where, 'episode')}.")
    if choice.by_best:
        lines.append(f"--best left out {counted(choice.by_best, 'episode')}.")
    return lines


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
        "first_step": report.first_step,
        "last_step": report.last_step,
        "is_live": report.is_live,
        "cut": report.cut,
        "skipped": {reason.why: times for reason, times in report.skipped.items()},
        "episodes_in_run": report.choice.num_all,
        "episodes_by_split": dict(report.taken),
        "left_out": {
            "steps": report.choice.by_steps,
            "split": dict(report.choice.by_split),
            "where": report.choice.by_where,
            "best": report.choice.by_best,
        },
        "episodes_missing": report.choice.num_missing,
        "missing": report.missing,
        "lost": report.lost,
        "notes": report.notes,
    }
