"""Every rule: what raises it, what does not, and that nothing looks ahead."""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from echoscope.diagnostics.judge.alarms import ALL_RULES, RULE_ORDER, AlarmEngine, RunState
from echoscope.diagnostics.judge.courses.channels import CHANNELS, OUTCOMES
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.store.records import Alarm, AlarmSeverity, AlarmState

Row = Mapping[str, float]


def run_of(length: int, row: Callable[[int], Row]) -> Iterator[tuple[int, Row]]:
    return ((step, row(step)) for step in range(length))


def judged(length: int, row: Callable[[int], Row]) -> tuple[AlarmEngine, list[Alarm]]:
    engine = AlarmEngine()
    events = [
        event for step, values in run_of(length, row) for event in engine.observe(step, values)
    ]
    return engine, events


def severity(engine: AlarmEngine, rule: str) -> str:
    return next((a.severity.value for a in engine.open_alarms if a.rule == rule), "silent")


def step_down(step: int, at: int, before: float, after: float) -> float:
    return before if step < at else after


HEALTHY = {
    "rollout/action_valid_frac": 0.95,
    "rollout/success_rate": 0.5,
    "eval/lake/success_rate": 0.5,
    "policy/entropy": 0.6,
    "optim/grad_norm": 1.0,
    "reward/group_std_mean": 0.4,
}


def test_every_rule_has_its_place_and_known_channels() -> None:
    names = {spec.name for spec in (*CHANNELS, *OUTCOMES)}
    assert sorted(rule.name for rule in ALL_RULES) == sorted(RULE_ORDER)
    for rule in ALL_RULES:
        assert {*rule.needs, *rule.confirms} <= names
        assert rule.advice
        assert rule.refuted_by


def test_a_healthy_run_is_silent() -> None:
    engine, events = judged(120, lambda step: HEALTHY)
    assert [e for e in events if e.severity is not AlarmSeverity.INFO] == []
    assert engine.run_state is RunState.HEALTHY


def test_format_one_channel_warns() -> None:
    row = lambda s: {"rollout/action_valid_frac": step_down(s, 40, 0.95, 0.5)}  # noqa: E731
    engine, events = judged(60, row)
    assert severity(engine, "FORMAT_COLLAPSE") == "warning"
    assert engine.run_state is RunState.WATCH
    assert events[0].onset_step == 40
    assert events[0].threshold == 0.2
    assert "valid actions: 95 % (highest, step 4) -> " in events[0].message


@pytest.mark.parametrize(
    "other",
    [
        {"rollout/response_length_mean": (100.0, 250.0)},
        {"rollout/length_limited_frac": (0.05, 0.5)},
        {"policy/entropy": (0.5, 2.0)},
        {"rollout/success_rate": (0.6, 0.1)},
        {"rollout/reasoning_closed_frac": (0.95, 0.8)},
    ],
)
def test_format_two_channels_are_critical(other: dict[str, tuple[float, float]]) -> None:
    def row(step: int) -> Row:
        values = {key: step_down(step, 42, *ends) for key, ends in other.items()}
        return {"rollout/action_valid_frac": step_down(step, 40, 0.95, 0.3), **values}

    engine, _ = judged(70, row)
    assert severity(engine, "FORMAT_COLLAPSE") == "critical"
    assert engine.run_state.is_collapse


def test_early_trouble_warns_until_the_warm_up_is_over() -> None:
    def row(step: int) -> Row:
        return {
            "rollout/action_valid_frac": step_down(step, 6, 0.6, 0.2),
            "rollout/reasoning_closed_frac": step_down(step, 6, 0.7, 0.3),
        }

    engine, _ = judged(19, row)
    assert severity(engine, "FORMAT_COLLAPSE") == "warning"
    engine, _ = judged(22, row)
    assert severity(engine, "FORMAT_COLLAPSE") == "critical"


