"""Where a step's rollouts come from: the environments, or a stored run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from echoscope.diagnostics.selection.filter import mixed_groups
from echoscope.envs.pool import EnvPool, turns_of
from echoscope.envs.reserving import TaskVariety, few_tasks
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.turn import TurnEnv
from echoscope.envs.workers.bounded import ThreadTurns
from echoscope.envs.workers.processes import ProcessTurns, WorkerProcesses
from echoscope.store.query.rows import clean_text
from echoscope.store.reader import open_run
from echoscope.store.records import RolloutBatch, Split, Trajectory, Turn
from echoscope.store.steer.settings import live_settings

from ..config.collection import CollectionConfig
from ..config.loading import ConfigError
from ..config.settings import RunConfig, SamplingConfig
from ..engines.base import GenerationEngine
from .chat import ChatFormat
from .episode import SamplingSettings
from .rollout import Gate, Pace, Waiting, collect
from .shaping import apply, resolve
from .stopping import Stopping


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


@runtime_checkable
class KnowsTasks(Protocol):
    """A source that plays environments."""

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        """(tag, how many different tasks it draws) of each environment."""
        ...


def build_pool(
    groups: Sequence[EnvGroup],
    *,
    group_size: int,
    seed: int,
    split: Split,
    make_turns: Callable[[EnvGroup], TurnEnv] | None = None,
) -> EnvPool:
    """The environments of a split.

    Args:
        make_turns: builds the turns of one world; in this process and without limits if None.

    Raises:
        ValueError: an unknown environment or parameter, named in one line.
    """
    return EnvPool(
        groups, group_size=group_size, seed=seed, split=split.value, make_turns=make_turns
    )


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
    if limit_s is None:
        return None

    def bounded(group: EnvGroup) -> TurnEnv:
        return ThreadTurns(group.env, limit_s, partial(turns_of, group))

    return bounded


PROBE_SAMPLING = SamplingConfig()
"""All tokens at temperature 1: `sampling` may change during a run, the probe may not."""


def probe_groups(config: RunConfig) -> list[EnvGroup]:
    """The environments of the probe: `probe.tasks` tasks spread over `envs.train`.

    >>> from .config_loading import load_config
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


class EnvSource:
    """Fresh rollouts of the present policy.

    Args:
        on_finished: told of trajectories as they end, before their step does.
        should_abort: asked every turn.
        processes: where environments live, if this source is to end them.
        gate: who else wants the engine between two responses.
        on_progress: told how many episodes of how many have ended.
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
        processes: WorkerProcesses | None = None,
        gate: Gate | None = None,
        on_progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        self._processes = processes
        self._on_progress = on_progress
        self._num_ended = 0
        self._pool = pool
        self._engine = engine
        self._gate = gate
        self._waiting = Waiting()
        """Who waited for whom since the last `take_waiting`; with collection.mode=async."""
        self._chat = chat
        self._split = split
        self._stopping = Stopping(chat, config.sampling)
        self._shaping = resolve(config.reward.shaping)
        self._on_finished = on_finished
        self._should_abort = should_abort

    def collect(self, step: int, config: RunConfig) -> RolloutBatch:
        if self._split is Split.TRAIN:  # a curriculum moves groups between environments
            self._pool.share([entry.groups for entry in config.envs.train])
        rollouts = self._play(step, config, draw_round=0)
        if self._split is Split.TRAIN:
            rounds = config.dynamic_sampling.max_rounds
            wanted = config.selection.max_groups or rollouts.num_groups
            for draw_round in range(1, rounds):
                if mixed_groups(rollouts, config.selection) >= wanted:
                    break
                more = self._play(step, config, draw_round=draw_round)
                rollouts = RolloutBatch(groups=rollouts.groups + more.groups)
        self._engine.release_memory()  # the update needs it
        return rollouts

    def _play(self, step: int, config: RunConfig, *, draw_round: int) -> RolloutBatch:
        self._num_ended = 0
        self._ended(())
        rollouts = collect(
            pool=self._pool,
            engine=self._engine,
            chat=self._chat,
            context=config.context,
            sampling=_sampling(config, self._split),
            step=step,
            split=self._split,
            seed=config.seed,
            on_finished=self._ended,
            should_abort=self._should_abort,
            shaping=self._shaping,
            stopping=self._stopping,
            draw_round=draw_round,
            pace=self._pace(config.collection),
        )
        if self._should_abort():
            self._engine.release_memory()
            raise StepDroppedError
        return rollouts

    def _pace(self, collection: CollectionConfig) -> Pace | None:
        if collection.mode == "lockstep":
            return None
        num_episodes = self._pool.num_groups * self._pool.group_size
        return Pace(
            max_in_flight=collection.in_flight(num_episodes),
            num_threads=collection.num_threads(num_episodes),
            waiting=self._waiting,
            gate=self._gate,
        )

    def _ended(self, trajectories: Sequence[Trajectory]) -> None:
        self._num_ended += len(trajectories)
        if trajectories:
            self._on_finished(trajectories)
        self._on_progress(self._num_ended, self._pool.num_groups * self._pool.group_size)

    def take_metrics(self) -> dict[str, float]:
        """See `Measured`; the update waits for all of the collection."""
        waiting = self.take_waiting()
        values = self.worker_metrics()
        if waiting.seconds:
            values |= waiting.metrics() | {"collection/update_wait_s": waiting.seconds}
        return values

    def take_waiting(self) -> Waiting:
        """Who waited for whom since the last time this was asked."""
        waiting, self._waiting = self._waiting, Waiting()
        return waiting

    def worker_metrics(self) -> dict[str, float]:
        """Of the workers that environments live in, since the last time this was asked."""
        return {} if self._processes is None else self._processes.take_metrics()

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        """(tag, how many different tasks it draws) of each environment."""
        return self._pool.varieties()

    def close(self) -> None:
        self._pool.close()
        if self._processes is not None:
            self._processes.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the rollouts of each split come from."""

    train: RolloutSource
    eval: RolloutSource | None
    probe: RolloutSource

    def close(self) -> None:
        for source in (self.train, self.eval, self.probe):
            if source is not None:
                source.close()


