"""Evaluations side by side: read from their runs, grouped by what was played, ranked by success.

Only evaluations that played the same tasks of the same world are ranked together.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from echoscope.diagnostics.measure.outcomes import (
    CountedEpisode,
    Estimate,
    TaskKey,
    WorldTable,
    paired_estimate,
    tables_of,
    task_rates,
)
from echoscope.diagnostics.tools.stored_outcomes import Planned, planned, stored_outcomes
from echoscope.store.query.listing import RunRow
from echoscope.store.reader import open_run
from echoscope.store.status import Origin

from ..page.problems import Problem
from . import queries

BEST, APART, ALIKE, UNKNOWN = (
    "best",
    "lower than the best",
    "cannot be told apart: the interval of the difference holds 0",
    "cannot be told apart: fewer than two tasks in common",
)
"""How an evaluation stands to the best of its group."""
World = tuple[str, str]
"""Tag and environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlayed:
    """What an evaluation has played of one world."""

    table: WorldTable
    tasks: frozenset[str]
    """The names of the tasks, those without a known outcome as well."""
    rates: Mapping[TaskKey, float]
    """The success of each task with a known outcome."""
    cost: float | None
    """In US dollars; None where no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One evaluation as far as it was played. Texts come from files: hostile."""

    run_id: str
    created_at: float
    plan: Planned
    num_played: int
    worlds: Mapping[World, WorldPlayed]

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_whole(self) -> bool:
        return self.num_played >= self.plan.num_episodes

    @property
    def progress(self) -> str:
        """`240`, or `28 of 240` where some episodes are still to be played."""
        of = "" if self.is_whole else f" of {self.plan.num_episodes:,}"
        return f"{self.num_played:,}{of}"


def played_of(
    run_id: str, created_at: float, plan: Planned, outcomes: Sequence[CountedEpisode]
) -> Played:
    """An evaluation from its episodes."""
    by_world: dict[World, list[CountedEpisode]] = defaultdict(list)
    for outcome in outcomes:
        by_world[outcome.world].append(outcome)
    return Played(
        run_id=run_id,
        created_at=created_at,
        plan=plan,
        num_played=len(outcomes),
        worlds={world: _world_played(of) for world, of in by_world.items()},
    )