def test_a_drastic_fall_needs_no_warm_up() -> None:
    """0.95 to 0.3 is more than twice the 20 points it takes."""

    def row(step: int) -> Row:
        return {
            "rollout/action_valid_frac": step_down(step, 6, 0.95, 0.3),
            "rollout/num_sampled_tokens_mean": step_down(step, 6, 70.0, 200.0),
        }

    engine, _ = judged(14, row)
    assert severity(engine, "FORMAT_COLLAPSE") == "critical"


CLIFF = {"rollout/format_valid_frac": (1.0, 0.3), "rollout/length_limited_frac": (0.0, 0.7)}


@pytest.mark.parametrize(
    ("changed", "at", "found"),
    [
        ({}, 30, "critical"),
        ({"rollout/length_limited_frac": (0.0, 0.3)}, 30, "silent"),
        ({"rollout/format_valid_frac": (1.0, 0.7)}, 30, "silent"),
        ({}, 10, "silent"),
    ],
    ids=["two cliffs", "replies are not cut", "most replies parse", "during the warm-up"],
)
def test_two_cliffs_at_one_step_are_critical_at_once(
    changed: dict[str, tuple[float, float]], at: int, found: str
) -> None:
    """Twice the distance of 0.2 in one observation, of two families: parsing and the cap."""
    engine, events = judged(
        at + 1, lambda s: {key: step_down(s, at, *ends) for key, ends in (CLIFF | changed).items()}
    )
    assert severity(engine, "FORMAT_COLLAPSE") == found
    if found == "critical":
        (raised,) = (event for event in events if event.rule == "FORMAT_COLLAPSE")
        assert (
            "100 % (highest median of 5 rows, step 4) -> 30 % at once (step 30)" in raised.message
        )


def test_a_loss_of_success_on_fixed_tasks_needs_no_warm_up() -> None:
    def row(step: int) -> Row:
        values = {"rollout/action_valid_frac": step_down(step, 5, 0.6, 0.1)}
        if step in (0, 10):
            values["eval/lake/success_rate"] = 0.2 if step == 0 else 0.0
            values["eval/lake/num_tasks"] = 128.0
        return values

    engine, _ = judged(11, row)
    assert engine.first_critical_step == 10


INFO = "info/first_turn"


def reasoning(dependence: float, entropy: float, success: float) -> Row:
    return {
        f"{INFO}/dependence": dependence,
        f"{INFO}/retrieval_accuracy@1": 0.125 + 0.875 * dependence,
        f"{INFO}/retrieval_chance@1": 0.125,
        f"{INFO}/conditional_entropy_per_token": entropy,
        "eval/lake/success_rate": success,
    }


def test_template_collapse_watches_while_success_holds() -> None:
    engine, _ = judged(60, lambda s: reasoning(step_down(s, 30, 0.8, 0.05), 1.5, 0.5))
    assert severity(engine, "TEMPLATE_COLLAPSE") == "warning"
    assert engine.run_state is RunState.WATCH
    assert engine.open_alarms[0].words.endswith(
        "evaluation success: 50 % (28 to 72 %, steps 0 to 59)"
    )


def test_without_a_success_rate_nothing_is_said_of_success() -> None:
    def row(s: int) -> Row:
        values = dict(reasoning(step_down(s, 30, 0.8, 0.05), 1.5, 0.5))
        values["reward/return_mean"] = 10 * values.pop("eval/lake/success_rate")
        return values

    engine, _ = judged(60, row)
    assert severity(engine, "TEMPLATE_COLLAPSE") == "warning"
    assert engine.open_alarms[0].words.endswith("mean return: 5 (steps 0 to 59)")


def test_template_collapse_with_falling_success_is_critical() -> None:
    engine, _ = judged(
        80, lambda s: reasoning(step_down(s, 30, 0.8, 0.05), 1.5, step_down(s, 50, 0.5, 0.2))
    )
    assert severity(engine, "TEMPLATE_COLLAPSE") == "critical"
    assert engine.run_state is RunState.COLLAPSED


