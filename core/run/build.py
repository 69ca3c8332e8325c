"""A Trainer built from a configuration: environments, model, engine, sources, observers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from echoscope.diagnostics.measure.machine import Machine
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.diagnostics.sinks.settings import require_packages
from echoscope.envs.pool import EnvPool
from echoscope.store.log.remote.pushing import check_root
from echoscope.store.records import Command, Split
from echoscope.store.steer.commands import Mailbox
from echoscope.store.writer import RunWriter

from ..config.loading import ConfigError
from ..config.settings import RunConfig
from ..engines.base import Engine
from ..engines.build import build_engine, check_engine
from ..memory import DeviceKind, MemoryEstimate, check_memory, fitting_microbatch, free_bytes
from ..optim import Optimizer
from ..plugins.checks import load_plugins
from ..plugins.observing import user_observers
from ..policy import Policy, build_policy, resolve_device
from ..pretrained.policy_assets import check_weights, positions_of, resolve_model
from ..rollout.ahead import AheadSource, SharedEngine
from ..rollout.chat import ChatFormat, check_vocabulary, load_chat
from ..rollout.context import check_reasoning
from ..rollout.shaping import resolve as resolve_shaping
from ..rollout.sources import (
    EnvSource,
    LazySource,
    RolloutSource,
    StoredSource,
    probe_groups,
    processes_for,
    turns_maker,
)
from ..rollout.stop_strings import Stopping
from ..update.learners.alone import Learner
from ..update.learners.launched import launched_size
from ..update.learners.processes import check_ranks, start_ranks
from ..update.learners.ranked import RankedLearner
from .control import Control
from .guard import Guard
from .keeping import Checkpoints
from .monitoring import MonitorObserver
from .observers import StepObserver, TrainEvents
from .step import RunClock, StepLog
from .train import Model, Sources, Trainer


@dataclass(slots=True)
class Builder:
    """Everything a Trainer needs, in the order in which it may fail."""

    config: RunConfig
    run_path: Path
    events: TrainEvents
    memory: MemoryEstimate | None = None
    """What the run needs; None before `check`, and where the model is not on this disk."""
    _free_bytes: int = 0

    def check(self) -> None:
        """Find out what is wrong before anything is written."""
        check_engine(self.config)
        envs = self.config.envs
        for groups, split in ((envs.train, Split.TRAIN), (envs.eval, Split.EVAL)):
            if groups:
                EnvPool(groups, group_size=1, seed=0, split=split).close()
        resolve_shaping(self.config.reward.shaping)
        load_plugins(self.config)
        self._notifier(self.run_path.name)  # raises where a target cannot be told
        require_packages(self.config.sinks)
        if (url := self.config.trainer.copy_to) is not None:
            check_root(url, self.run_path.name)
        if self.config.from_run is not None:
            StoredSource(Path(self.config.from_run), self.config)
        model = resolve_model(self.config.model.path)
        check_weights(model)
        _check_context(positions_of(model), self.config)
        is_cuda = resolve_device(self.config.model.device).type == "cuda"
        device: DeviceKind = "cuda" if is_cuda else "cpu"
        if launched_size() and self.config.guard.mode != "off":
            raise ConfigError(
                f"guard.mode is {self.config.guard.mode}, which goes on in the process of the run, "
                "but torchrun ends it with the run: set guard.mode=off"
            )
        check_ranks(self.config.trainer.ranks, device)
        self._free_bytes = free_bytes(device)
        self.memory = check_memory(self.config, device, self._free_bytes)

    def load(self) -> Model:
        config = self.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        policy = build_policy(config.model, config.critic, seed=config.seed)
        _check_context(policy.max_positions, config)
        if policy.device.type == "cuda" and self.memory is not None:
            policy.fitting_tokens = fitting_microbatch(self.memory, self._free_bytes)
        if config.model.packing and policy.padded_because:
            self.events.message(f"the update pads its rows: {policy.padded_because}")
        chat = load_chat(resolve_model(config.model.path), config.context.template_args)
        check_vocabulary(chat, policy.vocabulary_size)
        check_reasoning(chat, config.context)
        Stopping(chat, config.sampling)  # raises where a stop token does not exist
        if config.from_run is not None:
            StoredSource(Path(config.from_run), config).check(chat)
        return Model(learner=_learner(policy, config), chat=chat)

    def build(
        self,
        model: Model,
        writer: RunWriter,
        mailbox: Mailbox,
        *,
        replay: Sequence[tuple[int, Command]] = (),
    ) -> Trainer:
        config, chat, events = self.config, model.chat, self.events
        control = Control(mailbox, writer.run_id, replay)
        observers: list[StepObserver] = [*user_observers(config)]
        if config.diagnostics.enabled:
            observers.append(
                MonitorObserver(
                    config,
                    model.learner,
                    chat,
                    run_id=writer.run_id,
                    run_path=writer.path,
                    events=events,
                    notifier=self._notifier(writer.run_id),
                    is_stopping=control.is_stopping,
                )
            )
        engine = build_engine(
            config,
            model.policy,
            report=events.message,
            on_token=lambda done, of: events.progress(done, of, "tokens of the replies under way"),
        )
        with ExitStack() as failing:
            failing.callback(engine.close)  # it may be a process of its own
            sources = self._sources(engine, chat, writer, control)
            clock = RunClock(machine=Machine(self.run_path))
            checkpoints = Checkpoints(writer, events.message)
            guard = Guard(
                run_path=writer.path, run_id=writer.run_id, say=events.message, observers=observers
            )
            mirror = Mirror(
                config.sinks,
                run_path=self.run_path,
                run_config=config.model_dump(mode="json"),
                on_message=events.message,
            )
            failing.pop_all()
        return Trainer(
            config=config,
            model=model,
            sources=sources,
            control=control,
            events=events,
            observers=observers,
            checkpoints=checkpoints,
            log=StepLog(
                writer=writer,
                observers=observers,
                events=events,
                mirror=mirror,
                guard=guard,
                checkpoints=checkpoints,
                clock=clock,
            ),
            clock=clock,
        )

    def _sources(
        self, engine: Engine, chat: ChatFormat, writer: RunWriter, control: Control
    ) -> Sources:
        config, events = self.config, self.events
        processes = processes_for(config.collection, events.message)
        shared = SharedEngine(engine) if config.collection.max_staleness else None
        played = {
            Split.TRAIN: (config.envs.train, config.envs.group_size),
            Split.EVAL: (config.envs.eval, config.envs.eval_group_size),
            Split.PROBE: (probe_groups(config), 1),
        }

        def source(split: Split) -> RolloutSource:
            is_cancelled = threading.Event()
            is_train = split is Split.TRAIN
            groups, group_size = played[split]
            inner = EnvSource(
                EnvPool(
                    groups,
                    group_size=group_size,
                    seed=config.seed,
                    split=split,
                    make_turns=turns_maker(config.collection, processes),
                ),
                engine,
                chat,
                config,
                split,
                # What is played ahead is written with its step, not before.
                on_finished=(lambda ended: None)
                if shared and is_train
                else writer.add_trajectories,
                should_abort=lambda: is_cancelled.is_set() or control.should_abort(),
                on_progress=lambda done, of: events.progress(done, of, "episodes"),
                # They serve all splits; the run ends with the episodes of training.
                processes=processes if is_train else None,
                # The others wait for what is played ahead, and for the present weights.
                before_play=shared.settle if shared and not is_train else lambda: None,
            )
            if shared is None or not is_train:
                return inner
            return AheadSource(inner=inner, shared=shared, is_cancelled=is_cancelled)

        return Sources(
            engine=shared or engine,
            train=source(Split.TRAIN)
            if config.from_run is None
            else StoredSource(Path(config.from_run), config),
            eval=source(Split.EVAL) if config.envs.eval else None,
            probe=LazySource(lambda: source(Split.PROBE)),
        )

    def _notifier(self, run_id: str) -> Notifier:
        return Notifier(self.config.diagnostics.notify, run=run_id, on_message=self.events.message)


def _check_context(positions: int | None, config: RunConfig) -> None:
    """A prompt at its limit and a reply at its own must fit the model."""
    context = config.context
    longest = context.max_prompt_tokens + context.max_response_tokens
    if positions is not None and longest > positions:
        raise ConfigError(
            f"context.max_prompt_tokens + context.max_response_tokens is {longest}, but the model "
            f"has {positions} positions; lower one of them"
        )


def _learner(policy: Policy, config: RunConfig) -> Learner:
    if config.trainer.ranks > 1:
        ranks = start_ranks(config.trainer.ranks, policy.device.type)
        return RankedLearner(policy, config, ranks)
    return Learner(policy=policy, optimizer=Optimizer(policy.parameter_groups(), config.optim))
