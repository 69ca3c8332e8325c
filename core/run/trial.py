"""Rollouts without learning: what a run would start with, and what a step of it costs.

The tasks are those of the run's own first steps, played by the policy it starts from. A few
updates are made at the end, on the first step's rollouts, to see that they work, what they take and
how far they move the policy, which is thrown away. Nothing is written.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.judge.advice.luck import undivided
from echoscope.diagnostics.judge.courses.channels import derived
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.diagnostics.tools.preflight import Cost
from echoscope.diagnostics.tools.prospects import Signs, luck_of, terms_of
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.store.query.metric_keys import REGULARISER_RATIO
from echoscope.store.records import RolloutBatch, Split, Trajectory

from ..config.loading import ConfigError
from ..config.settings import RunConfig
from ..engines.build import build_engine
from ..rollout.sources import EnvSource, probe_groups
from ..update.assemble import pack_kept, with_advantages
from ..update.kl import mismatch_kl
from .build import Builder
from .observers import SilentEvents
from .train import Model

OnProgress = Callable[[str, int, int], None]
"""What is being done, how much of it is, and of how much."""

Trial = tuple[tuple[RolloutBatch, ...], Cost, Signs]
"""Rollouts of the starting policy, one batch a step; what they and one update cost; what both say
of the run's prospects."""
DRY_UPDATES = 2
"""After which it is measured how far the policy has moved."""


def run_trial(config: RunConfig, *, num_groups: int, on_progress: OnProgress) -> Trial:
    """Play at least `num_groups` groups of the run's first tasks, whole steps at a time.

    Fewer than a step has are played as one smaller step.

    Raises:
        ConfigError, ValueError, OSError: something is wrong with the configuration.
    """
    if config.from_run is not None:
        raise ConfigError(
            "from_run learns from stored rollouts, which need no trial: see `echoscope diagnose` "
            "and `echoscope whatif` of that run"
        )
    builder = Builder(config, Path(), SilentEvents())
    builder.check()
    on_progress("loading the model", 0, 1)
    model = builder.load()
    whole = sum(group.groups for group in config.envs.train)
    groups = config.envs.train if num_groups >= whole else _fewer(config.envs.train, num_groups)
    num_steps = max(1, math.ceil(num_groups / whole))
    try:
        batches, seconds = _play(config, model, groups, num_steps, on_progress)
        on_progress("dry updates", 0, 1)
        bonus = _bonus_share(config, model, batches[0])
        updates = _dry_updates(config, model, batches[0])
    finally:
        model.learner.close()
    scale = whole / sum(group.groups for group in groups)
    policy = model.policy
    trained = [*policy.policy_parameters(), *policy.critic_parameters()]
    return (
        batches,
        Cost(
            device=_device_words(policy.device),
            rollout_s=seconds / num_steps * scale,
            update_s=updates.seconds * scale,
            episode_s=seconds / sum(len(batch.trajectories) for batch in batches),
            steps=config.steps,
            num_evaluated=_num_evaluated(config),
            diagnostics_frac=config.diagnostics.budget_frac if config.diagnostics.enabled else 0.0,
            num_parameters=sum(p.numel() for p in policy.model.parameters()),
            num_trainable=sum(p.numel() for p in trained),
            checkpoint_bytes=updates.checkpoint_bytes,
            num_checkpoints=config.checkpoint.keep,
            problem=updates.problem,
            memory="" if builder.memory is None else builder.memory.text,
        ),
        Signs(
            luck=luck_of(batches),
            undivided=undivided(config.advantage.kind, config.reward.normalization),
            shift=updates.shift,
            lr=config.optim.lr,
            bonus=bonus,
            terms=terms_of(batches, config.reward.weight_keys),
            critic_growth=updates.critic_growth,
            critic_lr=math.nan if config.critic.kind == "none" else config.critic.lr,
        ),
    )


def _bonus_share(config: RunConfig, model: Model, batch: RolloutBatch) -> float:
    """Gradient of the entropy bonus over the task's; NaN without a bonus or where it fails."""
    if not config.loss.entropy_coef > 0:
        return math.nan
    try:
        report = model.learner.gradients(batch, config, model.chat)
    except (torch.OutOfMemoryError, ValueError):
        return math.nan
    finally:
        model.learner.forget_gradients()
    return derived(report.metrics()).get(REGULARISER_RATIO, math.nan)


def _fewer(groups: Sequence[EnvGroup], total: int) -> list[EnvGroup]:
    """About `total` groups in the same proportions, at least one of each environment."""
    whole = sum(group.groups for group in groups)
    return [
        group.model_copy(update={"groups": max(1, round(group.groups * total / whole))})
        for group in groups
    ]