def test_low_dependence_from_the_start_is_no_fall() -> None:
    engine, _ = judged(60, lambda s: reasoning(0.03, 1.5, 0.5))
    assert severity(engine, "TEMPLATE_COLLAPSE") == "silent"


def test_template_collapse_from_the_text_alone() -> None:
    def row(step: int) -> Row:
        return {
            "text/retrieval_accuracy": step_down(step, 30, 0.9, 0.13),
            "text/retrieval_chance": 0.125,
            "text/template_frac": step_down(step, 30, 0.2, 0.85),
        }

    engine, _ = judged(50, row)
    assert severity(engine, "TEMPLATE_COLLAPSE") == "warning"


def test_low_entropy_is_a_collapse_only_with_success_flat_or_falling() -> None:
    def row(step: int, success: float) -> Row:
        return reasoning(step_down(step, 30, 0.8, 0.02), step_down(step, 30, 1.5, 0.05), success)

    engine, _ = judged(80, lambda s: row(s, 0.3 + 0.005 * s))  # still learning
    assert severity(engine, "LOW_ENTROPY_COLLAPSE") == "silent"
    assert severity(engine, "TEMPLATE_COLLAPSE") == "silent"
    engine, _ = judged(80, lambda s: row(s, step_down(s, 40, 0.5, 0.2)))
    assert severity(engine, "LOW_ENTROPY_COLLAPSE") == "critical"


@pytest.mark.parametrize(("flat", "rule"), [(0.05, "LOW_ENTROPY_COLLAPSE"), (0.9, "CONVERGED")])
def test_only_a_success_worth_the_name_explains_that_variety_goes(flat: float, rule: str) -> None:
    """Success is flat from the start, so it is "at its best" at 5 % as it is at 90 %."""

    def row(step: int) -> Row:
        entropy = {"policy/entropy": step_down(step, 30, 1.5, 0.05)}
        return {**reasoning(step_down(step, 30, 0.8, 0.02), 0.05, flat), **entropy}

    engine, _ = judged(80, row)
    others = {"LOW_ENTROPY_COLLAPSE", "CONVERGED"} - {rule}
    assert severity(engine, rule) != "silent"
    assert [severity(engine, other) for other in others] == ["silent"]


def test_low_entropy_with_dependence_is_compressed_not_collapsed() -> None:
    engine, _ = judged(
        80, lambda s: reasoning(0.8, step_down(s, 30, 1.5, 0.05), step_down(s, 40, 0.5, 0.4))
    )
    assert severity(engine, "LOW_ENTROPY_COLLAPSE") == "silent"


def test_entropy_explosion() -> None:
    row = lambda s: {"policy/entropy": step_down(s, 40, 0.5, 1.5)}  # noqa: E731
    engine, _ = judged(60, row)
    assert severity(engine, "ENTROPY_EXPLOSION") == "warning"
    engine, _ = judged(60, lambda s: {**row(s), "rollout/success_rate": step_down(s, 40, 0.5, 0.1)})
    assert severity(engine, "ENTROPY_EXPLOSION") == "critical"


def test_entropy_that_comes_back_from_nothing_is_no_explosion() -> None:
    """1.0 -> 0.01 -> 0.1: ten times its minimum, a tenth of its start."""
    levels = lambda s: {"policy/entropy": 1.0 if s < 20 else 0.01 if s < 50 else 0.1}  # noqa: E731
    engine, _ = judged(80, levels)
    assert severity(engine, "ENTROPY_EXPLOSION") == "silent"


def test_echo_trap_needs_repetition_and_falling_success_to_be_critical() -> None:
    def row(step: int) -> dict[str, float]:
        return {
            "reward/group_std_mean": step_down(step, 40, 0.4, 0.02),
            "eval/lake/success_rate": step_down(step, 45, 0.5, 0.2),
        }

    engine, _ = judged(80, row)
    assert severity(engine, "ECHO_TRAP") == "warning"
    engine, _ = judged(
        80, lambda s: {**row(s), "text/near_duplicate_frac": step_down(s, 40, 0.1, 0.9)}
    )
    assert severity(engine, "ECHO_TRAP") == "critical"


