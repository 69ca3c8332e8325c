"""What is measured when, what it may cost, and what happens where it fails."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from letter_tokens import TableScorer, batch, decode

from echoscope.diagnostics.config import DiagnosticsConfig, GradientConfig
from echoscope.diagnostics.measure.information.cross_scores import ScoringError
from echoscope.diagnostics.monitor import Instruments, Monitor, StepMeasurements
from echoscope.store.records import DiagnosticRecord, RolloutBatch

TRAJECTORIES = batch(4, 4, (2,))
ROLLOUTS = RolloutBatch(groups=tuple(tuple(TRAJECTORIES[k : k + 4]) for k in range(0, 16, 4)))
NUM_TOKENS = sum(
    max(len(turn.prompt_tokens) + len(turn.response_tokens) for turn in trajectory.turns)
    for trajectory in TRAJECTORIES
)
UNLIMITED = DiagnosticsConfig(budget_frac=1)


class Decomposition:
    """Gradients as a trainer would report them."""

    def metrics(self) -> dict[str, float]:
        return {"gradient/policy/all/norm": 2.0}

    def record(self, step: int) -> DiagnosticRecord:
        return DiagnosticRecord(step=step, kind="gradients")


class Costly(TableScorer):
    """Says that it took so many tokens."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self._num_tokens = num_tokens

    def score(self, prompts, continuations):
        out = super().score(prompts, continuations)
        self.tally.num_tokens = self._num_tokens
        return out


def run(
    config: DiagnosticsConfig,
    steps: range,
    *,
    cost: int = 0,
    monitor: Monitor | None = None,
    gradients: Callable[[], Decomposition] = Decomposition,
    scorer: Callable[[], TableScorer] | None = None,
) -> tuple[dict[int, StepMeasurements], list[str]]:
    """Everything measured, by step, and everything said."""
    messages: list[str] = []
    monitor = monitor or Monitor(config, run_id="run", on_message=messages.append)
    tools = Instruments(scorer=scorer or (lambda: Costly(cost)), decode=decode, gradients=gradients)
    return {step: monitor.measure(step, ROLLOUTS, config, tools) for step in steps}, messages


def steps_with(by_step: dict[int, StepMeasurements], key: str) -> list[int]:
    return [step for step, measurements in by_step.items() if key in measurements.values]


def test_default_cadence() -> None:
    by_step, messages = run(UNLIMITED, range(1, 31))
    assert steps_with(by_step, "reward/solved_frac") == list(range(1, 31))
    assert steps_with(by_step, "text/retrieval_accuracy") == list(range(1, 31, 2))
    assert steps_with(by_step, "info/first_turn/dependence") == [1, 6, 11, 16, 21, 26]
    assert steps_with(by_step, "gradient/policy/all/norm") == [25]
    assert [record.kind for record in by_step[1].records] == ["text", "information"]
    assert [record.kind for record in by_step[25].records] == ["text", "gradients"]
    assert by_step[1].information.keys() == {trajectory.id for trajectory in TRAJECTORIES}
    assert by_step[2].information == {}
    assert messages == []


@pytest.mark.parametrize(
    ("section", "key"),
    [("text", "text/valid_frac"), ("information", "info/first_turn/dependence")],
)
def test_zero_turns_a_measurement_off(section: str, key: str) -> None:
    config = DiagnosticsConfig.model_validate({section: {"every": 0}, "gradient": {"every": 0}})
    by_step, _ = run(config, range(1, 30))
    assert steps_with(by_step, key) == []
    assert steps_with(by_step, "gradient/policy/all/norm") == []


def test_what_exceeds_its_budget_is_measured_less_often() -> None:
    """A step is worth 8 passes per token. Of 10 % of that, 65 %, 0.52 T, is for information.

    Scoring 2 T tokens counts 2.75 times, 5.5 T: the budget of 10.6 steps.
    """
    config = DiagnosticsConfig(budget_frac=0.1)
    by_step, messages = run(config, range(1, 26), cost=2 * NUM_TOKENS)
    assert steps_with(by_step, "info/first_turn/dependence") == [1, 12, 23]
    assert messages == [
        "information: measured every 11 steps instead of 5 while nothing changes, to stay within "
        "diagnostics.budget_frac"
    ]


