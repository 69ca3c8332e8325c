"""Simulated runs whose truth is known at every row: courses, and honest draws from them.

An episode is a coin flip whose chance is that of its prompt; prompts differ (beta distributed), and
the siblings of a group share one. The tasks of an evaluation are the same each time, each with a
difficulty of its own. A return has noise of its own scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from echoscope.diagnostics.judge.claims import Direction
from echoscope.diagnostics.read.table import MetricTable
from echoscope.store.records import FloatArray64, IntArray64

SUCCESS, EVALUATION = "rollout/success_rate", "eval/made/success_rate"
RETURN = "reward/return_mean"
DIFFICULTY_SPREAD = 1.5
"""Standard deviation of the difficulty of fixed tasks, in logits."""
NUM_PROMPTS = 8
PROMPT_SIBLINGS = 8
PERMUTATIONS = 200
"""Of the test whether texts depend on their prompts."""

Awaited = Literal["", "watch", "critical"]


@dataclass(frozen=True, slots=True)
class Onset:
    """Where a true mean begins to move: its first row (of a course), or step (of a run)."""

    at: int
    direction: Direction
    kind: Literal["jump", "ramp"]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """True means by row, and where they begin to move. Legend: **T** rows."""

    values: FloatArray64  # (T,)
    onsets: tuple[Onset, ...] = ()

    def __add__(self, other: Course | float) -> Course:
        if not isinstance(other, Course):
            return Course(self.values + other, self.onsets)
        values = self.values + other.values
        onsets = []
        for row in sorted({onset.at for onset in self.onsets + other.onsets}):
            kinds = [onset.kind for onset in self.onsets + other.onsets if onset.at == row]
            moved = values[row] - values[row - 1]  # what one loses the other may gain
            kind: Literal["jump", "ramp"] = "jump" if "jump" in kinds else "ramp"
            if moved:
                onsets.append(Onset(row, "rise" if moved > 0 else "fall", kind))
        return Course(values, tuple(onsets))

    def __mul__(self, factor: float) -> Course:
        onsets = self.onsets
        if factor < 0:
            onsets = tuple(
                replace(onset, direction="rise" if onset.direction == "fall" else "fall")
                for onset in onsets
            )
        return Course(self.values * factor, onsets if factor else ())


def course(num_rows: int, level: float, *legs: tuple[int, float, int]) -> Course:
    """A level, and legs (row, level to reach, rows between): 0 rows between is a jump.

    >>> course(5, 0.5, (2, 0.2, 1)).values.tolist()
    [0.5, 0.5, 0.35, 0.2, 0.2]
    """
    values = np.full(num_rows, level)
    onsets = []
    for row, to, between in legs:
        if not 0 < row < num_rows or values[row - 1] == to:
            continue
        share = np.clip((np.arange(num_rows - row) + 1) / (between + 1), 0.0, 1.0)
        start = values[row - 1]
        values[row:] = start + (to - start) * share
        onsets.append(Onset(row, "rise" if to > start else "fall", "ramp" if between else "jump"))
    return Course(values, tuple(onsets))


def saturating(num_rows: int, start: float, top: float, speed: float) -> Course:
    """Moves towards `top` from the first row on, by 1/`speed` of what is left a row."""
    values = start + (top - start) * (1 - np.exp(-np.arange(num_rows) / speed))
    return Course(values, (Onset(1, "rise" if top > start else "fall", "ramp"),))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TruthRun:
    """A simulated run: what the judge sees, and what is true. Legend: **R** rows."""

    table: MetricTable
    truth: Mapping[str, FloatArray64]
    """Metric -> its true mean at each row of the table (R,)."""
    of_such_tasks: Mapping[str, FloatArray64]
    """Metric -> its true mean over all tasks like those of an evaluation (R,), beside that over the
    tasks that it plays; only of evaluations."""
    onsets: Mapping[str, tuple[Onset, ...]]
    """Metric -> the steps at which its true mean begins to move."""
    ends: frozenset[str]
    """States that are right at the last row."""
    path: tuple[str, ...]
    """States that the run may pass, in order; each may be left out."""
    healthy_until: int
    """No critical state is right before this step."""
    awaited: Awaited = ""
    """What is to be said of the run: that it is critical, or that it needs a look at least."""
    awaited_from: int = 0
    """The step from which on that is true."""
    depends: NDArray[np.bool_] | None = None
    """Whether the texts depend on their prompts, by row (R,); None where there are no texts."""
    is_alike: bool = False
    """Texts that depend on no prompt are nearly the same."""
    twin: MetricTable | None = None
    """The same run with another zero point and unit of the return: its verdict must be the same."""


@dataclass(slots=True)
class Draft:
    """A run in the making: columns are drawn one after the other."""

    rng: np.random.Generator
    num_rows: int
    stride: int = 1
    """Training steps from row to row."""
    columns: dict[str, FloatArray64] = field(default_factory=dict)
    truth: dict[str, FloatArray64] = field(default_factory=dict)
    of_such_tasks: dict[str, FloatArray64] = field(default_factory=dict)
    onsets: dict[str, tuple[Onset, ...]] = field(default_factory=dict)
    depends: NDArray[np.bool_] | None = None
    is_alike: bool = False

    @property
    def steps(self) -> IntArray64:
        return np.arange(self.num_rows, dtype=np.int64) * self.stride

    def add(self, key: str, values: FloatArray64, true: Course) -> None:
        self.columns[key] = values
        self.truth[key] = true.values
        self.onsets[key] = tuple(
            replace(onset, at=int(self.steps[onset.at])) for onset in true.onsets
        )

    def training(
        self,
        true: Course,
        *,
        episodes: int | IntArray64 = 64,
        siblings: int = 8,
        correlation: float | None = None,
        says_episodes: bool = True,
        with_spread: bool = False,
    ) -> None:
        """Success of the episodes of each row.

        Args:
            episodes: of each row, a multiple of `siblings`; or by row (T,).
            siblings: episodes of one prompt.
            correlation: of the outcomes of siblings; None draws one.
            says_episodes: whether their number and that of the groups are columns.
            with_spread: whether the spread of the rewards within groups is.
        """
        rho = self.rng.uniform(0.02, 0.4) if correlation is None else correlation
        groups_T = np.broadcast_to(np.asarray(episodes) // siblings, (self.num_rows,))
        most = int(groups_T.max())
        chance_TG = _chances(self.rng, true.values[:, None], 1 / rho - 1, (self.num_rows, most))
        wins_TG = self.rng.binomial(siblings, chance_TG)
        is_there_TG = np.arange(most) < groups_T[:, None]
        wins_T = np.where(is_there_TG, wins_TG, 0).sum(axis=1)
        self.add(SUCCESS, wins_T / (groups_T * siblings), true)
        if says_episodes:
            still = Course(groups_T * float(siblings))
            self.add("rollout/num_episodes", still.values, still)
            self.add("rollout/num_groups", groups_T.astype(np.float64), Course(groups_T * 1.0))
        if with_spread:
            share_TG = wins_TG / siblings
            wins_K = np.arange(siblings + 1) / siblings
            chance_TK = np.array([_outcomes(p, 1 / rho - 1, siblings) for p in true.values])
            for key, of_group in {
                "reward/group_std_mean": lambda share: np.sqrt(share * (1 - share)),
                "reward/zero_std_frac": lambda share: (share * (1 - share) == 0) * 1.0,
                "reward/solved_frac": lambda share: (share == 1) * 1.0,
                "reward/hopeless_frac": lambda share: (share == 0) * 1.0,
            }.items():
                seen_T = np.where(is_there_TG, of_group(share_TG), 0).sum(axis=1) / groups_T
                self.add(key, seen_T, Course(chance_TK @ of_group(wins_K)))

    def evaluation(
        self,
        true: Course,
        *,
        every: int,
        num_tasks: int | IntArray64 = 128,
        key: str = EVALUATION,
    ) -> None:
        """Success on fixed tasks at every so many rows: true of the tasks drawn, and of all such.

        Args:
            num_tasks: or by row (T,): another number is another set.
        """
        tasks_T = np.broadcast_to(np.asarray(num_tasks), (self.num_rows,))
        mean_T = np.empty(self.num_rows)
        seen_T = np.full(self.num_rows, np.nan)
        hard_S = {
            size: self.rng.normal(0.0, DIFFICULTY_SPREAD, int(size)) for size in np.unique(tasks_T)
        }
        for row in range(self.num_rows):
            chance_S = _of_tasks(float(true.values[row]), hard_S[tasks_T[row]])
            mean_T[row] = chance_S.mean()
            if row % every == 0:
                seen_T[row] = (self.rng.random(len(chance_S)) < chance_S).mean()
        self.add(key, seen_T, Course(mean_T, true.onsets))
        self.of_such_tasks[key] = np.array([_of_such_tasks(float(p)) for p in true.values])
        if key.startswith("eval/"):
            tasks = np.where(np.isnan(seen_T), np.nan, tasks_T * 1.0)
            self.add(key.replace("success_rate", "num_tasks"), tasks, Course(tasks_T * 1.0))

    def amount(self, key: str, true: Course, noise: float | FloatArray64) -> None:
        """Any quantity, with normal noise."""
        self.add(key, true.values + self.rng.normal(0.0, 1.0, self.num_rows) * noise, true)

    def share(self, key: str, true: Course, trials: int) -> None:
        """A share of so many independent outcomes that nobody counts."""
        self.add(key, self.rng.binomial(trials, true.values) / trials, true)

    def returns(
        self, *, gain: float, base: float, noise: float, plus: Course | None = None
    ) -> None:
        """A return that pays for success, and for something else."""
        moved = Course(self.truth[SUCCESS]) * gain + base
        moved = replace(moved, onsets=self.onsets_by_row(SUCCESS, gain))
        extra = self.rng.normal(0.0, noise, self.num_rows)
        seen = base + gain * self.columns[SUCCESS] + extra
        if plus is not None:
            moved, seen = moved + plus, seen + plus.values
        self.add(RETURN, seen, moved)

    def onsets_by_row(self, key: str, factor: float) -> tuple[Onset, ...]:
        by_row = Course(
            self.truth[key], tuple(replace(o, at=o.at // self.stride) for o in self.onsets[key])
        )
        return (by_row * factor).onsets

    def texts(
        self, depends: Course, *, is_alike: bool = False, chance: float = 1 / NUM_PROMPTS
    ) -> None:
        """Measures of the replies' texts: how far they tell their prompt, 0 to 1 by row."""
        self.depends, self.is_alike = depends.values > 0, is_alike
        accuracy = depends * (0.9 - chance) + chance
        num_texts = NUM_PROMPTS * PROMPT_SIBLINGS
        spread_T = np.sqrt(accuracy.values * (1 - accuracy.values) / num_texts) * 1.3
        self.add(
            "text/retrieval_accuracy",
            accuracy.values + self.rng.normal(0.0, spread_T),
            accuracy,
        )
        by_chance = 1.3 * math.sqrt(chance * (1 - chance) / num_texts)
        sigmas_T = (self.columns["text/retrieval_accuracy"] - chance) / by_chance
        better_T = np.array([0.5 * math.erfc(z / math.sqrt(2)) for z in sigmas_T])
        p_T = (1 + self.rng.binomial(PERMUTATIONS, better_T)) / (1 + PERMUTATIONS)
        self.columns["text/retrieval_p_value"] = p_T
        self.columns["text/retrieval_chance"] = np.full(self.num_rows, chance)
        told = depends * 0.8
        self.add(
            "text/dependence",
            np.maximum(told.values + self.rng.normal(0, 0.03, self.num_rows), 0.0),
            Course(_mean_above_zero(told.values, 0.03), told.onsets),
        )
        same = depends * (-0.7 if is_alike else 0.0) + (0.9 if is_alike else 0.15)
        for key in ("text/template_frac", "text/near_duplicate_frac"):
            self.amount(key, same, 0.02)

    def others(self) -> None:
        """What most trainers log beside success, and that says nothing here; in half of the runs
        the file holds none of it."""
        if self.rng.random() < 0.5:
            return
        rng, num_rows = self.rng, self.num_rows
        entropy = rng.uniform(0.2, 1.5)
        self.amount("policy/entropy", course(num_rows, entropy), 0.04 * entropy)
        length = rng.uniform(80, 900)
        self.amount("rollout/response_length_mean", course(num_rows, length), 0.05 * length)
        valid = course(num_rows, rng.uniform(0.9, 0.99))
        self.share("rollout/action_valid_frac", valid, 512)
        norm = rng.uniform(0.1, 3)
        spread = rng.uniform(0.1, 0.4)  # of the logarithm: gradients have heavy tails
        mean = Course(np.full(num_rows, norm * math.exp(spread**2 / 2)))
        self.add("optim/grad_norm", norm * np.exp(rng.normal(0, spread, num_rows)), mean)

    def run(
        self,
        *,
        ends: Sequence[str],
        path: Sequence[str],
        healthy_until: int | None = None,
        awaited: Awaited = "",
        awaited_from: int | None = None,
        table: MetricTable | None = None,
        twin: tuple[float, float] | None = None,
    ) -> TruthRun:
        """The finished run.

        Args:
            healthy_until: a row; None: to the end.
            awaited_from: a row; None: where health ends.
            table: the same columns as another reading gave them.
            twin: factor and constant of the return of the twin.
        """
        table = table or table_of(self.steps, self.columns)
        last = int(table.steps[-1])
        until = last + 1 if healthy_until is None else int(self.steps[healthy_until])
        other = None
        if twin is not None:
            scale, constant = twin
            moved = table.columns[RETURN] * scale + constant
            other = replace(table, columns={**table.columns, RETURN: moved})
        return TruthRun(
            table=table,
            truth=self.truth,
            of_such_tasks=self.of_such_tasks,
            onsets=self.onsets,
            ends=frozenset(ends),
            path=tuple(path),
            healthy_until=until,
            awaited=awaited,
            awaited_from=until if awaited_from is None else int(self.steps[awaited_from]),
            depends=self.depends,
            is_alike=self.is_alike,
            twin=other,
        )


