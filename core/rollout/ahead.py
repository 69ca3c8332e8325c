"""The episodes of the next step, played while the update runs.

A thread plays one step with the weights at hand. New weights reach the engine when that step is
played, so its samples are at most one update old. What was played ahead is nowhere but in memory: a
run that stops drops it, and a run that goes on plays it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from echoscope.envs.reserving import TaskVariety
from echoscope.envs.workers.threads import in_thread
from echoscope.store.records import RolloutBatch

from ..config.settings import RunConfig
from ..engines.base import Engine
from .sources import EnvSource

_WAKE_S = 0.1
"""The training thread looks up so often while it waits, so that a signal reaches it."""
_END_S = 10.0
"""Longest wait for the thread to end; it is a daemon."""


class SharedEngine:
    """One engine for a thread that plays with it and for the training thread, which waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._played: Future[Any] = Future()
        """What the player makes; it has the engine until that is done."""
        self._played.set_result(None)
        self._policy: Any = None
        """Whose weights the engine gets when the player has ended."""

    def play(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Let a call in a thread have the engine until it ends."""
        self.settle()
        self._played = in_thread("echoscope-ahead", work, *args)
        return self._played

    def settle(self) -> None:
        """Wait for the player; then the engine gets the weights that came meanwhile."""
        while not self._played.done():
            wait([self._played], _WAKE_S)
        if self._policy is not None:
            policy, self._policy = self._policy, None
            self._engine.sync_weights(policy)

    def sync_weights(self, policy: Any) -> None:
        self._policy = policy
        if self._played.done():
            self.settle()

    def take_metrics(self) -> dict[str, float]:
        """See `Engine`."""
        return self._engine.take_metrics()

    def end(self) -> None:
        """Wait a little for the player, which was told to end."""
        wait([self._played], _END_S)

    def close(self) -> None:
        self.end()
        self._engine.close()


@dataclass(kw_only=True, eq=False)
class AheadSource:
    """Fresh rollouts, played one step before they are needed.

    A change of the settings that episodes are played by holds from the step that is fetched next:
    what was played ahead under the old ones is dropped and played again.

    Args:
        inner: plays a step; it aborts once `is_cancelled` is set.
    """

    inner: EnvSource
    shared: SharedEngine
    is_cancelled: threading.Event
    _config: RunConfig | None = None
    """What the step ahead is played by."""
    _ahead: Future[tuple[int, RolloutBatch] | None] | None = None
    _metrics: dict[str, float] = field(default_factory=dict)

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        """The groups of a step; those of the next one are played from here on."""
        started = time.perf_counter()
        if self._config is not None and _differs(config, self._config):
            self.is_cancelled.set()
        self.shared.settle()
        is_useless = self.is_cancelled.is_set()
        self.is_cancelled.clear()
        ahead, self._ahead = self._ahead, None
        played = None if ahead is None else ahead.result()
        is_ahead = played is not None and played[0] == step and not is_useless
        batch = played[1] if played and is_ahead else self.inner.collect(step, config)
        self._metrics = self.inner.take_metrics() | {
            "collection/update_wait_s": time.perf_counter() - started,
            "collection/num_steps_ahead": float(is_ahead),
        }
        self._config = config
        if step < config.steps:
            self._ahead = self.shared.play(self._play, step + 1, config)
        return batch

    def take_metrics(self) -> dict[str, float]:
        """Who waited for whom is of the step that was fetched last."""
        return self._metrics

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        return self.inner.varieties()

    def close(self) -> None:
        """Drop what was played ahead."""
        self.is_cancelled.set()
        self.shared.end()
        self.inner.close()

    def _play(self, step: int, config: RunConfig) -> tuple[int, RolloutBatch] | None:
        """In the thread; what goes wrong is raised where the step is fetched."""
        try:
            return step, self.inner.collect(step, config)
        except BaseException:
            if self.is_cancelled.is_set():
                return None
            raise


def _differs(config: RunConfig, other: RunConfig) -> bool:
    """Whether episodes of these settings are others."""
    names = ["sampling", "dynamic_sampling"]
    if config.dynamic_sampling.max_rounds > 1:
        names.append("selection")  # says when there are enough groups
    return any(getattr(config, name) != getattr(other, name) for name in names)
