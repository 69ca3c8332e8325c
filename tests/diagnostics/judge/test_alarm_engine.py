"""The engine: events, severity, causality, state, what acts, and what cannot be seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

import pytest
from pydantic import ValidationError

from echoscope.diagnostics.config import AlarmConfig, ChannelName
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.alarms import AlarmEngine, action_commands, blindness
from echoscope.diagnostics.judge.courses.channels import CHANNELS, OUTCOMES, derived
from echoscope.store.records import Alarm

Row = Mapping[str, float]


def run_of(length: int, row: Callable[[int], Row]) -> Iterator[tuple[int, Row]]:
    return ((step, row(step)) for step in range(length))


def judged(length: int, row: Callable[[int], Row]) -> tuple[AlarmEngine, list[Alarm]]:
    engine, events = AlarmEngine(), []
    for step, values in run_of(length, row):
        events += engine.observe(step, values)
    return engine, events


def step_down(step: int, at: int, before: float, after: float) -> float:
    return before if step < at else after


def test_a_critical_alarm_clears_when_the_rate_is_back() -> None:
    def row(step: int) -> Row:
        bad = 40 <= step < 60
        return {
            "rollout/action_valid_frac": 0.3 if bad else 0.95,
            "rollout/success_rate": 0.1 if 46 <= step < 60 else 0.6,
        }

    engine, events = judged(100, row)
    states = [(e.state.value, e.severity.value) for e in events if e.rule == "FORMAT_COLLAPSE"]
    assert states[0] == ("raised", "warning")
    assert ("raised", "critical") in states
    assert states[-1][0] == "cleared"
    assert engine.first_critical_step is not None
    assert len({e.alarm_id for e in events if e.rule == "FORMAT_COLLAPSE"}) == 1


def test_a_step_is_fed_once() -> None:
    engine = AlarmEngine()
    engine.observe(3, {})
    with pytest.raises(ValueError, match="step 3 follows step 3"):
        engine.observe(3, {})


def test_disabled_rules_stay_silent() -> None:
    engine = AlarmEngine(AlarmConfig(disabled=("LENGTH_SATURATION",)))
    for step in range(20):
        engine.observe(step, {"rollout/length_limited_frac": 1.0})
    assert engine.open_alarms == []


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValidationError, match="FORMAT_COLLAPSE"):
        AlarmConfig(disabled=("FORMAT",))  # type: ignore[arg-type]


def test_evidence_and_suggestion_travel_with_the_alarm() -> None:
    """A live run that does not filter yet: the suggestion is a `set` that can be sent to it.

    Most groups have no spread: without that, nothing shows that a filter would help.
    """
    live = {"selection.strategy": "none", "selection.value": 1.0}
    engine = AlarmEngine(run_id="r1")
    engine.situation = Situation(kind="live", run="runs/a", config={"steps": 60}, live=live)
    events: list[Alarm] = []
    for step in range(60):
        spread = step_down(step, 30, 0.4, 0.01)
        values = {"reward/group_std_mean": spread, "reward/zero_std_frac": 0.6}
        events += engine.observe(step, values, lambda rule: (f"{rule}-seen",))
    assert events[0].evidence == ("ECHO_TRAP-seen",)
    assert events[0].suggested is not None
    assert events[0].suggested.run_id == "r1"
    assert events[0].suggested.settings == {"selection.strategy": "top_p", "selection.value": 0.9}
    line = "echoscope ctl runs/a set selection.strategy=top_p selection.value=0.9"
    assert events[0].advice.endswith(line)


def test_blind_rules_say_what_they_need() -> None:
    found = {blind.rule: blind for blind in blindness(["reward/group_std_mean", "policy/entropy"])}
    assert found["FORMAT_COLLAPSE"].is_blind
    assert "rollout/action_valid_frac" in found["FORMAT_COLLAPSE"].reason
    assert not found["ECHO_TRAP"].is_blind
    assert "cannot be confirmed" in found["ECHO_TRAP"].reason
    assert not found["ENTROPY_EXPLOSION"].is_blind
    assert "STARVED_SIGNAL" not in found


def test_a_run_without_a_regulariser_needs_no_rule_about_it() -> None:
    def is_listed(*keys: str) -> bool:
        return "REGULARISER_DOMINATES" in {blind.rule for blind in blindness(keys)}

    assert is_listed("policy/entropy")  # the loss is not logged: nobody knows
    assert not is_listed("loss/policy", "gradient/policy/all/norm")
    assert is_listed("loss/policy", "loss/kl")  # there is one, and its gradient is not measured
    assert not is_listed("gradient/policy/all/norm", "gradient/kl/all/norm")


def test_derived_metrics() -> None:
    values = {
        "info/first_turn/num_prompts": 8.0,
        "info/first_turn/mutual_information_high": math.log(8) / 2,
        "reward/solved_frac": 0.5,
        "reward/hopeless_frac": 0.25,
    }
    found = derived(values)
    assert found["info/first_turn/dependence_high"] == pytest.approx(0.5)
    assert found["reward/zero_std_frac"] == 0.75
    assert "optim/non_finite" not in found


def test_retrieval_that_may_be_chance_is_no_margin() -> None:
    known = {"text/retrieval_accuracy": 0.3, "text/retrieval_chance": 0.125}
    assert derived(known)["text/retrieval_margin"] == pytest.approx(0.175)
    assert derived({**known, "text/retrieval_p_value": 0.2})["text/retrieval_margin"] == 0.0


def test_a_threshold_can_be_moved_and_moved_back_while_the_run_is_going() -> None:
    """Valid actions fall from 0.95 to 0.80: less than the usual 0.2, more than 0.1."""
    engine = AlarmEngine()
    seen = []
    for step in range(60):
        if step == 30:
            engine.configure(AlarmConfig(thresholds={"action": 0.1}))
        if step == 45:
            engine.configure(AlarmConfig())
        engine.observe(step, {"rollout/action_valid_frac": step_down(step, 15, 0.95, 0.80)})
        seen.append(engine.channels["action"].is_raised)
    assert not any(seen[:30])
    assert seen[44]
    assert engine.channels["action"].spec.raise_at == 0.2


def test_every_channel_has_a_threshold_that_can_be_set() -> None:
    names = get_args(ChannelName)
    assert set(names) == {spec.name for spec in (*CHANNELS, *OUTCOMES)}
    AlarmConfig(thresholds=dict.fromkeys(names, 0.5))
    with pytest.raises(ValidationError):
        AlarmConfig(thresholds={"entropy_up": 0.0})
    with pytest.raises(ValidationError):
        AlarmConfig.model_validate({"thresholds": {"entropy": 1.0}})


def test_rules_that_act_post_one_command() -> None:
    """Two rules are raised at once; the worse of their actions counts. Information never acts."""
    config = AlarmConfig(
        actions={"LENGTH_SATURATION": "pause", "KL_DRIFT": "stop", "GRADIENT_SPIKE": "stop"}
    )
    engine = AlarmEngine(config)
    found = []
    for step in range(12):
        events = engine.observe(step, {"rollout/length_limited_frac": 1.0, "policy/ref_kl": 3.0})
        found += action_commands(events, config, run_id="r", now=5.0)
    assert [(c.action.value, c.issued_by, c.issued_at) for c in found] == [
        ("stop", "alarm KL_DRIFT", 5.0)
    ]
    assert action_commands(events, AlarmConfig(), run_id="r", now=5.0) == []
    _, spikes = judged(31, lambda s: {"optim/grad_norm": 90.0 if s == 30 else 1 + 0.1 * (s % 2)})
    assert [event.rule for event in spikes] == ["GRADIENT_SPIKE"]
    assert action_commands(spikes, config, run_id="r", now=5.0) == []


def test_symptoms_are_named_after_what_they_are_symptoms_of() -> None:
    def row(step: int) -> Row:
        return {
            "text/loop_frac": step_down(step, 40, 0.0, 0.9),
            "rollout/action_valid_frac": step_down(step, 45, 0.95, 0.1),
            "eval/lake/success_rate": step_down(step, 40, 0.6, 0.05),
        }

    engine, events = judged(80, row)
    assert events[0].rule in ("DEGENERATE_TEXT", "LOW_SUCCESS")
    critical = [alarm.rule for alarm in engine.open_alarms if alarm.severity.value == "critical"]
    assert critical[0] == "FORMAT_COLLAPSE"