def test_gradients_of_full_groups_fit_their_default_cadence() -> None:
    """1.75 T of work, and 35 % of 2.5 % of 8 T a step: one in 25."""
    every = DiagnosticsConfig(gradient=GradientConfig(every=1))
    assert steps_with(run(every, range(1, 60))[0], "gradient/policy/all/norm") == [1, 26, 51]
    default = DiagnosticsConfig()
    assert steps_with(run(default, range(1, 60))[0], "gradient/policy/all/norm") == [25, 50]


def test_an_interrupted_monitor_goes_on_as_if_nothing_had_happened() -> None:
    config = DiagnosticsConfig(budget_frac=0.1)
    whole, _ = run(config, range(1, 20), cost=2 * NUM_TOKENS)
    for cut in (1, 11, 12):
        first = Monitor(config, run_id="run", on_message=lambda _: None)
        run(config, range(1, cut + 1), cost=2 * NUM_TOKENS, monitor=first)
        again = Monitor(config, run_id="run", on_message=lambda _: None)
        again.restore(json.loads(json.dumps(first.state())))
        rest, _ = run(config, range(cut + 1, 20), cost=2 * NUM_TOKENS, monitor=again)
        for step, measurements in rest.items():
            assert repr(measurements.values) == repr(whole[step].values), step


def test_a_failure_is_nan_and_said_once_until_it_is_another() -> None:
    reasons = iter(["full", "full", "full\nagain", None, "full"])

    def fail() -> Decomposition:
        reason = next(reasons)
        if reason is None:
            return Decomposition()
        raise MemoryError(reason)

    config = DiagnosticsConfig(gradient=GradientConfig(every=1), budget_frac=0.6)
    by_step, messages = run(config, range(1, 7), gradients=fail)
    assert steps_with(by_step, "gradient/policy/all/norm") == [
        1,
        2,
        3,
        4,
        6,
    ]  # 1.75 T of 1.68 T
    norms = [by_step[step].values["gradient/policy/all/norm"] for step in (1, 2, 3, 4, 6)]
    np.testing.assert_array_equal(norms, [math.nan, math.nan, math.nan, 2.0, math.nan])
    assert messages == [
        "step 1: no gradients, MemoryError: full",
        "step 3: no gradients, MemoryError: full again",
        "gradients: measured every 2 steps instead of 1, to stay within diagnostics.budget_frac",
        "step 6: no gradients, MemoryError: full",
    ]


def test_a_scorer_that_cannot_be_built_leaves_every_key_nan() -> None:
    def refuse() -> TableScorer:
        raise ScoringError("temperature is 0")

    by_step, messages = run(UNLIMITED, range(1, 12), scorer=refuse)
    good, _ = run(UNLIMITED, range(1, 2))
    keys = {key for key in good[1].values if key.startswith("info/")}
    assert steps_with(by_step, "info/first_turn/dependence") == [1, 6, 11]  # not at each step
    assert all(math.isnan(by_step[6].values[key]) for key in keys)
    assert messages == ["step 1: no information, ScoringError: temperature is 0"]


def test_alarms_that_cannot_be_judged_do_not_end_the_run() -> None:
    messages: list[str] = []
    monitor = Monitor(UNLIMITED, run_id="run", on_message=messages.append)
    assert monitor.judge(3, {"rollout/success_rate": 0.5}) == []
    assert monitor.judge(2, {}) == []
    assert messages == [
        "step 2: no alarms, ValueError: step 2 follows step 3: feed steps in order, once"
    ]


def test_an_alarm_names_trajectories_that_show_it() -> None:
    """A format collapse is shown by replies that are malformed."""
    broken = tuple(replace(turn, is_valid=False) for turn in TRAJECTORIES[5].turns)
    groups = [list(group) for group in ROLLOUTS.groups]
    groups[1][1] = replace(TRAJECTORIES[5], turns=broken)
    rollouts = RolloutBatch(groups=tuple(tuple(group) for group in groups))
    monitor = Monitor(UNLIMITED, run_id="run", on_message=lambda _: None)
    alarms = []
    for step in range(1, 40):
        monitor.measure(step, rollouts, UNLIMITED, Instruments(decode=decode))
        valid = 0.95 if step < 30 else 0.2
        alarms += monitor.judge(step, {"rollout/action_valid_frac": valid})
    raised = next(alarm for alarm in alarms if alarm.rule == "FORMAT_COLLAPSE")
    assert raised.evidence == (TRAJECTORIES[5].id,)
