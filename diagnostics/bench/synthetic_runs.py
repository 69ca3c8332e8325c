"""Synthetic runs with a known schedule: every collapse, and runs that only look like one.

What they share with real runs: two thirds of the step-to-step variance of success comes from which
tasks were drawn, validity is binomial noise on a slowly correlated rate, gradient norms are
heavy-tailed, evaluations come every ten steps on fixed tasks, cross-scores every five.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FloatArray64

from ..judge.regimes import Regime
from ..read.table import MetricTable
from .harness import LabelledRun, halved_for_good

NUM_STEPS = 160
EVAL_EVERY = 10
SCORE_EVERY = 5
EPISODES = 128
TURNS = 3
EVAL_EPISODES = 256
NUM_PROMPTS = 8


@dataclass(slots=True, kw_only=True)
class Schedule:
    """Noise-free courses, each (T,), that a synthetic run is drawn from."""

    success: FloatArray64
    valid: FloatArray64
    closed: FloatArray64
    length: FloatArray64
    entropy: FloatArray64
    dependence: FloatArray64
    conditional_entropy: FloatArray64
    repetition: FloatArray64
    spread: FloatArray64
    """Factor on the reward spread that success implies."""
    eval_episodes: int = EVAL_EPISODES
    onset: int | None = None
    regime: Regime = Regime.DIVERSE
    """Of the reasoning in the end."""


def _learning(rng: np.random.Generator) -> Schedule:
    """Success rises and saturates, format is learned, entropy falls: nothing is wrong."""
    t = np.arange(NUM_STEPS, dtype=np.float64)
    start, top = rng.uniform(0.05, 0.2), rng.uniform(0.35, 0.75)
    speed = rng.uniform(20, 60)
    success = start + (top - start) * (1 - np.exp(-t / speed))
    valid = 1 - rng.uniform(0.05, 0.4) * np.exp(-t / rng.uniform(10, 30)) - 0.02
    entropy = rng.uniform(0.4, 1.5) * (0.35 + 0.65 * np.exp(-t / rng.uniform(30, 90)))
    ones = np.ones(NUM_STEPS)
    return Schedule(
        success=success,
        valid=valid,
        closed=np.minimum(valid + 0.02, 1.0),
        length=rng.uniform(80, 300) * (1 + 0.3 * rng.uniform(-1, 1) * t / NUM_STEPS),
        entropy=entropy,
        dependence=np.clip(rng.uniform(0.5, 0.9) * ones, 0, 1),
        conditional_entropy=1.5 * entropy / entropy[0] * 0.5 + 0.75,
        repetition=0.05 * ones,
        spread=ones,
    )


def _ramp(onset: int, steps: float) -> FloatArray64:
    """0 before the onset, 1 once `steps` have passed."""
    return np.clip((np.arange(NUM_STEPS) - onset) / steps, 0, 1)


def _onset(rng: np.random.Generator) -> int:
    return int(rng.integers(60, 105))


def healthy(rng: np.random.Generator) -> Schedule:
    return _learning(rng)


def solved(rng: np.random.Generator) -> Schedule:
    """Success to one, reward spread and entropy to nothing: the task is done."""
    made = _learning(rng)
    ramp = _ramp(20, 50)
    made.success = made.success * (1 - ramp) + 0.995 * ramp
    made.entropy = made.entropy * (1 - 0.97 * ramp)
    made.conditional_entropy = made.conditional_entropy * (1 - 0.95 * ramp)
    made.regime = Regime.COMPRESSED
    return made


def length_drift(rng: np.random.Generator) -> Schedule:
    """Replies grow to three times their length and stay right."""
    made = _learning(rng)
    made.length = made.length * (1 + 2 * _ramp(_onset(rng), 40))
    return made


def harder_tasks(rng: np.random.Generator) -> Schedule:
    """The training tasks become harder; success drops by a third, the policy is as good."""
    made = _learning(rng)
    made.success = made.success * (1 - 0.33 * _ramp(_onset(rng), 1))
    return made


def template(rng: np.random.Generator) -> Schedule:
    """Reasoning stops depending on the prompt; success holds for long, then falls slowly."""
    made = _learning(rng)
    made.onset = _onset(rng)
    ramp = _ramp(made.onset, 15)
    made.dependence = made.dependence * (1 - 0.97 * ramp)
    made.success = made.success * (1 - 0.75 * _ramp(made.onset + 20, 30))
    made.regime = Regime.TEMPLATE_COLLAPSE
    return made


def format_loss(rng: np.random.Generator) -> Schedule:
    """Replies outgrow their budget and lose their closing tag; actions become invalid."""
    made = _learning(rng)
    made.onset = _onset(rng)
    ramp = _ramp(made.onset, 15)
    made.closed = made.closed * (1 - 0.85 * ramp)
    made.valid = made.valid * (1 - 0.8 * _ramp(made.onset + 3, 15))
    made.length = made.length * (1 + 2.5 * ramp)
    made.success = made.success * (1 - 0.95 * _ramp(made.onset + 6, 15))
    return made


def entropy_explosion(rng: np.random.Generator) -> Schedule:
    """Entropy per token climbs to several nats; success and validity follow."""
    made = _learning(rng)
    made.onset = _onset(rng)
    ramp = _ramp(made.onset, 30)
    made.entropy = made.entropy + 5 * ramp**2 + 0.3 * ramp
    made.conditional_entropy = made.conditional_entropy + 5 * ramp**2
    made.success = made.success * (1 - 0.9 * _ramp(made.onset + 8, 25))
    made.valid = made.valid * (1 - 0.4 * _ramp(made.onset + 15, 25))
    made.closed = made.closed * (1 - 0.4 * _ramp(made.onset + 15, 25))
    return made


def low_entropy(rng: np.random.Generator) -> Schedule:
    """One deterministic reply for every prompt, and it is wrong on most."""
    made = _learning(rng)
    made.onset = _onset(rng)
    ramp = _ramp(made.onset, 20)
    made.entropy = made.entropy * (1 - 0.98 * ramp)
    made.conditional_entropy = made.conditional_entropy * (1 - 0.97 * ramp)
    made.dependence = made.dependence * (1 - 0.97 * ramp)
    made.repetition = made.repetition + 0.85 * ramp
    made.spread = 1 - 0.9 * ramp
    made.success = made.success * (1 - 0.7 * _ramp(made.onset + 8, 25))
    made.regime = Regime.LOW_ENTROPY_COLLAPSE
    return made


def echo_trap(rng: np.random.Generator) -> Schedule:
    """Siblings repeat one rewarded pattern: spread goes, then success."""
    made = _learning(rng)
    made.onset = _onset(rng)
    ramp = _ramp(made.onset, 12)
    made.spread = 1 - 0.92 * ramp
    made.repetition = made.repetition + 0.8 * ramp
    made.entropy = made.entropy * (1 - 0.5 * ramp)
    made.success = made.success * (1 - 0.8 * _ramp(made.onset + 8, 20))
    return made


def few_tasks(rng: np.random.Generator) -> Schedule:
    """A healthy run that is evaluated on a dozen tasks only, drawn anew each time."""
    made = _learning(rng)
    made.eval_episodes = int(rng.integers(8, 17))
    return made


HEALTHY: Mapping[str, Callable[[np.random.Generator], Schedule]] = {
    "healthy": healthy,
    "solved": solved,
    "length_drift": length_drift,
    "harder_tasks": harder_tasks,
    "few_tasks": few_tasks,
}
COLLAPSES: Mapping[str, Callable[[np.random.Generator], Schedule]] = {
    "format_collapse": format_loss,
    "template_collapse": template,
    "entropy_explosion": entropy_explosion,
    "low_entropy_collapse": low_entropy,
    "echo_trap": echo_trap,
}


def make(kind: str, seed: int) -> LabelledRun:
    """A run of a kind; the same seed gives the same run.

    Raises:
        KeyError: no such kind.
    """
    rng = np.random.default_rng([seed, sum(kind.encode())])
    schedule = {**HEALTHY, **COLLAPSES}[kind](rng)
    table = _drawn(schedule, rng, uses_fixed_tasks=kind == "harder_tasks")
    is_collapsed = kind in COLLAPSES
    return LabelledRun(
        name=f"{kind}-{seed}",
        label=kind,
        is_collapsed=is_collapsed,
        counts=True,
        halved_step=halved_for_good(table) if is_collapsed else None,
        onset_step=schedule.onset,
        recorded_stops={},
        table=table,
        regime=schedule.regime,
        seed=seed,
    )


def _drawn(made: Schedule, rng: np.random.Generator, *, uses_fixed_tasks: bool) -> MetricTable:
    """What such a run would have logged."""
    steps = np.arange(NUM_STEPS)
    difficulty = 0.6 * rng.standard_normal(NUM_STEPS)
    success_train = _rate(_shifted(made.success, difficulty), EPISODES, rng)
    fixed = _learning_only(made) if uses_fixed_tasks else made.success
    is_eval = steps % EVAL_EVERY == 0
    is_scored = steps % SCORE_EVERY == 0
    drift = 0.15 * _ar1(rng, 0.5)
    spread = 2 * np.sqrt(np.clip(made.success * (1 - made.success), 0, None)) * made.spread
    information = made.dependence + 0.04 * rng.standard_normal(NUM_STEPS)
    retrieval = 1 / NUM_PROMPTS + (1 - 1 / NUM_PROMPTS) * made.dependence
    columns: dict[str, FloatArray64] = {
        "rollout/success_rate": success_train,
        "reward/return_mean": 2 * success_train - 0.2,
        "eval/made/success_rate": _only(is_eval, _rate(fixed, made.eval_episodes, rng)),
        "eval/made/num_tasks": _only(is_eval, np.full(NUM_STEPS, float(made.eval_episodes))),
        "rollout/action_valid_frac": _rate(_shifted(made.valid, drift), EPISODES * TURNS, rng),
        "text/closed_reasoning_frac": _only(is_scored, _rate(made.closed, EPISODES, rng)),
        "rollout/response_length_mean": made.length * np.exp(0.06 * _ar1(rng, 0.3)),
        "policy/entropy": made.entropy * np.exp(0.07 * _ar1(rng, 0.4)),
        "optim/grad_norm": np.exp(0.3 * rng.standard_t(3, NUM_STEPS)),
        "reward/group_std_mean": spread * np.exp(0.15 * rng.standard_normal(NUM_STEPS)),
        "info/first_turn/dependence": _only(is_scored, np.clip(information, 0, 1)),
        "info/first_turn/retrieval_accuracy@1": _only(is_scored, _rate(retrieval, 64, rng)),
        "info/first_turn/retrieval_chance@1": _only(is_scored, np.full(NUM_STEPS, 0.125)),
        "info/first_turn/conditional_entropy_per_token": _only(
            is_scored, made.conditional_entropy * np.exp(0.05 * rng.standard_normal(NUM_STEPS))
        ),
        "text/near_duplicate_frac": _only(is_scored, _rate(made.repetition, EPISODES, rng)),
    }
    return MetricTable(steps=steps, columns=columns, sources={}, kind="made")


def _learning_only(made: Schedule) -> FloatArray64:
    """Success on fixed tasks of a run whose training tasks became harder: the best so far."""
    return np.asarray(np.maximum.accumulate(made.success))


def _shifted(rate: FloatArray64, by: FloatArray64) -> FloatArray64:
    """A rate moved on the logit scale."""
    safe = np.clip(rate, 1e-4, 1 - 1e-4)
    return np.asarray(1 / (1 + np.exp(-(np.log(safe / (1 - safe)) + by))))


def _rate(rate: FloatArray64, trials: int, rng: np.random.Generator) -> FloatArray64:
    return np.asarray(rng.binomial(trials, np.clip(rate, 0, 1)) / trials, dtype=np.float64)


def _only(where: NDArray[np.bool_], values: FloatArray64) -> FloatArray64:
    return np.where(where, values, math.nan)


def _ar1(rng: np.random.Generator, correlation: float) -> FloatArray64:
    """Unit-variance noise with a lag-1 correlation."""
    shocks = rng.standard_normal(NUM_STEPS) * math.sqrt(1 - correlation**2)
    out = np.empty(NUM_STEPS)
    value = rng.standard_normal()
    for i, shock in enumerate(shocks):
        value = correlation * value + shock
        out[i] = value
    return out
