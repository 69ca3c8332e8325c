"""Environments in actors of Ray: `collection.workers=ray`, on as many machines as a cluster has."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from echoscope.envs.pool import turns_of
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.runner import ActionTimeoutError
from echoscope.envs.turns.turn import TurnEnv
from echoscope.envs.workers.bounded import WorkerDiedError, perform
from echoscope.envs.workers.processes import START_S, Worker, WorkerProcesses

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

    def call(self, name: int, group: EnvGroup, what: str, args: Any) -> Any:
        """What a world answers."""
        if name not in self._worlds:
            self._worlds[name] = turns_of(group)
        return perform(self._worlds[name], what, *args)


class RayWorker:
    """One actor, seen from the trainer."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.has_answered = False
        self.is_retired = False
        self.is_dead = False
        self.episodes: set[int] = set()

    @property
    def pid(self) -> int | None:
        pid: int = self._ray.get(self._actor.pid.remote())
        return pid

    def call(self, message: tuple[Any, ...], limit_s: float | None) -> Any:
        """See `Worker`; it raises ActionTimeoutError and WorkerDiedError."""
        errors = self._ray.exceptions
        limit = limit_s if self.has_answered else max(START_S, limit_s or 0.0)
        try:
            result = self._ray.get(self._actor.call.remote(*message), timeout=limit)
        except errors.GetTimeoutError:
            raise ActionTimeoutError from None
        except (errors.RayActorError, errors.WorkerCrashedError, errors.ObjectLostError) as error:
            self.is_dead = True
            died = f"the actor of the environment died ({first_sentence(error)})"
            raise WorkerDiedError(died) from None
        except errors.RayTaskError as error:
            self.has_answered = True
            raise error.cause from None
        self.has_answered = True
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
        self._ray = SESSION.acquire(address, num_cpus=ray_cpus_of_workers(config))
        self._class = self._ray.remote(max_restarts=0, max_concurrency=MOST_CALLS)(Worlds)
        self._is_open = True

    def new_worker(self, home: int) -> Worker:
        actor = self._class.options(num_cpus=1, scheduling_strategy="SPREAD").remote()
        return RayWorker(self._ray, actor)

    def take_metrics(self) -> dict[str, float]:
        return {"ray/num_lost_workers": float(self.take_losses())}

    def close(self) -> None:
        super().close()
        if self._is_open:
            self._is_open = False
            SESSION.release()


def ray_cpus_of_workers(config: CollectionConfig) -> int:
    """What a Ray that is started for this run needs for its environment workers."""
    return config.num_processes if config.workers == "ray" else 0
