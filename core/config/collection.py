"""Settings of how episodes are played. Defaults live here and in `settings.py`."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field, model_validator

from echoscope.diagnostics.config import FrozenModel

from .limits import Rows

_MOST_THREADS = 256


class CollectionConfig(FrozenModel):
    """How episodes are played: all in step with each other, or each at its own pace."""

    mode: Literal["lockstep", "async"] = Field(
        "lockstep",
        description="lockstep: all episodes take one turn together, and the slowest environment "
        "sets the pace. async: an episode goes on as soon as its own environment has answered; "
        "the trajectories are the same.",
    )
    workers: Literal["threads", "processes"] = Field(
        "threads",
        description="Where environments run with mode=async. threads: of this process, for "
        "environments that wait (network, subprocesses). processes: for environments that "
        "compute, or that may crash.",
    )
    num_workers: int | None = Field(
        None,
        ge=1,
        le=_MOST_THREADS,
        description="Environment calls at the same time (threads), or processes; null for as many "
        "threads as episodes are going on, at most 256, or one process per processor core.",
    )
    env_timeout_s: float | None = Field(
        300.0,
        gt=0,
        le=1e6,
        description="Seconds that one reset or one turn of an environment may take with "
        "mode=async; the episode then ends with the stop reason `timeout` and does not train. "
        "null for no limit.",
    )
    max_in_flight: Rows | None = Field(
        None, description="Episodes that go on at the same time with mode=async; null for all."
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=1,
        description="1: the episodes of the next step are played while the update runs, so that "
        "they lack one update. 0: an update waits for its own episodes only. 1 needs mode=async "
        "and off_policy.correction.",
    )

    @property
    def num_processes(self) -> int:
        """Worker processes, where environments run in processes."""
        return self.num_workers or len(os.sched_getaffinity(0))

    def in_flight(self, num_episodes: int) -> int:
        """The episodes of so many that go on at the same time."""
        return min(num_episodes, self.max_in_flight or num_episodes)

    def num_threads(self, num_episodes: int) -> int:
        """Calls of environments that run at the same time, of so many episodes."""
        most = self.in_flight(num_episodes)
        if self.workers == "threads" and self.num_workers is not None:
            return min(self.num_workers, most)
        return min(most, _MOST_THREADS)

    @model_validator(mode="after")
    def _belongs_together(self) -> CollectionConfig:
        if self.mode == "async":
            return self
        for name in ("workers", "num_workers", "env_timeout_s", "max_in_flight", "max_staleness"):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"collection.{name} is {value}, which holds for collection.mode=async only: "
                    "set collection.mode=async, or leave it out"
                )
        return self
