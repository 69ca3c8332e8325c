"""Episodes of the next steps, played while the update runs: at most so many steps ahead.

A thread plays step after step with the weights at hand. The training thread fetches the steps in
order; the step that it fetches allows the thread `max_staleness` steps more, never further. New
weights reach the engine between two responses: the thread submits nothing more, waits until nothing
is pending, and lets the training thread in. What was played ahead is nowhere but in memory: a run
that stops drops it, and a run that goes on plays it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from echoscope.envs.reserving import TaskVariety
from echoscope.store.records import IntArray, RolloutBatch

from ..config.settings import RunConfig
from ..engines.base import GenerationEngine, Sample, SamplingParams, measured
from .rollout import Waiting
from .sources import EnvSource

_WAKE_S = 0.1
"""The training thread looks up so often while it waits, so that a signal reaches it."""
_END_S = 10.0
"""Longest wait for the thread to end; it is a daemon."""


class EngineGate:
    """One engine, one thread that plays, and one visitor who now and then needs the engine."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_visitors = 0
        self._is_playing = False

    @property
    def is_wanted(self) -> bool:
        return self._num_visitors > 0

    def begin(self) -> None:
        """The player takes the engine, once no visitor has it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_visitors)
            self._is_playing = True

    def end(self) -> None:
        """The player leaves the engine; nothing is pending."""
        with self._changed:
            self._is_playing = False
            self._changed.notify_all()

    def let_in(self) -> None:
        self.end()
        self.begin()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """The engine for oneself, between two responses of the player."""
        with self._changed:
            self._num_visitors += 1
        try:
            with self._changed:
                while self._is_playing:
                    self._changed.wait(_WAKE_S)
            yield
        finally:
            with self._changed:
                self._num_visitors -= 1
                self._changed.notify_all()


class VisitedEngine:
    """The engine as the training thread sees it: weights come in between two responses."""

    def __init__(self, engine: GenerationEngine, gate: EngineGate) -> None:
        self._engine, self._gate = engine, gate

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        with self._gate.visit():
            return self._engine.generate(prompts, params, seeds=seeds)

    def release_memory(self) -> None:
        """The player needs its caches while the update runs."""

    def sync_weights(self, policy: Any) -> None:
        with self._gate.visit():
            self._engine.sync_weights(policy)

    def take_metrics(self) -> dict[str, float]:
        """See `Measured`."""
        return measured(self._engine)

    def close(self) -> None:
        self._engine.close()


class VisitingSource:
    """Evaluation or probe beside a player: it has the engine for itself while it plays."""

    def __init__(self, inner: EnvSource, gate: EngineGate) -> None:
        self._inner, self._gate = inner, gate

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        with self._gate.visit():
            return self._inner.collect(step, config)

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        return self._inner.varieties()

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """A step that waits to be fetched."""

    batch: RolloutBatch
    waiting: Waiting


class AheadSource:
    """Fresh rollouts, up to `max_staleness` steps before they are needed.

    A change of the settings that episodes are played by holds from the step that is fetched next:
    what was played ahead under the old ones is dropped and played again.

    Args:
        inner: plays a step; only this source calls it. It aborts once `is_cancelled` is set.
    """

    def __init__(
        self, inner: EnvSource, gate: EngineGate, *, is_cancelled: threading.Event
    ) -> None:
        self._inner, self._gate = inner, gate
        self._is_cancelled = is_cancelled
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._config: RunConfig | None = None
        self._next = 0
        """The step to be played next."""
        self._limit = -1
        """The last step that may be played by now."""
        self._is_playing = False
        self._is_closed = False
        self._played: dict[int, _Played] = {}
        self._problem: BaseException | None = None
        self._metrics: dict[str, float] = {}

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        """The groups of a step, which the updates of all steps before it have led up to."""
        started = time.perf_counter()
        with self._changed:
            if self._config is None or self._differs(config) or not self._is_coming(step):
                self._begin_again(step)
            self._config = config
            self._limit = min(step + config.collection.max_staleness, config.steps)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._play, name="echoscope-ahead", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            num_ahead = len([each for each in self._played if each > step])
            while step not in self._played and self._problem is None:
                self._changed.wait(_WAKE_S)
            if self._problem is not None:
                problem, self._problem = self._problem, None
                self._config = None
                raise problem
            played = self._played.pop(step)
        self._metrics = played.waiting.metrics() | {
            "collection/update_wait_s": time.perf_counter() - started,
            "collection/num_steps_ahead": float(num_ahead),
        }
        return played.batch

    def take_metrics(self) -> dict[str, float]:
        """See `Measured`; who waited for whom is of the step that was fetched last."""
        return self._metrics | self._inner.worker_metrics()

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        return self._inner.varieties()

    def close(self) -> None:
        """Drop what was played ahead."""
        with self._changed:
            self._is_closed = True
            self._is_cancelled.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_END_S)
        self._inner.close()

    def _is_coming(self, step: int) -> bool:
        return step in self._played or self._next == step

    def _differs(self, config: RunConfig) -> bool:
        """Whether episodes of these settings are others than those that are being played."""
        assert self._config is not None
        names = ["sampling", "dynamic_sampling"]
        if config.dynamic_sampling.max_rounds > 1:
            names.append("selection")  # says when there are enough groups
        return any(getattr(config, name) != getattr(self._config, name) for name in names)

    def _begin_again(self, step: int) -> None:
        """Drop what was played, and what is being played; `step` comes next."""
        self._is_cancelled.set()
        while self._is_playing:
            self._changed.wait(_WAKE_S)
        self._is_cancelled.clear()
        self._played.clear()
        self._problem = None
        self._next = step
        self._limit = step - 1

    def _play(self) -> None:
        """In the thread: play what may be played."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._may_play())
                if self._is_closed:
                    return
                step, config = self._next, self._config
                assert config is not None
                self._is_playing = True
            played: _Played | None = None
            problem: BaseException | None = None
            self._gate.begin()
            try:
                batch = self._inner.collect(step, config)
                played = _Played(batch=batch, waiting=self._inner.take_waiting())
            except BaseException as error:  # noqa: BLE001 - raised again where it is fetched
                problem = error
            finally:
                self._gate.end()
            with self._changed:
                self._is_playing = False
                if not self._is_cancelled.is_set():
                    if played is not None:
                        self._played[step] = played
                        self._next = step + 1
                    self._problem = problem
                self._changed.notify_all()

    def _may_play(self) -> bool:
        is_stuck = self._problem is not None or self._is_cancelled.is_set()
        return not is_stuck and self._next <= self._limit