def table_of(steps: IntArray64, columns: Mapping[str, FloatArray64]) -> MetricTable:
    return MetricTable(steps=steps, columns=dict(columns), sources={})


def _chances(
    rng: np.random.Generator, mean: FloatArray64, total: float, shape: tuple[int, int]
) -> FloatArray64:
    """Chances of prompts around a mean: beta, of which `total` is the sum of both parameters."""
    inside = np.clip(mean, 1e-9, 1 - 1e-9)
    drawn = rng.beta(inside * total, (1 - inside) * total, shape)
    return np.asarray(np.where((mean <= 0) | (mean >= 1), mean, drawn))


def _outcomes(mean: float, total: float, siblings: int) -> FloatArray64:
    """Probabilities of 0 to all of a group's siblings succeeding (beta-binomial)."""
    if mean <= 0 or mean >= 1:
        return np.asarray(np.arange(siblings + 1) == (0 if mean <= 0 else siblings), np.float64)
    wins_weight, losses_weight, log = mean * total, (1 - mean) * total, math.lgamma
    return np.array(
        [
            math.comb(siblings, wins)
            * math.exp(
                log(wins + wins_weight)
                + log(siblings - wins + losses_weight)
                - log(siblings + total)
                + log(total)
                - log(wins_weight)
                - log(losses_weight)
            )
            for wins in range(siblings + 1)
        ]
    )


def _of_tasks(mean: float, hard_S: FloatArray64) -> FloatArray64:
    """The chance of each task where the mean over many tasks is about `mean`."""
    if mean <= 0 or mean >= 1:
        return np.full(len(hard_S), mean)
    # The logistic of a normal variable has about this mean (MacKay 1992).
    wider = math.sqrt(1 + math.pi * DIFFICULTY_SPREAD**2 / 8)
    logit = wider * math.log(mean / (1 - mean))
    return np.asarray(1 / (1 + np.exp(-(logit + hard_S))))


def _of_such_tasks(mean: float) -> float:
    """The mean chance of all tasks of which `_of_tasks` draws some."""
    nodes_N, weights_N = np.polynomial.hermite_e.hermegauss(40)
    chance_N = _of_tasks(mean, DIFFICULTY_SPREAD * nodes_N)
    return float(chance_N @ weights_N / weights_N.sum())


def _mean_above_zero(mean_T: FloatArray64, sigma: float) -> FloatArray64:
    """Mean of max(x, 0) of a normal x."""
    z = mean_T / sigma
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    return np.asarray(mean_T * below + sigma * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))
