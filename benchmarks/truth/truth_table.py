"""The truth table: what the judge claims at every row of simulated runs, against what is true.

A claim at one row is one *prefix claim*. Rates are over prefix claims, because a person may look at
a run at any row. A rate over episodes stands beside: a claim that stands over neighbouring rows is
one episode, and false if it is false at any of them.

    python benchmarks/truth/truth_table.py [--part develop|held-out|all] [--seeds 20]
        [--family NAME ...] [--jobs 2] [--output FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from truth_families import FAMILIES, made_run
from truth_runs import Awaited, TruthRun

from echoscope.diagnostics.bench.tables import TextTable
from echoscope.diagnostics.judge.claims import (
    Change,
    Claim,
    Dip,
    Disagreement,
    Independent,
    Level,
    Lost,
)
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.read.table import MetricTable
from echoscope.store.records import FloatArray64, IntArray64
from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.strict_json import finite_or_none

DEVELOP, HELD_OUT = range(20), range(80, 100)
"""Seeds that the judge may be tuned with, and those that are run once (20 to 79 showed earlier
judges)."""
SAME = 1e-9
"""Share of a metric's scale below which two true means are one."""
CRITICAL = ("collapsing", "collapsed")
NUM_WORST = 10
ALL = "all"

MOST_FALSE, MOST_FALSE_OF_FAMILY = 0.01, 0.03
COVERAGE, ONSET_COVERAGE = (0.93, 0.97), (0.88, 0.97)
LEAST_ENDS, MOST_CRITICALS, MOST_EXTRA = 0.97, 0.001, 0.05
"""What is asked of the sums: false claims, coverage, states at the end, false criticals a row,
changes of the state beyond the true ones a run."""


_Sums = dict[str, tuple[IntArray64, FloatArray64]]
"""Metric -> the steps at which it was measured, and sums of its true means until each."""

# -- what is true ----------------------------------------------------------------------------------


