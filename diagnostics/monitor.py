"""What a training run measures of itself, when, and what it makes of it.

Measurements are made before the update, at the weights that sampled:

| measurement | tier | at steps | what |
| --- | --- | --- | --- |
| rewards | 1 | all | reward spread; log-probability of what succeeds |
| text | 1 | 1, 3, 5, ... | everything that text alone can tell |
| information | 2 | 1, 17, 37, ... or more | I(X;Z) and H(Z given X) |
| gradients | 2 | 25, 50, ... | the loss taken apart |

The starting policy is measured, because it is what later steps are compared with.

Tier 2 has a budget, a share of the training's work: `measure/costs.py` keeps it. Seconds are
reported (`time/diagnostics_frac`).

A measurement that fails gives NaN and one warning; the run goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any

from echoscope.store.reader import RunReader
from echoscope.store.records import Alarm, DiagnosticRecord, FloatArray, RolloutBatch

from .config import AlarmConfig, DiagnosticsConfig
from .judge.advice.situation import Situation
from .judge.verdict import Diagnosis, judged_again
from .measure.costs import (
    Check,
    CutOffError,
    Limit,
    OnProgress,
    Purse,
    PutOffError,
    Schedule,
    shows_sign,
)
from .measure.draws import generator
from .measure.information.cross_scores import CrossScores, Scorer
from .measure.information.estimate import estimate
from .measure.information.pairs import FAMILIES, Decode
from .measure.information.step import (
    Plan,
    measure_information,
    num_tokens,
    plan_information,
)
from .measure.rates import mean_of_arrays
from .measure.rewards import reward_metrics
from .measure.text.measures import text_metrics
from .measure.text.report import METRICS
from .read.sources import FINDINGS, Opened
from .read.table import table_of_run

if TYPE_CHECKING:
    from .measure.gradients import GradientReport

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

INFORMATION, GRADIENTS = "information", "gradients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """What a trainer lends for one step: the policy at the weights that sampled it."""

    scorer: Callable[[], Scorer] | None = None
    """At the temperature that sampled; None if these weights did not sample the rollouts."""
    decode: Decode
    gradients: Callable[[], GradientReport] | None = None
    rollout_s: float = math.nan
    """Seconds that sampling the rollouts took; NaN: nothing counts as expensive."""
    trained_s: float = math.nan
    """Seconds of training in this process, these rollouts included, without diagnostics."""
    num_steps: int | None = None
    """The last step of the run."""
    is_stopping: Callable[[], bool] = lambda: False
    """Whether somebody waits for the run to stop."""
    interrupting: Callable[[Check], AbstractContextManager[None]] = lambda check: nullcontext()
    """Within it the check is called every second or so while the policy computes."""
    on_progress: OnProgress = lambda name, done, of: None
    """0 are done to the end where nobody counts."""


@dataclass(slots=True, kw_only=True)
class StepMeasurements:
    """What one step's measurements said."""

    values: dict[str, float] = field(default_factory=dict)
    records: list[DiagnosticRecord] = field(default_factory=list)
    information: dict[str, tuple[FloatArray, ...]] = field(default_factory=dict)
    """Trajectory id to nats per sampled token, one array per turn."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Measurement to seconds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """What the measurements of one step share."""

    step: int
    rollouts: RolloutBatch
    config: DiagnosticsConfig
    tools: Instruments
    out: StepMeasurements

    @property
    def work(self) -> float:
        """Of training on it, in tokens through the model."""
        return _num_tokens(self.rollouts) * TRAINING_PASSES


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
        self._purse = Purse()
        self._counted_s = 0.0
        """Seconds of training in this process that the purse knows."""
        self._ragen: dict[str, float] = {}
        self._exhibits: dict[str, tuple[str, ...]] = {}
        self._said: dict[str, str] = {}

    def measure(
        self,
        step: int,
        rollouts: RolloutBatch,
        config: DiagnosticsConfig,
        instruments: Instruments,
    ) -> StepMeasurements:
        """Make the measurements that are due. Never raises for what they meet."""
        out = StepMeasurements()
        now = _Step(step=step, rollouts=rollouts, config=config, tools=instruments, out=out)
        with self._guarded(step, "rewards", out):
            out.values |= _rewards(rollouts)
        if config.text.every and (step - 1) % config.text.every == 0:
            out.values |= {f"text/{name}": math.nan for name in METRICS}
            with self._guarded(step, "text", out):
                self._measure_text(step, rollouts, out)
        self._count_training(instruments.trained_s)
        every, is_urgent = config.information.every, shows_sign(self.diagnosis.engine.signs)
        is_due = self._schedules[INFORMATION].is_due(step, every, is_urgent=is_urgent)
        if instruments.scorer is not None and is_due:
            with self._due(now, INFORMATION, _no_information()):
                self._measure_information(now, is_urgent=is_urgent)
        is_due = self._schedules[GRADIENTS].is_due(step, config.gradient.every)
        if instruments.gradients is not None and is_due:
            with self._due(now, GRADIENTS, {"gradient/policy/all/norm": math.nan}):
                self._measure_gradients(now, instruments.gradients)
        return out

    def information(
        self,
        step: int,
        rollouts: RolloutBatch,
        config: DiagnosticsConfig,
        instruments: Instruments,
    ) -> StepMeasurements:
        """The information of a step alone, whether it is due or not. Never raises, as `measure`."""
        out = StepMeasurements(values=_no_information())
        now = _Step(step=step, rollouts=rollouts, config=config, tools=instruments, out=out)
        with self._guarded(step, INFORMATION, out):
            assert instruments.scorer is not None
            self._score(now, instruments.scorer(), self._plan(now))
        return out

    def judge(
        self, step: int, values: Mapping[str, float], config: AlarmConfig | None = None
    ) -> list[Alarm]:
        """Take in a step's whole metrics, measured ones included, and say what they raise or clear.

        `config` is what holds from this step on; None for what held before. Steps come in order.
        Never raises: where judging fails, nothing is raised, and it is said.
        """
        alarms: list[Alarm] = []
        with self._guarded(step, "alarms", StepMeasurements()):
            if config is not None:
                self.diagnosis.engine.configure(config)
            alarms += self.diagnosis.observe(step, values, self._evidence)
        return alarms

    def situate(self, situation: Situation) -> None:
        """What advice knows of the run from the next step on."""
        self.diagnosis.engine.situation = situation

    def state(self) -> dict[str, Any]:
        """What its measurements must remember, as JSON values: part of every checkpoint."""
        return {
            "schedules": {name: list(astuple(s)) for name, s in self._schedules.items()},
            "purse": asdict(self._purse),
            "ragen": dict(self._ragen),
            "exhibits": {name: list(ids) for name, ids in self._exhibits.items()},
        }

    def judge_again(self, run: RunReader, until: int) -> None:
        """Judge the stored steps of a run that goes on, and what came before it if it is a branch.

        Raises:
            StoreError: its steps, or those of its parent, cannot be read.
        """
        opened = Opened(table=table_of_run(run), reader=run)
        for _ in judged_again(opened, self.diagnosis, until=until):
            pass

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue to measure from what `state()` said."""
        self._schedules = {name: Schedule(*stored) for name, stored in state["schedules"].items()}
        self._purse = Purse(**deepcopy(state["purse"]))
        self._ragen = dict(state["ragen"])
        self._exhibits = {name: tuple(ids) for name, ids in state["exhibits"].items()}

    def _measure_text(self, step: int, rollouts: RolloutBatch, out: StepMeasurements) -> None:
        report = text_metrics(rollouts, generator(step))
        out.values |= report.metrics()
        out.records.append(report.record(step))
        self._exhibits = {
            name: tuple(dict.fromkeys(exemplar.trajectory_id for exemplar in of_kind))
            for name, of_kind in report.exemplars.items()
        }

    def _measure_information(self, now: _Step, *, is_urgent: bool) -> None:
        """Raises PutOffError where the budget cannot pay for it."""
        assert now.tools.scorer is not None
        scorer, plan = now.tools.scorer(), self._plan(now)
        with self._paying(now, INFORMATION, num_tokens(plan), is_urgent) as limit:
            limit.tally = scorer.tally
            self._score(now, scorer, plan)
        cost = scorer.tally.num_tokens * INFORMATION_PASSES
        self._put_off(INFORMATION, now, now.config.information.every, cost, INFORMATION_SHARE)

    def _measure_gradients(self, now: _Step, gradients: Callable[[], GradientReport]) -> None:
        """Raises PutOffError where the budget cannot pay for it."""
        cost = _num_tokens(now.rollouts) * GRADIENT_PASSES
        with self._paying(now, GRADIENTS, round(cost), is_urgent=False):
            report = gradients()
        now.out.values |= report.metrics()
        now.out.records.append(report.record(now.step))
        self._put_off(GRADIENTS, now, now.config.gradient.every, cost, 1 - INFORMATION_SHARE)

    def _plan(self, now: _Step) -> Plan:
        """What there is to score. Draws depend on the step only."""
        return plan_information(
            now.rollouts.trajectories,
            now.config.information,
            step=now.step,
            decode=now.tools.decode,
        )

    def _score(self, now: _Step, scorer: Scorer, plan: Plan) -> None:
        out, trajectories = now.out, now.rollouts.trajectories
        step_information = measure_information(
            scorer, trajectories, plan, previous=self._ragen or None
        )
        out.values |= step_information.metrics()
        out.records.append(step_information.record(now.step))
        out.information |= step_information.by_token(trajectories)
        self._ragen = dict(step_information.ragen)
        new = [problem for problem in step_information.problems if problem not in self._said]
        self._said |= dict.fromkeys(new, "")
        if new:
            self._on_message(f"step {now.step}: not available: {'; '.join(new)}")

    # -- what it may cost ------------------------------------------------------------------------

    def _count_training(self, trained_s: float) -> None:
        """Add what this process has trained since the last step."""
        if math.isnan(trained_s):
            return
        self._purse.trained_s += max(0.0, trained_s - self._counted_s)
        self._counted_s = trained_s

    @contextmanager
    def _paying(self, now: _Step, name: str, num_tokens: int, is_urgent: bool) -> Iterator[Limit]:
        """Make a measurement of so many tokens within its limits, and count its seconds.

        Raises:
            PutOffError: it has to wait, or the run is to stop.
            CutOffError: it took far longer than expected.
        """
        seconds, tokens_now = now.tools.rollout_s, _num_tokens(now.rollouts)
        speed = tokens_now / seconds if seconds > 0 and tokens_now else math.nan
        expected_s = self._purse.expected_s(name, num_tokens, speed)
        why = self._purse.why_later(
            expected_s,
            now.config.budget_frac,
            rollout_s=seconds,
            step=now.step,
            num_steps=now.tools.num_steps,
            is_urgent=is_urgent,
        )
        if why:
            raise PutOffError(why)
        limit = Limit(
            name=name,
            num_tokens=num_tokens,
            expected_s=expected_s,
            is_stopping=now.tools.is_stopping,
            on_progress=now.tools.on_progress,
            clock=self._clock,
            started=self._clock(),
        )
        limit.check()
        is_done = False
        try:
            with now.tools.interrupting(limit.check):
                yield limit
                is_done = True
        finally:
            done = num_tokens if is_done or limit.tally is None else limit.tally.num_tokens
            self._purse.paid(name, limit.taken_s, done)

    @contextmanager
    def _due(self, now: _Step, name: str, missing: Mapping[str, float]) -> Iterator[None]:
        """A measurement that is due: NaN where it fails, and still due where it is put off."""
        schedule = self._schedules[name]
        self._schedules[name] = schedule.tried(now.step)
        now.out.values |= missing
        with self._guarded(now.step, name, now.out):
            try:
                yield
            except PutOffError as error:
                self._schedules[name] = schedule
                text = f"step {now.step}: {name} was not measured: {error}"
                if not self._say_once(f"{name} later", text, type(error).__name__):
                    for key in missing:
                        del now.out.values[key]
            else:
                self._said.pop(f"{name} later", None)

    def _put_off(self, name: str, now: _Step, every: int, cost: float, share: float) -> None:
        """After a measurement has cost so many tokens through the model, of its share."""
        budget = now.work * now.config.budget_frac * share
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
    def _guarded(self, step: int, name: str, out: StepMeasurements) -> Iterator[None]:
        """Time a measurement; whatever goes wrong in it must not end a training run."""
        started = self._clock()
        try:
            yield
        except CutOffError as error:
            self._say_once(name, f"step {step}: no {name}: {error}", "cut off")
        except Exception as error:  # noqa: BLE001 - an optional measurement, and it is said
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            self._say_once(name, f"step {step}: no {name}, {reason}", reason)
        else:
            self._said.pop(name, None)
        out.seconds[name] = self._clock() - started

    def _say_once(self, topic: str, text: str, reason: str) -> bool:
        """Say it, unless the last word on this topic had the same reason; whether it was said."""
        is_news = self._said.get(topic) != reason
        if is_news:
            self._on_message(text)
        self._said[topic] = reason
        return is_news

    def _evidence(self, rule: str) -> tuple[str, ...]:
        ids = (
            exemplar for name in FINDINGS.get(rule, ()) for exemplar in self._exhibits.get(name, ())
        )
        return tuple(dict.fromkeys(ids))


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
    return reward_metrics(rollouts) | {"policy/success_logprob": mean_of_arrays(rows)}


def _no_information() -> dict[str, float]:
    """The keys of all families, all NaN."""
    out: dict[str, float] = {}
    for family in FAMILIES:
        out |= estimate(CrossScores(family=family)).metrics()
    return dict.fromkeys(out, math.nan)
