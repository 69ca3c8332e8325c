"""How often a verdict of each confidence was right, on labelled runs: what a confidence is worth.

`healthy`: how often a step that was called healthy was followed by a collapse (success halved for
good) within `HORIZON` steps. `collapse`: how often a step that was called collapsing or collapsed
lies outside of a labelled collapse. Health is counted by how calm the signals are and by how many
kinds of them are measured: every run is judged again with kinds left out, down to success alone.
A level of confidence is given only where that rate earns it. `echoscope bench collapse` counts all
of this again and prints it; docs/collapsebench.md has the tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from echoscope.text.amounts import percent

HORIZON = 20
"""Steps that a verdict of health is held to."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "success": ("success_probe", "success_eval", "success_train", "eval_reward", "reward"),
    "format": ("closed", "format"),
    "validity": ("action", "eval_action"),
    "entropy": ("entropy_up", "entropy_down"),
    "length": ("truncated", "capped", "length"),
    "reasoning": (
        "conditional_entropy_down",
        "dependence_first",
        "dependence_all",
        "retrieval",
        "text_retrieval",
        "text_dependence",
        "template",
        "agreement",
    ),
    "repetition": ("sibling_distance_down", "duplicates", "loops", "echo", "copied", "empty"),
    "spread": ("spread", "zero_spread"),
    "update": (
        "gradient",
        "non_finite",
        "regulariser",
        "success_logprob",
        "mismatch",
        "mismatch_ratio",
        "staleness",
        "ref_kl",
        "empty_selection",
    ),
}
"""Kind of signal -> its channels: those that measure the same thing in two ways count once."""
_KIND_OF = {channel: kind for kind, channels in KINDS.items() for channel in channels}

Calm = Literal["at best", "calm", "half way"]
"""Where no alarm is open. `at best`: past the warm-up, success is at its best and no signal is half
way to an alarm. `calm`: no signal is half way. `half way`: one is."""
CALMS: tuple[Calm, ...] = get_args(Calm)

EARNS_HIGH = 0.02
EARNS_MEDIUM = 0.1
"""Share of such steps, at most, that a collapse may follow within `HORIZON` steps."""
LEAST_STEPS = 50
"""Fewer steps of a set of runs earn nothing."""

TABLE = Path(__file__).with_name("calibration.toml")
Count = tuple[int, int]
"""(steps on which it was wrong, steps)"""

_COUNTS = tomllib.loads(TABLE.read_text(encoding="utf-8"))
BY_KINDS: Mapping[tuple[Calm, int], Mapping[str, Count]] = {
    (calm, int(num)): {name: (wrong, n) for name, (wrong, n) in by_set.items()}
    for calm in CALMS
    for num, by_set in _COUNTS[calm].items()
}
"""(how calm, kinds of signals measured) -> set of runs -> how often a collapse followed.

Of the recorded small runs, the public ones, and `synthetic_runs.py`.
"""

MEASURED: Mapping[tuple[str, str], Count] = {
    (what, level): (wrong, n)
    for what in ("healthy", "collapse")
    for level, (wrong, n) in _COUNTS[what].items()
}
"""(what was said, confidence) -> how often it was wrong, with all that was logged, on the recorded
small runs and the public ones together."""


def kinds_of(channels: Iterable[str]) -> set[str]:
    """Which kinds of signals these channels are.

    >>> sorted(kinds_of(["closed", "format", "entropy_up"]))
    ['entropy', 'format']
    """
    return {_KIND_OF[channel] for channel in channels}


def quiet_rate(calm: Calm, num_kinds: int) -> float:
    """How often a collapse followed such steps: on the set of runs on which it did most often.

    1 where too few such steps were measured.
    """
    counts = BY_KINDS.get((calm, num_kinds), {}).values()
    return max((wrong / n for wrong, n in counts if n >= LEAST_STEPS), default=1.0)


def base_rate(calm: Calm, num_kinds: int) -> float:
    """How often a collapse followed any step without an alarm, on the runs of `quiet_rate`.

    Of the same set of runs, with as many kinds of signals measured: what `quiet_rate` is to be
    compared with. 1 where too few such steps were measured.

    >>> round(base_rate("half way", 9), 3)  # 169 of 1,020 steps
    0.166
    """
    counts = BY_KINDS.get((calm, num_kinds), {})
    rates = {name: wrong / n for name, (wrong, n) in counts.items() if n >= LEAST_STEPS}
    if not rates:
        return 1.0
    worst = max(rates, key=lambda name: rates[name])
    every = [by_set[worst] for c in CALMS if worst in (by_set := BY_KINDS.get((c, num_kinds), {}))]
    return sum(wrong for wrong, _ in every) / sum(n for _, n in every)


def quiet_level(calm: Calm, num_kinds: int) -> str:
    """The confidence that is earned where no alarm is open."""
    rate = quiet_rate(calm, num_kinds)
    return "high" if rate <= EARNS_HIGH else "medium" if rate <= EARNS_MEDIUM else "low"


def quiet_words(calm: Calm, num_kinds: int) -> str:
    """What a confidence in health is worth, as it stands beside a verdict.

    >>> quiet_words("at best", 0)
    'it is not measured how often a collapse follows such steps'
    """
    rate = quiet_rate(calm, num_kinds)
    if rate >= 1:
        return "it is not measured how often a collapse follows such steps"
    return (
        f"in labelled runs with as many kinds of signals, a collapse followed within {HORIZON} "
        f"steps after {percent(rate, 1)} of such healthy steps, and after "
        f"{percent(base_rate(calm, num_kinds), 1)} of all their healthy steps"
    )


def collapse_words(confidence: str) -> str:
    """What a confidence in a collapse is worth, as it stands beside a verdict.

    >>> collapse_words("high")
    'in labelled runs, none of 1,017 such verdicts came while the run was healthy'
    """
    wrong, total = MEASURED["collapse", confidence]
    verdicts = f"{wrong or 'none'} of {total:,} such verdicts"
    return f"in labelled runs, {verdicts} came while the run was healthy"
