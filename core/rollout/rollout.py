"""Multi-turn collection: environments and policy take turns (the papers' Agent Proxy).

An episode goes on as soon as its own world has answered. In lock-step there is a barrier: all
episodes still going sample together, and then all their worlds answer, so that the slowest world
sets the pace. Each sample depends on its prompt, the weights and its seed alone, and each seed
names its place, so the trajectories are the same (log-probs up to the rounding of the engine's
arithmetic).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from echoscope.envs.pool import EnvPool, Leader, Slot
from echoscope.envs.turns.turn import TurnResult
from echoscope.envs.workers.threads import WorkerThreads
from echoscope.store.records import (
    FinishReason,
    RolloutBatch,
    Split,
    StopReason,
    Trajectory,
    prompt_key,
)

from ..config.collection import CollectionConfig
from ..config.context import ContextConfig
from ..config.settings import SamplingConfig
from ..engines.base import Engine, Sample, SamplingParams
from .chat import ChatFormat
from .context import ResponseReading
from .episode import LiveEpisode, SamplingSettings, TurnShaping, sampling_seed
from .stop_strings import Stopping

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


class _WorldCalls:
    """Calls into worlds under way, each with what is done with its result in this thread.

    Worlds run in threads, or one after the other in this one, where a signal can cut into them.
    """

    def __init__(self, num_threads: int, *, threaded: bool) -> None:
        self._threads, self._threaded = WorkerThreads(num_threads), threaded
        self._own: deque[tuple[int, Callable[[], Any]]] = deque()
        self._then: dict[int, Callable[[Any], None]] = {}

    @property
    def num_pending(self) -> int:
        return len(self._own) + self._threads.num_pending

    def submit(self, key: int, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._then[key] = then
        if self._threaded:
            self._threads.submit(key, call)
        else:
            self._own.append((key, call))

    def take_in(self, max_wait_s: float, *, all_of_them: bool = False) -> None:
        """Make the calls of this thread; take in what has returned, waiting so long for the first.

        Args:
            all_of_them: wait for every call, and take them in by their keys.
        """
        results: list[tuple[int, Any]] = []
        while self._own:
            key, call = self._own[0]
            try:
                results.append((key, call()))
            except Exception:
                self._own.clear()  # none of these has begun; only a signal leaves a call behind
                raise
            self._own.popleft()
        results += self._threads.finished(0.0 if results else max_wait_s)
        while all_of_them and self._threads.num_pending:
            results += self._threads.finished(max_wait_s)
        if all_of_them:
            results.sort(key=lambda result: result[0])
        for key, result in results:
            self._then.pop(key)(result)

    def close(self) -> None:
        self._threads.close()


@dataclass(kw_only=True, eq=False)
class Collection:
    """Every episode of a step, played to its end by `run`."""

    pool: EnvPool
    engine: Engine
    chat: ChatFormat
    context: ContextConfig
    sampling: SamplingSettings
    """Temperature (0 for greedy), top_p, top_k and min_p."""
    step: int
    split: Split
    seed: int
    on_finished: Callable[[list[Trajectory]], None] = lambda ended: None
    """Called with the trajectories that ended in a turn, so that they can be written while others
    go on."""
    should_abort: Callable[[], bool] = lambda: False
    """Asked before each turn; True ends what still goes on as ABORTED."""
    shaping: TurnShaping | None = None
    """Adds named terms to each turn's reward."""
    stopping: Stopping | None = None
    """What ends a reply; the model's own stop tokens if None."""
    draw_round: int = 0
    """How often the step has been played with other tasks before."""
    pace: CollectionConfig = field(default_factory=CollectionConfig)
    """How episodes wait for each other."""
    waiting: Waiting = field(default_factory=Waiting)
    """Is told who waited for whom, but in lock-step."""
    played: frozenset[int] = frozenset()
    """Slots whose episodes have been played before, and are not played again."""
    may_begin: Callable[[], bool] = lambda: True
    """Asked before a group begins; after False none does, and those in play end."""
    seed_step: int | None = None
    """The step that the random draws are named by; `step` if None."""

    def __post_init__(self) -> None:
        stopping = self.stopping or Stopping(self.chat, SamplingConfig())
        self._params = SamplingParams(
            max_new_tokens=1,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            min_p=self.sampling.min_p,
            records_support=self.split is Split.TRAIN,
            stop_token_ids=stopping.token_ids,
            watch=stopping.watch,
        )
        self._first_group = self.pool.check_step(self.step, self.draw_round)
        self._begun = time.perf_counter()
        self._size = self.pool.num_groups * self.pool.group_size
        self._in_lockstep = self.pace.mode == "lockstep"
        num_threads = self.pace.num_threads(self._size)
        self._calls = _WorldCalls(num_threads, threaded=not self._in_lockstep)
        self._num_begun = 0
        """Episodes of the groups that have begun, but for those played before."""
        self._to_begin = deque(
            p
            for p in range(self.pool.num_groups)
            if any(index not in self.played for index in self.pool.slots_of(p))
        )
        self._groups: dict[int, list[Slot]] = {}
        """The episodes that have started, of each group that has begun."""
        self._episodes: dict[int, LiveEpisode] = {}
        self._ready: deque[LiveEpisode] = deque()
        """Episodes whose next prompt waits to be sampled from."""
        self._finished: dict[int, Trajectory] = {}
        self._untold: list[Trajectory] = []

    def run(self) -> RolloutBatch:
        """(P, G) trajectories."""
        try:
            while self._to_begin or self._num_in_flight:
                self._begin_groups()
                if self.should_abort():
                    self._abort()
                    break
                if self._in_lockstep:
                    self._go_on_together()
                else:
                    self._go_on_apart()
                self._tell()
            self._tell()
            return self._batch()
        finally:
            self._close()

    def _close(self) -> None:
        """Leave behind whatever is still under way."""
        if self.engine.num_pending:
            self.engine.cancel()
        if self._calls.num_pending:
            self.pool.abandon()
        self._calls.close()

    def _go_on_together(self) -> None:
        """One response of every episode, then the answers of all worlds."""
        self._await_worlds()
        self._submit_ready()
        samples: dict[int, Sample] = {}
        while self.engine.num_pending:
            samples.update(self.engine.advance(max_wait_s=POLL_S))
        for key in sorted(samples):
            self._sampled(self._episodes[key], samples[key])
        self._await_worlds()

    def _await_worlds(self) -> None:
        while self._calls.num_pending:
            self._calls.take_in(POLL_S, all_of_them=True)

    def _go_on_apart(self) -> None:
        """Submit what is ready; then wait for a world or sample on."""
        self._submit_ready()
        before = time.perf_counter()
        num_requests, num_calls = self.engine.num_pending, self._calls.num_pending
        self._calls.take_in(0.0 if num_requests else POLL_S)
        if num_requests:
            wait_s = _ENGINE_WAIT_S if self._calls.num_pending else POLL_S
            for key, sample in self.engine.advance(max_wait_s=wait_s):
                self._sampled(self._episodes[key], sample)
        self.waiting.note(time.perf_counter() - before, num_requests, num_calls)

    def _submit_ready(self) -> None:
        while self._ready:
            episode = self._ready.popleft()
            self.engine.submit(
                episode.slot.index,
                episode.prompt.tokens,
                replace(self._params, max_new_tokens=episode.budget),
                seed=sampling_seed(
                    self.seed,
                    self.split,
                    self.step if self.seed_step is None else self.seed_step,
                    episode.slot.episode_index,
                    len(episode.turns),
                ),
            )

    # -- episodes begin ---------------------------------------------------------------------

    def _begin_groups(self) -> None:
        size = self.pool.group_size
        room = self.pace.in_flight(self._size)
        while self._to_begin and self._num_in_flight + size <= max(room, size):
            if not self.may_begin():
                self._to_begin.clear()
                return
            p = self._to_begin.popleft()
            self._groups[p] = []
            self._num_begun += sum(index not in self.played for index in self.pool.slots_of(p))
            self._calls.submit(p * size, partial(self._lead, p), partial(self._led, p))

    @property
    def _num_in_flight(self) -> int:
        """Episodes that have a place: begun or about to, and not finished."""
        return self._num_begun - len(self._finished)

    def _lead(self, p: int) -> tuple[Leader, list[Slot]]:
        """In a worker: draw the group's task and start its first sibling."""
        leader = self.pool.lead(self.step, p, self._first_group)
        return leader, [self.pool.start(index, leader) for index in leader.seen]

    def _led(self, p: int, led: tuple[Leader, list[Slot]]) -> None:
        leader, slots = led
        for index in self.pool.slots_of(p):
            if index not in leader.seen and index not in self.played:
                self._calls.submit(index, partial(self.pool.start, index, leader), self._started)
        for slot in slots:
            if slot.index not in self.played:
                self._started(slot)

    def _started(self, slot: Slot) -> None:
        group = self._groups[slot.index // self.pool.group_size]
        group.append(slot)
        self.pool.check_group(sorted(group, key=lambda each: each.index))
        episode = LiveEpisode.begin(slot, self.chat, self.context)
        self._episodes[slot.index] = episode
        if len(self._episodes) + len(self.played) == self._size:
            slots = [episode.slot for _, episode in sorted(self._episodes.items())]
            self.pool.check_started(slots)
        self._go_on(episode)

    # -- episodes go on ---------------------------------------------------------------------

    def _sampled(self, episode: LiveEpisode, sample: Sample) -> None:
        """Send a response to its world; nobody answers an aborted one."""
        index = episode.slot.index
        reading = episode.conversation.respond(sample.tokens)
        then = partial(self._answered, episode, sample, reading)
        if sample.finish_reason is FinishReason.ABORT:
            then(None)
        else:
            reply = reading.parsed
            step = partial(self.pool.step_one, index, reply.actions, reply.is_well_formed)
            self._calls.submit(index, step, then)

    def _answered(
        self,
        episode: LiveEpisode,
        sample: Sample,
        reading: ResponseReading,
        result: TurnResult | None,
    ) -> None:
        """Record a turn that a world has answered, and prepare the next prompt or the end.

        Args:
            result: None for an aborted response.
        """
        turn = episode.next_turn(
            reading.text,
            reading.parsed,
            result,
            prompt_tokens=episode.prompt.tokens,
            response_tokens=sample.tokens,
            logprobs=sample.logprobs,
            entropies=sample.entropies,
            temperature=self.sampling.temperature,
            support=sample.support,
            reasoning_span=reading.reasoning_span,
            finish_reason=sample.finish_reason,
            policy_version=sample.policy_version,
        )
        if self.shaping is not None:
            turn = replace(turn, shaping=dict(self.shaping(turn)))
        episode.turns.append(turn)
        episode.num_sampled_tokens += len(sample.tokens)
        if result is None:
            episode.stop(StopReason.ABORTED)
        else:
            episode.advance(result)
        self._go_on(episode)

    def _go_on(self, episode: LiveEpisode) -> None:
        reason = episode.stop_reason
        if reason is None:
            self._ready.append(episode)
            return
        ended = episode.as_trajectory(
            reason,
            prompt_key=prompt_key(episode.first_prompt.tokens),
            step=self.step,
            split=self.split,
            is_success=episode.success,
            duration_s=time.perf_counter() - self._begun,
        )
        self._finished[episode.slot.index] = ended
        self._untold.append(ended)

    def _abort(self) -> None:
        """End what still goes on."""
        for index, episode in sorted(self._episodes.items()):
            if index not in self._finished:
                episode.stop(StopReason.ABORTED)
                self._go_on(episode)

    def _tell(self) -> None:
        if self._untold:
            untold, self._untold = self._untold, []
            self.on_finished(sorted(untold, key=lambda each: each.index))

    def _batch(self) -> RolloutBatch:
        """The groups that were played wholly, or cut off after all had begun."""
        groups = [self.pool.slots_of(p) for p in range(self.pool.num_groups)]
        return RolloutBatch(
            groups=tuple(
                tuple(self._finished[index] for index in group)
                for group in groups
                if all(index in self._finished for index in group)
            )
        )
