"""The generated parts of docs/findings.md, from the record alone.

What is decided stands in the page, between two markers. The tables of all claims and arms are put
in their place when the site is built (`docs/hooks.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .claims import CLAIMS, Claim, arms_of
from .intervals import Interval, seeds_to_decide, verdict
from .measures import collapsed, final_success, peak_success
from .training import SUCCESS, Arm, Record

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
BEGIN = "<!-- begin: written by `make findings` -->"
END = "<!-- end: written by `make findings` -->"
TABLES = "<!-- table: findings -->"
"""Where the site puts what `tables` makes."""
MOST_SEEDS_NAMED = 30
"""A claim that more seeds than these would decide is not named among the nearly decided ones."""


def write_page(
    record: Record, path: Path, *, claims: Sequence[Claim] = CLAIMS, steps: int | None = None
) -> None:
    """Replace what stands between the markers; a page without them is written whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    findings = [judged(claim, record, steps) for claim in claims]
    body = in_short(record, findings, steps)
    body += f"\n\n{TABLES if path == PAGE else tables(record, findings, steps)}"
    path.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim with what the record says of it."""

    claim: Claim
    interval: Interval | None
    levels: str
    verdict: str

    @property
    def ours(self) -> str:
        """For example: **-12 points** [-30, +6]; 60 against 72; 3 seeds."""
        figure, interval, border = self.claim.figure, self.interval, self.claim.border
        if interval is None:
            return f"{figure.words}: too few runs ({self.levels})"
        digits = {"": 2, "nats": 2}.get(figure.unit, 0)
        sign = "+" if figure.is_signed else ""
        middle, low, high = (
            f"{value:{sign}.{digits}f}" for value in (interval.middle, interval.low, interval.high)
        )
        amount = f"{middle} {figure.unit}".strip()
        compared = f", to compare with {border:g}" if border else ""
        return (
            f"{figure.words}: **{amount}** [{low}, {high}]{compared}; {self.levels}; "
            f"{interval.num_seeds} {figure.counted}"
        )

    @property
    def sentence(self) -> str:
        return f"- *{self.claim.says}* Here {self.ours}."

    @property
    def seeds_to_decide(self) -> int | None:
        """See `intervals.seeds_to_decide`."""
        if self.interval is None or self.claim.figure.counted != "seeds":
            return None
        claim = self.claim
        return seeds_to_decide(self.interval, claim.expected, claim.border, MOST_SEEDS_NAMED)


def judged(claim: Claim, record: Record, steps: int | None = None) -> Finding:
    """What the record says of a claim."""
    interval = claim.figure.interval(record, steps)
    return Finding(
        claim=claim,
        interval=interval,
        levels=claim.figure.levels(record, steps),
        verdict=verdict(interval, claim.expected, claim.border),
    )


def in_short(record: Record, findings: Sequence[Finding], steps: int | None = None) -> str:
    """Markdown: how many claims hold, what was trained, and each claim that is decided."""
    arms = arms_of(tuple(each.claim for each in findings))
    return f"{summary(record, findings, arms, steps)}\n\n{decided(findings)}"


def tables(record: Record, findings: Sequence[Finding], steps: int | None = None) -> str:
    """Markdown: what is nearly decided, each claim by topic, every arm."""
    claims = tuple(each.claim for each in findings)
    parts = [undecided(findings)]
    for topic in dict.fromkeys(claim.topic for claim in claims):
        parts.append(_topic(topic, [each for each in findings if each.claim.topic == topic]))
    parts.append(arms_table(record, arms_of(claims), steps))
    return "\n\n".join(filter(None, parts))


def summary(
    record: Record, findings: Sequence[Finding], arms: Sequence[Arm], steps: int | None
) -> str:
    """How many claims hold, and what was trained where."""
    published = [each for each in findings if each.claim.source != "ours"]
    counts = Counter(each.verdict for each in published)
    listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    results = [list(record.of(arm, steps).values()) for arm in arms]
    trained = [result for of_arm in results for result in of_arm]
    minutes = sum(result.seconds for result in trained) / 60
    per_arm = ", ".join(
        f"{num} arms with {seeds} seeds"
        for seeds, num in sorted(Counter(map(len, results)).items())
    )
    machines = "; ".join(sorted({result.machine for result in trained}))
    return (
        f"**In short:** {len(published)} published claims: {listed}. "
        f"{len(findings) - len(published)} further rows are checks of ours.\n\n"
        f"Trained: {len(trained)} runs ({per_arm}), {minutes:.0f} minutes on one core. Machine: "
        f"{machines}, one thread."
    )


def decided(findings: Sequence[Finding]) -> str:
    """Each claim that our runs agree or disagree with."""
    parts = ["## What the numbers say"]
    for name in ("agrees", "disagrees"):
        claims = [each.sentence for each in findings if each.verdict == name]
        if claims:
            verb = name.removesuffix("s")
            parts.append("\n".join([f"Our runs {verb} with these claims:", "", *claims]))
    return "\n\n".join(parts)


def undecided(findings: Sequence[Finding]) -> str:
    """How many claims are not told apart, and those that are nearly decided."""
    apart = [each for each in findings if each.verdict == "not told apart"]
    if not apart:
        return ""
    nearly = [(seeds, each) for each in apart if (seeds := each.seeds_to_decide)]
    nearly.sort(key=lambda pair: pair[0])
    text = f"Not told apart: {len(apart)} of {len(findings)}."
    if nearly:
        text += (
            f" Up to {MOST_SEEDS_NAMED} seeds would decide {len(nearly)} of them, if mean and "
            "spread over seeds stay:"
        )
    lines = [f"{each.sentence} About {seeds} seeds would decide." for seeds, each in nearly]
    return "\n".join([text, "", *lines] if lines else [text])


def _topic(topic: str, findings: Sequence[Finding]) -> str:
    lines = [
        f"## {topic}",
        "",
        "| claim | published | ours, with 95 % interval | verdict |",
        "| --- | --- | --- | --- |",
    ]
    reasons = []
    for each in findings:
        claim = each.claim
        cells = (claim.says, f"{claim.published} ({claim.source})", each.ours)
        cells += (f"**{each.verdict}**",)
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
        if each.verdict == "disagrees" and claim.why:
            reasons.append(f"- *{claim.says}* {claim.why}")
    if reasons:
        lines += ["", "Why we may disagree:", "", *reasons]
    return "\n".join(lines)


def arms_table(record: Record, arms: Sequence[Arm], steps: int | None) -> str:
    """Every arm with what it is and what became of it: means over its seeds."""
    lines = [
        "## The arms",
        "",
        "| arm | what it is | seeds | start | peak | final | runs whose success halved | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm in arms:
        results = list(record.of(arm, steps).values())
        if not results:
            lines.append(f"| `{arm.name}` | {arm.words} | 0 | | | | | |")
            continue
        start = 100 * np.mean([result.curve(SUCCESS)[1][0] for result in results])
        peak = np.mean([peak_success(result) for result in results])
        final = np.mean([final_success(result) for result in results])
        halved = sum(collapsed(result) > 0 for result in results)
        seconds = np.mean([result.seconds for result in results])
        lines.append(
            f"| `{arm.name}` | {arm.words} | {len(results)} | {start:.0f} % | {peak:.0f} % | "
            f"{final:.0f} % | {halved} of {len(results)} | {seconds:.0f} |"
        )
    return "\n".join(lines)
