"""What a training run measures of itself, when, and what it makes of it.

Measurements are made before the update, at the weights that sampled:

| measurement | tier | at steps | what |
| --- | --- | --- | --- |
| rewards | 1 | all | reward spread; log-probability of what succeeds |
| text | 1 | 1, 3, 5, ... | everything that text alone can tell |
| information | 2 | 1, 17, 37, ... or more | I(X;Z), H(Z given X), and whether answers follow |
| gradients | 2 | 25, 50, ... | the loss taken apart |

The starting policy is measured, because it is what later steps are compared with.

Tier 2 has a budget, a share of the training's work. Information is measured more often while a sign
of collapse shows, and less often afterwards (`measure/schedule.py`). Work is counted in tokens
through the model, not in seconds: so what is measured at a step follows from the data alone, and a
resumed run measures the same steps as one that was never interrupted, on any machine under any
load. Seconds are reported (`time/diagnostics_frac`); nothing depends on them.

A measurement that fails gives NaN and one warning; the run goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from echoscope.store.records import Alarm, DiagnosticRecord, FloatArray, RolloutBatch, Trajectory

from .config import AlarmConfig, DiagnosticsConfig, GradientConfig
from .judge.advice.situation import Situation
from .judge.verdict import Diagnosis
from .measure.information.answer_swap import AnswerSwap, swap_answers
from .measure.information.cross_scores import CrossScores, Scorer
from .measure.information.estimate import estimate
from .measure.information.pairs import Decode, StatePrompt
from .measure.information.step import StepInformation, measure_information
from .measure.rewards import reward_stats
from .measure.schedule import Schedule, shows_sign
from .measure.text.measures import text_metrics
from .measure.text.report import METRICS, TextReport
from .read.sources import FINDINGS

TRAINING_PASSES = 8.0
"""Passes through the model that a step of training is worth per token of its rollouts: forward and
backward of the update with its annotation are 4, and generating takes about as long again."""
GRADIENT_PASSES = 1.75
"""... a decomposition of its gradient. It shares what the update shares: beginnings of rows, and
rows without a gradient (measured: `benchmarks/monitor_cost.py` prints this number and the next)."""
INFORMATION_PASSES = 2.75
"""... and scoring per token scored, estimates included (measured on the shipped policy, whose
passes are small; with a large one it is nearer 1, and the budget is not used up)."""
INFORMATION_SHARE = 0.65
"""Of the budget; the rest is for gradients. With full groups these fit every 25 steps."""
SWAPPED_TURNS = 8
"""Turns whose answers are scored after other prompts' reasonings."""

INFORMATION, GRADIENTS = "information", "gradients"


class Reported(Protocol):
    """A measurement that was made elsewhere."""

    def metrics(self) -> dict[str, float]: ...

    def record(self, step: int) -> DiagnosticRecord: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """What a trainer lends for one step: the policy at the weights that sampled it."""

    scorer: Callable[[], Scorer] | None = None
    """At the temperature that sampled; None if these weights did not sample the rollouts."""
    decode: Decode
    state_prompt: StatePrompt | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    gradients: Callable[[GradientConfig], Reported] | None = None


@dataclass(slots=True, kw_only=True)
class Measured:
    """What one step's measurements said."""

    values: dict[str, float] = field(default_factory=dict)
    records: list[DiagnosticRecord] = field(default_factory=list)
    information: dict[str, tuple[FloatArray, ...]] = field(default_factory=dict)
    """Trajectory id to nats per sampled token, one array per turn."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Measurement to seconds."""


