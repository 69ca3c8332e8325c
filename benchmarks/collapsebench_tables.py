"""The measured tables of docs/collapsebench.md, written between its markers.

    python benchmarks/collapsebench_tables.py [--seeds 20] [--curves DIR] [--doc FILE]

A set that is not at hand (--curves not given, no small runs installed) leaves its tables as they
are. Everything else in the page is written by hand.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from echoscope.diagnostics.bench.harness import LabelledRun, load_curves
from echoscope.diagnostics.bench.report import REPORT_SEED, BenchReport, made_set, report, small_set
from echoscope.diagnostics.bench.resampling import resampled_false_alarms
from echoscope.diagnostics.bench.scores import Scores
from echoscope.diagnostics.judge.calibration import CALMS, HORIZON, KINDS, Count, quiet_level


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "never" if value == -math.inf else f"{value:.3g}"


def of(scores: Scores) -> str:
    return f"{scores.num_in_time} of {scores.num_collapsed}"


def summary(found: BenchReport) -> str:
    verdict = found.verdict
    said = (
        f"**{of(verdict)}** collapses called in time ({verdict.detection:.1%}), median lead "
        f"**{number(verdict.median_lead)}** steps, kind right in {found.num_kind_right}, median "
        f"onset error {number(verdict.median_onset_error)} steps. **{verdict.num_false}** false "
        f"critical alarms in {verdict.num_healthy_steps:,} healthy steps "
        f"({number(verdict.false_per_1000)} per 1,000)."
    )
    if found.regimes:
        said += f" Regime right in {found.regimes_right:.1%} of {sum(found.regimes.values())} runs."
    return said


def labels(found: BenchReport) -> str:
    rows = []
    for label, kind in found.by_label.items():
        one = kind.critical
        own = one.num_collapsed > 0
        rows.append(
            [
                label.replace("_", " "),
                str(kind.num_runs),
                of(one) if own else "",
                str(kind.num_kind_right) if own else "",
                number(one.median_lead) if own else "",
                number(one.median_onset_error) if own else "",
                str(one.num_false),
                str(kind.num_watched),
                str(kind.num_critical),
            ]
        )
    head = ["label", "runs", "called in time", "kind right", "lead", "onset error",
            "false critical", "runs warned", "runs critical"]  # fmt: skip
    return table(head, rows)


def rules(found: BenchReport) -> str:
    rows = []
    silent = []
    for one in found.by_rule:
        own = one.own
        if own is None and not one.warning.num_in_time and not one.warning.num_false:
            silent.append(one.rule)
            continue
        rows.append(
            [
                one.rule,
                "" if own is None else of(own),
                "" if own is None else f"{one.own_warned} of {own.num_collapsed}",
                "" if own is None else number(own.median_lead),
                "" if own is None else number(own.median_onset_error),
                of(one.warning),
                number(one.critical.false_per_1000),
                number(one.warning.false_per_1000),
            ]
        )
    head = ["rule", "own kind: critical in time", "own kind: warned in time", "lead", "onset error",
            "any collapse: warned in time", "false critical per 1,000",
            "false warnings per 1,000"]  # fmt: skip
    return table(head, rows) + f"\n\nSilent here: {', '.join(silent)}."


def matrix(title: str, counts: Mapping[tuple[str, str], int]) -> str:
    columns = sorted({column for _, column in counts})
    rows = [
        [row.replace("_", " "), *(str(counts.get((row, column), "")) for column in columns)]
        for row in dict.fromkeys(row for row, _ in counts)
    ]
    return table([f"{title} \\ named", *(c.replace("_", " ") for c in columns)], rows)


def beside(found: BenchReport) -> str:
    ours = found.verdict
    rows = [["**Echoscope, critical**", "", *_cells(ours), "", "", "", ""]]
    for other in found.beside:
        kept = other.matched_scores
        late = ["", "", ""] if kept is None else [of(kept), *_lead_and_false(kept)]
        threshold = "" if math.isnan(other.usual) else number(other.usual)
        matched = "" if not other.sweep else "none" if kept is None else number(other.matched)
        rows.append([other.name, threshold, *_cells(other.scores), matched, *late])
    head = ["", "as used", "called in time", "lead", "false per 1,000", "matched", "called in time",
            "lead", "false per 1,000"]  # fmt: skip
    return table(head, rows)


def _cells(scores: Scores) -> list[str]:
    return [of(scores), *_lead_and_false(scores)]


def _lead_and_false(scores: Scores) -> list[str]:
    return [number(scores.median_lead), number(scores.false_per_1000)]


def said_tables(reports: Mapping[str, BenchReport]) -> str:
    """What a confidence is worth, by what was said and by how many kinds of signals there were."""
    names = list(reports)
    said = sorted({key for found in reports.values() for key in found.calibration}, key=_order)
    levels = [
        [what, level, *(_share(found.calibration.get((what, level))) for found in reports.values())]
        for what, level in said
    ]
    rows = [
        [
            calm,
            str(num),
            *(_share(found.by_kinds.get((calm, num))) for found in reports.values()),
            quiet_level(calm, num),
        ]
        for calm in CALMS
        for num in range(1, len(KINDS) + 1)
    ]
    return "\n\n".join(
        [
            table(["verdict", "confidence", *(f"wrong, {name} runs" for name in names)], levels),
            f"A collapse within {HORIZON} steps of a quiet step:",
            table(["signals", "kinds", *(f"{name} runs" for name in names), "confidence"], rows),
        ]
    )


def _order(key: tuple[str, str]) -> tuple[bool, int]:
    return key[0] != "healthy", ("high", "medium", "low").index(key[1])


def _share(count: Count | None) -> str:
    return "" if count is None else f"{count[0]} of {count[1]:,}"


def section(found: BenchReport) -> str:
    parts = [summary(found), labels(found), beside(found), rules(found)]
    if found.regimes:
        parts.append(matrix("regime labelled", found.regimes))
    if found.kinds:
        parts.append(matrix("kind labelled", found.kinds))
    return "\n\n".join(parts)


def by_chance(runs: Sequence[LabelledRun], draws: int) -> str:
    found = resampled_false_alarms(runs, draws=draws)
    return (
        f"Healthy stretches of {found.num_stretches} of these runs, trends taken out, resampled in "
        f"blocks of 20 steps (moving-block bootstrap, {found.num_steps:,} steps): "
        f"{found.per_1000(found.num_critical):.2g} critical alarms and "
        f"{found.per_1000(found.num_warnings):.2g} warnings per 1,000 steps."
    )


def replaced(page: str, name: str, text: str) -> str:
    """The page with what stands between the markers of a name exchanged.

    Raises:
        ValueError: the page lacks the markers.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must hold {begin!r} and {end!r} once each")
    head, rest = page.split(begin)
    return f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--curves", type=Path)
    parser.add_argument("--resample", type=int, default=20)
    parser.add_argument("--doc", type=Path, default=Path("docs/collapsebench.md"))
    args = parser.parse_args()
    page = args.doc.read_text(encoding="utf-8")
    sets = {
        "made": made_set(range(REPORT_SEED, REPORT_SEED + args.seeds)),
        "small": small_set(),
        "public": load_curves(args.curves) if args.curves else [],
    }
    reports = {name: report(name, runs) for name, runs in sets.items() if runs}
    for name, found in reports.items():
        page = replaced(page, name, section(found))
        print(f"{name}: {summary(found)}")
        print(f"{name}: for calibration.py: {found.calibration}\n{found.by_kinds}")
    if len(reports) == len(sets):
        page = replaced(page, "confidence", said_tables(reports))
    if sets["public"]:
        page = replaced(page, "chance", by_chance(sets["public"], args.resample))
    args.doc.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
