"""Synthetic runs with a known schedule: every collapse, and runs that only look like one.

What they share with real runs: two thirds of the step-to-step variance of success comes from which
tasks were drawn, validity is binomial noise on a slowly correlated rate, gradient norms are
heavy-tailed, evaluations come every ten steps on fixed tasks, cross-scores every five.

| kind | what happens |
| --- | --- |
| healthy | success rises and saturates |
| solved | success to one, reward spread and entropy to nothing: the task is done |
| length_drift | replies grow to three times their length and stay right |
| harder_tasks | the training tasks become harder; success drops, the policy is as good |
| few_tasks | healthy, and evaluated on a dozen tasks only, drawn anew each time |
| format_collapse | replies outgrow their budget, lose their closing tag, then their validity |
| template_collapse | reasoning stops depending on the prompt; success falls late and slowly |
| entropy_explosion | entropy per token climbs to several nats; success and validity follow |
| low_entropy_collapse | one deterministic reply for every prompt, and it is wrong on most |
| echo_trap | siblings repeat one rewarded pattern: spread goes, then success |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echoscope.store.query import metric_keys
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


Schedule = dict[str, FloatArray64]
"""Noise-free courses, each (T,), that a synthetic run is drawn from. `spread` is a factor on the
reward spread that success implies."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What becomes of one course, in `over` steps from `after` steps past the onset on.

    In the end it is multiplied by 1 + `factor`, and `amount` is added. With a power above 1 the
    amount sets in slowly.
    """

    kind: str
    course: str
    factor: float = 0.0
    after: int = 0
    over: float = 15
    amount: float = 0.0
    power: int = 1


HEALTHY = ("healthy", "solved", "length_drift", "harder_tasks", "few_tasks")
COLLAPSES = (
    "format_collapse",
    "template_collapse",
    "entropy_explosion",
    "low_entropy_collapse",
    "echo_trap",
)
DRIFTS: tuple[Drift, ...] = (
    Drift("solved", "success", -1, over=50, amount=0.995),
    Drift("solved", "entropy", -0.97, over=50),
    Drift("solved", "conditional_entropy", -0.95, over=50),
    Drift("length_drift", "length", 2, over=40),
    Drift("harder_tasks", "success", -0.33, over=1),
    Drift("format_collapse", "closed", -0.85),
    Drift("format_collapse", "valid", -0.8, after=3),
    Drift("format_collapse", "length", 2.5),
    Drift("format_collapse", "success", -0.95, after=6),
    Drift("template_collapse", "dependence", -0.97),
    Drift("template_collapse", "success", -0.75, after=20, over=30),
    Drift("entropy_explosion", "entropy", over=30, amount=5, power=2),
    Drift("entropy_explosion", "entropy", over=30, amount=0.3),
    Drift("entropy_explosion", "conditional_entropy", over=30, amount=5, power=2),
    Drift("entropy_explosion", "success", -0.9, after=8, over=25),
    Drift("entropy_explosion", "valid", -0.4, after=15, over=25),
    Drift("entropy_explosion", "closed", -0.4, after=15, over=25),
    Drift("low_entropy_collapse", "entropy", -0.98, over=20),
    Drift("low_entropy_collapse", "conditional_entropy", -0.97, over=20),
    Drift("low_entropy_collapse", "dependence", -0.97, over=20),
    Drift("low_entropy_collapse", "repetition", over=20, amount=0.85),
    Drift("low_entropy_collapse", "spread", -0.9, over=20),
    Drift("low_entropy_collapse", "success", -0.7, after=8, over=25),
    Drift("echo_trap", "spread", -0.92, over=12),
    Drift("echo_trap", "repetition", over=12, amount=0.8),
    Drift("echo_trap", "entropy", -0.5, over=12),
    Drift("echo_trap", "success", -0.8, after=8, over=20),
)
SOLVED_ONSET = 20
REGIMES: Mapping[str, Regime] = {
    "solved": Regime.COMPRESSED,
    "template_collapse": Regime.TEMPLATE_COLLAPSE,
    "low_entropy_collapse": Regime.LOW_ENTROPY_COLLAPSE,
}
"""Of the reasoning in the end, where it is not diverse."""


def _learning(rng: np.random.Generator) -> Schedule:
    """Success rises and saturates, format is learned, entropy falls: nothing is wrong."""
    t = np.arange(NUM_STEPS, dtype=np.float64)
    start, top = rng.uniform(0.05, 0.2), rng.uniform(0.35, 0.75)
    speed = rng.uniform(20, 60)
    success = start + (top - start) * (1 - np.exp(-t / speed))
    valid = 1 - rng.uniform(0.05, 0.4) * np.exp(-t / rng.uniform(10, 30)) - 0.02
    entropy = rng.uniform(0.4, 1.5) * (0.35 + 0.65 * np.exp(-t / rng.uniform(30, 90)))
    ones = np.ones(NUM_STEPS)
    return {
        "success": success,
        "valid": valid,
        "closed": np.minimum(valid + 0.02, 1.0),
        "length": rng.uniform(80, 300) * (1 + 0.3 * rng.uniform(-1, 1) * t / NUM_STEPS),
        "entropy": entropy,
        "dependence": np.clip(rng.uniform(0.5, 0.9) * ones, 0, 1),
        "conditional_entropy": 1.5 * entropy / entropy[0] * 0.5 + 0.75,
        "repetition": 0.05 * ones,
        "spread": ones,
    }


def make(kind: str, seed: int) -> LabelledRun:
    """A run of a kind; the same seed gives the same run.

    Raises:
        KeyError: no such kind.
    """
    if kind not in (*HEALTHY, *COLLAPSES):
        raise KeyError(kind)
    rng = np.random.default_rng([seed, sum(kind.encode())])
    schedule, is_collapsed = _learning(rng), kind in COLLAPSES
    drifts = [drift for drift in DRIFTS if drift.kind == kind]
    onset = SOLVED_ONSET if kind == "solved" or not drifts else int(rng.integers(60, 105))
    for drift in drifts:
        ramp = np.clip((np.arange(NUM_STEPS) - onset - drift.after) / drift.over, 0, 1)
        changed = schedule[drift.course] * (1 + drift.factor * ramp)
        schedule[drift.course] = changed + drift.amount * ramp**drift.power
    eval_episodes = int(rng.integers(8, 17)) if kind == "few_tasks" else EVAL_EPISODES
    # Fixed tasks do not become harder: success on them stays at the best so far.
    on_fixed = np.maximum.accumulate if kind == "harder_tasks" else np.asarray
    table = _drawn(schedule, on_fixed(schedule["success"]), eval_episodes, rng)
    return LabelledRun(
        name=f"{kind}-{seed}",
        label=kind,
        is_collapsed=is_collapsed,
        counts=True,
        halved_step=halved_for_good(table) if is_collapsed else None,
        onset_step=onset if is_collapsed else None,
        recorded_stops={},
        table=table,
        regime=REGIMES.get(kind, Regime.DIVERSE),
        seed=seed,
    )


def _drawn(
    made: Schedule, fixed: FloatArray64, eval_episodes: int, rng: np.random.Generator
) -> MetricTable:
    """What such a run would have logged.

    Args:
        fixed: (T,) success on the tasks of the evaluation.
    """
    steps = np.arange(NUM_STEPS)
    difficulty = 0.6 * rng.standard_normal(NUM_STEPS)
    success_train = _rate(_shifted(made["success"], difficulty), EPISODES, rng)
    is_eval = steps % EVAL_EVERY == 0
    is_scored = steps % SCORE_EVERY == 0
    drift = 0.15 * _ar1(rng, 0.5)
    spread = 2 * np.sqrt(np.clip(made["success"] * (1 - made["success"]), 0, None)) * made["spread"]
    information = made["dependence"] + 0.04 * rng.standard_normal(NUM_STEPS)
    retrieval = 1 / NUM_PROMPTS + (1 - 1 / NUM_PROMPTS) * made["dependence"]
    columns: dict[str, FloatArray64] = {
        metric_keys.SUCCESS_RATE: success_train,
        metric_keys.RETURN_MEAN: 2 * success_train - 0.2,
        "eval/made/success_rate": _only(is_eval, _rate(fixed, eval_episodes, rng)),
        "eval/made/num_tasks": _only(is_eval, np.full(NUM_STEPS, float(eval_episodes))),
        metric_keys.ACTION_VALID: _rate(_shifted(made["valid"], drift), EPISODES * TURNS, rng),
        "text/closed_reasoning_frac": _only(is_scored, _rate(made["closed"], EPISODES, rng)),
        metric_keys.RESPONSE_LENGTH: made["length"] * np.exp(0.06 * _ar1(rng, 0.3)),
        metric_keys.ENTROPY: made["entropy"] * np.exp(0.07 * _ar1(rng, 0.4)),
        metric_keys.GRAD_NORM: np.exp(0.3 * rng.standard_t(3, NUM_STEPS)),
        metric_keys.GROUP_STD: spread * np.exp(0.15 * rng.standard_normal(NUM_STEPS)),
        "info/first_turn/dependence": _only(is_scored, np.clip(information, 0, 1)),
        "info/first_turn/retrieval_accuracy@1": _only(is_scored, _rate(retrieval, 64, rng)),
        "info/first_turn/retrieval_chance@1": _only(is_scored, np.full(NUM_STEPS, 0.125)),
        "info/first_turn/conditional_entropy_per_token": _only(
            is_scored, made["conditional_entropy"] * np.exp(0.05 * rng.standard_normal(NUM_STEPS))
        ),
        "text/near_duplicate_frac": _only(is_scored, _rate(made["repetition"], EPISODES, rng)),
    }
    return MetricTable(steps=steps, columns=columns, sources={})


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