class Monitor:
    """Measures each step and judges it. Draws depend on settings and the step only.

    Args:
        config: of the start of the run; what may change live comes with every step.
        on_message: told once of each failure, and of what cannot be judged.
    """

    def __init__(
        self,
        config: DiagnosticsConfig,
        *,
        run_id: str,
        on_message: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.diagnosis = Diagnosis(config.alarms, run_id=run_id, run=run_id)
        self._on_message = on_message
        self._clock = clock
        self._schedules = {INFORMATION: Schedule(), GRADIENTS: Schedule(0)}
        self._ragen: dict[str, float] = {}
        self._exhibits: dict[str, tuple[str, ...]] = {}
        self._said: dict[str, str] = {}

    def measure(
        self,
        step: int,
        rollouts: RolloutBatch,
        config: DiagnosticsConfig,
        instruments: Instruments,
    ) -> Measured:
        """Make the measurements that are due. Never raises for what they meet."""
        out = Measured()
        with self._guarded(step, "rewards", out):
            out.values |= _rewards(rollouts)
        if _is_due(step, config.text.every):
            out.values |= {f"text/{name}": math.nan for name in METRICS}
            with self._guarded(step, "text", out):
                self._measure_text(step, rollouts, config, out)
        work = _num_tokens(rollouts) * TRAINING_PASSES
        budget = work * config.budget_frac
        scorer, every = instruments.scorer, config.information.every
        schedule, is_urgent = (
            self._schedules[INFORMATION],
            shows_sign(self.diagnosis.engine.signs),
        )
        if scorer is not None and schedule.is_due(step, every, is_urgent=is_urgent):
            out.values |= _no_information(config)
            self._schedules[INFORMATION] = schedule.tried(step)
            with self._guarded(step, INFORMATION, out):
                cost = self._measure_information(step, rollouts, config, instruments, out)
                self._put_off(INFORMATION, every, cost, budget * INFORMATION_SHARE)
        gradients, every = instruments.gradients, config.gradient.every
        schedule = self._schedules[GRADIENTS]
        if gradients is not None and schedule.is_due(step, every):
            out.values["gradient/policy/all/norm"] = math.nan
            self._schedules[GRADIENTS] = schedule.tried(step)
            with self._guarded(step, GRADIENTS, out):
                found = gradients(config.gradient)
                out.values |= found.metrics()
                out.records.append(found.record(step))
                cost = _num_tokens(rollouts) * GRADIENT_PASSES
                self._put_off(GRADIENTS, every, cost, budget * (1 - INFORMATION_SHARE))
        return out

    def information(
        self,
        step: int,
        rollouts: RolloutBatch,
        config: DiagnosticsConfig,
        instruments: Instruments,
    ) -> Measured:
        """The information of a step alone, whether it is due or not. Never raises, as `measure`."""
        out = Measured(values=_no_information(config))
        with self._guarded(step, INFORMATION, out):
            self._measure_information(step, rollouts, config, instruments, out)
        return out

    def judge(
        self, step: int, values: Mapping[str, float], config: AlarmConfig | None = None
    ) -> list[Alarm]:
        """Take in a step's whole metrics, measured ones included, and say what they raise or clear.

        `config` is what holds from this step on; None for what held before. Steps come in order.
        Never raises: where judging fails, nothing is raised, and it is said.
        """
        alarms: list[Alarm] = []
        with self._guarded(step, "alarms", Measured()):
            if config is not None:
                self.diagnosis.engine.configure(config)
            alarms += self.diagnosis.observe(step, values, self._evidence)
        return alarms

    def situate(self, situation: Situation) -> None:
        """What advice knows of the run from the next step on."""
        self.diagnosis.engine.situation = situation

    def begin_branch(self, restarted: Collection[str]) -> None:
        """What was remembered is the parent's: see `AlarmEngine.begin_branch`."""
        self.diagnosis.engine.begin_branch(restarted)

    def state(self) -> dict[str, Any]:
        """All it must remember, as JSON values: part of every checkpoint."""
        return {
            "diagnosis": self.diagnosis.state(),
            "schedules": {name: schedule.state() for name, schedule in self._schedules.items()},
            "ragen": dict(self._ragen),
            "exhibits": {name: list(ids) for name, ids in self._exhibits.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state()` said."""
        self.diagnosis.restore(state["diagnosis"])
        self._schedules = {
            name: Schedule.of(schedule) for name, schedule in state["schedules"].items()
        }
        self._ragen = dict(state["ragen"])
        self._exhibits = {name: tuple(ids) for name, ids in state["exhibits"].items()}

    def _measure_text(
        self, step: int, rollouts: RolloutBatch, config: DiagnosticsConfig, out: Measured
    ) -> None:
        rng = np.random.default_rng([config.information.seed, step])
        report = text_metrics(rollouts, config.text, rng)
        out.values |= report.metrics()
        out.records.append(report.record(step))
        self._exhibits = _shown(report)

    def _measure_information(
        self,
        step: int,
        rollouts: RolloutBatch,
        config: DiagnosticsConfig,
        instruments: Instruments,
        out: Measured,
    ) -> float:
        """Returns its work in tokens through the model."""
        assert instruments.scorer is not None
        scorer, trajectories = instruments.scorer(), rollouts.trajectories
        found = measure_information(
            scorer,
            trajectories,
            config.information,
            step=step,
            decode=instruments.decode,
            state_prompt=instruments.state_prompt,
            top_k=instruments.top_k,
            top_p=instruments.top_p,
            min_p=instruments.min_p,
            previous=self._ragen or None,
        )
        out.values |= found.metrics()
        out.records.append(found.record(step))
        out.information |= _token_information(found, trajectories)
        self._ragen = dict(found.ragen)
        rng = np.random.default_rng([config.information.seed, step, 1])
        swap = swap_answers(
            scorer, trajectories, rng, decode=instruments.decode, num_turns=SWAPPED_TURNS
        )
        out.values |= swap.metrics()
        problems = [*found.problems, *([f"answers: {swap.problem}"] if swap.problem else [])]
        new = [one for one in problems if one not in self._said]
        self._said |= dict.fromkeys(new, "")
        if new:
            self._on_message(f"step {step}: not available: {'; '.join(new)}")
        return scorer.tally.num_tokens * INFORMATION_PASSES

    def _put_off(self, name: str, every: int, cost: float, budget: float) -> None:
        schedule = self._schedules[name].paid(cost, budget)
        self._schedules[name] = schedule
        if schedule.calm_interval > every:
            at_once = " while nothing changes" if name == INFORMATION else ""
            self._say_once(
                f"{name} budget",
                f"{name}: measured every {schedule.calm_interval} steps instead of {every}"
                f"{at_once}, to stay within diagnostics.budget_frac",
                "",
            )

    @contextmanager
    def _guarded(self, step: int, name: str, out: Measured) -> Iterator[None]:
        """Time a measurement; whatever goes wrong in it must not end a training run."""
        started = self._clock()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - an optional measurement, and it is said
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            self._say_once(name, f"step {step}: no {name}, {reason}", reason)
        else:
            self._said.pop(name, None)
        out.seconds[name] = self._clock() - started

    def _say_once(self, topic: str, text: str, reason: str) -> None:
        """Say it, unless the last word on this topic had the same reason."""
        if self._said.get(topic) != reason:
            self._on_message(text)
        self._said[topic] = reason

    def _evidence(self, rule: str) -> tuple[str, ...]:
        ids = (found for name in FINDINGS.get(rule, ()) for found in self._exhibits.get(name, ()))
        return tuple(dict.fromkeys(ids))


def _is_due(step: int, every: int) -> bool:
    return every > 0 and (step - 1) % every == 0


def _num_tokens(rollouts: RolloutBatch) -> int:
    """Tokens of the longest prompt and its reply of each trajectory, about its rows' length."""
    total = 0
    for trajectory in rollouts.trajectories:
        sizes = [
            len(turn.prompt_tokens) + len(turn.response_tokens)
            for turn in trajectory.turns
            if turn.prompt_tokens is not None and turn.response_tokens is not None
        ]
        total += max(sizes, default=0)
    return total


def _rewards(rollouts: RolloutBatch) -> dict[str, float]:
    rows = [
        turn.logprobs
        for trajectory in rollouts.trajectories
        if trajectory.is_success
        for turn in trajectory.turns
        if turn.logprobs is not None
    ]
    num_tokens = sum(len(row) for row in rows)
    total = sum(float(row.sum(dtype=np.float64)) for row in rows)
    return reward_stats(rollouts).metrics() | {
        "policy/success_logprob": total / num_tokens if num_tokens else math.nan
    }


def _no_information(config: DiagnosticsConfig) -> dict[str, float]:
    """The keys of the configured families, all NaN."""
    out: dict[str, float] = {}
    for family in config.information.families:
        out |= estimate(CrossScores.missing("", family=family)).metrics()
    return dict.fromkeys([*out, *AnswerSwap.missing("").metrics()], math.nan)


def _token_information(
    found: StepInformation, trajectories: Sequence[Trajectory]
) -> dict[str, tuple[FloatArray, ...]]:
    pairs = ((trajectory.id, found.token_information(trajectory)) for trajectory in trajectories)
    return {identity: tokens for identity, tokens in pairs if tokens is not None}


def _shown(report: TextReport) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(dict.fromkeys(one.trajectory_id for one in found))
        for name, found in report.exemplars.items()
    }
