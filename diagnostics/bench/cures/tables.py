"""The tables of CureBench as rows of text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.text.amounts import counted, percent, rounded, signed

from ...judge.advice.measured import Rate
from ...judge.advice.treatments import ADVICE, ASKED, PLACEBO, REWOUND, UNTREATED, treatment
from ...judge.rules.alarm_texts import RULE_TEXTS
from ..tables import TextTable
from .kinds import ALL_SEEDS, LATER, SET_ASIDE, Kind, Twin
from .records import Records
from .results import Results, rate_of

NOTHING = "-"
NOT_RUN = "Not run yet."
"""Instead of a table without rows."""
BUILT = ("arms", "twins", "advice")
"""Long tables, which only the site and the command show."""


def rate_words(rate: Rate) -> str:
    """A count with Wilson's 95 % interval.

    >>> rate_words(Rate(held=4, of=5)), rate_words(Rate(held=0, of=0))
    ('4 of 5 (38 to 96 %)', '-')
    """
    if not rate.of:
        return NOTHING
    low, high = (rounded(100 * float(end)) for end in wilson_interval(rate.share, rate.of))
    return f"{rate.held} of {rate.of} ({low} to {high} %)"


def points(change: float | None) -> str:
    """A difference of shares.

    >>> points(-0.042), points(None)
    ('-4', '-')
    """
    return NOTHING if change is None or math.isnan(change) else signed(100 * change)


def by_kind(results: Results) -> TextTable:
    """What each kind is, and what became of its untreated runs."""
    rows = []
    for result in results.kinds():
        kind = result.kind
        symptoms = ", ".join(
            f"{RULE_TEXTS[name].title.lower()} ({count})" for name, count in result.symptoms.items()
        )
        ends = dict.fromkeys((min(result.alarms), max(result.alarms))) if result.alarms else ()
        alarms = " to ".join(map(str, ends)) or NOTHING
        rows.append(
            (
                f"`{kind.name}`",
                kind.fault,
                f"{kind.twin.world}, `{kind.twin.policy}`",
                f"{result.collapsed.held} of {result.collapsed.of}"
                if result.collapsed.of
                else "not run",
                {True: "yes", False: "no", None: "not yet known"}[result.counts],
                symptoms or NOTHING,
                alarms,
            )
        )
    head = ("kind", "what is wrong", "world, policy", "collapsed", "counts", "first alarm", "step")
    return TextTable(head=head, rows=tuple(rows))


def by_arm(results: Results) -> TextTable:
    """Every arm that was trained, kind by kind: medians over its runs."""
    rows = tuple(
        (
            f"`{kind.name}`",
            arm_label(arm),
            rate_words(rate_of(judged)),
            percent(statistics.median(each.share for each in judged)),
            str(sum(each.has_alarm for each in judged)),
            f"{statistics.median(each.steps_lost for each in judged):g}",
        )
        for kind, arm, judged in results.arms()
    )
    head = ("kind", "continued with", "held", "success at the end", "late alarms", "steps lost")
    return TextTable(head=head, rows=rows)


def arm_label(arm: str) -> str:
    """What an arm is called in tables."""
    if arm == UNTREATED:
        return "untreated"
    if arm == ADVICE:
        return "what the verdict suggested first"
    label = treatment(arm).label
    return f"{label} (rewound only)" if arm == REWOUND else f"{label} (`{arm}`)"


def by_twin(results: Results) -> TextTable:
    """What each treatment changes about a healthy twin."""
    rows = tuple(
        (
            f"`{effect.twin.name}`",
            arm_label(effect.treatment.name),
            points(effect.mean),
            str(len(effect.changes)),
        )
        for effect in results.side_effects()
    )
    return TextTable(head=("twin", "continued with", "success, points", "runs"), rows=rows)


def by_advice(results: Results) -> TextTable:
    """What the verdict suggested first, beside the controls over the same runs; in all last."""
    rows, rated = [], []
    for result in results.kinds():
        kind = result.kind
        outcomes = [results.outcomes(kind, arm) for arm in (ADVICE, REWOUND, PLACEBO)]
        advised = {run.seed for run, _ in outcomes[0]}
        if result.counts is False or not advised:
            continue
        rates = [rate_of(each for run, each in arm if run.seed in advised) for arm in outcomes]
        rows.append((f"`{kind.name}`", *map(rate_words, rates)))
        rated.append(rates)
    if rows:
        rows.append(("in all", *(rate_words(_total(rates)) for rates in zip(*rated, strict=True))))
    head = ("kind", "first suggestion", "rewound only", "placebo")
    return TextTable(head=head, rows=tuple(rows))


def _total(rates: Iterable[Rate]) -> Rate:
    each = list(rates)
    return Rate(held=sum(rate.held for rate in each), of=sum(rate.of for rate in each))


def by_guard(results: Results) -> TextTable:
    """What guarded runs of each kind ended at, beside their healthy twins; in all last."""
    guards = [each for each in results.guards() if isinstance(each.subject, Kind)]
    asking = [each for each in guards if each.arm == ASKED]
    alone = [each for each in guards if each.arm != ASKED]
    rows = [
        (
            f"`{each.subject.name}`{', asked' * (each.arm == ASKED)}",
            f"{each.untouched.of - each.untouched.held} of {each.untouched.of}",
            str(max(each.rewinds)),
            rate_words(each.held),
            percent(each.share),
        )
        for each in (*alone, *asking)
    ]
    if rows:
        in_all = _total(each.held for each in alone)
        rows.insert(len(alone), ("in all", NOTHING, NOTHING, rate_words(in_all), NOTHING))
    head = ("kind", "treated", "treatments, at most", "held", "success at the end")
    return TextTable(head=head, rows=tuple(rows))


def by_healthy_guard(results: Results) -> TextTable:
    """How many guarded healthy runs the guard left alone."""
    untouched = {
        each.subject: each.untouched for each in results.guards() if isinstance(each.subject, Twin)
    }
    rows = [
        (f"`{twin.name}`", f"{twin.world}, `{twin.policy}`", rate_words(rate))
        for twin, rate in untouched.items()
    ]
    if rows:
        rows.append(("in all", NOTHING, rate_words(_total(untouched.values()))))
    return TextTable(head=("twin", "world, policy", "never touched"), rows=tuple(rows))


def by_symptom(results: Results) -> TextTable:
    """The table of advice: what is offered for which first alarm."""
    rows = tuple(
        (
            RULE_TEXTS[row.symptom].title,
            arm_label(row.treatment.name),
            rate_words(row.rate),
            rate_words(row.control),
            points(row.twin_change),
            "a treatment" if row.is_shown else "something to look at",
        )
        for row in results.measured()
    )
    head = (
        "first alarm",
        "continued with",
        "held",
        "controls",
        "healthy run, points",
        "offered as",
    )
    return TextTable(head=head, rows=rows)


def tables(records: Records) -> Mapping[str, TextTable]:
    """All tables by name; but for those of `BUILT`, docs/cures.md has them between markers."""
    results = Results(records)
    return {
        "kinds": by_kind(Results(records, ALL_SEEDS)),
        "arms": by_arm(results),
        "twins": by_twin(results),
        "advice": by_symptom(results),
        "suggestions": by_advice(results),
        "guard": by_guard(Results(records, ALL_SEEDS)),
        "guarded-twins": by_healthy_guard(Results(records, ALL_SEEDS)),
        "set-aside": by_advice(Results(records, SET_ASIDE)),
        "later": by_advice(Results(records, LATER)),
    }


def missing_words(results: Results) -> str:
    """What is not trained yet, as a sentence."""
    missing, of = results.missing()
    seeds = f"{counted(len(results.seeds), 'seed')} ({', '.join(map(str, results.seeds))})"
    if not missing:
        return f"All {of} pieces of {seeds} are trained."
    most = max((len(judged) for _, _, judged in results.arms()), default=0)
    return (
        f"Of {seeds}, {of - missing} of at least {of} pieces are trained; the others are not. No "
        f"kind has more than {counted(most, 'run')} with the same treatment."
    )
