"""Environments in actors of Ray: `collection.workers=ray`, on as many machines as a cluster has."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from echoscope.envs.registry import Registration
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.runner import ActionTimeoutError
from echoscope.envs.turns.turn import TurnEnv
from echoscope.envs.workers.bounded import WorkerDiedError, perform
from echoscope.envs.workers.processes import START_S, Worker, WorkerProcesses, build_world

from ...config.collection import CollectionConfig
from .session import SESSION, first_sentence

MOST_CALLS = 256
"""Calls at the same time in one actor, each in a thread: a world that waits keeps no other one."""


class Worlds:
    """Worlds in a process of their own: what an actor of Ray runs. Imports no Ray."""

    def __init__(self) -> None:
        self._worlds: dict[int, TurnEnv] = {}

    def pid(self) -> int:
        return os.getpid()

    def call(
        self, name: int, group: EnvGroup, registration: Registration, what: str, args: Any
    ) -> tuple[Any, float]:
        """What a world answers, and in how many seconds."""
        started = time.perf_counter()
        if name not in self._worlds:
            self._worlds[name] = build_world(group, registration)
        result = perform(self._worlds[name], what, *args)
        return result, time.perf_counter() - started


class RayWorker:
    """One actor, seen from the trainer."""

    def __init__(self, ray: Any, actor: Any, note: Callable[[float], None]) -> None:
        self._ray, self._actor, self._note = ray, actor, note
        self.has_answered = False
        self.is_retired = False
        self.episodes: set[int] = set()
        self._reason = ""

    @property
    def is_dead(self) -> bool:
        return bool(self._reason)

    @property
    def pid(self) -> int | None:
        pid: int = self._ray.get(self._actor.pid.remote())
        return pid

    def call(self, message: tuple[Any, ...], limit_s: float | None) -> Any:
        """See `Worker`; it raises ActionTimeoutError and WorkerDiedError."""
        errors = self._ray.exceptions
        limit = limit_s if self.has_answered else max(START_S, limit_s or 0.0)
        try:
            result, seconds = self._ray.get(self._actor.call.remote(*message), timeout=limit)
        except errors.GetTimeoutError:
            raise ActionTimeoutError from None
        except (errors.RayActorError, errors.WorkerCrashedError, errors.ObjectLostError) as error:
            self._reason = first_sentence(error)
            died = f"the actor of the environment died ({self._reason})"
            raise WorkerDiedError(died) from None
        except errors.RayTaskError as error:
            self.has_answered = True
            raise error.cause from None
        self.has_answered = True
        self._note(seconds)
        return result

    def end(self) -> None:
        self._ray.kill(self._actor)


class RayWorkers(WorkerProcesses):
    """Environment workers as actors; one that died is replaced when its next episode begins.

    Args:
        address: of the cluster; None for a Ray of this machine, as of an engine beside it.
        report: is told in one sentence when a worker was replaced.

    Raises:
        ConfigError: Ray is missing or of another version, or the cluster cannot be reached.
    """

    def __init__(
        self,
        config: CollectionConfig,
        address: str | None,
        *,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(config.num_processes, report)
        self._cpus = config.cpus_per_worker
        self._ray = SESSION.acquire(address, num_cpus=ray_cpus_of_workers(config))
        self._class = self._ray.remote(max_restarts=0, max_concurrency=MOST_CALLS)(Worlds)
        self._counts: dict[int, tuple[int, float]] = {}
        self._counting = Lock()
        self._is_open = True

    def new_worker(self, home: int) -> Worker:
        actor = self._class.options(num_cpus=self._cpus, scheduling_strategy="SPREAD").remote()
        return RayWorker(self._ray, actor, lambda seconds: self._note(home, seconds))

    def take_metrics(self) -> dict[str, float]:
        with self._counting:
            counts, self._counts = self._counts, {}
        out = {"ray/num_lost_workers": float(self.take_losses())}
        for home in range(len(self._workers)):
            calls, seconds = counts.get(home, (0, 0.0))
            out[f"ray/env_{home}/num_calls"] = float(calls)
            out[f"ray/env_{home}/busy_s"] = seconds
        return out

    def close(self) -> None:
        super().close()
        if self._is_open:
            self._is_open = False
            SESSION.release()

    def _note(self, home: int, seconds: float) -> None:
        with self._counting:
            calls, before = self._counts.get(home, (0, 0.0))
            self._counts[home] = calls + 1, before + seconds


def ray_cpus_of_workers(config: CollectionConfig) -> int:
    """What a Ray that is started for this run needs for its environment workers."""
    if config.workers != "ray":
        return 0
    return math.ceil(config.num_processes * config.cpus_per_worker)
