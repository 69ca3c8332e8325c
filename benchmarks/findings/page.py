"""The generated part of docs/findings.md: between two markers, from the record alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .claims import CLAIMS, Claim, arms_of
from .intervals import Interval, verdict
from .measures import collapsed, final_success, peak_success
from .training import SUCCESS, Arm, Record

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
BEGIN = "<!-- begin: written by `make findings` -->"
END = "<!-- end: written by `make findings` -->"


def write_page(
    record: Record, path: Path, *, claims: Sequence[Claim] = CLAIMS, steps: int | None = None
) -> None:
    """Replace what stands between the markers; a page without them is written whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    body = generated(record, claims, steps)
    path.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")


def generated(record: Record, claims: Sequence[Claim], steps: int | None = None) -> str:
    """Markdown: how it was measured, each claim by topic, every arm."""
    topics = dict.fromkeys(claim.topic for claim in claims)
    parts = [summary(record, claims, steps)]
    for topic in topics:
        parts.append(_topic(topic, [c for c in claims if c.topic == topic], record, steps))
    parts.append(arms_table(record, arms_of(tuple(claims)), steps))
    return "\n\n".join(parts)


def judged(claim: Claim, record: Record, steps: int | None = None) -> str:
    """What the record says of a claim."""
    return verdict(claim.figure.interval(record, steps), claim.expected, claim.border)


def summary(record: Record, claims: Sequence[Claim], steps: int | None) -> str:
    """How many claims hold, and what was trained where."""
    published = [claim for claim in claims if claim.source != "ours"]
    counts = Counter(judged(claim, record, steps) for claim in published)
    said = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    found = [r for arm in arms_of(tuple(claims)) for r in record.of(arm, steps).values()]
    minutes = sum(result.seconds for result in found) / 60
    seeds = sorted(Counter(len(record.of(arm, steps)) for arm in arms_of(tuple(claims))).items())
    per_arm = ", ".join(f"{arms} arms with {n} seeds" for n, arms in seeds)
    machines = "; ".join(sorted({result.machine for result in found}))
    return (
        f"**In short:** {len(published)} published claims: {said}. "
        f"{len(claims) - len(published)} further rows are checks of ours.\n\n"
        f"Trained: {len(found)} runs ({per_arm}), {minutes:.0f} minutes on one core. Machine: "
        f"{machines}, one thread."
    )


def _topic(topic: str, claims: Sequence[Claim], record: Record, steps: int | None) -> str:
    lines = [
        f"## {topic}",
        "",
        "| claim | published | ours, with 95 % interval | verdict |",
        "| --- | --- | --- | --- |",
    ]
    reasons = []
    for claim in claims:
        says = judged(claim, record, steps)
        ours = f"{claim.figure.words}: {_ours(claim, record, steps)}"
        cells = (claim.says, f"{claim.published} ({claim.source})", ours, f"**{says}**")
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
        if says == "disagrees" and claim.why:
            reasons.append(f"- *{claim.says}* {claim.why}")
    if reasons:
        lines += ["", "Why we may disagree:", "", *reasons]
    return "\n".join(lines)


def _ours(claim: Claim, record: Record, steps: int | None) -> str:
    """For example: **-12 points** [-30, +6]; 60 against 72; 3 seeds."""
    figure = claim.figure
    interval, levels = figure.interval(record, steps), figure.levels(record, steps)
    if interval is None:
        return f"too few runs ({levels})"
    digits = {"": 2, "nats": 2}.get(figure.unit, 0)
    sign = "+" if figure.is_signed else ""
    middle, low, high = (
        f"{value:{sign}.{digits}f}" for value in (interval.middle, interval.low, interval.high)
    )
    amount = f"{middle} {figure.unit}".strip()
    border = f", to compare with {claim.border:g}" if claim.border else ""
    return f"**{amount}** [{low}, {high}]{border}; {levels}; {_count(interval, figure.counted)}"


def _count(interval: Interval, what: str) -> str:
    return f"{interval.num_seeds} {what}"


def arms_table(record: Record, arms: Sequence[Arm], steps: int | None) -> str:
    """Every arm with what it is and what became of it: means over its seeds."""
    lines = [
        "## The arms",
        "",
        "| arm | what it is | seeds | start | peak | final | runs whose success halved | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm in arms:
        found = list(record.of(arm, steps).values())
        if not found:
            lines.append(f"| `{arm.name}` | {arm.words} | 0 | | | | | |")
            continue
        start = 100 * np.mean([result.curve(SUCCESS)[1][0] for result in found])
        peak = np.mean([peak_success(result) for result in found])
        final = np.mean([final_success(result) for result in found])
        halved = sum(collapsed(result) > 0 for result in found)
        seconds = np.mean([result.seconds for result in found])
        lines.append(
            f"| `{arm.name}` | {arm.words} | {len(found)} | {start:.0f} % | {peak:.0f} % | "
            f"{final:.0f} % | {halved} of {len(found)} | {seconds:.0f} |"
        )
    return "\n".join(lines)
