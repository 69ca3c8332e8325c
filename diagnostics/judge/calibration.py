"""How often a verdict of each confidence was right, on labelled runs: what a confidence is worth.

`healthy`: how often a step that was called healthy was followed by a collapse (success halved for
good) within `HORIZON` steps. `collapse`: how often a step that was called collapsing or collapsed
lies outside of a labelled collapse. Health is counted by how calm the signals are and by how many
kinds of them are measured: every run is judged again with kinds left out, down to success alone.
A level of confidence is given only where that rate earns it. `echoscope bench collapse` counts all
of this again and prints it; docs/collapsebench.md has the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    "repetition": ("sibling_distance_down", "duplicates", "loops", "echo"),
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

Count = tuple[int, int]
"""(steps on which it was wrong, steps)"""

BY_KINDS: Mapping[tuple[Calm, int], Mapping[str, Count]] = {
    ("at best", 1): {"small": (64, 654), "public": (196, 1305), "made": (367, 7689)},
    ("at best", 2): {"small": (57, 596), "public": (112, 1124), "made": (216, 5867)},
    ("at best", 3): {"small": (31, 456), "public": (35, 870), "made": (246, 6335)},
    ("at best", 4): {"small": (23, 403), "public": (28, 274), "made": (182, 5550)},
    ("at best", 5): {"small": (24, 307), "public": (16, 168), "made": (119, 4834)},
    ("at best", 6): {"small": (8, 295), "public": (12, 196), "made": (53, 6474)},
    ("at best", 7): {"small": (1, 231), "public": (5, 100), "made": (141, 16709)},
    ("at best", 8): {"small": (1, 216)},
    ("at best", 9): {"small": (1, 180)},
    ("calm", 1): {"small": (154, 443), "public": (3, 498), "made": (94, 1004)},
    ("calm", 2): {"small": (117, 371), "public": (3, 640), "made": (59, 788)},
    ("calm", 3): {"small": (117, 372), "public": (3, 407), "made": (57, 877)},
    ("calm", 4): {"small": (86, 337), "public": (3, 117), "made": (28, 852)},
    ("calm", 5): {"small": (103, 342), "public": (3, 95), "made": (15, 747)},
    ("calm", 6): {"small": (51, 269), "public": (3, 91), "made": (19, 968)},
    ("calm", 7): {"small": (58, 266), "public": (3, 87), "made": (0, 2617)},
    ("calm", 8): {"small": (60, 248)},
    ("calm", 9): {"small": (43, 226)},
    ("half way", 1): {"public": (0, 39), "made": (20, 109)},
    ("half way", 2): {"small": (30, 90), "public": (16, 200), "made": (103, 405)},
    ("half way", 3): {"small": (58, 251), "public": (22, 375), "made": (108, 715)},
    ("half way", 4): {"small": (73, 315), "public": (79, 230), "made": (202, 1319)},
    ("half way", 5): {"small": (87, 438), "public": (53, 217), "made": (194, 1160)},
    ("half way", 6): {"small": (108, 456), "public": (40, 162), "made": (235, 1963)},
    ("half way", 7): {"small": (106, 521), "public": (47, 261), "made": (608, 5519)},
    ("half way", 8): {"small": (104, 552)},
    ("half way", 9): {"small": (119, 608)},
}
"""(how calm, kinds of signals measured) -> set of runs -> how often a collapse followed.

Of the recorded small runs, the public ones, and `synthetic_runs.py`.
"""

MEASURED: Mapping[tuple[str, str], Count] = {
    ("healthy", "high"): (1, 180),
    ("healthy", "medium"): (5, 435),
    ("healthy", "low"): (212, 1575),
    ("collapse", "high"): (0, 1046),
    ("collapse", "medium"): (26, 662),
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

    >>> round(base_rate("half way", 9), 3)  # 163 of 1,014 steps
    0.161
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
        f"{percent(base_rate(calm, num_kinds), 1)} of all healthy steps"
    )


def collapse_words(confidence: str) -> str:
    """What a confidence in a collapse is worth, as it stands beside a verdict.

    >>> collapse_words("high")
    'in labelled runs, none of 1,046 such verdicts came while the run was healthy'
    """
    wrong, total = MEASURED["collapse", confidence]
    verdicts = f"{wrong or 'none'} of {total:,} such verdicts"
    return f"in labelled runs, {verdicts} came while the run was healthy"
