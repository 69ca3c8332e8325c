"""Starting and resuming runs: everything a Trainer needs, built from a configuration."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ..store.commands import Mailbox
from ..store.errors import StoreError
from ..store.reader import RunReader, open_run
from ..store.records import Command, CommandAction, CommandOutcome, Split, StepMetrics
from ..store.writer import RunWriter
from .chat import ChatFormat, load_tokenizer
from .checkpoint import list_checkpoints, load_weights, read_state
from .config import RunConfig
from .config_loading import ConfigError, apply_settings, live_schema, validate
from .control import Control, replayed
from .engines.hf_engine import HfEngine
from .events import TrainEvents
from .monitoring import MonitorObserver
from .observers import StepObserver, judge
from .optim import Optimizer
from .policy import Policy, build_policy
from .policy_assets import resolve_model
from .shaping import resolve as resolve_shaping
from .sources import EnvSource, RolloutSource, StoredSource, build_pool
from .train import Trainer


def new_run_path(root: Path, name: str) -> Path:
    """`root/<name>-<date>-<time>-<4 hex>`."""
    return root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start(
    config: RunConfig,
    run_path: Path,
    events: TrainEvents,
    *,
    observers: Sequence[StepObserver] = (),
) -> str:
    """Train a new run in `run_path`; returns its final status.

    Raises:
        ConfigError, ValueError, OSError: something is wrong; nothing was started.
    """
    builder = _Builder(config, run_path, events, observers)
    builder.check()
    model = builder.load()
    writer = RunWriter.create(
        run_path,
        run_id=run_path.name,
        config=config.model_dump(mode="json"),
        live_knobs=live_schema(config),
        name=config.name,
        base_model=config.model.path,
    )
    with _Closing(writer) as closing:
        trainer = builder.build(model, writer, Mailbox(run_path))
        events.message(f"run {run_path}")
        closing.status = _run(trainer, evaluate_first=config.eval.before)
    return closing.status


def resume(
    run_path: Path,
    events: TrainEvents,
    *,
    settings: Mapping[str, Any] | None = None,
    observers: Sequence[StepObserver] = (),
) -> str:
    """Continue a run from its last checkpoint, or from its beginning; returns its final status.

    Settings that were changed live after that checkpoint change again at the same step; pause and
    stop do not come back. `settings` change before the first step, as a live change of their own.

    Raises:
        ConfigError: not a run, a broken checkpoint, or a setting that is not live.
    """
    reader = open_run(run_path)
    info = reader.info()
    config = validate(info.config)
    whole = [path for path in list_checkpoints(run_path) if _step(path) <= info.last_step]
    state = read_state(whole[-1]) if whole else None
    step = state.step if state is not None else 0
    replay = _commands(run_path, after=step)
    config = state.config if state is not None else config
    if settings:
        apply_settings(config, settings)  # refuse before anything is touched
    builder = _Builder(config, run_path, events, observers)
    builder.check()
    has_first = info.last_step >= 0
    writer = RunWriter.resume(run_path, from_step=step if has_first else -1)
    with _Closing(writer) as closing:
        mailbox = Mailbox(run_path, seen_ids=writer.seen_command_ids)
        trainer = builder.build(builder.load(), writer, mailbox, replay=replay)
        if state is not None:
            load_weights(whole[-1], trainer.policy, trainer.optimizer)
            trainer.engine.sync_weights(trainer.policy)
            trainer.step = trainer.checkpointed_step = state.step
            trainer.num_nonfinite = state.num_nonfinite
            for observer in trainer.observers:
                if observer.name in state.observers:
                    observer.restore(state.observers[observer.name])
        elif has_first:
            _judge_again(reader, trainer)
        if settings:
            trainer.control.request(CommandAction.SET, "given with --resume", settings)
        events.message(f"resuming {run_path} after step {step}, attempt {writer.attempt}")
        closing.status = _run(trainer, evaluate_first=config.eval.before and not has_first)
    return closing.status


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _judge_again(reader: RunReader, trainer: Trainer) -> None:
    """Show the stored evaluation before the first step, which is not made again."""
    rows = reader.sql("SELECT key, value FROM metrics WHERE step = 0 AND key NOT LIKE 'time/%'")
    values = {
        row["key"]: math.nan if row["value"] is None else row["value"] for row in rows.to_pylist()
    }
    if values:
        first = StepMetrics(
            run_id=reader.run_id,
            step=0,
            phase="eval",
            policy_version=trainer.policy.version,
            wall_time=time.time(),
            values=values,
        )
        judge(trainer.observers, [first], trainer.config)


def _run(trainer: Trainer, *, evaluate_first: bool) -> str:
    try:
        with trainer.control.signals(trainer.events.message):
            return trainer.run(evaluate_first=evaluate_first)
    finally:
        trainer.train_source.close()
        if trainer.eval_source is not None:
            trainer.eval_source.close()
        trainer.engine.close()


class _Closing:
    """Closes the writer with the status reached; `failed` or `interrupted` if an error ended it."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self.status = "failed"

    def __enter__(self) -> _Closing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else self.status
        try:
            self._writer.close(status=status)
        except StoreError as second:
            if error is None:
                raise
            error.add_note(str(second))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """What is slow to load: the policy at its starting weights, and its way to chat."""

    policy: Policy
    chat: ChatFormat