def unreserved(training: RolloutSource, evaluation: RolloutSource | None) -> str:
    """One line about environments where evaluation has no tasks of its own; empty if all have.

    Stored trajectories speak for themselves, and without an evaluation there is nothing to say.
    """
    if not (isinstance(training, KnowsTasks) and isinstance(evaluation, KnowsTasks)):
        return ""
    return few_tasks([*training.varieties(), *evaluation.varieties()])


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
    return config.eval if split is Split.EVAL else PROBE_SAMPLING


def with_stored_sampling(config: RunConfig, say: Callable[[str], None]) -> RunConfig:
    """The configuration with the sampling settings of the run that it learns from, if it does.

    Stored log-probs are those of the distribution that was sampled from, so other settings would
    describe what did not happen.

    Raises:
        NotARunError: no run there.
        ConfigError: its sampling settings cannot be read.
    """
    if config.from_run is None:
        return config
    info = open_run(config.from_run).info()
    stored = info.config.get("sampling")
    if not isinstance(stored, Mapping):
        return config
    try:
        sampling = SamplingConfig.model_validate(stored)
    except ValidationError as error:
        raise ConfigError(
            f"from_run: the sampling settings of {info.run_id} cannot be read: "
            f"{' '.join(str(error).split())[:200]}"
        ) from None
    if sampling != config.sampling:
        say(
            f"sampling settings are those of {info.run_id}, which sampled the trajectories: "
            + ", ".join(
                f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"
                for name, value in sampling.model_dump().items()
                if value not in ([], None)
            )
        )
    return config.model_copy(update={"sampling": sampling})


