"""Where a step's rollouts come from: the environments, or a stored run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ..envs.pool import EnvGroup, EnvPool
from ..envs.reserving import shared_tasks
from ..store.reader import open_run
from ..store.records import RolloutBatch, Split, Trajectory
from .chat import ChatFormat
from .config import EnvGroupConfig, RunConfig
from .config_loading import ConfigError
from .engines.base import GenerationEngine
from .rollout import SamplingSettings, collect
from .shaping import resolve


class StepDroppedError(Exception):
    """The step in progress is dropped, because a command asked for it."""


class RolloutSource(Protocol):
    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        """The groups of a step.

        Raises:
            StepDroppedError: a command dropped the step.
        """
        ...

    def close(self) -> None: ...


def build_pool(
    groups: Sequence[EnvGroupConfig], *, group_size: int, seed: int, split: Split
) -> EnvPool:
    """The environments of a split.

    Raises:
        ValueError: an unknown environment or parameter, named in one line.
    """
    specs = [EnvGroup(**(group.model_dump() | {"tag": group.name})) for group in groups]
    return EnvPool(specs, group_size=group_size, seed=seed, split=split.value)


def probe_groups(config: RunConfig) -> list[EnvGroupConfig]:
    """The environments of the probe: `envs.probe`, or `probe.tasks` tasks spread over `envs.train`.

    >>> from .config_loading import load_config
    >>> config = load_config(overrides=["envs.train=[{env: a}, {env: b}]", "probe.tasks=5"])
    >>> [(group.name, group.groups) for group in probe_groups(config)]
    [('a', 3), ('b', 2)]
    """
    if config.envs.probe:
        return config.envs.probe
    kinds = config.envs.train
    share, rest = divmod(config.probe.tasks, len(kinds))
    sizes = [share + (index < rest) for index in range(len(kinds))]
    return [
        kind.model_copy(update={"groups": size})
        for kind, size in zip(kinds, sizes, strict=True)
        if size
    ]


class EnvSource:
    """Fresh rollouts of the present policy.

    Args:
        on_finished: told of trajectories as they end, before their step does.
        should_abort: asked every turn.
    """

    def __init__(
        self,
        pool: EnvPool,
        engine: GenerationEngine,
        chat: ChatFormat,
        config: RunConfig,
        split: Split,
        *,
        on_finished: Callable[[Sequence[Trajectory]], None],
        should_abort: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._chat = chat
        self._split = split
        self._shaping = resolve(config.reward.shaping)
        self._on_finished = on_finished
        self._should_abort = should_abort

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        rollouts = collect(
            pool=self._pool,
            engine=self._engine,
            chat=self._chat,
            context=config.context,
            sampling=_sampling(config, self._split),
            step=step,
            split=self._split,
            seed=config.seed,
            on_finished=self._on_finished,
            should_abort=self._should_abort,
            shaping=self._shaping,
        )
        self._engine.release_memory()  # the update needs it
        if self._should_abort():
            raise StepDroppedError
        return rollouts

    def tasks_shared_with(self, evaluation: EnvSource) -> list[str]:
        """One line for each evaluation set that has no tasks of its own."""
        return shared_tasks(self._pool.varieties(), evaluation._pool.varieties())

    def close(self) -> None:
        self._pool.close()


class LazySource:
    """A source that is made when it is first asked: its worlds may never be needed."""

    def __init__(self, make: Callable[[], RolloutSource]) -> None:
        self._make = make
        self._made: RolloutSource | None = None

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        if self._made is None:
            self._made = self._make()
        return self._made.collect(step, config)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _sampling(config: RunConfig, split: Split) -> SamplingSettings:
    if split is Split.TRAIN:
        return config.sampling
    return config.eval if split is Split.EVAL else config.probe


class StoredSource:
    """Trajectories that a run recorded, step by step: offline updates.

    The importance ratio is taken to the policy that sampled them, whose log-probs are stored.
    """

    def __init__(self, run_path: Path) -> None:
        self._reader = open_run(run_path)
        self._run_id = self._reader.info().run_id
        steps = self._reader.sql(
            "select distinct step from trajectories where split = 'train' order by step"
        )
        self.steps: list[int] = steps.column("step").to_pylist()
        if not self.steps:
            raise ConfigError(f"{run_path} has no training trajectories to learn from")

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        """The stored step `step`, counted from 1; the source starts again at its end."""
        stored_step = self.steps[(step - 1) % len(self.steps)]
        groups: dict[int, list[Trajectory]] = {}
        for found in self._reader.trajectories_of_step(stored_step):
            if found.split is not Split.TRAIN:
                continue
            if any(turn.logprobs is None for turn in found.turns):
                raise ConfigError(
                    f"{self._run_id} step {stored_step}: {found.id} has no recorded log-probs, "
                    "so it cannot train"
                )
            moved = replace(found, step=step, source=f"{self._run_id}/{found.id}")
            groups.setdefault(found.group_index, []).append(moved)
        return RolloutBatch(groups=tuple(tuple(group) for _, group in sorted(groups.items())))

    def close(self) -> None:
        """Nothing is held open."""