class Truth:
    """Answers what is true of a simulated run; None where that is not known."""

    def __init__(self, run: TruthRun) -> None:
        self.run = run
        self._measured = self._sums(run.truth)
        self._of_such_tasks = self._measured | self._sums(run.of_such_tasks)

    def _sums(self, means: Mapping[str, FloatArray64]) -> _Sums:
        sums = {}
        for key in means.keys() & self.run.table.columns.keys():
            rows = np.flatnonzero(np.isfinite(self.run.table.columns[key]))
            sums_R = np.concatenate([[0.0], np.cumsum(means[key][rows])])
            sums[key] = self.run.table.steps[rows], sums_R
        return sums

    def mean(self, level: Level, *, of_such_tasks: bool = False) -> float:
        """True mean over the measured rows of a level's steps; NaN if it is not known.

        Args:
            of_such_tasks: of an evaluation over all tasks like those that it plays.
        """
        measured = self._of_such_tasks if of_such_tasks else self._measured
        if level.metric not in measured:
            return math.nan
        steps, sums = measured[level.metric]
        start, stop = np.searchsorted(steps, [level.steps[0], level.steps[1] + 1])
        return float((sums[stop] - sums[start]) / (stop - start)) if stop > start else math.nan

    def difference(self, change: Change) -> float:
        return self.mean(change.after) - self.mean(change.before)

    def room(self, metric: str) -> float:
        """The difference up to which two true means of a metric are the same."""
        return SAME * float(np.abs(self.run.truth[metric]).max())

    def holds(self, claim: Level | Change) -> bool | None:
        """Does the interval of a level, or of a change's difference, hold the truth?

        A level is about tasks like those of the evaluation, a change about those that it plays.
        """
        if isinstance(claim, Level):
            true = self.mean(claim, of_such_tasks=True)
        else:
            true = self.difference(claim)
        if math.isnan(true):
            return None
        room = self.room(claim.metric)
        return claim.low - room <= true <= claim.high + room

    def holds_onset(self, change: Change) -> bool | None:
        """Is a true onset of the metric in this direction where the change may have begun?"""
        onsets = [
            onset.at
            for onset in self.run.onsets.get(change.metric, ())
            if onset.direction == change.direction
        ]
        if change.began is None or not onsets:
            return None
        return any(change.began[0] <= named_step <= change.began[1] for named_step in onsets)

    def holds_stated(self, metric: str, began: tuple[int, int]) -> bool | None:
        """Does a metric, or where it has no onset any other, begin to move between these steps?

        None where nothing begins to move.
        """
        onsets = self.run.onsets.get(metric) or list(itertools.chain(*self.run.onsets.values()))
        if not onsets:
            return None
        return any(began[0] <= onset.at <= began[1] for onset in onsets)

    def is_true(self, claim: Claim, row: int) -> bool | None:
        """Is a claim of direction or kind true at this row? None for claims of neither sort."""
        match claim:
            case Change():
                true = self.difference(claim)
                if math.isnan(true):
                    return None
                is_so = (true if claim.direction == "rise" else -true) > self.room(claim.metric)
                return is_so and (not claim.still_falls or self._drift(claim.after) < 0)
            case Lost():
                return self._is_lost(claim)
            case Dip():
                held, bottom, now = map(self.mean, (claim.held, claim.bottom, claim.now))
                if math.isnan(held + bottom + now):
                    return None
                is_so = min(held, now) - bottom > self.room(claim.metric)
                return is_so and (not claim.is_rising or self._drift(claim.now) > 0)
            case Disagreement():
                parts = [self.is_true(x, row) for x in (claim.up, claim.down, *claim.terms)]
                return None if None in parts and False not in parts else all(parts)
            case Independent():
                return self._is_independent(claim, row)
        return None

    def _drift(self, level: Level) -> float:
        """How far the later half of the true values of a level is above the earlier half.

        Of a single row: above the row before. 0 where both are the same.
        """
        steps, sums = self._measured[level.metric]
        start, stop = np.searchsorted(steps, [level.steps[0], level.steps[1] + 1])
        values = np.diff(sums[max(min(start, stop - 2), 0) : stop + 1])
        half = len(values) // 2
        drift = float(values[len(values) - half :].mean() - values[:half].mean())
        return drift if abs(drift) > self.room(level.metric) else 0.0

    def _is_lost(self, claim: Lost) -> bool | None:
        before = claim.change.before
        held, now = self.mean(before), self.mean(claim.change.after)
        if math.isnan(held + now):
            return None
        base = 0.0
        if not claim.metric.endswith("success_rate"):  # a return has no zero point: its gain counts
            steps = self.run.table.steps
            base = float(self.run.truth[claim.metric][steps <= before.steps[0]].min())
        left = max(claim.most_left, 0.0)  # below its beginning a return has nothing left
        is_so_low = now - base <= left * (held - base) + self.room(claim.metric)
        return now < held and is_so_low

    def _is_independent(self, claim: Independent, row: int) -> bool | None:
        if self.run.depends is None:
            return None
        steps = self.run.table.steps
        since = steps[0] if claim.since is None else claim.since
        is_told = bool(self.run.depends[: row + 1][steps[: row + 1] >= since].any())
        return not is_told and claim.is_alike in (None, self.run.is_alike)


def parts_of(claim: Any) -> Iterator[Any]:
    """A claim and all claims in it."""
    if isinstance(claim, tuple):
        for part in claim:
            yield from parts_of(part)
    elif is_dataclass(claim):
        yield claim
        for each in fields(claim):
            yield from parts_of(getattr(claim, each.name))


# -- one run ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Share:
    """How many of how many."""

    num: int = 0
    of: int = 0

    def add(self, answer: bool | None) -> None:
        """Count an answer; None is none."""
        if answer is not None:
            self.num, self.of = self.num + answer, self.of + 1

    def __add__(self, other: Share) -> Share:
        return Share(self.num + other.num, self.of + other.of)

    @property
    def share(self) -> float:
        return self.num / self.of if self.of else math.nan


