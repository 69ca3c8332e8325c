"""Runs of known truth, of whom a verdict said what the run did not do."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.courses.channels import OUTCOMES
from echoscope.diagnostics.judge.courses.outcome import Outcome
from echoscope.diagnostics.judge.courses.series import Series
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.metrics_file import read_metrics
from tests.diagnostics.judge.test_measured_cases import RETURN, SUCCESS, judged, won

EVALUATION, EPISODES = "eval/gsm8k/success_rate", "rollout/num_episodes"


def evaluated(rates: np.ndarray, every: int, seed: int, tasks: int = 500) -> np.ndarray:
    """Success on so many tasks at every so many rows, NaN between; nobody says how many."""
    values = won(rates, seed, tasks)
    values[np.arange(len(rates)) % every != 0] = np.nan
    return values


@pytest.mark.parametrize("left", [0.0, 0.01, 0.02])
@pytest.mark.parametrize("every", [5, 10])
def test_an_evaluation_that_loses_nearly_all_is_collapsed_where_nobody_counts_its_tasks(
    left: float, every: int
) -> None:
    """63 % -> 0 % was "Healthy. Evaluation success is 0 % (0 to 29 %)"."""
    rates = np.r_[np.full(70, 0.6), np.full(50, left)]
    score = rates + np.random.default_rng(1).normal(0, 0.03, 120)
    verdict = judged({EVALUATION: evaluated(rates, every, 0), RETURN: score})
    assert verdict.state is RunState.COLLAPSED
    assert verdict.onset_interval is not None
    assert verdict.onset_interval[0] <= 70 <= verdict.onset_interval[1]


def test_rows_next_to_nothing_weigh_what_their_columns_steps_say() -> None:
    """Six evaluations of 0 % whose column moved in steps of 1/100 before: over 100 tasks each."""
    series = Series("rate", is_fixed=True)
    for step, value in enumerate([0.61, 0.58, 0.63, 0.6, 0.57, 0.62, *[0.0] * 6]):
        series.append(step, value)
    assert series.interval(series.stretch(6, 12))[1] < 0.15


def test_a_jump_is_no_noise_of_a_few_rows() -> None:
    """Two of eight second differences hold the jump; the noise is that of the others."""
    level, jump = Series("amount"), Series("amount")
    noise = np.random.default_rng(0).normal(0, 0.01, 10)
    for step, value in enumerate(noise):
        level.append(step, value)
        jump.append(step, value + (1.0 if step >= 5 else 0.0))
    assert jump.waiting is None
    assert jump.spikes == []
    assert jump.sigma < 0.3  # the mean of all squares would say 0.5
    assert level.sigma == pytest.approx(0.01, rel=0.6)


def test_a_fall_is_not_called_no_change() -> None:
    """46 % -> 36 % was "36 %, with no change beyond chance" of the evaluations after the fall."""
    rates = np.r_[np.full(80, 0.47), np.full(30, 0.37)]
    text = judged({EVALUATION: evaluated(rates, 10, 3), "policy/entropy": np.full(110, 0.5)}).text
    assert "no change beyond chance" not in text
    assert "Before, it was" in text or "Success dropped" in text


def test_a_steady_rise_is_no_standstill() -> None:
    """43 % -> 64 % over 500 steps was "no change beyond chance since step 70"."""
    outcome = Outcome(spec=OUTCOMES[2])
    rates = won(np.linspace(0.40, 0.64, 60), 5, 256)
    for row, rate in enumerate(rates):
        outcome.update(10 * row, {SUCCESS: rate, EPISODES: 256.0})
    assert outcome.level == pytest.approx(0.6, abs=0.05)
    assert not outcome.is_flat(400)


def test_a_return_that_falls_with_an_evaluation_says_so() -> None:
    """ "The mean return fell while success did not", at an evaluation that had fallen too."""
    rates = np.r_[np.full(62, 0.6), np.full(24, 0.42)]
    score = rates + np.random.default_rng(2).normal(0, 0.03, 86)
    text = judged({EVALUATION: evaluated(rates, 20, 4), RETURN: score}).text
    assert "while success did not" not in text


@pytest.mark.parametrize(
    ("num_rows", "words"),
    [(88, "the fixed tasks were not played since"), (120, "and perhaps fewer of the fixed tasks")],
)
def test_what_the_fixed_tasks_say_of_a_fall_in_training(num_rows: int, words: str) -> None:
    training = won(np.r_[np.full(80, 0.7), np.full(40, 0.5)], 0, 128)
    fixed = np.full(120, np.nan)
    fixed[:80:10], fixed[90::10] = 0.7, 0.62
    columns = {SUCCESS: training, EPISODES: np.full(120, 128.0)}
    columns |= {"eval/a/success_rate": fixed, "eval/a/num_tasks": np.full(120, 64.0)}
    verdict = judged({key: values[:num_rows] for key, values in columns.items()})
    assert words in verdict.text


def test_one_evaluation_after_a_fall_does_not_still_fall() -> None:
    rates = np.r_[np.full(98, 0.7), np.full(5, 0.2)]
    columns = {SUCCESS: won(rates, 0, 256), EPISODES: np.full(103, 256.0)}
    columns |= {"eval/a/success_rate": evaluated(rates, 5, 1, 256)}
    columns |= {"eval/a/num_tasks": np.full(103, 256.0)}
    verdict = judged({key: values[:101] for key, values in columns.items()})
    assert "evaluation success" in verdict.text
    assert "still falls" not in verdict.text


def test_retrieval_that_falls_to_chance_is_a_template_collapse_where_nothing_else_is_measured() -> (
    None
):
    """RAGEN logs no interval of its mutual information: the run was healthy to its end."""
    accuracy = np.full(150, np.nan)
    accuracy[::5] = np.r_[np.full(10, 0.64), np.linspace(0.6, 0.13, 10), np.full(10, 0.13)]
    columns = {
        SUCCESS: won(np.full(150, 0.5), 0, 128),
        "info/first_turn/retrieval_accuracy@1": accuracy,
        "info/first_turn/retrieval_chance@1": np.where(np.isnan(accuracy), np.nan, 0.125),
    }
    verdict = judged(columns)
    assert (verdict.state, verdict.kinds[0]) == (RunState.WATCH, "TEMPLATE_COLLAPSE")
    assert "nearly the same text" not in verdict.text, "nobody measured that"


def test_nothing_is_ever_paid_is_not_learning() -> None:
    columns = {EVALUATION: evaluated(np.zeros(80), 10, 0), RETURN: np.zeros(80)}
    assert judged(columns).state is RunState.NOT_LEARNING


def test_a_set_that_is_forgotten_while_another_is_learned_is_named() -> None:
    """The mean of both fell from 52 to 39 %; the advice was to look for what the reward pays."""
    columns = {
        "eval/math/success_rate": evaluated(np.linspace(0.3, 0.6, 160), 10, 0, 400),
        "eval/code/success_rate": evaluated(np.linspace(0.75, 0.1, 160), 10, 1, 400),
        RETURN: np.linspace(0.3, 0.6, 160) + np.random.default_rng(0).normal(0, 0.02, 160),
    }
    verdict = judged(columns)
    assert "REWARD_HACKING" not in verdict.kinds
    assert "learns `math`" in verdict.causes[0]
    assert "forgets `code`" in verdict.causes[0]
    assert verdict.actions[0].text.startswith("Mix tasks like those of `code` into the")


def test_a_rate_that_was_raised_when_the_fall_began_is_its_cause() -> None:
    """Success still counted as its best when the rate had been raised."""
    rates = np.r_[np.full(80, 0.7), np.linspace(0.68, 0.1, 20), np.full(40, 0.1)]
    columns = {SUCCESS: won(rates, 0, 256), EPISODES: np.full(140, 256.0)}
    columns["optim/lr"] = np.where(np.arange(140) < 80, 1e-6, 1e-5)
    verdict = judged(columns)
    assert verdict.causes[0].startswith("the learning rate rose from 1e-06")


def test_success_that_rose_again_and_stopped_below_is_not_left_to_rise() -> None:
    rates = np.r_[np.full(60, 0.8), np.full(30, 0.05), np.full(60, 0.4)]
    columns = {SUCCESS: won(rates, 0, 256), EPISODES: np.full(150, 256.0)}
    verdict = judged(columns)
    assert verdict.state is RunState.RECOVERING
    assert verdict.actions[0].text.startswith("Decide whether this level is enough")


def test_an_early_row_is_no_spike_of_a_noise_that_is_hardly_known() -> None:
    values = [0.363, 0.309, 0.395, 0.35, 0.33, 0.38, 0.34, 0.36, 0.37, 0.46, 0.379, 0.438]
    series = Series("amount")
    for step, value in enumerate(values):
        series.append(step, value)
    assert series.spikes == []
    assert math.isfinite(series.sigma)


NAN_ROWS = "step,loss,entropy,success_rate\n" + "".join(
    f"{n},{'nan' if n % 7 == 3 else 0.1},{'nan' if n % 3 else 0.5},{0.3 + n / 100:.2f}\n"
    for n in range(40)
)


def test_a_file_that_writes_nan_for_what_is_absent_has_no_broken_loss(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(NAN_ROWS)
    assert not np.isinf(read_metrics(path).columns["loss/total"]).any()
    path.write_text(NAN_ROWS + "40,nan,0.5,0.1\n41,nan,0.5,0.0\n")
    assert np.isinf(read_metrics(path).columns["loss/total"]).sum() == 2
    assert "NON_FINITE" in diagnose(path).kinds


def test_rounded_shares_tell_of_how_many_tasks_they_are() -> None:
    """k of 256, written with four digits: each evaluation is worth 256 coin flips at first."""
    series = Series("rate", is_fixed=True)
    for step, count in enumerate([98, 109, 123, 127, 147]):
        series.append(step, round(count / 256, 4))
    assert 128 <= 1 / series.scale <= 512  # 16 flips are what a row is worth where nothing tells


def test_what_is_missing_of_a_measure_is_named() -> None:
    """`info/first_turn/retrieval_accuracy@1 is not logged` was said of a run that logs it."""
    columns = {SUCCESS: won(np.full(60, 0.5), 0), "info/first_turn/retrieval_accuracy@1": 0.5}
    columns = {key: np.broadcast_to(values, 60) for key, values in columns.items()}
    text = judged(columns).text
    assert "retrieval_accuracy@1 is not logged" not in text
    with_prompts = {**columns, "info/first_turn/num_prompts": np.full(60, 8.0)}
    assert "reasoning does not depend on the prompt" not in judged(with_prompts).text


def test_no_standstill_where_the_return_still_rises() -> None:
    rng = np.random.default_rng(0)
    columns = {
        SUCCESS: won(np.full(160, 0.5), 0, 256),
        EPISODES: np.full(160, 256.0),
        RETURN: np.linspace(0.3, 0.6, 160) + rng.normal(0, 0.05, 160),
    }
    assert "STALLED" not in judged(columns).kinds
    columns[RETURN] = 0.5 + rng.normal(0, 0.05, 160)
    assert "STALLED" in judged(columns).kinds


def test_training_at_its_luckiest_is_no_witness_of_a_fall() -> None:
    """12 % all along: the best of a hundred rows of training is far above the rest by chance."""
    num_falls = 0
    for seed in range(12):
        columns = {
            SUCCESS: won(np.full(120, 0.12), seed, 128),
            EPISODES: np.full(120, 128.0),
            "reward/zero_std_frac": np.full(120, 0.65),
            "eval/a/success_rate": evaluated(np.full(120, 0.12), 10, 100 + seed, 128),
            "eval/a/num_tasks": np.full(120, 128.0),
        }
        num_falls += "fell" in judged(columns).text
    assert num_falls == 0


def test_an_entropy_that_was_no_number_yet_does_not_explode() -> None:
    """A logger wrote 0.000 for eighty steps, then what it measures."""
    entropy = np.r_[np.zeros(80), 0.4 + 0.01 * np.random.default_rng(0).normal(size=40)]
    columns = {SUCCESS: won(np.full(120, 0.5), 0), "policy/entropy": entropy}
    assert "ENTROPY_EXPLOSION" not in judged(columns).kinds


def test_a_set_without_a_tag_before_is_no_second_set() -> None:
    """The log began to name its only set of tasks: that is not a mean of two."""
    columns = {
        "eval/success_rate": np.r_[np.full(10, 0.5), np.full(30, np.nan)],
        "eval/math/success_rate": np.r_[np.full(10, np.nan), np.full(30, 0.5)],
    }
    assert "mean of" not in judged(columns).text
