"""echoscope bench: the diagnosis measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..diagnostics.baselines import BaselineResult
    from ..diagnostics.collapsebench import RunResult, Summary

app = typer.Typer(help="Measure what Echoscope claims.", no_args_is_help=True)

UNREADABLE = 4


@app.callback()
def callback() -> None:
    """Measure what Echoscope claims."""


@app.command()
def collapse(
    curves: Annotated[
        Path,
        typer.Option("--curves", help="A folder with one CSV per run and labels.json."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """How early and how rightly collapses are called on labelled runs, beside other alarms."""
    import json

    from ..diagnostics.baselines import baselines
    from ..diagnostics.collapsebench import judge, load_curves, summarise
    from ..diagnostics.metrics_file import MetricsFileError

    try:
        runs = load_curves(curves)
    except (MetricsFileError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(UNREADABLE) from None
    results = [judge(run) for run in runs]
    summary = summarise(results)
    others = baselines(runs, summary.num_false_critical)
    if as_json:
        typer.echo(json.dumps(_as_json(results, summary, others), allow_nan=False))
        return
    _show(results, summary, others)


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
        "baselines": [
            {
                "name": b.name,
                "detected": b.num_detected,
                "median_lead": _plain(b.median_lead),
                "false": b.num_false,
            }
            for b in others
        ],
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
    beside = Table("beside it", "called in time", "median lead", "false alarms", box=None)
    for b in others:
        lead = "-" if b.median_lead != b.median_lead else f"{b.median_lead:g}"
        beside.add_row(
            b.name,
            f"{b.num_detected} of {b.num_collapsed}",
            lead,
            f"{b.num_false} of {b.num_controls}",
        )
    console.print(beside)


def _cell(step: int | None) -> str:
    return "" if step is None else str(step)