def _play(
    config: RunConfig,
    model: Model,
    groups: Sequence[EnvGroup],
    num_steps: int,
    on_progress: OnProgress,
) -> tuple[tuple[RolloutBatch, ...], float]:
    """Rollouts of steps 1, 2, ... and the seconds they took."""
    pool = EnvPool(groups, group_size=config.envs.group_size, seed=config.seed, split=Split.TRAIN)
    num_episodes = num_steps * pool.num_groups * pool.group_size
    played = 0

    def on_finished(ended: Sequence[Trajectory]) -> None:
        nonlocal played
        played += len(ended)
        on_progress("playing episodes", played, num_episodes)

    config = config.model_copy(
        update={"envs": config.envs.model_copy(update={"train": list(groups)})}
    )
    engine = build_engine(config, model.policy)
    source = EnvSource(
        pool,
        engine,
        model.chat,
        config,
        Split.TRAIN,
        on_finished=on_finished,
        should_abort=lambda: False,
    )
    try:
        started = time.perf_counter()
        batches = tuple(source.collect(step, config) for step in range(1, num_steps + 1))
        return batches, time.perf_counter() - started
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"memory ran out while playing {pool.num_groups * pool.group_size} episodes: lower "
            f"engine.max_batch_rows, which is {config.engine.max_batch_rows}, or "
            "context.max_response_tokens"
        ) from None
    finally:
        source.close()
        engine.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class DryUpdates:
    """What updates on the first step's rollouts took, and what they did to the model."""

    seconds: float = math.nan
    """Of the first."""
    checkpoint_bytes: int = 0
    problem: str = ""
    """What went wrong, if anything did."""
    shift: float = math.nan
    """Nats a token that `DRY_UPDATES` of them moved the policy."""
    critic_growth: float = math.nan
    """Critic's loss in the second over that in the first; NaN without a critic."""


def _dry_updates(config: RunConfig, model: Model, batch: RolloutBatch) -> DryUpdates:
    """Make them and throw the result away.

    They train on what the selection keeps, as the run would, at its highest learning rate; on
    everything if that is nothing, so that there is something to measure.
    """
    policy = model.policy
    selection = select_groups(batch, config.selection)
    if selection.is_empty:
        selection = select_groups(batch, SelectionConfig(strategy="none"))
    if selection.is_empty:
        return DryUpdates(problem=f"there is nothing to train on, {selection.reason}")
    # After the warm-ups: the policy trains, at the whole rate.
    step = max(config.critic_warmup_steps, config.optim.warmup_steps) + 1
    started = time.perf_counter()
    try:
        packed, unpacked = pack_kept(batch, selection, config, model.chat)
        packed, logprobs = model.learner.annotate(packed, config)
        packed = with_advantages(packed, config, unpacked)
        result = model.learner.update(packed, config, step)
        if policy.device.type == "cuda":
            torch.cuda.synchronize(policy.device)
        seconds = time.perf_counter() - started
        for _ in range(DRY_UPDATES - 1):
            second = model.learner.update(packed, config, step)
        if logprobs is None:  # the own pass of another update sees what those before it did
            logprobs = model.learner.update(packed, config, step).trainer_logprobs
        else:
            _, logprobs = model.learner.annotate(packed, config)
    except torch.OutOfMemoryError as error:
        return DryUpdates(problem="memory ran out, " + " ".join(str(error).split())[:120])
    if result.num_skipped:
        return DryUpdates(seconds=seconds, problem="the gradient is NaN or infinite")
    shift = math.nan
    if logprobs is not None:
        has_logprob = packed.loss_mask & logprobs.isfinite()  # rows that teach nothing have no pass
        shift = mismatch_kl(logprobs, packed.behaviour_logprobs, has_logprob)
    has_adapters = config.model.lora is not None
    stored = policy.policy_parameters() if has_adapters else policy.model.parameters()
    weights = sum(tensor.nbytes for tensor in stored)
    size = weights + model.learner.optimizer_bytes()
    losses = [each.metrics.get("loss/value", math.nan) for each in (result, second)]
    return DryUpdates(
        seconds=seconds,
        checkpoint_bytes=size,
        shift=shift,
        critic_growth=losses[1] / losses[0] if losses[0] > 0 else math.nan,
    )


def _num_evaluated(config: RunConfig) -> int:
    """Episodes of all evaluations and probes: at the start, on schedule, and at the end."""

    def rounds(every: int, *, is_first: bool) -> int:
        return int(is_first) + (math.ceil(config.steps / every) if every else 0)

    envs = config.envs
    evaluated = sum(group.groups for group in envs.eval) * envs.eval_group_size
    total = evaluated * rounds(config.eval.every, is_first=config.eval.before)
    if config.probe.every:
        tasks = sum(group.groups for group in probe_groups(config))
        total += tasks * rounds(config.probe.every, is_first=True)
    return total


def _device_words(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