class _Builder:
    def __init__(
        self,
        config: RunConfig,
        run_path: Path,
        events: TrainEvents,
        observers: Sequence[StepObserver],
    ) -> None:
        self.config = config
        self.run_path = run_path
        self.events = events
        self.observers = observers

    def check(self) -> None:
        """Find out what is wrong before anything is written."""
        envs = self.config.envs
        for groups, split in ((envs.train, Split.TRAIN), (envs.eval, Split.EVAL)):
            if groups:
                build_pool(groups, group_size=1, seed=0, split=split).close()
        resolve_shaping(self.config.reward.shaping)
        if self.config.from_run is not None:
            StoredSource(Path(self.config.from_run))
        resolve_model(self.config.model.path)

    def load(self) -> _Model:
        config = self.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        policy = build_policy(config.model, config.critic, seed=config.seed)
        _check_context(policy, config)
        chat = ChatFormat(load_tokenizer(resolve_model(config.model.path)))
        return _Model(policy=policy, chat=chat)

    def build(
        self,
        model: _Model,
        writer: RunWriter,
        mailbox: Mailbox,
        *,
        replay: Sequence[tuple[int, Command]] = (),
    ) -> Trainer:
        config, policy, chat = self.config, model.policy, model.chat
        engine = HfEngine(policy.model, config=config.engine)
        control = Control(mailbox, writer.run_id, replay)
        observers = list(self.observers)
        if config.diagnostics.enabled:
            events = self.events
            observers.append(
                MonitorObserver(config, policy, chat, run_id=writer.run_id, events=events)
            )
        train_source: RolloutSource
        if config.from_run is not None:
            train_source = StoredSource(Path(config.from_run))
        else:
            train_source = self._env_source(Split.TRAIN, engine, chat, writer, control)
        has_eval = bool(config.envs.eval)
        eval_source = (
            self._env_source(Split.EVAL, engine, chat, writer, control) if has_eval else None
        )
        return Trainer(
            config=config,
            run_path=self.run_path,
            writer=writer,
            policy=policy,
            optimizer=_optimizer(policy, config),
            engine=engine,
            chat=chat,
            train_source=train_source,
            eval_source=eval_source,
            control=control,
            events=self.events,
            observers=observers,
        )

    def _env_source(
        self,
        split: Split,
        engine: HfEngine,
        chat: ChatFormat,
        writer: RunWriter,
        control: Control,
    ) -> EnvSource:
        envs = self.config.envs
        is_train = split is Split.TRAIN
        pool = build_pool(
            envs.train if is_train else envs.eval,
            group_size=envs.group_size if is_train else envs.eval_group_size,
            seed=self.config.seed,
            split=split,
        )
        return EnvSource(
            pool,
            engine,
            chat,
            self.config,
            split,
            on_finished=writer.add_trajectories,
            should_abort=control.should_abort,
        )


def _check_context(policy: Policy, config: RunConfig) -> None:
    """A prompt at its limit and a reply at its own must fit the model."""
    positions = policy.max_positions
    context = config.context
    longest = context.max_prompt_tokens + context.max_response_tokens
    if positions is not None and longest > positions:
        raise ConfigError(
            f"context.max_prompt_tokens + context.max_response_tokens is {longest}, but the model "
            f"has {positions} positions; lower one of them"
        )


def _optimizer(policy: Policy, config: RunConfig) -> Optimizer:
    groups = [(policy.policy_parameters(), "policy"), (policy.critic_parameters(), "critic")]
    return Optimizer(groups, config.optim)


def _commands(run_path: Path, *, after: int) -> list[tuple[int, Command]]:
    """What to apply again after step `after`, see `replayed`.

    Of all attempts: what an earlier one was told after the checkpoint holds for the next one too.
    """
    reader = open_run(run_path, all_attempts=True)
    applied = [
        (state.ack.step, state.command)
        for state in reader.commands()
        if state.ack is not None and state.ack.outcome is CommandOutcome.APPLIED
    ]
    return replayed(applied, after=after)