def _world_played(outcomes: Sequence[CountedEpisode]) -> WorldPlayed:
    costs = [outcome.cost for outcome in outcomes if outcome.cost is not None]
    return WorldPlayed(
        table=tables_of(outcomes)[0],
        tasks=frozenset(outcome.task for outcome in outcomes),
        rates=task_rates(outcomes),
        cost=sum(costs) if costs else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """An evaluation in its group."""

    played: Played
    here: WorldPlayed
    difference: Estimate | None
    """Its success minus that of the best, task by task; None of the best itself."""

    @property
    def standing(self) -> str:
        """BEST, APART, ALIKE or UNKNOWN."""
        if self.difference is None:
            return BEST
        low, high = self.difference.low, self.difference.high
        if not low <= high:  # NaN
            return UNKNOWN
        return ALIKE if low <= 0 <= high else APART


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationGroup:
    """Evaluations that played the same tasks of one world, the best first."""

    world: World
    num_tasks: int
    rows: tuple[Ranked, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the settings: the tasks are what makes the group, and this is how people name them."""
        return tuple(
            sorted({r.played.plan.seed for r in self.rows if r.played.plan.seed is not None})
        )

    def has(self, run_id: str | None) -> bool:
        return any(row.played.run_id == run_id for row in self.rows)


def difference_from(evaluation: Played, best: Played, world: World) -> Estimate:
    """Success of an evaluation minus that of the best, on the tasks of a world."""
    ours, theirs = evaluation.worlds[world].rates, best.worlds[world].rates
    return _paired(tuple(ours[task] - theirs[task] for task in ours if task in theirs))


_paired = functools.lru_cache(maxsize=1_024)(paired_estimate)
"""A bootstrap takes a while."""


def grouped(evaluations: Sequence[Played]) -> list[EvaluationGroup]:
    """The evaluations of each world and set of tasks, ranked; the group with the newest first."""
    members: dict[tuple[World, frozenset[str]], list[Played]] = defaultdict(list)
    for played in sorted(evaluations, key=lambda played: -played.created_at):
        for world, here in played.worlds.items():
            members[world, here.tasks].append(played)
    return [
        EvaluationGroup(world=world, num_tasks=len(tasks), rows=_ranked(of, world))
        for (world, tasks), of in members.items()
    ]


def _ranked(evaluations: Sequence[Played], world: World) -> tuple[Ranked, ...]:
    def order(played: Played) -> tuple[bool, float]:
        success = played.worlds[world].table.success.value
        return success != success, -success  # unknown ones come last

    ranked = sorted(evaluations, key=order)
    best = ranked[0]
    return tuple(
        Ranked(
            played=each,
            here=each.worlds[world],
            difference=None if each is best else difference_from(each, best, world),
        )
        for each in ranked
    )


# --- read from the runs under the root


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluations:
    """What is known of the evaluations under the root."""

    rows: Mapping[str, RunRow]
    """Every evaluation that can be listed, by the name of its run."""
    played: tuple[Played, ...]
    unreadable: Mapping[str, str]
    """Run -> why. Hostile."""
    num_waiting: int
    """Not read yet: ask again."""


def stored_evaluations(*, within_s: float = 0.0) -> StoredEvaluations:
    """The evaluations under the root.

    What is still to be read is read beside the pages; this waits for it for `within_s` seconds.
    0 reads nothing.

    Raises:
        Problem: the root cannot be listed.
    """
    ends_at = time.monotonic() + within_s
    rows = [row for row in queries.runs() if row.origin is Origin.EVALUATED and not row.problem]
    positions: dict[str, queries.Position] = {}
    unreadable: dict[str, str] = {}
    for row in rows:
        try:
            positions[row.run_id] = queries.position(row.run_id)
        except Problem as problem:
            unreadable[row.run_id] = problem.text
    answers = {run_id: _kept(position) for run_id, position in positions.items()}
    if None in answers.values() and within_s > 0:
        _read_beside([run_id for run_id, answer in answers.items() if answer is None], positions)
        while None in answers.values() and not _errors and time.monotonic() < ends_at:
            time.sleep(0.01)
            answers = {run_id: _kept(position) for run_id, position in positions.items()}
    if _errors:
        raise _errors.pop()
    unreadable |= {run_id: a.text for run_id, a in answers.items() if isinstance(a, Problem)}
    return StoredEvaluations(
        rows={row.run_id: row for row in rows},
        played=tuple(answer for answer in answers.values() if isinstance(answer, Played)),
        unreadable=unreadable,
        num_waiting=list(answers.values()).count(None),
    )


def played_by(run_id: str) -> Played:
    """What an evaluation has played so far.

    Raises:
        Problem: it cannot be read.
    """
    position = queries.position(run_id)
    answer: Played | Problem = queries.answers.get(
        _key(position), position, lambda: _read_one(run_id)
    )
    if isinstance(answer, Problem):
        raise answer
    return answer


def _key(position: queries.Position) -> tuple[str, str]:
    return "played", position[0]


def _kept(position: queries.Position) -> Played | Problem | None:
    """What is known of an evaluation as it stands; None where it was not read yet."""
    answer = queries.answers.latest(_key(position))
    return answer.value if answer and answer.position == position else None


_beside = threading.Lock()
"""Held while evaluations are read beside the pages."""
_errors: list[Exception] = []
"""What ended such reading, a mistake of ours: the page that asks next shows it."""


def _read_beside(run_ids: Sequence[str], positions: Mapping[str, queries.Position]) -> None:
    """Read evaluations in a thread, unless one does so already."""

    def read() -> None:
        try:
            for run_id in run_ids:
                ask = functools.partial(_read_one, run_id)
                queries.answers.get(_key(positions[run_id]), positions[run_id], ask)
        except Exception as error:  # noqa: BLE001 - raised again where a page asks
            _errors.append(error)
        finally:
            _beside.release()

    if _beside.acquire(blocking=False):
        threading.Thread(target=read, name="evaluations", daemon=True).start()


def _read_one(run_id: str) -> Played | Problem:
    """What an evaluation has played; a Problem is kept as well, until something is written."""
    try:
        with queries.reading(run_id):
            run = open_run(queries.path_of(run_id))
            info = run.info()
            plan = planned(info.config)
            if plan is None:
                return Problem(f"{run_id} is no evaluation")
            # The step that is still open has episodes as well.
            outcomes = stored_outcomes(run, 0, info.last_step + 1)
            return played_of(run_id, info.created_at, plan, list(outcomes.values()))
    except Problem as problem:
        return problem