@dataclass(slots=True, kw_only=True)
class FalseClaim:
    """An episode of a claim that was false."""

    family: str
    seed: int
    step: int
    """The first at which it was false."""
    num_rows: int
    """At so many rows."""
    claim: str
    truth: str


@dataclass(slots=True, kw_only=True)
class RunScore:
    """What was counted in one run."""

    family: str
    seed: int
    false_claims: Share = field(default_factory=Share)
    """Of direction or kind, row by row."""
    false_episodes: Share = field(default_factory=Share)
    false_rows: Share = field(default_factory=Share)
    """Rows at which one of the claims is false, of all rows."""
    levels: Share = field(default_factory=Share)
    """Levels whose interval holds the truth; so for changes and for onsets."""
    changes: Share = field(default_factory=Share)
    onsets: Share = field(default_factory=Share)
    stated: Share = field(default_factory=Share)
    """Onsets in the headline of a verdict that hold the true one."""
    ends: Share = field(default_factory=Share)
    """Runs whose state at the end is right."""
    false_criticals: Share = field(default_factory=Share)
    """Beginnings of a critical state, of the rows before any was right."""
    states: list[str] = field(default_factory=list)
    """One after the other."""
    extra_changes: Share = field(default_factory=Share)
    """Changes of the state beyond the true ones, of runs."""
    delay: float | None = None
    """Steps from when something was to be said until it was; infinite if never; None where
    nothing was."""
    twins: Share = field(default_factory=Share)
    """Rows at which a twin had another state, or at the end other alarms."""
    unscored: Counter[str] = field(default_factory=Counter)
    """Metrics and kinds of claims of which the truth is not known."""
    worst: list[FalseClaim] = field(default_factory=list)


def score_run(family: str, seed: int) -> RunScore:
    """Judge one simulated run at every row.

    Raises:
        KeyError: there is no such family.
    """
    run = made_run(family, seed)
    truth, score = Truth(run), RunScore(family=family, seed=seed)
    diagnosis = Diagnosis()
    standing: dict[tuple[str, ...], FalseClaim | None] = {}
    states: list[str] = []
    for row, (step, values) in enumerate(run.table.rows()):
        diagnosis.observe(step, values)
        claims = diagnosis.claims()
        states.append(diagnosis.run_state().value)
        standing = _count_kinds(score, truth, row, step, claims, standing)
        _count_intervals(score, truth, claims)
        _count_stated(score, truth, diagnosis)
        is_called = _is_called(run.awaited, states[-1], truth, claims, row)
        if run.awaited and score.delay is None and step >= run.awaited_from and is_called:
            score.delay = float(step - run.awaited_from)
    if run.awaited and score.delay is None:
        score.delay = math.inf
    _count_states(score, run, states)
    if run.twin is not None:
        for is_other in _differs(run.twin, states, diagnosis.verdict().kinds):
            score.twins.add(is_other)
    return score


def _count_kinds(
    score: RunScore,
    truth: Truth,
    row: int,
    step: int,
    claims: Iterable[Claim],
    standing: Mapping[tuple[str, ...], FalseClaim | None],
) -> dict[tuple[str, ...], FalseClaim | None]:
    """Claims of direction and kind at one row. Returns those that stand, with their episodes."""
    still: dict[tuple[str, ...], FalseClaim | None] = {}
    is_any_false = False
    for claim in claims:
        is_true = truth.is_true(claim, row)
        if is_true is None:
            if not isinstance(claim, Level):
                score.unscored[f"{type(claim).__name__} {claim.metric}"] += 1
            continue
        score.false_claims.add(not is_true)
        identity: tuple[str, ...] = (type(claim).__name__, claim.metric)
        identity += (claim.direction,) if isinstance(claim, Change) else ()
        if identity in still:  # two claims of one sort at one row: one episode
            identity = (*identity, "again")
        episode = standing.get(identity)
        if identity not in standing:
            score.false_episodes.of += 1
        if not is_true and episode is None:
            score.false_episodes.num += 1
            episode = FalseClaim(
                family=score.family,
                seed=score.seed,
                step=step,
                num_rows=0,
                claim=_claim_words(claim),
                truth=_truth_words(truth, claim),
            )
            score.worst.append(episode)
        if not is_true and episode is not None:
            episode.num_rows += 1
        still[identity] = episode
        is_any_false |= not is_true
    score.false_rows.add(is_any_false)
    return still


