"""An evaluation is played: every episode once, stored as it ends, and gone on with after a kill.

Its run has a step for every part of the tasks. An episode is on the disk within two seconds of its
end, before its step is: whoever goes on reads those episodes back and plays only the others.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from echoscope.diagnostics.measure.outcomes import CountedEpisode, WorldTable, outcome_of, tables_of
from echoscope.diagnostics.tools.stored_outcomes import stored_outcomes
from echoscope.envs.pool import EnvPool
from echoscope.envs.reserving import TaskVariety, few_tasks
from echoscope.envs.workers.processes import WorkerProcesses
from echoscope.store.errors import RunExistsError
from echoscope.store.reader import open_run
from echoscope.store.records import Split, StepMetrics, StopReason, Trajectory
from echoscope.store.writer import RunWriter

from ..config.settings import RunConfig
from ..rollout.sources import processes_for, turns_maker
from .plan import TAG, Budget, described, part_of, recalled
from .players import Player, Spent, TaskBatch, make_player
from .who import Who

EPISODES_A_STEP = 2048
"""Of one part of the tasks. Parts are played one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What has been played, by all attempts."""

    path: Path
    who: Who
    config: RunConfig
    outcomes: tuple[CountedEpisode, ...]
    num_planned: int
    status: str
    spent: Spent
    is_used_up: bool = False
    """Its budget ended it."""
    is_biased: bool = False
    """It was cut off in the middle of episodes. Those that ended are the short ones, whose success
    tells little of the others."""
    notes: tuple[str, ...] = ()
    """Sentences about the tasks."""
    reason: str = ""
    """Why it is not whole; empty where it is."""
    seconds: float = 0.0

    @property
    def tables(self) -> list[WorldTable]:
        return tables_of(self.outcomes)


def start(
    who: Who,
    config: RunConfig,
    run_path: Path,
    *,
    budget: Budget,
    on_progress: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> Evaluation:
    """Play a new evaluation in `run_path`.

    Raises:
        ConfigError: something is wrong with who plays or with the settings; nothing was written.
        StoreError: the folder holds something, or the disk refuses.
    """
    if run_path.exists() and any(run_path.iterdir()):
        raise RunExistsError(
            f"{run_path} is not empty; to go on with an evaluation: `echoscope eval --resume "
            f"{run_path}`"
        )
    _check_worlds(config)
    with closing(make_player(who, config, budget)) as player:
        writer = RunWriter.create(
            run_path,
            run_id=run_path.name,
            config=described(who, config, budget),
            name=f"evaluation of {who.name}",
            base_model=who.typed if who.run is None else config.model.path,
            parent_run_id=None if who.run is None else who.run.resolve().name,
            tags=(TAG,),
        )
        return _Playing(who, config, budget, player, writer, on_progress, should_stop).run()


def resume(
    run_path: Path,
    *,
    budget: Budget | None,
    on_progress: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> Evaluation:
    """Play what an evaluation has not played yet.

    Args:
        budget: a new one; None for that of the evaluation.

    Raises:
        ConfigError: no evaluation, or who played is gone.
        StoreError: the run cannot be read, or somebody writes it.
    """
    reader = open_run(run_path)
    info = reader.info()
    who, config, old_budget = recalled(info.config, info.run_id)
    budget = budget or old_budget
    last_step = info.last_step
    before = stored_outcomes(reader, 0, last_step)
    # Of every attempt: one that was killed at once has put nothing into a step.
    open_step = open_run(run_path, all_attempts=True).trajectories_of_step(last_step + 1)
    if len(before) == sum(group.groups for group in config.envs.eval) * config.envs.eval_group_size:
        outcomes = tuple(outcome for _, outcome in sorted(before.items()))
        return Evaluation(
            path=run_path,
            who=who,
            config=config,
            outcomes=outcomes,
            num_planned=len(outcomes),
            status=info.status,
            spent=Spent.on(outcomes),
        )
    _check_worlds(config)
    with closing(make_player(who, config, budget)) as player:
        writer = RunWriter.resume(
            run_path, from_step=last_step, config=described(who, config, budget)
        )
        playing = _Playing(who, config, budget, player, writer, on_progress, should_stop)
        playing.recall(before, open_step)
        return playing.run()


def _check_worlds(config: RunConfig) -> None:
    """Raises EnvError where a world cannot be made."""
    ones = [group.model_copy(update={"groups": 1}) for group in config.envs.eval]
    EnvPool(ones, group_size=1, seed=0, split=Split.EVAL).close()


@dataclass(eq=False)
class _Playing:
    """One attempt at an evaluation."""

    who: Who
    config: RunConfig
    budget: Budget
    player: Player
    writer: RunWriter
    on_progress: Callable[[int, int], None]
    should_stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self._group_size = self.config.envs.eval_group_size
        self._num_groups = sum(group.groups for group in self.config.envs.eval)
        self._num_planned = self._num_groups * self._group_size
        self._outcomes: dict[int, CountedEpisode] = {}
        self._step = self.writer.acknowledged_step + 1
        self._num_committed = 0
        """Episodes that some step holds."""
        self._spent_before = Spent()
        """By earlier attempts."""
        self._is_cut = False
        """Episodes under way were dropped: those that had ended are the short ones."""
        self._num_begun = 0
        self._used_up = ""
        self._varieties: dict[str, TaskVariety] = {}

    def recall(self, before: Mapping[int, CountedEpisode], open_step: Sequence[Trajectory]) -> None:
        """What earlier attempts have played, and those episodes of it that are in no step yet."""
        self._outcomes = dict(before)
        self._num_committed = len(before)
        self._finished(list({t.index: t for t in open_step if t.index not in before}.values()))
        self.writer.flush()
        self._spent_before = Spent.on(self._outcomes.values())
        self._num_begun = len(self._outcomes)

    def run(self) -> Evaluation:
        began = time.perf_counter()
        status = "failed"
        processes = processes_for(self.config.collection, lambda text: None)
        try:
            self.on_progress(len(self._outcomes), self._num_planned)
            size = max(1, EPISODES_A_STEP // self._group_size)
            with _nothing_old_is_searched():
                for first in range(0, self._num_groups, size):
                    if not (self._used_up or self.should_stop()):
                        self._play_part(first, min(size, self._num_groups - first), processes)
            is_whole = len(self._outcomes) == self._num_planned
            status = "finished" if is_whole else "stopped"
        finally:
            self._commit()
            self.writer.close(status=status)
            if processes is not None:
                processes.close()
        return Evaluation(
            path=self.writer.path,
            who=self.who,
            config=self.config,
            outcomes=tuple(outcome for _, outcome in sorted(self._outcomes.items())),
            num_planned=self._num_planned,
            status=status,
            is_used_up=bool(self._used_up),
            is_biased=self._is_biased,
            notes=tuple(filter(None, [few_tasks(sorted(self._varieties.items()))])),
            reason=self._reason(),
            seconds=time.perf_counter() - began,
            spent=self._spent,
        )

    def _play_part(self, first: int, count: int, processes: WorkerProcesses | None) -> None:
        """The episodes of some groups that are still to be played, as one step."""
        begin = first * self._group_size
        slots = range(count * self._group_size)
        played = frozenset(slot for slot in slots if begin + slot in self._outcomes)
        if len(played) == len(slots):
            return
        pool = EnvPool(
            part_of(self.config.envs.eval, first, count),
            group_size=self._group_size,
            seed=self.config.seed,
            split=Split.EVAL,
            make_turns=turns_maker(self.config.collection, processes),
            first_group=first,
        )
        self._varieties |= dict(pool.varieties())
        try:
            self._is_cut = True
            self.player.play(
                TaskBatch(
                    pool=pool,
                    step=self._step,
                    played=played,
                    may_begin=self._may_begin,
                    on_finished=self._finished,
                    should_abort=self.should_stop,
                )
            )
            self._is_cut = self.should_stop() or bool(self.player.spent.problems)
        finally:
            pool.close()
        self._commit()

    def _may_begin(self) -> bool:
        """Whether the budget has room for another task."""
        budget, spent = self.budget, self._spent
        if budget.episodes is not None and self._num_begun + self._group_size > budget.episodes:
            self._used_up = f"the budget of {budget.episodes} episodes is used up"
        elif budget.tokens is not None and spent.num_tokens >= budget.tokens:
            self._used_up = (
                f"the budget of {budget.tokens} tokens is used up ({spent.num_tokens} so far)"
            )
        elif budget.cost is not None and (spent.cost or 0.0) >= budget.cost:
            self._used_up = f"the budget of {budget.cost:g} $ is used up"
        if not self._used_up:
            self._num_begun += self._group_size
        return not self._used_up

    @property
    def _spent(self) -> Spent:
        """By all attempts."""
        return self.player.spent.plus(self._spent_before)

    def _finished(self, ended: Sequence[Trajectory]) -> None:
        whole = [t for t in ended if t.stop_reason is not StopReason.ABORTED]
        self.writer.add_trajectories(whole)
        self._outcomes |= {t.index: outcome_of(t) for t in whole}
        self.on_progress(len(self._outcomes), self._num_planned)

    def _commit(self) -> None:
        """What was played since the last step becomes a step, with what is known so far."""
        if len(self._outcomes) == self._num_committed:
            return
        self._num_committed = len(self._outcomes)
        self.writer.commit_step(
            metrics=[
                StepMetrics(
                    run_id=self.writer.run_id,
                    step=self._step,
                    phase="eval",
                    values=self._metrics(),
                )
            ]
        )
        self.writer.flush()
        self._step += 1

    @property
    def _is_biased(self) -> bool:
        return self._is_cut and len(self._outcomes) < self._num_planned

    def _metrics(self) -> dict[str, float]:
        values = metrics_of(tables_of(tuple(self._outcomes.values())))
        if self._is_biased:
            return {key: value for key, value in values.items() if key.endswith("/num_tasks")}
        return values

    def _reason(self) -> str:
        missing = self._num_planned - len(self._outcomes)
        if not missing:
            return ""
        problems = self.player.spent.problems
        why = self._used_up or (problems[0] if problems else "it was stopped")
        return f"{missing} of {self._num_planned} episodes were not played: {why}"


@contextmanager
def _nothing_old_is_searched() -> Iterator[None]:
    """Python looks for garbage among new objects only: one search through all that the libraries of
    models have loaded takes as long as 200 short episodes."""
    if gc.get_freeze_count():  # somebody else has decided
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def metrics_of(tables: Sequence[WorldTable]) -> dict[str, float]:
    """The numbers of the tables under the keys that evaluations of a training have."""
    out: dict[str, float] = {}
    for table in tables:
        prefix = f"eval/{table.tag}"
        out |= {
            f"{prefix}/success_rate": table.success.value,
            f"{prefix}/success_rate_low": table.success.low,
            f"{prefix}/success_rate_high": table.success.high,
            f"{prefix}/return_mean": table.episode_return.value,
            f"{prefix}/action_valid_frac": table.valid_frac.value,
            f"{prefix}/num_turns_mean": table.num_turns.value,
            f"{prefix}/num_tasks": float(table.num_tasks),
        }
        out |= {f"{prefix}/pass_at_{k}": each.value for k, each in table.pass_at.items()}
    return out
