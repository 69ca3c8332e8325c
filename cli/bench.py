"""echoscope bench: the diagnosis measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ..diagnostics.baselines import BaselineResult
    from ..diagnostics.collapsebench import RunResult, Summary
    from ..diagnostics.made_bench import MadeReport

app = typer.Typer(help="Measure what Echoscope claims.", no_args_is_help=True)

UNREADABLE = 4


@app.callback()
def callback() -> None:
    """Measure what Echoscope claims."""


@app.command()
def collapse(
    curves: Annotated[
        Path | None,
        typer.Option(
            "--curves",
            help="A folder with one CSV per run and labels.json; made runs if not given.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Made runs of every kind.")] = 20,
    resample: Annotated[
        int,
        typer.Option(min=0, help="Times that healthy stretches of the curves are resampled."),
    ] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """How early and how rightly collapses are called, beside other alarms on the same runs."""
    import json

    if curves is None:
        report = _made(seeds)
        if as_json:
            typer.echo(json.dumps(_made_json(report), allow_nan=False))
        else:
            _show_made(report, seeds)
        return
    from ..diagnostics.baselines import baselines
    from ..diagnostics.collapsebench import judge, load_curves, summarise
    from ..diagnostics.made_bench import resampled_false_alarms
    from ..diagnostics.metrics_file import MetricsFileError

    try:
        runs = load_curves(curves)
    except (MetricsFileError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(UNREADABLE) from None
    results = [judge(run) for run in runs]
    summary = summarise(results)
    others = baselines(runs, summary.num_false_critical)
    chance = resampled_false_alarms(runs, draws=resample)
    if as_json:
        found = _as_json(results, summary, others)
        found["resampled"] = {
            "steps": chance.num_steps,
            "critical": chance.num_critical,
            "warnings": chance.num_warnings,
        }
        typer.echo(json.dumps(found, allow_nan=False))
        return
    _show(results, summary, others)
    if chance.num_steps:
        typer.echo(
            f"\nresampled healthy stretches ({chance.num_stretches} runs, {chance.num_steps} "
            f"steps): {chance.per_1000(chance.num_critical):.2g} critical alarms and "
            f"{chance.per_1000(chance.num_warnings):.2g} warnings per 1,000 steps"
        )


def _made(seeds: int) -> MadeReport:
    from ..diagnostics.made_bench import REPORT_SEED, bench_made

    return bench_made(range(REPORT_SEED, REPORT_SEED + seeds))


def _made_json(report: MadeReport) -> dict[str, Any]:
    return {
        "kinds": {
            kind: {
                "collapsed": s.num_collapsed,
                "detected": s.num_detected,
                "kind_right": s.num_kind_right,
                "median_lead": _plain(s.median_lead),
                "median_onset_error": _plain(s.median_onset_error),
                "controls": s.num_controls,
                "false_critical": s.num_false_critical,
                "watched": report.watched[kind],
            }
            for kind, s in report.by_kind.items()
        },
        "detection": report.total.num_detected / report.total.num_collapsed,
        "median_lead": _plain(report.total.median_lead),
        "false_critical_per_1000_steps": _plain(report.total.false_per_1000),
        "regimes": [
            {"made": made, "named": named, "runs": count}
            for (made, named), count in sorted(report.regimes.items())
        ],
        "baselines": [_baseline_json(b) for b in report.beside],
    }


def _show_made(report: MadeReport, seeds: int) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    table = Table(
        "made", "called in time", "kind right", "lead", "onset error", "false", "watched", box=None
    )
    for kind, s in report.by_kind.items():
        is_collapse = s.num_collapsed > 0
        table.add_row(
            kind,
            f"{s.num_detected} of {s.num_collapsed}" if is_collapse else "",
            str(s.num_kind_right) if is_collapse else "",
            f"{s.median_lead:g}" if is_collapse else "",
            f"{s.median_onset_error:g}" if is_collapse else "",
            "" if is_collapse else f"{s.num_false_critical} of {s.num_controls}",
            f"{report.watched[kind]} of {seeds}",
        )
    console.print(table)
    total = report.total
    console.print(
        f"\ncollapses called in time: {total.num_detected} of {total.num_collapsed}, median lead "
        f"{total.median_lead:g} steps; false critical alarms per 1,000 of "
        f"{total.num_control_steps} healthy steps: {total.false_per_1000:.2g}\n"
    )
    regimes = Table("regime made", "named", "runs", box=None)
    for (made, named), count in sorted(report.regimes.items()):
        regimes.add_row(made, named, str(count))
    console.print(regimes)
    console.print()
    console.print(_beside(report.beside))


def _as_json(
    results: list[RunResult], summary: Summary, others: list[BaselineResult]
) -> dict[str, Any]:
    return {
        "runs": [
            {
                "name": r.run.name,
                "label": r.run.label,
                "counts": r.run.counts,
                "collapsed": r.run.is_collapsed,
                "halved_step": r.run.halved_step,
                "state": r.state.value,
                "first_watch_step": r.first_watch_step,
                "first_critical_step": r.first_critical_step,
                "lead": r.lead,
                "detected": r.is_detected,
                "kinds": list(r.kinds),
                "kind_right": r.is_kind_right,
                "onset_step": r.onset_step,
            }
            for r in results
        ],
        "detected": summary.num_detected,
        "collapsed": summary.num_collapsed,
        "kind_right": summary.num_kind_right,
        "median_lead": _plain(summary.median_lead),
        "controls": summary.num_controls,
        "false_critical": summary.num_false_critical,
        "false_critical_per_1000_steps": _plain(summary.false_per_1000),
        "median_onset_error": _plain(summary.median_onset_error),
        "baselines": [_baseline_json(b) for b in others],
    }


def _baseline_json(found: BaselineResult) -> dict[str, Any]:
    return {
        "name": found.name,
        "detected": found.num_detected,
        "median_lead": _plain(found.median_lead),
        "false": found.num_false,
    }


def _plain(value: float) -> float | None:
    import math

    return value if math.isfinite(value) else None


def _show(results: list[RunResult], summary: Summary, others: list[BaselineResult]) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    table = Table("run", "label", "halved", "watch", "critical", "lead", "says", box=None)
    for r in results:
        is_control = r.run.counts and not r.run.is_collapsed
        is_wrong = is_control == (r.first_critical_step is not None) if r.run.counts else False
        if r.run.is_collapsed and r.run.counts:
            is_wrong = not r.is_detected
        said = f"{r.state.value}: {', '.join(r.kinds[:2])}" if r.kinds else r.state.value
        cells = (
            r.run.name,
            r.run.label,
            _cell(r.run.halved_step),
            _cell(r.first_watch_step),
            _cell(r.first_critical_step),
            _cell(r.lead),
            said,
        )
        table.add_row(*[Text(cell, style="red" if is_wrong else "") for cell in cells])
    console.print(table)
    console.print(
        f"\ncollapses called in time: {summary.num_detected} of {summary.num_collapsed}, median "
        f"lead {summary.median_lead:g} steps, kind right in {summary.num_kind_right}, median onset "
        f"error {summary.median_onset_error:g} steps\n"
        f"critical alarms on {summary.num_controls} runs that did not collapse: "
        f"{summary.num_false_critical} ({summary.false_per_1000:.2g} per 1,000 of "
        f"{summary.num_control_steps} steps)\n"
    )
    console.print(_beside(others))


def _beside(found: Sequence[BaselineResult]) -> Table:
    from rich.table import Table

    table = Table("beside it", "called in time", "median lead", "false alarms", box=None)
    for b in found:
        table.add_row(
            b.name,
            f"{b.num_detected} of {b.num_collapsed}",
            "-" if b.median_lead != b.median_lead else f"{b.median_lead:g}",
            f"{b.num_false} of {b.num_controls}",
        )
    return table


def _cell(step: int | None) -> str:
    return "" if step is None else str(step)