def test_a_solved_task_is_converged() -> None:
    def row(step: int) -> Row:
        success = min(0.3 + 0.02 * step, 0.99)
        return {
            "eval/lake/success_rate": success,
            "rollout/success_rate": success,
            "reward/group_std_mean": 2 * math.sqrt(success * (1 - success)) * (success < 0.99),
            "policy/entropy": max(1 - 0.02 * step, 0.01),
        }

    engine, events = judged(120, row)
    assert engine.run_state is RunState.CONVERGED
    assert [e for e in events if e.severity is AlarmSeverity.CRITICAL] == []
    assert severity(engine, "CONVERGED") == "info"
    assert engine.open_alarms[0].words.startswith("evaluation success: 3")


def test_a_run_that_collapses_is_not_called_converged() -> None:
    """Success is held at its best and no reward spread is left: that is converged, until replies
    lose their form. "Collapsing: ... Also: converged." was said then."""

    def row(step: int) -> Row:
        return {
            "rollout/success_rate": min(0.5 + 0.01 * step, 0.98),
            "rollout/num_episodes": 64.0,
            "reward/group_std_mean": step_down(step, 50, 0.4, 0.01),
            "rollout/action_valid_frac": step_down(step, 100, 0.95, 0.4),
            "rollout/length_limited_frac": step_down(step, 100, 0.02, 0.7),
        }

    diagnosis = Diagnosis()
    for step, values in run_of(100, row):
        diagnosis.observe(step, values)
    assert diagnosis.run_state() is RunState.CONVERGED
    for step in range(100, 130):
        diagnosis.observe(step, row(step))
        verdict = diagnosis.verdict()
        if verdict.state.is_collapse:
            assert "CONVERGED" not in verdict.kinds
            assert "onverged" not in verdict.text
    assert verdict.state is RunState.COLLAPSING
    assert diagnosis.engine.outcomes["success_train"].is_at_best


def test_starved_signal_splits_by_cause() -> None:
    engine, _ = judged(30, lambda s: {"reward/group_std_mean": 0.0, "reward/return_mean": 0.0})
    assert severity(engine, "STARVED_SIGNAL") == "warning"
    words = {alarm.rule: alarm.words for alarm in engine.open_alarms}
    assert words["STARVED_SIGNAL"].endswith("all fail")
    engine, _ = judged(40, lambda s: {"reward/solved_frac": 0.3, "reward/hopeless_frac": 0.6})
    assert severity(engine, "STARVED_SIGNAL") == "warning"


@pytest.mark.parametrize("before", [0.04, 0.5, 0.8])
def test_equal_rewards_starve_a_run_of_which_only_the_return_is_known(before: float) -> None:
    """A run of TRL: from step 8 on every reply earns 0.5. The return can move no more, so it is
    soon the best of what is looked at; that says nothing of whether the task is solved."""

    def row(step: int) -> Row:
        return {
            "reward/return_mean": step_down(step, 8, before, 0.5),
            "reward/group_std_mean": step_down(step, 8, 0.05, 0.0),
            "reward/zero_std_frac": step_down(step, 8, 0.0, 1.0),
        }

    engine, events = judged(80, row)
    (starved,) = [event for event in events if event.rule == "STARVED_SIGNAL"]
    assert 8 < starved.step <= 20
    assert severity(engine, "STARVED_SIGNAL") == "warning"


@pytest.mark.parametrize(("share", "expected"), [(0.79, "silent"), (0.81, "warning")])
def test_a_run_starves_where_four_groups_of_five_agree(share: float, expected: str) -> None:
    engine, _ = judged(40, lambda step: {"reward/zero_std_frac": share})
    assert severity(engine, "STARVED_SIGNAL") == expected


def test_a_return_at_its_best_excuses_groups_without_spread_while_others_have_some() -> None:
    def row(step: int) -> Row:
        return {"reward/return_mean": 0.1 * step, "reward/zero_std_frac": 0.9}

    engine, _ = judged(60, row)
    assert "STARVED_SIGNAL" not in {alarm.rule for alarm in engine.open_alarms}