def _count_intervals(score: RunScore, truth: Truth, claims: Iterable[Claim]) -> None:
    for part in dict.fromkeys(part for claim in claims for part in parts_of(claim)):
        if not isinstance(part, Level | Change):
            continue
        is_inside = truth.holds(part)
        if is_inside is None:
            score.unscored[f"{type(part).__name__} {part.metric}"] += 1
        (score.levels if isinstance(part, Level) else score.changes).add(is_inside)
        if isinstance(part, Change):
            score.onsets.add(truth.holds_onset(part))


def _count_stated(score: RunScore, truth: Truth, diagnosis: Diagnosis) -> None:
    """The onset in the headline, where there is one."""
    began = diagnosis.stated_onset[1]
    if began is not None:
        score.stated.add(truth.holds_stated(diagnosis.engine.open_alarms[0].metric, began))


def _is_called(
    awaited: Awaited, state: str, truth: Truth, claims: Iterable[Claim], row: int
) -> bool:
    if state in CRITICAL or (awaited == "watch" and state == "watch"):
        return True
    return any(isinstance(claim, Lost) and truth.is_true(claim, row) for claim in claims)


def _count_states(score: RunScore, run: TruthRun, states: Sequence[str]) -> None:
    score.ends.add(states[-1] in run.ends)
    for row, step in enumerate(run.table.steps):
        if step >= run.healthy_until:
            break
        began = states[row] in CRITICAL and (row == 0 or states[row - 1] not in CRITICAL)
        score.false_criticals.add(began)
    for state in states:
        if not score.states or score.states[-1] != state:
            score.states.append(state)
    extra = len(score.states) - _longest_common(score.states, run.path)
    score.extra_changes += Share(extra, 1)


