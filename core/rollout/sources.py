"""Where a step's rollouts come from: the environments, or a stored run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from echoscope.diagnostics.selection.filter import select_groups
from echoscope.envs.pool import EnvPool
from echoscope.envs.reserving import TaskVariety
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.turn import TurnEnv
from echoscope.envs.workers.bounded import ThreadTurns
from echoscope.envs.workers.processes import ProcessTurns, WorkerProcesses
from echoscope.store.reader import open_run
from echoscope.store.records import RolloutBatch, Split, Trajectory

from ..config.collection import CollectionConfig
from ..config.loading import ConfigError
from ..config.settings import RunConfig, SamplingConfig
from ..engines.base import Engine, SamplingParams
from .chat import ChatFormat
from .episode import SamplingSettings
from .rollout import Collection, Waiting
from .shaping import apply, resolve
from .stop_strings import Stopping


class StepDroppedError(Exception):
    """The step in progress is dropped, because a command asked for it."""


class RolloutSource(Protocol):
    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        """The groups of a step.

        Raises:
            StepDroppedError: a command dropped the step.
        """
        ...

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        """(tag, how many different tasks it draws) of each environment that it plays."""
        return []

    def take_metrics(self) -> dict[str, float]:
        """What it has done since the last call of this, by the names of metrics."""
        return {}

    def close(self) -> None: ...


def turns_maker(
    collection: CollectionConfig, processes: WorkerProcesses | None
) -> Callable[[EnvGroup], TurnEnv] | None:
    """What builds the turns of one world under these settings; None for the plain ones.

    Args:
        processes: where the worlds live, with `collection.workers=processes`.
    """
    if collection.mode == "lockstep":
        return None
    limit_s = collection.env_timeout_s
    if processes is not None:
        return partial(ProcessTurns, limit_s=limit_s, processes=processes)
    return None if limit_s is None else partial(ThreadTurns, limit_s=limit_s)


def processes_for(
    collection: CollectionConfig, say: Callable[[str], None]
) -> WorkerProcesses | None:
    """The processes that environments live in under these settings; none of them has started."""
    if collection.mode == "lockstep" or collection.workers == "threads":
        return None
    return WorkerProcesses(collection.num_processes, say)


PROBE_SAMPLING = SamplingConfig()
"""All tokens at temperature 1: `sampling` may change during a run, the probe may not."""


def probe_groups(config: RunConfig) -> list[EnvGroup]:
    """The environments of the probe: `probe.tasks` tasks spread over `envs.train`.

    >>> from echoscope.core.config.loading import load_config
    >>> config = load_config(overrides=["envs.train=[{env: a}, {env: b}]", "probe.tasks=5"])
    >>> [(group.name, group.groups) for group in probe_groups(config)]
    [('a', 3), ('b', 2)]
    """
    kinds = config.envs.train
    share, rest = divmod(config.probe.tasks, len(kinds))
    sizes = [share + (index < rest) for index in range(len(kinds))]
    return [
        kind.model_copy(update={"groups": size})
        for kind, size in zip(kinds, sizes, strict=True)
        if size
    ]


@dataclass(eq=False)
class EnvSource:
    """Fresh rollouts of the present policy.

    Args:
        on_finished: told of trajectories as they end, before their step does.
        should_abort: asked every turn.
        processes: where environments live, if this source is to end them.
        on_progress: told how many episodes of how many have ended.
        before_play: called before the engine is used.
    """

    pool: EnvPool
    engine: Engine
    chat: ChatFormat
    config: InitVar[RunConfig]
    split: Split
    _: KW_ONLY
    on_finished: Callable[[Sequence[Trajectory]], None]
    should_abort: Callable[[], bool]
    processes: WorkerProcesses | None = None
    on_progress: Callable[[int, int], None] = lambda done, of: None
    before_play: Callable[[], None] = lambda: None

    def __post_init__(self, config: RunConfig) -> None:
        self._num_ended = 0
        self._num_episodes = self.pool.num_groups * self.pool.group_size
        self._waiting = Waiting()
        """Who waited for whom since the last `take_metrics`; with collection.mode=async."""
        self._stopping = Stopping(self.chat, config.sampling)
        self._shaping = resolve(config.reward.shaping)

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        self.before_play()
        if self.split is Split.TRAIN:  # a curriculum moves groups between environments
            self.pool.share([entry.groups for entry in config.envs.train])
        rollouts = self._play(step, config, draw_round=0)
        if self.split is Split.TRAIN:
            rounds = config.dynamic_sampling.max_rounds
            num_needed = config.selection.max_groups or rollouts.num_groups
            for draw_round in range(1, rounds):
                if select_groups(rollouts, config.selection).num_mixed >= num_needed:
                    break
                more = self._play(step, config, draw_round=draw_round)
                rollouts = RolloutBatch(groups=rollouts.groups + more.groups)
        self.engine.release_memory()  # the update needs it
        return rollouts

    def _play(self, step: int, config: RunConfig, *, draw_round: int) -> RolloutBatch:
        self._num_ended = 0
        self._ended(())
        rollouts = Collection(
            pool=self.pool,
            engine=self.engine,
            chat=self.chat,
            context=config.context,
            sampling=_sampling(config, self.split),
            step=step,
            split=self.split,
            seed=config.seed,
            on_finished=self._ended,
            should_abort=self.should_abort,
            shaping=self._shaping,
            stopping=self._stopping,
            draw_round=draw_round,
            pace=config.collection,
            waiting=self._waiting,
        ).run()
        if self.should_abort():
            self.engine.release_memory()
            raise StepDroppedError
        return rollouts

    def _ended(self, trajectories: Sequence[Trajectory]) -> None:
        self._num_ended += len(trajectories)
        if trajectories:
            self.on_finished(trajectories)
        self.on_progress(self._num_ended, self._num_episodes)

    def take_metrics(self) -> dict[str, float]:
        """The update waits for all of the collection."""
        waiting, self._waiting = self._waiting, Waiting()
        if not waiting.seconds:
            return {}
        return waiting.metrics() | {"collection/update_wait_s": waiting.seconds}

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        return self.pool.varieties()

    def close(self) -> None:
        self.pool.close()
        if self.processes is not None:
            self.processes.close()


class LazySource(RolloutSource):
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
    if split is Split.EVAL:
        return SamplingParams(max_new_tokens=1, temperature=config.eval.temperature)
    return PROBE_SAMPLING


def with_stored_sampling(config: RunConfig, say: Callable[[str], None]) -> RunConfig:
    """The configuration with the sampling settings of the run that it learns from, if it does.

    Stored log-probs are those of the distribution that was sampled from, so other settings would
    describe what did not happen.

    Raises:
        NotARunError: no run there.
        ConfigError: it was not trained here.
    """
    if config.from_run is None:
        return config
    info = open_run(config.from_run).info()
    try:
        sampling = SamplingConfig.model_validate(info.config.get("sampling"))
    except ValidationError:
        raise ConfigError(
            f"from_run: {info.run_id} has no sampling settings: learn from a run that was trained "
            "with Echoscope"
        ) from None
    if sampling != config.sampling:
        say(f"sampling settings are those of {info.run_id}, which sampled the trajectories")
    return config.model_copy(update={"sampling": sampling})


class StoredSource(RolloutSource):
    """Trajectories that a run recorded, step by step: offline updates.

    The importance ratio is taken to the policy that sampled them, whose log-probs are stored, at
    the temperature and over the tokens that it sampled from. Shaping terms are this run's.
    """

    def __init__(self, run_path: Path, config: RunConfig) -> None:
        self._reader = open_run(run_path)
        self._info = self._reader.info()
        self._shaping = resolve(config.reward.shaping)
        steps = self._reader.sql(
            "select distinct step from trajectories where split = 'train' order by step"
        )
        self.steps: list[int] = steps.column("step").to_pylist()
        if not self.steps:
            raise ConfigError(f"{run_path} has no training trajectories to learn from")

    def check(self, chat: ChatFormat) -> None:
        """Raises ConfigError where the token ids are not known to be of this tokenizer."""
        if self._info.tokenizer != chat.fingerprint:
            model = self._info.base_model
            way_out = f"train model.path={model}" if model else "train the model that sampled them"
            raise ConfigError(
                f"from_run: {self._info.run_id} stored token ids of another tokenizer than this "
                f"model's, so they would mean other text; {way_out}"
            )

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        """The stored step `step`, counted from 1; the source starts again at its end."""
        stored_step = self.steps[(step - 1) % len(self.steps)]
        groups: dict[int, list[Trajectory]] = {}
        for stored in self._reader.trajectories_of_step(stored_step):
            if stored.split is not Split.TRAIN:
                continue
            name = f"{self._info.run_id}/{stored.id}"
            if any(turn.logprobs is None or turn.temperature is None for turn in stored.turns):
                raise ConfigError(
                    f"{name} has no recorded log-probs and temperature, so it cannot train"
                )
            moved = apply(replace(stored, step=step, source=name), self._shaping)
            groups.setdefault(stored.group_index, []).append(moved)
        return RolloutBatch(groups=tuple(tuple(group) for _, group in sorted(groups.items())))

    def close(self) -> None:
        """Nothing is held open."""
