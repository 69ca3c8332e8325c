"""Multi-turn collection without a barrier: an episode goes on as soon as its own world answered.

One thread drives the engine; environments answer in threads beside it. Each sample depends on its
prompt, the weights and its seed alone, and each seed names its place, so the trajectories are those
of `rollout.collect`, whatever the order in which worlds answer (log-probs up to the rounding of the
engine's arithmetic).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from echoscope.envs.base import Observation
from echoscope.envs.pool import EnvPool, Leader, Slot
from echoscope.envs.turns.turn import TurnResult
from echoscope.envs.workers.threads import WorkerThreads
from echoscope.store.records import RolloutBatch, Split, StopReason, Trajectory

from ..config.context import ContextConfig
from ..engines.base import Sample, StreamingEngine
from .chat import ChatFormat
from .context import Reading
from .episode import (
    Episode,
    SamplingSettings,
    TurnShaping,
    begin,
    budget,
    finish_turn,
    read,
    sampling_params,
    sampling_seed,
    stop,
    trajectory,
)
from .rollout import grouped
from .stopping import Stopping

POLL_S = 0.05
"""Longest wait for an environment or an engine before commands are looked at again."""
_ENGINE_WAIT_S = 0.002
"""Longest wait for an engine elsewhere while environments may answer."""


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Who waited for whom, over some collections."""

    seconds: float = 0.0
    """Of collection in all."""
    engine_s: float = 0.0
    """In which the engine had nothing to sample: it waited for environments."""
    envs_s: float = 0.0
    """In which no environment was at work: all episodes waited for the engine."""
    request_seconds: float = 0.0
    """Requests at the engine, summed over the time."""
    call_seconds: float = 0.0
    """Calls of environments under way, summed over the time."""

    def note(self, seconds: float, num_requests: int, num_calls: int) -> None:
        """Add a while in which so many requests and calls were under way."""
        self.seconds += seconds
        self.engine_s += 0.0 if num_requests else seconds
        self.envs_s += 0.0 if num_calls else seconds
        self.request_seconds += seconds * num_requests
        self.call_seconds += seconds * num_calls

    def metrics(self) -> dict[str, float]:
        """`collection/*`."""
        total = self.seconds or 1.0
        return {
            "collection/engine_wait_s": self.engine_s,
            "collection/env_wait_s": self.envs_s,
            "collection/num_requests_mean": self.request_seconds / total,
            "collection/num_env_calls_mean": self.call_seconds / total,
        }