def _longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest sequence that both hold in order.

    >>> _longest_common(["healthy", "watch", "healthy"], ["healthy", "watch"])
    2
    """
    before = [0] * (len(second) + 1)
    for x in first:
        now = [0]
        for index, y in enumerate(second):
            now.append(before[index] + 1 if x == y else max(before[index + 1], now[index]))
        before = now
    return before[-1]


def _differs(twin: MetricTable, states: Sequence[str], kinds: Sequence[str]) -> Iterator[bool]:
    """Whether the verdict of a twin is another, row by row and at the end."""
    diagnosis = Diagnosis()
    for state, (step, values) in zip(states, twin.rows(), strict=True):
        diagnosis.observe(step, values)
        yield diagnosis.run_state().value != state
    yield tuple(diagnosis.verdict().kinds) != tuple(kinds)


def _claim_words(claim: Claim) -> str:
    """A claim of direction or kind in a line, for who looks for its error."""
    head = f"{type(claim).__name__} {claim.metric}"
    if isinstance(claim, Independent):
        return f"{head}, since {claim.since}, {'' if claim.is_alike else 'not '}alike"
    levels = [part for part in parts_of(claim) if isinstance(part, Level)]
    out = f"{head}: " + ", ".join(
        f"{x.value:.4g} ({x.low:.4g} to {x.high:.4g}) at {x.steps[0]}-{x.steps[1]}" for x in levels
    )
    return f"{out}, at most {claim.most_left:.3g} left" if isinstance(claim, Lost) else out


def _truth_words(truth: Truth, claim: Claim) -> str:
    """The true means behind a claim."""
    levels = [part for part in parts_of(claim) if isinstance(part, Level)]
    if levels:
        return ", ".join(f"{truth.mean(x):.4g}" for x in levels)
    depends = truth.run.depends
    is_ever = depends is not None and depends.any()
    last = f"until {truth.run.table.steps[depends][-1]}" if is_ever else "never"
    return f"depends {last}, {'' if truth.run.is_alike else 'not '}alike"


# -- many runs -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: the sums over a family, or over all."""

    family: str
    num_runs: int
    sums: Mapping[str, Share]
    """Of every count of `RunScore`, by its name."""
    delay: float
    """Median in steps; infinite: half of the runs or more were never called; NaN where nothing is
    awaited."""

    def misses(self) -> list[str]:
        """The counts that are not as asked."""
        most_false = MOST_FALSE if self.family == ALL else MOST_FALSE_OF_FAMILY
        # Where nothing moves every such claim is false: there the rows count.
        claims = self.sums["false_claims"]
        counted = "false_rows" if claims.num == claims.of else "false_claims"
        asked = {
            counted: (0.0, most_false),
            "levels": COVERAGE,
            "changes": COVERAGE,
            "onsets": ONSET_COVERAGE,
            "stated": ONSET_COVERAGE,
            "ends": (LEAST_ENDS, 1.0),
            "false_criticals": (0.0, MOST_CRITICALS),
            "extra_changes": (0.0, MOST_EXTRA),
            "twins": (0.0, 0.0),
        }
        return [
            name
            for name, (low, high) in asked.items()
            if self.sums[name].of and not low <= self.sums[name].share <= high
        ]

    def as_json(self) -> dict[str, Any]:
        """Counts as {num, of}; a delay that is not finite is null."""
        return {
            "family": self.family,
            "runs": self.num_runs,
            **{name: {"num": s.num, "of": s.of} for name, s in self.sums.items()},
            "delay": finite_or_none(self.delay),
            "is_never_called": math.isinf(self.delay),
            "misses": self.misses(),
        }

    def cells(self) -> tuple[str, ...]:
        """As `HEAD` names them; what is not as asked has a star."""
        stars = dict.fromkeys(self.misses(), "*")
        sums = self.sums
        false, rate = sums["false_claims"], sums["false_criticals"]

        def share(name: str) -> str:
            return f"{sums[name].share:.1%}{stars.get(name, '')}" if sums[name].of else ""

        def count(name: str) -> str:
            claim_count = sums[name]
            return (
                f"{claim_count.num} of {claim_count.of}{stars.get(name, '')}"
                if claim_count.of
                else ""
            )

        return (
            self.family,
            f"{share('false_claims')} of {false.of}" if false.of else "",
            count("false_episodes"),
            share("false_rows"),
            share("levels"),
            share("changes"),
            share("onsets"),
            share("stated"),
            count("ends"),
            f"{1000 * rate.share:.2g}{stars.get('false_criticals', '')}" if rate.of else "",
            f"{sums['extra_changes'].num}{stars.get('extra_changes', '')}",
            count("twins"),
            _delay(self.delay),
        )


HEAD = ("family", "false claims", "episodes", "false rows", "levels", "changes", "onsets",
        "headline onsets", "last state", "false criticals", "extra changes", "twins differ",
        "delay")  # fmt: skip
_SUMMED = ("false_claims", "false_episodes", "false_rows", "levels", "changes", "onsets", "stated",
           "ends", "false_criticals", "extra_changes", "twins")  # fmt: skip