def test_a_gradient_spike_is_information_until_something_moves() -> None:
    def norm(step: int) -> dict[str, float]:
        return {"optim/grad_norm": 50.0 if step == 40 else 1.0 + 0.05 * (step % 4)}

    engine, events = judged(45, norm)
    assert [(e.rule, e.severity.value, e.step) for e in events] == [("GRADIENT_SPIKE", "info", 40)]
    engine, events = judged(60, norm)
    assert events[-1].state is AlarmState.CLEARED
    engine, _ = judged(
        48, lambda s: {**norm(s), "rollout/action_valid_frac": step_down(s, 41, 0.9, 0.3)}
    )
    assert severity(engine, "GRADIENT_SPIKE") == "warning"


def test_non_finite() -> None:
    engine, _ = judged(10, lambda s: {"optim/grad_norm": math.inf if s == 9 else 1.0})
    assert severity(engine, "NON_FINITE") == "warning"
    engine, _ = judged(12, lambda s: {"loss/total": math.inf if s >= 9 else 1.0})
    assert severity(engine, "NON_FINITE") == "critical"
    engine, _ = judged(12, lambda s: {"optim/num_skipped": 1.0 if s == 11 else 0.0})
    assert severity(engine, "NON_FINITE") == "warning"


@pytest.mark.parametrize(
    ("rule", "key", "value"),
    [
        ("LENGTH_SATURATION", "rollout/length_limited_frac", 0.97),
        ("OFF_POLICY_DRIFT", "policy/mismatch_kl", 0.2),
        ("STALE_ENGINE", "rollout/staleness_mean", 3.0),
        ("KL_DRIFT", "policy/ref_kl", 2.0),
        ("EMPTY_SELECTION", "selection/is_empty", 1.0),
    ],
)
def test_levels_that_are_wrong_by_themselves(rule: str, key: str, value: float) -> None:
    engine, _ = judged(12, lambda s: {key: value})
    assert severity(engine, rule) == "warning"
    engine, _ = judged(12, lambda s: {key: 0.0})
    assert severity(engine, rule) == "silent"


def test_old_weights_that_the_update_allows_for_are_no_alarm() -> None:
    engine, _ = judged(12, lambda s: {"rollout/staleness_mean": 3.0, "off_policy/weight_mean": 1.0})
    assert severity(engine, "STALE_ENGINE") == "silent"


def test_old_weights_are_told_from_false_records_and_from_another_implementation() -> None:
    """By the version that turns carry, and by the mean ratio, which is 1 for honest records."""

    def found(lag: float, kl: float, ratio: float) -> dict[str, str]:
        row = {
            "rollout/staleness_mean": lag,
            "policy/mismatch_kl": kl,
            "policy/mismatch_ratio_mean": ratio,
        }
        engine, _ = judged(12, lambda s: row)
        return {a.rule: engine.causes()[0].text for a in engine.open_alarms}

    stale = found(3.0, 0.1, 0.97)
    assert list(stale) == ["STALE_ENGINE"]
    assert stale["STALE_ENGINE"] == "the sampler's weights are 3 updates behind the trainer's"
    lying = found(0.0, 0.00125, 0.951)
    assert list(lying) == ["OFF_POLICY_DRIFT"]
    assert "records probabilities that it did not sample with" in lying["OFF_POLICY_DRIFT"]
    other = found(0.0, 0.1, 1.004)
    assert "computes other probabilities" in other["OFF_POLICY_DRIFT"]
    assert found(0.0, 0.00125, 1.001) == {}


def test_regulariser_dominates() -> None:
    row = {"gradient/policy/all/norm": 0.1, "gradient/entropy/all/norm": 0.3}
    engine, _ = judged(5, lambda s: row)
    assert severity(engine, "REGULARISER_DOMINATES") == "warning"