class Gate(Protocol):
    """Lets others use the engine between two responses, see `ahead.EngineGate`."""

    @property
    def is_wanted(self) -> bool:
        """Somebody waits: submit nothing more until nothing is pending."""
        ...

    def let_in(self) -> None:
        """Nothing is pending: returns when those who waited are done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Led:
    group: int
    leader: Leader
    slots: list[Slot]


def collect_async(
    *,
    pool: EnvPool,
    engine: StreamingEngine,
    chat: ChatFormat,
    context: ContextConfig,
    sampling: SamplingSettings,
    step: int,
    split: Split,
    seed: int,
    max_in_flight: int,
    num_threads: int,
    on_finished: Callable[[list[Trajectory]], None] | None = None,
    should_abort: Callable[[], bool] | None = None,
    shaping: TurnShaping | None = None,
    stopping: Stopping,
    draw_round: int = 0,
    waiting: Waiting | None = None,
    gate: Gate | None = None,
) -> RolloutBatch:
    """Play every episode of a step to its end; (P, G) trajectories, those of `collect`.

    Args:
        max_in_flight: episodes that go on at the same time; whole groups begin.
        num_threads: calls of environments that run at the same time.
        should_abort: asked again and again; True ends what still goes on as ABORTED.
        waiting: is told who waited for whom.
        gate: who else wants the engine between two responses.
    """
    step_play = _Step(
        pool=pool,
        engine=engine,
        chat=chat,
        context=context,
        sampling=sampling,
        place=(seed, split, step),
        first_group=pool.check_step(step, draw_round),
        max_in_flight=max_in_flight,
        shaping=shaping,
        stopping=stopping,
        workers=WorkerThreads(num_threads),
        waiting=waiting or Waiting(),
        on_finished=on_finished or (lambda ended: None),
        gate=gate,
    )
    try:
        return step_play.run(should_abort or (lambda: False))
    finally:
        step_play.close()


class _Step:
    """The episodes of one step, each at its own pace."""

    def __init__(
        self,
        *,
        pool: EnvPool,
        engine: StreamingEngine,
        chat: ChatFormat,
        context: ContextConfig,
        sampling: SamplingSettings,
        place: tuple[int, Split, int],
        first_group: int,
        max_in_flight: int,
        shaping: TurnShaping | None,
        stopping: Stopping,
        workers: WorkerThreads,
        waiting: Waiting,
        on_finished: Callable[[list[Trajectory]], None],
        gate: Gate | None,
    ) -> None:
        self._pool, self._engine, self._workers = pool, engine, workers
        self._chat, self._context, self._sampling = chat, context, sampling
        self._seed, self._split, self._step = place
        self._first_group = first_group
        self._room = max_in_flight
        self._shaping, self._stopping = shaping, stopping
        self._on_finished, self._gate = on_finished, gate
        self._begun = time.perf_counter()
        self._to_begin = deque(range(pool.num_groups))
        self._groups: dict[int, list[Slot]] = {}
        """The episodes that have started, of each group that has begun."""
        self._episodes: dict[int, Episode] = {}
        self._answers: dict[int, tuple[Sample, Reading]] = {}
        """Responses whose worlds have not answered yet."""
        self._ready: deque[Episode] = deque()
        """Episodes whose next prompt waits to be submitted."""
        self._finished: dict[int, Trajectory] = {}
        self._size = pool.num_groups * pool.group_size
        self._waiting = waiting

    def run(self, should_abort: Callable[[], bool]) -> RolloutBatch:
        while len(self._finished) < self._size:
            if should_abort():
                return self._abort()
            self._begin_groups()
            self._submit()
            before = time.perf_counter()
            num_requests, num_calls = self._engine.num_pending, self._workers.num_pending
            self._advance()
            self._waiting.note(time.perf_counter() - before, num_requests, num_calls)
        self._pool.check_started([self._episodes[index].slot for index in range(self._size)])
        return grouped(self._finished, self._pool)

    def close(self) -> None:
        """Leave behind whatever is still under way."""
        if self._engine.num_pending:
            self._engine.cancel()
        if self._workers.num_pending:
            self._pool.abandon()
        self._workers.close()

    def _advance(self) -> None:
        """Wait for a world or sample on, and take in what came of it."""
        is_sampling = self._engine.num_pending > 0
        for key, result in self._workers.finished(0.0 if is_sampling else POLL_S):
            if isinstance(result, _Led):
                self._led(result)
            elif isinstance(result, Slot):
                self._started(result)
            else:
                self._answered(key, result)
        if not is_sampling:
            if self._gate is not None and self._gate.is_wanted:
                self._gate.let_in()
            return
        wait_s = _ENGINE_WAIT_S if self._workers.num_pending else POLL_S
        for key, sample in self._engine.advance(max_wait_s=wait_s):
            self._sampled(self._episodes[key], sample)

    # -- episodes begin ---------------------------------------------------------------------

    def _begin_groups(self) -> None:
        size = self._pool.group_size
        is_idle = not self._room_taken()
        while self._to_begin and (is_idle or self._room_taken() + size <= self._room):
            p = self._to_begin.popleft()
            self._groups[p] = []
            self._workers.submit(-1 - p, partial(self._lead, p))
            is_idle = False

    def _room_taken(self) -> int:
        """Episodes that have a place: begun or about to, and not finished."""
        return len(self._groups) * self._pool.group_size - len(self._finished)

    def _lead(self, p: int) -> _Led:
        """In a worker: draw the group's task and start its first sibling."""
        leader = self._pool.lead(self._step, p, self._first_group)
        slots = [self._slot(index, leader, seen) for index, seen in leader.seen.items()]
        return _Led(group=p, leader=leader, slots=slots)

    def _follow(self, index: int, leader: Leader) -> Slot:
        """In a worker: start a sibling."""
        seen = self._pool.follow(self._step, index, leader, self._first_group)
        return self._slot(index, leader, seen)

    def _slot(self, index: int, leader: Leader, seen: Observation) -> Slot:
        return self._pool.slot(self._step, index, leader, seen, self._first_group)

    def _led(self, led: _Led) -> None:
        size = self._pool.group_size
        for index in range(led.group * size, (led.group + 1) * size):
            if index not in led.leader.seen:
                self._workers.submit(index, partial(self._follow, index, led.leader))
        for slot in led.slots:
            self._started(slot)

    def _started(self, slot: Slot) -> None:
        group = self._groups[slot.index // self._pool.group_size]
        group.append(slot)
        self._pool.check_group(sorted(group, key=lambda each: each.index))
        episode = begin(slot, self._chat, self._context)
        self._episodes[slot.index] = episode
        self._go_on(episode)

    # -- episodes go on ---------------------------------------------------------------------

    def _submit(self) -> None:
        if self._gate is not None and self._gate.is_wanted:
            return  # what is pending finishes, and then the engine is free for a moment
        while self._ready:
            episode = self._ready.popleft()
            slot = episode.slot
            self._engine.submit(
                slot.index,
                episode.prompt.tokens,
                sampling_params(
                    budget(episode, self._context), self._sampling, self._split, self._stopping
                ),
                seed=sampling_seed(
                    self._seed, self._split, self._step, slot.episode_index, len(episode.turns)
                ),
            )

    def _sampled(self, episode: Episode, sample: Sample) -> None:
        """Send a response to its world."""
        index = episode.slot.index
        reading, actions = read(episode, sample)
        self._answers[index] = (sample, reading)
        if actions is None:
            self._answered(index, None)
        else:
            self._workers.submit(index, partial(self._pool.step_one, index, *actions))

    def _answered(self, index: int, result: TurnResult | None) -> None:
        """Take in what a world answered."""
        episode = self._episodes[index]
        sample, reading = self._answers.pop(index)
        temperature = self._sampling.temperature
        finish_turn(episode, sample, reading, result, self._context, self._shaping, temperature)
        self._go_on(episode)

    def _go_on(self, episode: Episode) -> None:
        if episode.stop_reason is None:
            self._ready.append(episode)
            return
        self._end(episode, episode.stop_reason)

    def _end(self, episode: Episode, reason: StopReason) -> None:
        seconds = time.perf_counter() - self._begun
        ended = trajectory(episode, reason, self._step, self._split, seconds)
        self._finished[episode.slot.index] = ended
        self._on_finished([ended])

    def _abort(self) -> RolloutBatch:
        """End what still goes on; only whole groups are left."""
        for index, episode in sorted(self._episodes.items()):
            if index not in self._finished:
                stop(episode, StopReason.ABORTED)
                self._end(episode, StopReason.ABORTED)
        size = self._pool.group_size
        groups = [range(p * size, (p + 1) * size) for p in range(self._pool.num_groups)]
        return RolloutBatch(
            groups=tuple(
                tuple(self._finished[index] for index in group)
                for group in groups
                if all(index in self._finished for index in group)
            )
        )
