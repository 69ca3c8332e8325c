"""echoscope bench: the diagnosis measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Exit
from .terminal import fail, output_console, print_json, printable_text, progress_bars, table_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from echoscope.diagnostics.bench.detectors.entry import Alert
    from echoscope.diagnostics.bench.harness import LabelledRun
    from echoscope.diagnostics.bench.report import BenchReport
    from echoscope.diagnostics.bench.tables import TextTable

app = typer.Typer(help="Measure how good the diagnosis and its advice are.", no_args_is_help=True)

TABLE_WIDTH = 180
CARD = "README.md"


class RunSet(StrEnum):
    """What can be measured without any file of one's own."""

    MADE = "made"
    SMALL = "small"
    CURES = "cures"
    TRUTH = "truth"


USUAL = (RunSet.MADE, RunSet.SMALL)
NOTES = {
    RunSet.MADE: "Synthetic runs of a known schedule: diagnostics/bench/synthetic_runs.py.",
    RunSet.SMALL: "The shipped policy, labelled by its outcome: benchmarks/labelling.py.",
    RunSet.CURES: "Untreated runs of CureBench, labelled by their outcome.",
    RunSet.TRUTH: "Simulated runs with known true means: benchmarks/truth.",
}


@app.command()
def collapse(
    curves: Annotated[
        Path | None,
        typer.Option(
            help="Judge a folder of labelled runs (one CSV each, and labels.json) instead of ours.",
        ),
    ] = None,
    part: Annotated[
        list[RunSet] | None,
        typer.Option(
            help="Only this part, repeatable: synthetic runs (made), recorded runs (small), "
            "untreated runs of CureBench (cures), or simulated runs whose true means are known "
            "(truth). Without it: made and small.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the parts with their labels and the card into this folder, and score "
            "nothing; --curves FOLDER/PART scores them.",
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Score a detector of your own as well: module:function, which is asked at each "
            "step, or a command that reads a CSV and prints the steps of its alarms.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Synthetic runs per kind.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure how early and how reliably collapses are detected, next to other alarm rules."""
    if curves is not None and (part or save):
        fail("--part and --save take our own runs; leave them out with --curves", Exit.USAGE)
    from echoscope.diagnostics.bench.detectors.own import detector as detector_of
    from echoscope.diagnostics.bench.harness import load_curves
    from echoscope.diagnostics.bench.report import report
    from echoscope.diagnostics.read.records import MetricsFileError
    from echoscope.text.user_code import search_working_folder

    try:
        detectors: dict[str, Alert] = {}
        if detector is not None:
            search_working_folder()
            detectors[detector] = detector_of(detector)
        sets = _own(part or USUAL, seeds) if curves is None else {curves.name: load_curves(curves)}
        if save is not None:
            _save(save, sets)
            return
    except (MetricsFileError, OSError) as error:
        fail(error, Exit.UNREADABLE)
    reports: dict[str, BenchReport] = {}
    for name, runs in sets.items():
        if runs or curves:
            with progress_bars() as bar:
                progress = bar(f"{name} runs")
                reports[name] = report(name, runs, detectors=detectors, progress=progress)
    if as_json:
        values = {name: each.to_json() for name, each in reports.items()}
        print_json(values if curves is None else next(iter(values.values())))
        return
    console = output_console(TABLE_WIDTH, is_wrapped=True)
    for each in reports.values():
        show_report(console, each, with_runs=curves is not None)
        console.print()


@app.command()
def cures(as_json: AsJson = False) -> None:
    """Show which treatment helped which collapse, from the recorded trainings (docs/cures.md)."""
    from echoscope.diagnostics.bench.cures.records import RecordError, Records
    from echoscope.diagnostics.bench.cures.results import Results
    from echoscope.diagnostics.bench.cures.tables import NOT_RUN, missing_words, tables

    try:
        records = Records()
    except (RecordError, OSError) as error:
        fail(error, Exit.UNREADABLE)
    grids, results = tables(records), Results(records)
    missing, of = results.missing()
    if as_json:
        rows = {
            name: [dict(zip(grid.head, row, strict=True)) for row in grid.rows]
            for name, grid in grids.items()
        }
        print_json({**rows, "pieces": {"trained": of - missing, "wanted": of}})
        return
    console = output_console(TABLE_WIDTH, is_wrapped=True)
    for grid in grids.values():
        console.print(_rich(grid) if grid.rows else NOT_RUN)
        console.print()
    console.print(missing_words(results))


def _own(parts: Sequence[RunSet], seeds: int) -> dict[str, list[LabelledRun]]:
    from echoscope.diagnostics.bench import report

    made_seeds = range(report.REPORT_SEED, report.REPORT_SEED + seeds)
    sets = {
        part.value: report.made_set(made_seeds)
        if part is RunSet.MADE
        else report.recorded_set(part.value)
        for part in RunSet
        if part in parts
    }
    if not any(sets.values()):
        fail(f"this installation holds no runs of {', '.join(sets)}", Exit.UNREADABLE)
    return sets


def _save(folder: Path, sets: Mapping[str, list[LabelledRun]]) -> None:
    """Write the parts, with the card that says what they are."""
    from echoscope.diagnostics.bench.harness import SMALL_RUNS, save_curves

    if folder.exists() and any(folder.iterdir()):
        fail(f"{folder} is not empty: name another folder", Exit.USAGE)
    for name, runs in sets.items():
        save_curves(folder / name, runs, NOTES[RunSet(name)])
    (folder / CARD).write_bytes((SMALL_RUNS / CARD).read_bytes())
    num_runs = sum(map(len, sets.values()))
    output_console().print(f"{num_runs} runs in {folder}: read its {CARD}")


def show_report(console: Console, report: BenchReport, *, with_runs: bool) -> None:
    """All tables of one set of runs."""
    from rich.rule import Rule

    from echoscope.diagnostics.bench import tables

    console.print(Rule(f"{report.name}: {len(report.results)} runs", align="left"))
    if with_runs:
        console.print(_runs(report))
        console.print()
    console.print(_rich(tables.by_label(report)))
    console.print(f"\n{_summary(report)}\n")
    console.print(_rich(tables.beside(report)))


def _summary(report: BenchReport) -> str:
    from echoscope.diagnostics.bench.report import TARGET_DETECTION, TARGET_FALSE_PER_1000
    from echoscope.diagnostics.bench.tables import in_time, number
    from echoscope.diagnostics.judge.calibration import HORIZON
    from echoscope.text.amounts import percent

    scores = report.verdict
    lines = [
        f"collapses called in time: {in_time(scores)} ({percent(scores.detection, 1)}, target "
        f"{percent(TARGET_DETECTION)}), median lead {number(scores.median_lead)} steps, kind right "
        f"in {report.num_kind_right}, median onset error {number(scores.median_onset_error)} steps",
        f"false critical alarms: {scores.num_false} in {scores.num_healthy_steps} healthy steps "
        f"({number(scores.false_per_1000)} per 1,000, target {TARGET_FALSE_PER_1000:g}); "
        f"{scores.num_controls_alarmed} of {scores.num_controls} controls",
    ]
    if report.regimes:
        lines.append(f"regime right in {percent(report.regimes_right, 1)}")
    for (what, level), (wrong, steps) in sorted(report.calibration.items()):
        means = (
            f"followed by a collapse within {HORIZON} steps"
            if what == "healthy"
            else "outside of a labelled collapse"
        )
        lines.append(f"{what}, confidence {level}: {wrong} of {steps} steps {means}")
    behind = [b.name for b in report.beside if b.sweep and not report.has_more_lead(b)]
    lines.append(
        "more lead than each alert beside it at no more false alarms than ours"
        if not behind
        else f"no more lead, at no more false alarms than ours, than: {', '.join(behind)}"
    )
    return "\n".join(lines)


def _rich(grid: TextTable) -> Table:
    return table_of(grid.head, grid.rows)


def _runs(report: BenchReport) -> Table:
    from echoscope.diagnostics.bench.tables import number

    rows = []
    for result in report.results:
        run, call = result.run, result.critical
        is_missed = run.is_collapsed and not call.is_in_time
        is_wrong = run.counts and (is_missed or bool(call.false_steps))
        verdict = result.state.value
        if result.kinds:
            verdict += f": {', '.join(result.kinds[:2])}"
        cells = (
            run.name,
            run.label,
            _cell(run.halved_step),
            _cell(result.first_watch_step),
            _cell(result.first_critical_step),
            number(call.lead) if run.is_collapsed and run.counts else "",
            verdict,
        )
        rows.append([printable_text(cell, "red" if is_wrong else "") for cell in cells])
    return table_of(("run", "label", "halved", "watch", "critical", "lead", "says"), rows)


def _cell(step: int | None) -> str:
    return "" if step is None else str(step)