class StoredSource:
    """Trajectories that a run recorded, step by step: offline updates.

    The importance ratio is taken to the policy that sampled them, whose log-probs are stored, at
    the temperature and over the tokens that it sampled from. Shaping terms are this run's.
    """

    def __init__(self, run_path: Path, config: RunConfig) -> None:
        self._reader = open_run(run_path)
        self._info = self._reader.info()
        self._run_id = self._info.run_id
        self._shaping = resolve(config.reward.shaping)
        self._live = live_settings(self._reader)
        steps = self._reader.sql(
            "select distinct step from trajectories where split = 'train' order by step"
        )
        self.steps: list[int] = steps.column("step").to_pylist()
        if not self.steps:
            raise ConfigError(f"{run_path} has no training trajectories to learn from")

    def check(self, chat: ChatFormat) -> list[str]:
        """Lines about what cannot be known of the stored trajectories.

        Raises:
            ConfigError: the token ids are those of another tokenizer, or what was sampled from is
                not recorded and cannot be told.
        """
        lines = self._check_tokenizer(chat)
        seen = self._reader.sql("select 1 from tokens where prompt_images is not null limit 1")
        if seen.num_rows:
            raise ConfigError(
                f"from_run: {self._run_id} sampled from prompts with pictures, which stored "
                "trajectories cannot train with yet: learn from a run with context.images=none"
            )
        silent = self._reader.sql(
            "select distinct step from tokens where temperature is null and step in (select step "
            "from trajectories where split = 'train') order by step"
        )
        for step in silent.column("step").to_pylist():
            self._check_truncation(step)
        if silent.num_rows and self._temperature_of(self.steps[0]) is None:
            lines.append(
                f"{self._run_id} does not say at which temperature it sampled; this run's "
                "sampling.temperature is taken, so set it to that value"
            )
        unnamed = self._reader.sql(
            "select count(*) as n from trajectories where split = 'train' and task_key is null"
        )
        if unnamed.column("n")[0].as_py():
            lines.append(
                f"{self._run_id} does not name its tasks: they may include some that are reserved "
                "for evaluation"
            )
        return lines

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
            turns = tuple(self._with_temperature(turn, stored_step) for turn in found.turns)
            moved = replace(found, step=step, turns=turns, source=f"{self._run_id}/{found.id}")
            groups.setdefault(found.group_index, []).append(apply(moved, self._shaping))
        return RolloutBatch(groups=tuple(tuple(group) for _, group in sorted(groups.items())))

    def close(self) -> None:
        """Nothing is held open."""

    def _with_temperature(self, turn: Turn, stored_step: int) -> Turn:
        """The turn with the temperature that its run sampled at, where the turn does not say."""
        temperature = self._temperature_of(stored_step)
        if turn.temperature is not None or temperature is None:
            return turn
        return replace(turn, temperature=temperature)

    def _temperature_of(self, stored_step: int) -> float | None:
        value = self._sampled_with("temperature", stored_step)
        return None if value is None else float(value)

    def _sampled_with(self, name: str, stored_step: int) -> Any:
        """A sampling setting of the stored run at a step; None where its settings do not say."""
        live = self._live.at(stored_step).get(f"sampling.{name}")
        sampling = self._info.config.get("sampling")
        return sampling.get(name) if live is None and isinstance(sampling, Mapping) else live

    def _check_truncation(self, step: int) -> None:
        """Refuse a step whose tokens were drawn from a part of the vocabulary that nobody noted."""
        whole = {"top_p": 1.0, "top_k": 0}
        for name, value in whole.items():
            used = self._sampled_with(name, step)
            if used is not None and used != value:
                raise ConfigError(
                    f"from_run: {self._run_id} sampled step {step} with {name} {used:g} and did "
                    "not record which tokens that left, so the importance ratio is not known; "
                    f"sample again, or learn from a run with sampling.{name}={value:g}"
                )

    def _check_tokenizer(self, chat: ChatFormat) -> list[str]:
        if self._info.tokenizer is not None:
            if self._info.tokenizer != chat.fingerprint:
                raise ConfigError(self._other_tokenizer(chat, "its vocabulary differs"))
            return []
        turns = [
            turn
            for found in self._reader.trajectories_of_step(self.steps[0])
            if found.split is Split.TRAIN
            for turn in found.turns
            if turn.response_tokens is not None and len(turn.response_tokens)
        ]
        size = len(chat.tokenizer)
        for turn in turns:
            assert turn.response_tokens is not None
            largest = int(turn.response_tokens.max())
            if largest >= size:
                raise ConfigError(
                    self._other_tokenizer(chat, f"id {largest} is beyond its {size} tokens")
                )
            read = clean_text(chat.decode(turn.response_tokens))
            if not read.startswith(turn.response):
                raise ConfigError(
                    self._other_tokenizer(chat, f"a reply of step {self.steps[0]} reads otherwise")
                )
        return [
            f"{self._run_id} does not name its tokenizer: the {len(turns)} replies of step "
            f"{self.steps[0]} read the same with this one"
        ]

    def _other_tokenizer(self, chat: ChatFormat, why: str) -> str:
        model = self._info.base_model
        way_out = f"train model.path={model}" if model else "train the model that sampled them"
        return (
            f"from_run: {self._run_id} stored token ids of another tokenizer than this model's "
            f"({why}), so they would mean other text; {way_out}"
        )
