"""The first suggestion follows what was measured, and says so; the rest stays a trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echoscope.diagnostics.judge.advice import measured
from echoscope.diagnostics.judge.advice.actions import TERMS, Action
from echoscope.diagnostics.judge.advice.measured import Measured, Rate
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.advice.treatments import treatment
from echoscope.diagnostics.judge.verdict import Diagnosis

CONFIG: dict[str, Any] = {
    "optim": {"lr": 3e-4},
    "loss": {"entropy_coef": 0.0, "kl_coef": 0.0},
    "advantage": {"kind": "grpo"},
}
ENDED = Situation(kind="ended", run="runs/a", config=CONFIG, checkpoints=(10, 20, 30, 40))
NONE_HELD = Rate(held=0, of=8)


def row(name: str, held: int, of: int, *, control: Rate = NONE_HELD) -> Measured:
    return Measured(
        symptom="LOW_SUCCESS",
        treatment=treatment(name),
        rate=Rate(held=held, of=of),
        control=control,
        twin_change=-0.04,
        twin_runs=5,
    )


def advised(
    monkeypatch: pytest.MonkeyPatch, *rows: Measured, situation: Situation = ENDED
) -> Action:
    """The first suggestion for a run whose success falls for no reason that it shows."""
    monkeypatch.setattr(measured, "measured", lambda: rows)
    diagnosis = Diagnosis()
    diagnosis.engine.situation = situation
    for step in range(60):
        rate = 0.85 if step < 35 else 0.05
        values = {"eval/all/success_rate": rate, "eval/all/num_tasks": 200.0}
        diagnosis.observe(step, values)
    return diagnosis.verdict().actions[0]


def test_what_was_shown_to_help_is_offered_first_with_its_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    action = advised(monkeypatch, row("lr-tenth", 6, 8), row("kl", 8, 8))
    assert (action.settings, action.is_trial) == ({"loss.kl_coef": 0.1}, False)
    assert action.command == "echoscope ctl runs/a branch --checkpoint 30 loss.kl_coef=0.1"
    rate = "It held in 8 of 8 runs (controls: 0 of 8), and costs a healthy run 4 points."
    assert action.text.endswith(rate)
    assert action.rate == rate


def test_what_helps_no_more_than_the_controls_stays_a_trial_and_says_how_often_it_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often = Rate(held=6, of=8)
    action = advised(monkeypatch, row("kl", 8, 8, control=often), row("lr-third", 3, 8))
    assert (action.settings, action.is_trial) == ({"optim.lr": 1e-4}, True)
    assert action.text.startswith("First compare replies")
    assert "As a trial only, branch from checkpoint 30" in action.text
    assert "It held in 3 of 8 runs" in action.text


def test_four_runs_of_four_show_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert advised(monkeypatch, row("kl", 4, 4)).is_trial


def test_without_a_measurement_the_old_advice_says_that_it_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    action = advised(monkeypatch)
    assert (action.settings, action.is_trial) == ({"optim.lr": 1e-4}, True)
    assert action.text.endswith("Whether that helps is not measured for this alarm.")


def test_a_treatment_that_would_change_nothing_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert advised(monkeypatch, row("no-entropy", 8, 8)).settings == {"optim.lr": 1e-4}


@pytest.mark.parametrize(
    ("trainer", "name"), [("verl", "actor_rollout_ref.actor.kl_loss_coef"), ("trl", "beta")]
)
def test_a_run_of_another_trainer_is_told_its_own_key(
    monkeypatch: pytest.MonkeyPatch, trainer: str, name: str
) -> None:
    foreign = Situation(kind="foreign", trainer=trainer)
    action = advised(monkeypatch, row("calm-critic", 8, 8), row("kl", 8, 8), situation=foreign)
    assert f"continue with a KL penalty against the reference policy (`{name}`)" in action.text
    assert "It held in 8 of 8 runs" in action.text
    assert not action.command


RECIPE = {"name": "mine", "values": {"loss.kl_coef": 0.1}}


def test_a_cause_comes_before_the_table_unless_the_table_refutes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    differs = replace(ENDED, config={**CONFIG, "recipe": RECIPE})
    helps, fails = row("lr-tenth", 8, 8), row("kl", 1, 8)
    undone = advised(monkeypatch, helps, situation=differs)
    assert undone.settings == {"loss.kl_coef": 0.1}
    assert advised(monkeypatch, helps, fails, situation=differs).settings == {"optim.lr": 3e-5}
    alone = advised(monkeypatch, fails, situation=differs)
    assert alone.settings == {"loss.kl_coef": 0.1}
    assert "It held in 1 of 8 runs" in alone.text


@pytest.mark.parametrize("trainer", TERMS)
def test_other_trainers_names_are_those_of_the_page_of_names(trainer: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "names.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for ours, theirs in TERMS[trainer].items():
        last = theirs.rpartition(".")[2]
        assert any(f"{last}`" in line and f"`{ours}`" in line for line in rows), (ours, theirs)


def test_what_never_held_says_so() -> None:
    zero = Rate(held=0, of=1)
    row = Measured(
        symptom="LOW_SUCCESS", treatment=treatment("kl"), rate=zero, control=zero, twin_change=-0.03
    )
    assert row.words == (
        "It was tried on 1 run and did not hold (controls: 0 of 1), and costs a healthy run 3 "
        "points."
    )
