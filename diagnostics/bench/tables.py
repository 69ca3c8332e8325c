"""The tables of a CollapseBench report as rows of text; the terminal and the docs draw them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .report import BenchReport
from .scores import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table: its head, and rows of as many cells."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def by_label(report: BenchReport) -> TextTable:
    """What was called in time, kind by kind."""
    rows = []
    for label, entry in report.by_label.items():
        scores = entry.critical
        lead, error = number(scores.median_lead), number(scores.median_onset_error)
        of_collapses = (in_time(scores), str(entry.num_kind_right), lead, error)
        if not scores.num_collapsed:
            of_collapses = ("", "", "", "")
        counts = (scores.num_false, entry.num_watched, entry.num_critical)
        rows.append((label, str(entry.num_runs), *of_collapses, *map(str, counts)))
    head = ("label", "runs", "called in time", "kind right", "lead", "onset error",
            "false critical", "watched", "critical")  # fmt: skip
    return TextTable(head=head, rows=tuple(rows))


def beside(report: BenchReport) -> TextTable:
    """Other alerts on the same runs: as people use them, and at no more false alarms than ours."""
    ours = report.verdict
    rows = [("Echoscope, critical", "", *_cells(ours), "", "", "", "")]
    for entry in report.beside:
        kept = entry.matched_scores
        matched = ("", "", "")
        if kept is not None:
            matched = (in_time(kept), number(kept.median_lead), number(kept.false_per_1000))
        rows.append(
            (
                entry.name,
                "" if math.isnan(entry.usual) else number(entry.usual),
                *_cells(entry.scores),
                "none" if entry.sweep and kept is None else number(entry.matched),
                *matched,
            )
        )
    head = ("beside it", "threshold", "called in time", "lead", "onset error", "false / 1,000",
            "matched: threshold", "called in time", "lead", "false / 1,000")  # fmt: skip
    return TextTable(head=head, rows=tuple(rows))


def _cells(scores: Scores) -> tuple[str, str, str, str]:
    return (
        in_time(scores),
        number(scores.median_lead),
        number(scores.median_onset_error),
        number(scores.false_per_1000),
    )


def in_time(scores: Scores) -> str:
    """`18 of 20`."""
    return f"{scores.num_in_time} of {scores.num_collapsed}"


def number(value: float) -> str:
    """Two or three digits; `never` for an alarm that does not come, `-` for nothing to say."""
    if math.isnan(value):
        return "-"
    return "never" if value == -math.inf else f"{value:.3g}"
