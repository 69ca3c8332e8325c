"""How often a verdict of each confidence was right, on the recorded and the public runs.

`healthy`: how often a step that was called healthy was followed by a collapse (success halved for
good) within `HORIZON` steps. `collapse`: how often a step that was called collapsing or collapsed
lies in a labelled collapse, at its first sign or later. Measured by `echoscope bench collapse`,
which counts again; docs/collapsebench.md has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .collapsebench import LabelledRun

HORIZON = 20
"""Steps that a verdict of health is held to."""

MEASURED: Mapping[tuple[str, str], tuple[int, int]] = {
    ("healthy", "high"): (5, 445),
    ("healthy", "medium"): (32, 1485),
    ("healthy", "low"): (148, 1922),
    ("collapse", "high"): (8, 1346),
    ("collapse", "medium"): (16, 371),
}
"""(what was said, confidence) -> (steps on which it was wrong, steps), small and public runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the verdict said at one step of a labelled run."""

    step: int
    what: str
    """`healthy` or `collapse`."""
    confidence: str


def is_wrong(said: Said, run: LabelledRun) -> bool:
    """Was it wrong, as the label has it?"""
    if said.what == "collapse":
        return said.step < run.healthy_until
    halved = run.halved_step
    return run.is_collapsed and halved is not None and said.step < halved <= said.step + HORIZON


def calibrated(
    runs: Iterable[tuple[LabelledRun, Iterable[Said]]],
) -> dict[tuple[str, str], tuple[int, int]]:
    """(what was said, confidence) -> (steps on which it was wrong, steps); runs that count only."""
    wrong: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for run, said in runs:
        if not run.counts:
            continue
        for one in said:
            total[one.what, one.confidence] += 1
            wrong[one.what, one.confidence] += is_wrong(one, run)
    return {key: (wrong[key], total[key]) for key in total}


def calibration_words(what: str, confidence: str) -> str:
    """What a confidence is worth, as it stands beside a verdict.

    >>> "of such steps" in calibration_words("healthy", "high")
    True
    """
    wrong, total = MEASURED[what, confidence]
    share = 100 * wrong / total
    if what == "healthy":
        return f"a collapse followed within {HORIZON} steps on {share:.1f} % of such steps"
    return f"wrong on {share:.1f} % of such steps"
