"""Runs of known truth whose verdict was false: what each of them must say now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.claims import Change, Disagreement, Independent, Level
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.table import MetricTable

Columns = Mapping[str, np.ndarray]
SUCCESS, RETURN = "rollout/success_rate", "reward/return_mean"


def judged(columns: Columns) -> Verdict:
    num_rows = len(next(iter(columns.values())))
    return diagnose(MetricTable(steps=np.arange(num_rows), columns=columns, sources={}))


def written(tmp_path: Path, columns: Columns, name: str = "log.csv") -> Path:
    path = tmp_path / name
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(f"{value:.5f}" for value in row) for row in rows]
    head = ",".join(["step", *columns])
    path.write_text("\n".join([head, *(f"{n},{line}" for n, line in enumerate(lines))]))
    return path


def won(rate: np.ndarray, seed: int, episodes: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).binomial(episodes, rate) / episodes


@pytest.mark.parametrize("best", [0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("rest", [0.0, 0.05])
def test_success_that_is_gone_for_100_rows_is_collapsed(
    best: float, rest: float, tmp_path: Path
) -> None:
    """36 of 36 of the first three were "watch, a warning is not yet a collapse"."""
    rate = np.r_[np.linspace(0.1, best, 40), np.full(40, best), np.full(100, rest)]
    verdict = diagnose(written(tmp_path, {"success_rate": won(rate, 0)}))
    assert verdict.state is RunState.COLLAPSED
    assert verdict.onset_interval is not None
    assert verdict.onset_interval[0] <= 80 <= verdict.onset_interval[1]


@pytest.mark.parametrize("offset", [0.0, 1.0, -100.0, 100.0])
@pytest.mark.parametrize("scale", [1.0, 2.0, 0.01])
def test_a_constant_added_to_the_reward_changes_nothing(offset: float, scale: float) -> None:
    """1.7 -> 1.01 was healthy, .7 -> .01 watch, -100 -> -102 "success dropped"."""
    rate = np.r_[np.full(50, 0.7), np.full(50, 0.01)]
    noise = np.random.default_rng(0).normal(0, 0.05, 100)
    verdict = judged({RETURN: scale * (rate + noise) + offset})
    assert verdict.state is RunState.COLLAPSED
    assert verdict.kinds == ("LOW_SUCCESS",)
    assert verdict.text.startswith("Mean return dropped")
    assert "solves fewer" not in verdict.text, "nobody measured that"


@pytest.mark.long
def test_flat_noise_is_no_rise() -> None:
    """77 of 80 flat runs "rose", 40 "and holds"."""
    num_flat = num_open = 0
    for seed in range(80):
        verdict = judged({SUCCESS: won(np.full(120, 0.5), seed, 16 if seed % 2 else 64)})
        num_flat += "with no change beyond chance" in verdict.text
        num_open += "that may still be chance" in verdict.text
        assert verdict.state is RunState.HEALTHY or " fell " in verdict.text
    assert num_flat >= 76
    assert num_flat + num_open >= 78


def test_a_rise_within_ten_steps_is_said_from_its_beginning() -> None:
    """It was "rose from 48 % to 49 %"."""
    rates = np.array([1, 1, 9, 12, 10, 11, 18, 18, 17, 21]) / 24
    verdict = judged({SUCCESS: rates, "rollout/num_episodes": np.full(10, 24.0)})
    assert re.search(
        r"Training success rose from 4 % \(1 to 14 %, steps 0 to 1\) to \d\d %", verdict.text
    )


def test_a_return_that_falls_while_success_rises_is_no_loss(tmp_path: Path) -> None:
    """It was "Success dropped ... The policy solves fewer tasks than it did before"."""
    rng = np.random.default_rng(0)
    columns = {
        "reward": np.linspace(0.5, 0.03, 120) + 0.02 * rng.standard_normal(120),
        "success_rate": won(np.linspace(0.40, 0.87, 120), 0),
    }
    verdict = diagnose(written(tmp_path, columns))
    assert verdict.state is RunState.HEALTHY
    assert re.search(r"Training success rose from 4\d % .* to 8\d %", verdict.text)
    assert "The mean return fell while success did not" in verdict.text
    assert "fewer tasks" not in verdict.text


def test_a_penalty_added_in_the_middle_is_no_loss_of_success() -> None:
    rng = np.random.default_rng(0)
    penalty = np.where(np.arange(120) < 60, 0.0, -1.0)
    verdict = judged(
        {SUCCESS: won(np.full(120, 0.8), 0), RETURN: 0.8 + penalty + 0.05 * rng.normal(size=120)}
    )
    assert verdict.state is RunState.HEALTHY
    assert "with no change beyond chance" in verdict.text


def test_pay_for_length_is_named_with_its_term() -> None:
    """It was "earn nothing", with the learning rate as its cause."""
    rng = np.random.default_rng(0)
    fall = np.r_[np.full(40, 0.82), np.linspace(0.82, 0.0, 12), np.zeros(30)]
    term = np.r_[np.full(40, 0.6), np.linspace(0.6, 5.6, 12), np.full(30, 5.6)]
    verdict = judged(
        {
            SUCCESS: won(fall, 0),
            RETURN: 3.0 * fall + term + 0.1 * rng.standard_normal(82),
            "reward/term/length": term + 0.05 * rng.standard_normal(82),
            "reward/term/task": 3.0 * fall + 0.05 * rng.standard_normal(82),
        }
    )
    assert verdict.kinds[0] == "REWARD_HACKING"
    assert verdict.state is RunState.COLLAPSED
    claim = next(claim for claim in verdict.claims if isinstance(claim, Disagreement))
    assert [change.metric for change in claim.terms] == ["reward/term/length"]
    assert (claim.up.direction, claim.down.direction) == ("rise", "fall")


def test_training_up_and_validation_down_is_seen_in_a_log_of_verl(tmp_path: Path) -> None:
    """It was "watch", exit code 0, "lower lr"; the disagreement could not fire."""
    rng = np.random.default_rng(0)
    lines = []
    for step in range(200):
        share = step / 200
        values = {
            "critic/score/mean": 0.3 + 0.6 * share + 0.02 * rng.standard_normal(),
            "actor/entropy": 0.5 + 0.01 * rng.standard_normal(),
            "response_length/mean": 280 - 180 * share,
        }
        if step % 10 == 0:
            values["val-core/gsm8k/acc/mean@1"] = rng.binomial(500, 0.45 - 0.36 * share) / 500
        lines.append(f"step:{step} - " + " - ".join(f"{k}:{v:.4f}" for k, v in values.items()))
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    verdict = diagnose(path)
    assert verdict.state.is_collapse
    assert verdict.kinds[0] == "REWARD_HACKING"
    assert "evaluation success: 4" in verdict.text


def test_replies_that_never_depend_on_the_prompt_are_said() -> None:
    """24 steps of a template from the first one on were "healthy", without a word."""
    rng = np.random.default_rng(0)
    verdict = judged(
        {
            SUCCESS: won(np.full(24, 0.5), 0),
            "text/retrieval_accuracy": 0.125 + 0.02 * rng.standard_normal(24),
            "text/retrieval_chance": np.full(24, 0.125),
            "text/retrieval_p_value": np.full(24, 0.5),
            "text/dependence": np.zeros(24),
            "text/near_duplicate_frac": np.zeros(24),
            "text/template_frac": np.full(24, 0.1),
        }
    )
    assert verdict.state is RunState.WATCH
    assert verdict.kinds[0] == "PROMPT_INDEPENDENT"
    claim = next(claim for claim in verdict.claims if isinstance(claim, Independent))
    assert (claim.since, claim.is_alike) == (None, False)
    assert "nearly the same text" not in verdict.text


def test_a_template_that_is_none_is_not_called_one() -> None:
    """Noise without the prompt was "nearly the same text is written whatever the task shows"."""
    lost = np.arange(60) >= 30
    verdict = judged(
        {
            SUCCESS: won(np.full(60, 0.5), 0),
            "text/retrieval_accuracy": np.where(lost, 0.12, 0.7),
            "text/retrieval_chance": np.full(60, 0.125),
            "text/dependence": np.where(lost, 0.0, 0.6),
            "text/near_duplicate_frac": np.zeros(60),
            "text/template_frac": np.full(60, 0.15),
        }
    )
    assert verdict.kinds[0] == "TEMPLATE_COLLAPSE"
    assert "the text still varies, but not with the task" in verdict.text
    assert "nearly the same text" not in verdict.text


def test_three_signals_without_success_are_too_little_to_judge() -> None:
    """They were "Healthy. No problem found. To do: Read failed replies"."""
    rng = np.random.default_rng(0)
    verdict = judged(
        {
            RETURN: 0.81 + 0.05 * rng.standard_normal(500),
            "policy/entropy": 0.26 + 0.01 * rng.standard_normal(500),
            "rollout/response_length_mean": 296 + 10 * rng.standard_normal(500),
        }
    )
    assert verdict.state is RunState.INSUFFICIENT
    assert verdict.text.startswith("Too little to judge. The mean return is 0.8")
    assert verdict.actions == ()


def test_two_percent_of_success_that_never_moves_is_not_learning() -> None:
    """`flat.log`: it was "success dropped", with a lower learning rate as the way out."""
    rng = np.random.default_rng(0)
    verdict = judged(
        {
            "eval/all/success_rate": rng.binomial(200, 0.02, 180) / 200,
            "eval/all/num_tasks": np.full(180, 200.0),
            RETURN: 0.02 + 0.005 * rng.standard_normal(180),
        }
    )
    assert verdict.state is RunState.NOT_LEARNING
    assert "Hardly any episode succeeds" in verdict.text


# --- bad input: no false claim


BAD: Mapping[str, np.ndarray] = {
    "one row": np.array([0.5]),
    "constant": np.full(60, 0.4),
    "not a number": np.full(60, np.nan),
    "all zero": np.zeros(60),
    "half of the rows": np.where(np.arange(60) % 2, np.nan, 0.5),
}


@pytest.mark.parametrize("values", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("key", [SUCCESS, RETURN, "eval/a/success_rate"])
def test_nothing_is_claimed_of_what_does_not_move(key: str, values: np.ndarray) -> None:
    verdict = judged({key: values})
    assert not [claim for claim in verdict.claims if isinstance(claim, Change)]
    assert not verdict.state.is_collapse


def test_a_spike_of_a_billion_is_no_level() -> None:
    noise = np.random.default_rng(0).normal(0.5, 0.05, 80)
    noise[40] = 1e9
    verdict = judged({RETURN: noise})
    levels = [claim for claim in verdict.claims if isinstance(claim, Level)]
    assert all(abs(level.value) < 1 for level in levels)
    assert not verdict.state.is_collapse
    assert verdict.notes == (
        "mean return: single values far beyond all others are left out: step 40",
    )


def test_another_set_of_evaluation_tasks_is_said() -> None:
    steps = np.arange(20)
    verdict = judged(
        {
            "eval/a/success_rate": np.where(steps < 10, 0.8, 0.2),
            "eval/a/num_tasks": np.where(steps < 10, 100.0, 500.0),
        }
    )
    assert not verdict.state.is_collapse
    assert verdict.notes == (
        "evaluation success: other tasks are played from step 10 on; judged from there",
    )


# --- the same run, told otherwise


def noisy_run(seed: int = 0) -> dict[str, np.ndarray]:
    rate = np.r_[np.linspace(0.2, 0.7, 40), np.full(20, 0.7), np.full(30, 0.1)]
    rng = np.random.default_rng(seed)
    return {
        "success_rate": won(rate, seed),
        "reward": 2 * rate + 0.1 * rng.standard_normal(90),
        "entropy": 0.5 + 0.02 * rng.standard_normal(90),
    }


def same(one: Verdict, two: Verdict) -> None:
    assert (one.state, one.kinds, one.onset_interval) == (two.state, two.kinds, two.onset_interval)
    assert one.first_critical_step == two.first_critical_step
    assert one.text == two.text


def test_empty_columns_between_change_nothing(tmp_path: Path) -> None:
    columns = noisy_run()
    names = list(columns)
    mixed = {names[0]: columns[names[0]], "nothing": np.full(90, np.nan)}
    mixed |= {name: columns[name] for name in names[1:]}
    lines = ["step," + ",".join(mixed)]
    for row in range(90):
        cells = ("" if np.isnan(v[row]) else f"{v[row]:.5f}" for v in mixed.values())
        lines.append(f"{row}," + ",".join(cells))
    (tmp_path / "mixed.csv").write_text("\n".join(lines))
    same(diagnose(written(tmp_path, columns)), diagnose(tmp_path / "mixed.csv"))


def test_another_spelling_changes_nothing(tmp_path: Path) -> None:
    columns = noisy_run()
    other = {"train/success_rate": columns["success_rate"], "train/reward": columns["reward"]}
    other["train/entropy"] = columns["entropy"]
    one, two = (
        diagnose(written(tmp_path, table, name))
        for table, name in ((columns, "a.csv"), (other, "b.csv"))
    )
    assert (one.state, one.kinds, one.onset_interval) == (two.state, two.kinds, two.onset_interval)


def test_two_files_of_one_run_are_one_run(tmp_path: Path) -> None:
    columns = noisy_run()
    whole = written(tmp_path, columns)
    lines = whole.read_text().split("\n")
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "metrics-0.csv").write_text("\n".join(lines[:46]))
    (folder / "metrics-1.csv").write_text("\n".join([lines[0], *lines[46:]]))
    one, two = diagnose(whole), diagnose(folder)
    assert (one.state, one.kinds, one.onset_interval) == (two.state, two.kinds, two.onset_interval)


# --- what a fall does now


def test_a_fall_that_goes_on_is_being_lost_and_says_so() -> None:
    rate = np.r_[np.full(40, 0.7), np.linspace(0.7, 0.48, 40)]
    verdict = judged({SUCCESS: won(rate, 1, 256), "rollout/num_episodes": np.full(80, 256.0)})
    assert verdict.state is RunState.COLLAPSING
    assert ", and still falls" in verdict.text


def test_a_fall_that_came_to_an_end_is_watched_and_does_not_go_on() -> None:
    rate = np.r_[np.full(40, 0.7), np.full(60, 0.52)]
    verdict = judged({SUCCESS: won(rate, 1, 256), "rollout/num_episodes": np.full(100, 256.0)})
    assert verdict.state is RunState.WATCH
    assert "still falls" not in verdict.text


def test_a_change_that_is_fast_at_first_is_dated_at_its_beginning() -> None:
    """Entropy rises by the same amount a row, so its logarithm rises less and less."""
    steps = np.arange(100)
    rise = np.clip((steps - 39) / 21, 0, 1) * 4
    noise = np.random.default_rng(3).normal(0, 0.03, 100)
    verdict = judged({"policy/entropy": 0.6 + rise + noise, SUCCESS: won(0.6 - 0.14 * rise, 3)})
    assert verdict.kinds[0] == "ENTROPY_EXPLOSION"
    assert verdict.onset_interval is not None
    assert verdict.onset_interval[0] <= 40 <= verdict.onset_interval[1]
    assert verdict.onset_interval[1] - verdict.onset_interval[0] <= 6


def test_replies_that_are_cut_more_and_more_are_a_cause() -> None:
    cut = np.r_[np.full(40, 0.02), np.linspace(0.02, 0.97, 15), np.full(45, 0.97)]
    verdict = judged(
        {
            SUCCESS: won(0.6 * (1 - cut), 5),
            "rollout/num_episodes": np.full(100, 64.0),
            "rollout/length_limited_frac": won(cut, 6),
        }
    )
    assert (
        "the share of replies that are cut off at their length limit grew from 0 % to"
        in verdict.text
    )


def test_the_verdict_of_an_earlier_step_is_what_it_was_then(tmp_path: Path) -> None:
    rate = np.r_[np.full(60, 0.7), np.full(60, 0.0)]
    columns = {"success_rate": won(rate, 0)}
    path = written(tmp_path, columns)
    early = written(tmp_path, {"success_rate": columns["success_rate"][:50]}, "early.csv")
    assert diagnose(path, at=49).text == diagnose(early).text
    assert diagnose(path, at=500).text == diagnose(path).text
    with pytest.raises(MetricsFileError, match="no step until -1 to judge: the first one is 0"):
        diagnose(path, at=-1)


def test_reasoning_that_still_tells_its_prompt_depends_less_and_not_no_longer() -> None:
    fallen = np.r_[np.full(40, 0.7), np.full(40, 0.15)]
    noise = np.random.default_rng(2).normal(0, 0.01, 80)
    verdict = judged(
        {
            "text/retrieval_margin": fallen + noise,
            "text/dependence": fallen + noise,
            SUCCESS: won(np.full(80, 0.5), 4),
        }
    )
    assert verdict.kinds[0] == "TEMPLATE_COLLAPSE"
    assert "depend much less on the prompt than they did" in verdict.text
    assert "no longer" not in verdict.text


def test_no_more_kinds_of_signals_agree_than_there_are() -> None:
    fallen = np.r_[np.full(40, 0.7), np.full(60, 0.0)]
    verdict = judged(
        {
            "text/retrieval_margin": fallen,
            "text/dependence": fallen,
            "text/near_duplicate_frac": 0.9 - fallen,
            "text/template_frac": 0.9 - fallen,
            SUCCESS: won(fallen, 4),
        }
    )
    assert verdict.state is RunState.COLLAPSED
    past, of = map(int, re.findall(r"(\d) of (\d) kinds of signals are past", verdict.rests_on)[0])
    assert past == of == 3
