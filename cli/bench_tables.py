"""What `echoscope bench collapse` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from echoscope.diagnostics.bench.report import BenchReport
    from echoscope.diagnostics.bench.scores import Scores


def show_report(console: Console, report: BenchReport, *, with_runs: bool) -> None:
    """All tables of one set of runs."""
    from rich.rule import Rule

    console.print(Rule(f"{report.name}: {len(report.results)} runs", align="left"))
    if with_runs:
        console.print(_runs(report))
        console.print()
    console.print(_labels(report))
    console.print(f"\n{_summary(report)}\n")
    console.print(_rules(report))
    console.print()
    console.print(_by_kinds(report))
    console.print()
    if report.regimes:
        console.print(_matrix("regime labelled", report.regimes))
        console.print()
    if report.kinds:
        console.print(_matrix("kind labelled", report.kinds))
        console.print()
    console.print(_beside(report))


def _summary(report: BenchReport) -> str:
    from echoscope.diagnostics.bench.report import TARGET_DETECTION, TARGET_FALSE_PER_1000
    from echoscope.diagnostics.judge.calibration import HORIZON

    found = report.verdict
    lines = [
        f"collapses called in time: {_of(found)} ({found.detection:.1%}, target "
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


def _labels(report: BenchReport) -> Table:
    from rich.table import Table

    table = Table(
        "label", "runs", "called in time", "kind right", "lead", "onset error", "false critical",
        "watched", "critical", box=None,
    )  # fmt: skip
    for label, found in report.by_label.items():
        scores = found.critical
        is_collapse = scores.num_collapsed > 0
        table.add_row(
            label,
            str(found.num_runs),
            _of(scores) if is_collapse else "",
            str(found.num_kind_right) if is_collapse else "",
            number(scores.median_lead) if is_collapse else "",
            number(scores.median_onset_error) if is_collapse else "",
            str(scores.num_false),
            str(found.num_watched),
            str(found.num_critical),
        )
    return table


def _rules(report: BenchReport) -> Table:
    from rich.table import Table

    table = Table(
        "rule", "own kind: critical in time", "warned in time", "lead", "onset error",
        "any collapse: warned in time", "false critical / 1,000", "false warnings / 1,000",
        box=None,
    )  # fmt: skip
    for found in report.by_rule:
        own = found.own
        table.add_row(
            found.rule,
            "" if own is None else _of(own),
            "" if own is None else f"{found.own_warned} of {own.num_collapsed}",
            "" if own is None else number(own.median_lead),
            "" if own is None else number(own.median_onset_error),
            _of(found.warning),
            number(found.critical.false_per_1000),
            number(found.warning.false_per_1000),
        )
    return table


def _by_kinds(report: BenchReport) -> Table:
    """How often a collapse followed a quiet step, with kinds of signals left out."""
    from rich.table import Table

    from echoscope.diagnostics.judge.calibration import CALMS, HORIZON

    table = Table(
        f"quiet, then a collapse within {HORIZON} steps: kinds of signals", *CALMS, box=None
    )
    for num in sorted({num for _, num in report.by_kinds}):
        counts = [report.by_kinds.get((calm, num)) for calm in CALMS]
        table.add_row(str(num), *("" if c is None else f"{c[0]} of {c[1]}" for c in counts))
    return table


def _matrix(title: str, counts: Mapping[tuple[str, str], int]) -> Table:
    from rich.table import Table

    rows = list(dict.fromkeys(row for row, _ in counts))
    columns = sorted({column for _, column in counts})
    table = Table(f"{title} \\ named", *columns, box=None)
    for row in rows:
        table.add_row(row, *(str(counts.get((row, column), "")) for column in columns))
    return table


def _beside(report: BenchReport) -> Table:
    from rich.table import Table

    table = Table(
        "beside it", "threshold", "called in time", "lead", "onset error", "false / 1,000",
        "matched: threshold", "called in time", "lead", "false / 1,000", box=None,
    )  # fmt: skip
    ours = report.verdict
    table.add_row("Echoscope, critical", "", *_cells(ours), number(ours.false_per_1000))
    for found in report.beside:
        kept = found.matched_scores
        late = () if kept is None else (_of(kept), number(kept.median_lead))
        table.add_row(
            found.name,
            "" if math.isnan(found.usual) else number(found.usual),
            *_cells(found.scores),
            number(found.scores.false_per_1000),
            "none" if found.sweep and kept is None else number(found.matched),
            *late,
            *(() if kept is None else (number(kept.false_per_1000),)),
        )
    return table


def _cells(scores: Scores) -> tuple[str, str, str]:
    return _of(scores), number(scores.median_lead), number(scores.median_onset_error)


def _runs(report: BenchReport) -> Table:
    from rich.table import Table
    from rich.text import Text

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


def _of(scores: Scores) -> str:
    return f"{scores.num_in_time} of {scores.num_collapsed}"


def number(value: float) -> str:
    """Two or three digits; `never` for an alarm that does not come, `-` for nothing to say."""
    if math.isnan(value):
        return "-"
    return "never" if value == -math.inf else f"{value:.3g}"


def _cell(step: int | None) -> str:
    return "" if step is None else str(step)
