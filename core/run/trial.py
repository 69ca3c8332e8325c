"""Rollouts without learning: what a run would start with, and what a step of it costs.

The tasks are those of the run's own first steps, played by the policy it starts from. One update is
made at the end, on the first step's rollouts, to see that it works and what it takes; the policy it
changes is thrown away. Nothing is written.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.measure.information.cross_scores import CrossScores
from echoscope.diagnostics.measure.information.estimate import InformationEstimate, estimate
from echoscope.diagnostics.measure.information.scoring import ModelScorer
from echoscope.diagnostics.measure.information.step import measure_information, plan_information
from echoscope.diagnostics.selection.filter import Selection, select_groups
from echoscope.diagnostics.tools.preflight.findings import Cost
from echoscope.envs.settings import EnvGroup
from echoscope.store.records import RolloutBatch, Split, Trajectory

from ..config.loading import ConfigError
from ..config.settings import RunConfig
from ..engines.build import build_engine
from ..rollout.sources import EnvSource, build_pool, probe_groups
from ..update.assemble import pack_kept, with_advantages
from ..update.update import annotate, update
from .build import Builder
from .observers import SilentEvents
from .train import Model

OnProgress = Callable[[str, int, int], None]
"""What is being done, how much of it is, and of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Rollouts of the starting policy, and what they and one update cost."""

    batches: tuple[RolloutBatch, ...]
    information: InformationEstimate | None
    """First turn; None where it was not asked for, or groups are too few to compare."""
    cost: Cost


def run_trial(
    config: RunConfig, *, num_groups: int, with_information: bool = True, on_progress: OnProgress
) -> Trial:
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
    builder = Builder(config, Path(), SilentEvents(), ())
    builder.check()
    on_progress("loading the model", 0, 1)
    started = time.perf_counter()
    model = builder.load()
    load_s = time.perf_counter() - started
    whole = sum(group.groups for group in config.envs.train)
    groups = config.envs.train if num_groups >= whole else _fewer(config.envs.train, num_groups)
    num_steps = max(1, math.ceil(num_groups / whole))
    batches, seconds = _play(config, model, groups, num_steps, on_progress)
    information = None
    if with_information:
        on_progress("scoring reasonings under other prompts", 0, 1)
        information = _information(config, model, batches[0])
    on_progress("one dry update", 0, 1)
    update_s, checkpoint_bytes, problem = _dry_update(config, model, batches[0])
    played = sum(len(batch.trajectories) for batch in batches)
    scale = whole / sum(group.groups for group in groups)
    cost = Cost(
        device=_device_words(model.policy.device),
        load_s=load_s,
        rollout_s=seconds / num_steps * scale,
        update_s=update_s * scale,
        episode_s=seconds / played,
        steps=config.steps,
        num_evaluated=_num_evaluated(config),
        diagnostics_frac=config.diagnostics.budget_frac if config.diagnostics.enabled else 0.0,
        num_parameters=sum(p.numel() for p in model.policy.model.parameters()),
        num_trainable=sum(p.numel() for p in model.policy.policy_parameters())
        + sum(p.numel() for p in model.policy.critic_parameters()),
        peak_bytes=_peak_bytes(model.policy.device),
        total_bytes=_total_bytes(model.policy.device),
        is_gpu=model.policy.device.type == "cuda",
        checkpoint_bytes=checkpoint_bytes,
        num_checkpoints=config.checkpoint.keep,
        problem=problem,
        estimate="" if builder.memory is None else builder.memory.text,
    )
    return Trial(batches=batches, information=information, cost=cost)


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
    pool = build_pool(
        groups, group_size=config.envs.group_size, seed=config.seed, split=Split.TRAIN
    )
    of = num_steps * pool.num_groups * pool.group_size
    played = 0

    def on_finished(ended: Sequence[Trajectory]) -> None:
        nonlocal played
        played += len(ended)
        on_progress("playing episodes", played, of)

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


def _information(config: RunConfig, model: Model, batch: RolloutBatch) -> InformationEstimate:
    plan = plan_information(
        batch.trajectories, config.diagnostics.information, step=1, decode=model.chat.decode
    )
    scorer = ModelScorer(model.policy.model, temperature=config.sampling.temperature)
    try:
        measured = measure_information(scorer, batch.trajectories, plan)
    except torch.OutOfMemoryError:
        return estimate(CrossScores.missing("memory ran out", family="first_turn"))
    return measured.estimates["first_turn"]


def _dry_update(config: RunConfig, model: Model, batch: RolloutBatch) -> tuple[float, int, str]:
    """Seconds of an update, bytes of a checkpoint after it, and what went wrong if anything did.

    It trains on what the selection keeps, as the run would; on everything if that is nothing, so
    that there is something to measure.
    """
    policy = model.policy
    selection = select_groups(batch, config.selection)
    if selection.is_empty:
        selection = _everything(batch)
    if selection.is_empty:
        return math.nan, 0, f"there is nothing to train on, {selection.reason}"
    started = time.perf_counter()
    try:
        packed, unpacked = pack_kept(batch, selection, config, model.chat)
        packed, _ = annotate(policy, packed.to(policy.device), config)
        packed = with_advantages(packed, config, unpacked)
        first = config.critic_warmup_steps + 1  # at which the policy trains
        result = update(policy, model.optimizer, packed, config, first)
        if policy.device.type == "cuda":
            torch.cuda.synchronize(policy.device)
    except torch.OutOfMemoryError as error:
        return math.nan, 0, "memory ran out, " + " ".join(str(error).split())[:120]
    seconds = time.perf_counter() - started
    if result.num_skipped:
        return seconds, 0, "the gradient is NaN or infinite"
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    if config.model.lora is not None:
        weights = sum(p.numel() * p.element_size() for p in policy.policy_parameters())
    state = sum(t.numel() * t.element_size() for t in model.optimizer.state_tensors().values())
    return seconds, weights + state, ""


def _everything(batch: RolloutBatch) -> Selection:
    return select_groups(batch, SelectionConfig(strategy="none"))


def _num_evaluated(config: RunConfig) -> int:
    """Episodes of all evaluations and probes: at the start, on schedule, and at the end."""
    total = 0
    envs = config.envs
    size = sum(group.groups for group in envs.eval) * envs.eval_group_size
    if size:
        total += size * _num_rounds(config.steps, config.eval.every, is_first=config.eval.before)
    if config.probe.every:
        tasks = sum(group.groups for group in probe_groups(config))
        total += tasks * _num_rounds(config.steps, config.probe.every, is_first=True)
    return total


def _num_rounds(steps: int, every: int, *, is_first: bool) -> int:
    """At the start, on schedule, and at the end; 0 is never."""
    on_schedule = math.ceil(steps / every) if every else 0
    return int(is_first) + on_schedule


def _device_words(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, KiB elsewhere


def _total_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container, where there is one
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    return min(total, int(text)) if text.isdigit() else total