def test_likelihood_decay() -> None:
    def row(step: int) -> Row:
        return {"policy/success_logprob": -0.2 - 0.01 * step, "reward/return_mean": 0.1 + step / 99}

    engine, _ = judged(60, row)
    assert severity(engine, "LIKELIHOOD_DECAY") == "warning"


def test_train_and_eval_disagree() -> None:
    engine, _ = judged(
        60,
        lambda s: {
            "eval/lake/success_rate": step_down(s, 30, 0.5, 0.1),
            "rollout/success_rate": 0.5,
        },
    )
    assert severity(engine, "TRAIN_EVAL_DIVERGENCE") == "warning"


def test_degenerate_text_and_reasoning_that_does_not_matter() -> None:
    engine, _ = judged(40, lambda s: {"text/loop_frac": step_down(s, 20, 0.0, 0.5)})
    assert severity(engine, "DEGENERATE_TEXT") == "warning"
    engine, _ = judged(
        40,
        lambda s: {
            "text/agreement_frac": step_down(s, 20, 0.9, 0.4),
            "rollout/success_rate": 0.5 + 0.01 * s,
        },
    )
    assert severity(engine, "REWARD_WITHOUT_REASONING") == "warning"


def test_a_return_decides_alone_where_no_success_rate_is_logged() -> None:
    rng = np.random.default_rng(0)
    noise = 0.05 * rng.standard_normal(100)
    row = lambda s: {"reward/return_mean": step_down(s, 50, 1.0, 0.2) + noise[s]}  # noqa: E731
    engine, _ = judged(100, row)
    assert severity(engine, "LOW_SUCCESS") == "critical"
    assert engine.open_alarms[0].title == "Mean return dropped"
    engine, _ = judged(100, lambda s: {**row(s), "rollout/success_rate": 0.5})
    assert severity(engine, "LOW_SUCCESS") == "silent", "success holds, whatever the return does"


def test_a_run_without_success_says_how_much_there_was() -> None:
    engine, _ = judged(10, lambda s: {"eval/lake/success_rate": 0.0, "eval/lake/num_tasks": 64.0})
    assert engine.open_alarms[0].words == (
        "evaluation success: 0 % (0 to 6 %, steps 0 to 9, 10 evaluations of the same 64 tasks)"
    )


def test_stalled_is_information() -> None:
    rows = np.random.default_rng(0).binomial(64, 0.3, 250) / 64
    engine, _ = judged(250, lambda s: {"rollout/success_rate": rows[s]})
    assert severity(engine, "STALLED") == "info"
    assert engine.run_state is RunState.HEALTHY


def test_broken_replies_depend_on_nothing_and_are_no_template() -> None:
    def row(step: int, broken_from: int) -> Row:
        return {
            **reasoning(step_down(step, 40, 0.8, 0.02), 1.5, 0.5),
            "rollout/action_valid_frac": step_down(step, broken_from, 0.95, 0.1),
        }

    engine, _ = judged(80, lambda s: row(s, 34))
    assert severity(engine, "TEMPLATE_COLLAPSE") == "silent"
    engine, _ = judged(80, lambda s: row(s, 60))
    assert severity(engine, "TEMPLATE_COLLAPSE") == "warning"


def test_the_measure_that_plays_more_tasks_is_success() -> None:
    """64 tasks every fifth step against 32 every tenth; whichever declines is believed."""

    def row(step: int) -> Row:
        values: dict[str, float] = {"text/near_duplicate_frac": step_down(step, 20, 0.05, 0.6)}
        if step % 5 == 0:
            values["eval/lake/success_rate"] = step_down(step, 30, 0.5, 0.05)
            values["eval/lake/num_tasks"] = 64.0
        if step % 10 == 0:
            values |= {"probe/lake/success_rate": 0.5, "probe/lake/num_tasks": 32.0}
        return values

    engine, _ = judged(36, row)
    view = engine.view()
    assert view.success is view["success_eval"]
    assert view.is_success_lost
    assert view.is_success_declining
    assert engine.first_critical_step == 30
