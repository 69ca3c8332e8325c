"""The measured tables of docs/collapsebench.md, written between its markers.

    python benchmarks/collapsebench_tables.py [--seeds 20] [--curves DIR] [--doc FILE]

A set that is not at hand (--curves not given, no small runs installed) leaves its tables as they
are. Everything else in the page is written by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import between_marks, read_options

os.environ.setdefault("OMP_NUM_THREADS", "1")

from resampling import resampled_false_alarms

from echoscope.diagnostics.bench import tables
from echoscope.diagnostics.bench.harness import LabelledRun, load_curves
from echoscope.diagnostics.bench.report import (
    REPORT_SEED,
    BenchReport,
    made_set,
    recorded_set,
    report,
)
from echoscope.diagnostics.bench.tables import TextTable, number
from echoscope.diagnostics.judge.calibration import CALMS, KINDS, TABLE, Count

SETS = {"made": "synthetic runs", "small": "recorded runs", "public": "public runs"}
"""Marker in the page and name in `calibration.py` -> name of the set."""
FURTHER = ("cures", "truth")
"""Marker in the page -> parts that confidences are not counted on."""
REAL = ("small", "public")
REAL_FIRST = (*REAL, "made")
LEVELS = ("high", "medium", "low")
TITLES = {
    **{name: runs.removesuffix(" runs") for name, runs in SETS.items()},
    **{"cures": "CureBench", "truth": "simulated"},
}
"""Marker in the page -> head of the set's column in the tables of the other alerts."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return TextTable(head=tuple(head), rows=tuple(tuple(row) for row in rows)).markdown()


def summary(scored: BenchReport) -> str:
    """What the tables of all sets do not say."""
    verdict = scored.verdict
    sentence = (
        f"Kind right in **{scored.num_kind_right}** of {verdict.num_collapsed} collapses, median "
        f"onset error **{number(verdict.median_onset_error)}** steps, **{verdict.num_false}** "
        f"false critical alarms in {verdict.num_healthy_steps:,} healthy steps."
    )
    if scored.regimes:
        sentence += (
            f" Regime right in {scored.regimes_right:.1%} of {sum(scored.regimes.values())} runs."
        )
    return sentence


def said_tables(reports: Mapping[str, BenchReport]) -> str:
    """What a confidence is worth, by what was said."""
    names = list(reports)
    rows = sorted({key for scored in reports.values() for key in scored.calibration}, key=_order)
    levels = [
        [
            what,
            level,
            *(_share(scored.calibration.get((what, level))) for scored in reports.values()),
        ]
        for what, level in rows
    ]
    return table(["verdict", "confidence", *(f"wrong, {SETS[name]}" for name in names)], levels)


def _order(key: tuple[str, str]) -> tuple[bool, int]:
    return key[0] != "healthy", LEVELS.index(key[1])


def _share(count: Count | None) -> str:
    return "" if count is None else f"{count[0]} of {count[1]:,}"


def counts_file(reports: Mapping[str, BenchReport]) -> str:
    """`calibration.toml`: how often verdicts were right, as `judge/calibration.py` reads it."""
    lines = [
        "# How often verdicts were right on labelled runs: [steps on which one was wrong, steps].",
        "# Made by `benchmarks/collapsebench_tables.py`; `calibration.py` says what a table means.",
    ]
    for calm in CALMS:
        lines += ["", f'["{calm}"]']
        for num in range(1, len(KINDS) + 1):
            counts = {name: reports[name].by_kinds.get((calm, num)) for name in REAL_FIRST}
            entries = [f"{name} = {list(count)}" for name, count in counts.items() if count]
            lines += [f"{num} = {{ {', '.join(entries)} }}"] if entries else []
    for what, levels in (("healthy", LEVELS), ("collapse", LEVELS[:2])):
        lines += ["", f"[{what}]"]
        for level in levels:
            counts = [reports[name].calibration.get((what, level), (0, 0)) for name in REAL]
            lines.append(f"{level} = {list(map(sum, zip(*counts, strict=True)))}")
    return "\n".join(lines) + "\n"


def beside(reports: Mapping[str, BenchReport]) -> str:
    """The other alerts on all sets: with the usual thresholds, and as quiet as ours."""
    rows_of = [tables.beside(scored).rows for scored in reports.values()]
    usual: list[tuple[str, ...]] = []
    matched: list[tuple[str, ...]] = []
    for same in zip(*rows_of, strict=True):  # one alert, set by set
        name = same[0][0]
        usual.append((name, *(", ".join((row[2], row[3], row[5])) for row in same)))
        if any(row[7] for row in same):
            matched.append((name, *(", ".join(row[7:9]) if row[7] else row[6] for row in same)))
    head = ("", *(TITLES[name] for name in reports))
    return "\n\n".join(
        (
            "Called in time, lead, false alarms per 1,000 healthy steps:",
            table(head, usual),
            "Called in time and lead of the best threshold with no more false alarms than ours:",
            table(head, matched),
        )
    )


def by_chance(runs: Sequence[LabelledRun], draws: int) -> str:
    drawn = resampled_false_alarms(runs, draws=draws)
    return (
        f"Healthy stretches of {drawn.num_stretches} of these runs, trends taken out, resampled in "
        f"blocks of 20 steps (moving-block bootstrap, {drawn.num_steps:,} steps): "
        f"{drawn.per_1000(drawn.num_critical):.2g} critical alarms and "
        f"{drawn.per_1000(drawn.num_warnings):.2g} warnings per 1,000 steps."
    )


def replaced(page: str, name: str, text: str) -> str:
    return between_marks(page, f"<!-- {name}: begin -->", f"<!-- {name}: end -->", text)


def main() -> None:
    args = read_options(
        __doc__, seeds=20, curves=Path, resample=20, doc=Path("docs/collapsebench.md")
    )
    page = args.doc.read_text(encoding="utf-8")
    sets = {
        "made": made_set(range(REPORT_SEED, REPORT_SEED + args.seeds)),
        "small": recorded_set("small"),
        "public": load_curves(args.curves) if args.curves else [],
    }
    reports = {name: report(name, runs) for name, runs in sets.items() if runs}
    further = {name: report(name, recorded_set(name)) for name in FURTHER}
    for name, scored in (reports | further).items():
        page = replaced(page, name, summary(scored))
    for name, scored in reports.items():
        print(f"{name}: {summary(scored)}")
    if len(reports) == len(sets):
        page = replaced(page, "confidence", said_tables(reports))
        TABLE.write_text(counts_file(reports), encoding="utf-8")
        page = replaced(page, "beside", beside(reports | further))
    if sets["public"]:
        page = replaced(page, "chance", by_chance(sets["public"], args.resample))
    args.doc.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
