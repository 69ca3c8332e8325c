"""What `echoscope bench collapse` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from echoscope.diagnostics.bench.report import BenchReport
    from echoscope.diagnostics.bench.tables import Grid


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
    console.print(_rich(tables.by_rule(report)))
    console.print()
    console.print(_rich(tables.by_kinds(report)))
    console.print()
    if report.regimes:
        console.print(_rich(tables.matrix("regime labelled", report.regimes)))
        console.print()
    if report.kinds:
        console.print(_rich(tables.matrix("kind labelled", report.kinds)))
        console.print()
    console.print(_rich(tables.beside(report)))


def _summary(report: BenchReport) -> str:
    from echoscope.diagnostics.bench.report import TARGET_DETECTION, TARGET_FALSE_PER_1000
    from echoscope.diagnostics.bench.tables import in_time, number
    from echoscope.diagnostics.judge.calibration import HORIZON

    found = report.verdict
    lines = [
        f"collapses called in time: {in_time(found)} ({found.detection:.1%}, target "
        f"{TARGET_DETECTION:.0%}), median lead {number(found.median_lead)} steps, kind right in "
        f"{report.num_kind_right}, median onset error {number(found.median_onset_error)} steps",
        f"false critical alarms: {found.num_false} in {found.num_healthy_steps} healthy steps "
        f"({number(found.false_per_1000)} per 1,000, target {TARGET_FALSE_PER_1000:g}); "
        f"{found.num_controls_alarmed} of {found.num_controls} controls",
    ]
    if report.regimes:
        lines.append(f"regime right in {report.regimes_right:.1%}")
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


def _rich(grid: Grid) -> Table:
    from rich.table import Table

    table = Table(*grid.head, box=None)
    for row in grid.rows:
        table.add_row(*row)
    return table


def _runs(report: BenchReport) -> Table:
    from rich.table import Table
    from rich.text import Text

    from echoscope.diagnostics.bench.tables import number

    table = Table("run", "label", "halved", "watch", "critical", "lead", "says", box=None)
    for result in report.results:
        run, call = result.run, result.critical
        is_missed = run.is_collapsed and not call.is_in_time
        is_wrong = run.counts and (is_missed or bool(call.false_steps))
        said = result.state.value
        if result.kinds:
            said += f": {', '.join(result.kinds[:2])}"
        cells = (
            run.name,
            run.label,
            _cell(run.halved_step),
            _cell(result.first_watch_step),
            _cell(result.first_critical_step),
            number(call.lead) if run.is_collapsed and run.counts else "",
            said,
        )
        table.add_row(*[Text(cell, style="red" if is_wrong else "") for cell in cells])
    return table


def _cell(step: int | None) -> str:
    return "" if step is None else str(step)
