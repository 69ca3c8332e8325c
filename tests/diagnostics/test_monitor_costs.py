"""What is expensive is estimated before it is made, waits until it can be paid, and gives way.

Time is counted by hand: scoring takes as many seconds as its tokens say.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from letter_tokens import TableScorer, batch, decode

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.measure.costs import CHEAP_S, CUT_OFF, cheap_s
from echoscope.diagnostics.monitor import Instruments, Monitor, StepMeasurements
from echoscope.store.records import RolloutBatch

KEY = "info/first_turn/dependence"


def rollouts() -> RolloutBatch:
    """Four groups of four; the first sibling of each got a reward."""
    drawn = []
    for t in batch(4, 4, (1,)):
        reward = float(t.sibling_index == 0)
        drawn.append(replace(t, turns=(replace(t.turns[0], reward=reward), *t.turns[1:])))
    return RolloutBatch(groups=tuple(tuple(drawn[k : k + 4]) for k in range(0, 16, 4)))


NUM_TOKENS = sum(
    max(len(turn.prompt_tokens) + len(turn.response_tokens) for turn in t.turns)
    for t in rollouts().trajectories
)


@dataclass
class Machine:
    """A clock, and a scorer that lets it run on: so many tokens a second."""

    speed: float = math.inf
    stops_at: float = math.inf
    now: float = 0.0
    messages: list[str] = field(default_factory=list)
    progress: list[tuple[str, int, int]] = field(default_factory=list)

    def tools(self, step: int, *, rollout_s: float, num_steps: int = 100) -> Instruments:
        """Steps take as long as their rollouts."""
        checks = []

        @contextmanager
        def interrupting(check):
            checks.append(check)
            yield
            checks.clear()

        machine = self

        class Slow(TableScorer):
            def rows(self, prompt, continuations):
                before = self.tally.num_tokens
                out = super().rows(prompt, continuations)
                machine.now += (self.tally.num_tokens - before) / machine.speed
                for check in checks:
                    check()
                return out

        return Instruments(
            scorer=Slow,
            decode=decode,
            rollout_s=rollout_s,
            trained_s=rollout_s * step,
            num_steps=num_steps,
            is_stopping=lambda: self.now >= self.stops_at,
            interrupting=interrupting,
            on_progress=lambda *told: self.progress.append(told),
        )

    def measure(
        self,
        steps: range,
        config: DiagnosticsConfig,
        *,
        rollout_s: float,
        monitor: Monitor | None = None,
        num_steps: int = 100,
    ) -> dict[int, StepMeasurements]:
        monitor = monitor or self.monitor(config)
        return {
            step: monitor.measure(
                step,
                rollouts(),
                config,
                self.tools(step, rollout_s=rollout_s, num_steps=num_steps),
            )
            for step in steps
        }

    def monitor(self, config: DiagnosticsConfig) -> Monitor:
        return Monitor(
            config, run_id="run", on_message=self.messages.append, clock=lambda: self.now
        )


def measured_at(runs: dict[int, StepMeasurements], key: str = KEY) -> list[int]:
    return [step for step, m in runs.items() if not math.isnan(m.values.get(key, math.nan))]


def test_what_costs_more_than_the_budget_is_not_made_at_the_first_step() -> None:
    """A model as slow in scoring as in sampling: 500 s a step, and nearly as long to score."""
    machine = Machine(speed=NUM_TOKENS / 500)
    runs = machine.measure(range(1, 3), DiagnosticsConfig(), rollout_s=500, num_steps=200)
    assert machine.now == 0
    assert math.isnan(runs[1].values[KEY])
    assert KEY not in runs[2].values  # said once
    (message,) = machine.messages
    assert message.startswith("step 1: information was not measured: it would take about ")
    # Scoring takes 4.2 times the tokens of the rollouts: 35 min, the budget of 167 steps.
    assert "35 min, and diagnostics.budget_frac=0.025 allows 13 s so far. " in message
    assert "It is measured at about step 168; a larger budget_frac" in message


def test_a_run_that_ends_before_is_told_so() -> None:
    machine = Machine(speed=NUM_TOKENS / 500)
    config = DiagnosticsConfig()
    machine.measure(range(1, 2), config, rollout_s=500, num_steps=20)
    assert (
        "It is not measured in this run; a larger budget_frac measures it earlier"
        in machine.messages[0]
    )


@pytest.mark.parametrize("is_quicker", [False, True], ids=["as slow", "four times as quick"])
def test_the_budget_in_seconds_holds_after_every_step(is_quicker: bool) -> None:
    """Estimates are those of the rollouts at first, and measured ones afterwards."""
    config = DiagnosticsConfig(budget_frac=0.2)
    machine = Machine(speed=NUM_TOKENS / 500 * (4 if is_quicker else 1))
    monitor, steps = machine.monitor(config), []
    for step in range(1, 80):
        steps += measured_at(
            machine.measure(range(step, step + 1), config, rollout_s=500, monitor=monitor)
        )
        assert machine.now <= 0.2 * 500 * step
    assert steps[0] > 1
    assert len(steps) >= 3


def test_beside_slow_sampling_what_is_cheap_is_a_tenth_of_it() -> None:
    config = DiagnosticsConfig(budget_frac=0.01)
    assert measured_at(Machine(speed=NUM_TOKENS / 4).measure([1], config, rollout_s=20)) == []
    assert [cheap_s(seconds) for seconds in (math.nan, 9, 20, 60, 500)] == [10, 10, 2, 6, 10]


def test_what_is_cheap_is_measured_as_often_as_its_tokens_allow() -> None:
    """Half a second for a step of one: more than the budget, and soon over."""
    machine = Machine(speed=4 * NUM_TOKENS)
    unlimited = DiagnosticsConfig(budget_frac=1)
    runs = machine.measure(range(1, 13), unlimited, rollout_s=1)
    assert measured_at(runs) == [1, 6, 11]
    runs = machine.measure(range(1, 3), DiagnosticsConfig(), rollout_s=1)
    assert measured_at(runs) == [1]


def test_a_stop_ends_what_is_expensive_and_whoever_resumes_measures_it() -> None:
    config = DiagnosticsConfig(budget_frac=1)
    machine = Machine(speed=NUM_TOKENS / 500, stops_at=100)
    monitor = machine.monitor(config)
    runs = machine.measure(range(6, 7), config, rollout_s=500, monitor=monitor)
    assert math.isnan(runs[6].values[KEY])
    assert machine.now < 500  # the pass under way
    assert machine.messages[-1] == (
        "step 6: information was not measured: it was cut off, because the run is to stop"
    )
    resumed = Machine(speed=NUM_TOKENS / 500)
    again = resumed.monitor(config)
    again.restore(json.loads(json.dumps(monitor.state())))
    assert measured_at(resumed.measure(range(7, 9), config, rollout_s=500, monitor=again)) == [7]


def test_a_stop_leaves_what_is_cheap_alone() -> None:
    """A run that is stopped and resumed measures what an uninterrupted one does."""
    machine = Machine(speed=NUM_TOKENS, stops_at=0)
    config = DiagnosticsConfig(budget_frac=1)
    assert measured_at(machine.measure(range(1, 2), config, rollout_s=1)) == [1]


def test_what_takes_far_longer_than_expected_is_cut_off() -> None:
    """Sampling elsewhere is quick and scoring here is not: 1 s was expected."""
    machine = Machine(speed=NUM_TOKENS / 500)
    config = DiagnosticsConfig(budget_frac=1)
    monitor = machine.monitor(config)
    runs = machine.measure(range(1, 2), config, rollout_s=1, monitor=monitor)
    assert math.isnan(runs[1].values[KEY])
    whole_s = machine.progress[0][2] / machine.speed
    assert CUT_OFF * CHEAP_S < machine.now < whole_s / 4  # the first prompt's passes were under way
    assert "step 1: no information: it was cut off after " in machine.messages[0]
    spent = machine.now
    machine.measure(range(2, 20), config, rollout_s=1, monitor=monitor)
    assert machine.now == spent  # its speed is known now


def test_progress_is_told_while_it_is_scored() -> None:
    machine = Machine(speed=NUM_TOKENS)
    config = DiagnosticsConfig()
    machine.measure(range(1, 2), config, rollout_s=1)
    names, done, of = zip(*machine.progress, strict=True)
    assert set(names) == {"information"}
    assert list(done) == sorted(done)
    assert len(set(of)) == 1
    assert done[-1] == of[0]


def test_what_was_spent_and_trained_is_part_of_a_checkpoint() -> None:
    config = DiagnosticsConfig(budget_frac=0.2)
    machine = Machine(speed=NUM_TOKENS / 500)
    monitor = machine.monitor(config)
    machine.measure(range(1, 9), config, rollout_s=500, monitor=monitor)
    state = json.loads(json.dumps(monitor.state()))
    assert state["purse"]["trained_s"] == 8 * 500
    assert state["purse"]["spent_s"] == pytest.approx(machine.now)