def _delay(steps: float) -> str:
    return "" if math.isnan(steps) else "never" if math.isinf(steps) else f"{steps:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthTable:
    """All families, and what was worst."""

    scores: tuple[RunScore, ...]

    def rows(self) -> list[Row]:
        """One a family, in their order, and the sums last."""
        names = dict.fromkeys(score.family for score in self.scores)
        rows = [_row(name, [s for s in self.scores if s.family == name]) for name in names]
        return [*rows, _row(ALL, self.scores)]

    def grid(self) -> TextTable:
        """The table as text."""
        return TextTable(head=HEAD, rows=tuple(row.cells() for row in self.rows()))

    def worst(self, most: int = NUM_WORST) -> list[FalseClaim]:
        """The false claims that stood over most rows."""
        every = (false for score in self.scores for false in score.worst)
        return sorted(every, key=lambda false: -false.num_rows)[:most]

    def unscored(self) -> Counter[str]:
        """Claims whose truth is not known, by kind and metric."""
        return sum((score.unscored for score in self.scores), Counter())

    def as_json(self) -> dict[str, Any]:
        """Rows, sums, the worst false claims, and what could not be scored."""
        *rows, total = self.rows()
        return {
            "families": [row.as_json() for row in rows],
            "all": total.as_json(),
            "worst": [asdict(false) for false in self.worst(100)],
            "unscored": dict(self.unscored()),
            "runs": [
                {"family": s.family, "seed": s.seed, "states": s.states, "delay": _finite(s.delay)}
                for s in self.scores
            ],
        }


def _finite(delay: float | None) -> float | str | None:
    return "never" if delay == math.inf else delay


def _row(family: str, scores: Sequence[RunScore]) -> Row:
    delays = [score.delay for score in scores if score.delay is not None]
    has_delay = bool(delays) and family != ALL
    sums = {name: sum((getattr(s, name) for s in scores), Share()) for name in _SUMMED}
    return Row(
        family=family,
        num_runs=len(scores),
        sums=sums,
        delay=statistics.median(delays) if has_delay else math.nan,
    )


def truth_table(
    families: Iterable[str] = (),
    seeds: Iterable[int] = DEVELOP,
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> TruthTable:
    """Judge so many runs of each family at every row.

    Args:
        families: names in `FAMILIES`; none for all.
        jobs: processes.
        progress: called with (done, of) runs.

    Raises:
        KeyError: there is no such family.
    """
    tasks = [(name, seed) for name in families or FAMILIES for seed in seeds]
    scores = []
    for score in _scored(tasks, jobs):
        scores.append(score)
        if progress is not None:
            progress(len(scores), len(tasks))
    return TruthTable(scores=tuple(scores))


def _scored(tasks: Sequence[tuple[str, int]], jobs: int) -> Iterator[RunScore]:
    if jobs == 1:
        yield from itertools.starmap(score_run, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(score_run, *zip(*tasks, strict=True))


PARTS = {"develop": (DEVELOP,), "held-out": (HELD_OUT,), "all": (DEVELOP, HELD_OUT)}


def show(table: TruthTable, console: Console) -> None:
    """The table, the worst false claims, and what could not be scored."""
    grid = table.grid()
    drawn = Table(*grid.head)
    for cells in grid.rows:
        drawn.add_row(*cells)
    console.print(drawn)
    console.print("* not as asked")
    for false in table.worst():
        console.print(
            f"{false.family}, seed {false.seed}, step {false.step}, {false.num_rows} rows: "
            f"{false.claim}; true: {false.truth}",
            markup=False,
        )
    for what, times in table.unscored().most_common():
        console.print(f"the truth is not known: {what} ({times} times)", markup=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare every claim of the judge with the truth, at every row of simulated runs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--part", choices=PARTS, default="develop")
    parser.add_argument("--seeds", type=int, default=20, help="of each family and part")
    parser.add_argument("--family", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file: all counts and false claims")
    given = parser.parse_args(arguments)
    for name in given.family:
        if name not in FAMILIES:
            parser.error(f"no family {name!r}{did_you_mean(name, FAMILIES)}")
    seeds = [seed for part in PARTS[given.part] for seed in part[: given.seeds]]

    def progress(done: int, of: int) -> None:
        print(f"{done} of {of} runs", end="\r", file=sys.stderr)

    table = truth_table(given.family, seeds, jobs=given.jobs, progress=progress)
    if given.output is not None:
        given.output.write_text(json.dumps(table.as_json(), indent=1) + "\n", encoding="utf-8")
    show(table, Console(width=180))


if __name__ == "__main__":
    main()
