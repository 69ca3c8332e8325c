"""Multi-turn collection: environments and policy take turns (the papers' Agent Proxy).

Every episode still going takes part in one call of the engine and one of the pool per turn;
`asynchronous.py` lets each go on at its own pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from echoscope.envs.pool import EnvPool
from echoscope.store.records import RolloutBatch, Split, StopReason, Trajectory

from ..config.context import ContextConfig
from ..config.settings import SamplingConfig
from ..engines.base import GenerationEngine, Sample
from .chat import ChatFormat
from .episode import (
    Episode,
    SamplingSettings,
    TurnShaping,
    begin,
    budget,
    finish_turn,
    read,
    sampling_params,
    sampling_seed,
    stop,
    trajectory,
)
from .stopping import Stopping


def collect(
    *,
    pool: EnvPool,
    engine: GenerationEngine,
    chat: ChatFormat,
    context: ContextConfig,
    sampling: SamplingSettings,
    step: int,
    split: Split,
    seed: int,
    on_finished: Callable[[list[Trajectory]], None] | None = None,
    should_abort: Callable[[], bool] | None = None,
    shaping: TurnShaping | None = None,
    stopping: Stopping | None = None,
    draw_round: int = 0,
) -> RolloutBatch:
    """Play every episode of a step to its end; (P, G) trajectories.

    Args:
        sampling: temperature (0 for greedy), top_p, top_k and min_p.
        on_finished: called after each turn with the trajectories that ended in it, so that they can
            be written while others go on.
        should_abort: asked before each turn; True ends what still goes on as ABORTED.
        shaping: adds named terms to each turn's reward.
        stopping: what ends a reply; the model's own stop tokens if None.
        draw_round: how often the step has been played with other tasks before.
    """
    started = time.perf_counter()
    stops = stopping or Stopping(chat, SamplingConfig())
    active = [begin(slot, chat, context) for slot in pool.reset(step, draw_round)]
    finished: dict[int, Trajectory] = {}
    while active:
        if should_abort is not None and should_abort():
            for episode in active:
                stop(episode, StopReason.ABORTED)
        going = [episode for episode in active if episode.stop_reason is None]
        if going:
            samples = _generate(going, engine, stops, context, sampling, (seed, split, step))
            _play(going, samples, pool, context, shaping, sampling.temperature)
        ended = {
            episode.slot.index: trajectory(
                episode, reason, step, split, time.perf_counter() - started
            )
            for episode in active
            if (reason := episode.stop_reason) is not None
        }
        finished |= ended
        if ended and on_finished is not None:
            on_finished(list(ended.values()))
        active = [episode for episode in active if episode.stop_reason is None]
    return grouped(finished, pool)


def _generate(
    episodes: Sequence[Episode],
    engine: GenerationEngine,
    stopping: Stopping,
    context: ContextConfig,
    sampling: SamplingSettings,
    place: tuple[int, Split, int],
) -> list[Sample]:
    """One response per episode, in one call."""
    budgets = [budget(episode, context) for episode in episodes]
    seed, split, step = place
    samples = engine.generate(
        [episode.prompt.tokens for episode in episodes],
        sampling_params(max(budgets), sampling, split, stopping),
        seeds=[
            sampling_seed(seed, split, step, episode.slot.episode_index, len(episode.turns))
            for episode in episodes
        ],
    )
    return [sample.cut(most) for sample, most in zip(samples, budgets, strict=True)]


def _play(
    episodes: Sequence[Episode],
    samples: Sequence[Sample],
    pool: EnvPool,
    context: ContextConfig,
    shaping: TurnShaping | None,
    temperature: float,
) -> None:
    """Read the responses, step the environments, record the turns, prepare the next prompts."""
    readings = [read(episode, sample) for episode, sample in zip(episodes, samples, strict=True)]
    moves = {
        episode.slot.index: actions
        for episode, (_, actions) in zip(episodes, readings, strict=True)
        if actions is not None
    }
    results = pool.step(moves)
    for episode, sample, (reading, _) in zip(episodes, samples, readings, strict=True):
        result = results.get(episode.slot.index)
        finish_turn(episode, sample, reading, result, context, shaping, temperature)


def grouped(trajectories: Mapping[int, Trajectory], pool: EnvPool) -> RolloutBatch:
    """The trajectories of a step, by slot of the pool, as its groups."""
    size = pool.group_size
    return RolloutBatch(
        groups=tuple(
            tuple(trajectories[p * size + g] for g in range(size)) for p in range(pool.num_groups)
        )
    )
