"""Names and units of other trainers."""

import numpy as np
import pytest

from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.read.foreign_names import (
    How,
    is_summary_column,
    meaning_of,
    step_column,
)
from echoscope.diagnostics.read.names import MetricNameError, parse_map
from echoscope.diagnostics.read.table import MetricTable, named_table


def to_our_names(columns: dict, mapping: dict | None = None) -> MetricTable:
    return named_table(np.arange(len(next(iter(columns.values())))), columns, mapping or {})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("actor/entropy", "policy/entropy"),  # verl, RAGEN
        ("rollout/in_group_reward_std", "reward/group_std_mean"),  # RAGEN
        ("collapse/valid_thinking_rate", "rollout/reasoning_closed_frac"),
        ("val-env/CoordSokoban/success", "eval/CoordSokoban/success_rate"),
        ("train/CoordSokoban/success", "rollout/CoordSokoban/success_rate"),
        ("collapse_first_turn_sample/mi_seq_estimate", "info/first_turn/mutual_information"),
        ("grad_norm/all/task", "gradient/policy/all/norm"),
        ("reward_std", "reward/group_std_mean"),  # TRL
        ("train/reward_std", "reward/group_std_mean"),  # TRL, as W&B shows it
        ("completions/clipped_ratio", "rollout/length_limited_frac"),
        ("mismatch_kl/mean", "policy/mismatch_kl"),  # prime-rl
        ("env/all/reward/total", "reward/return_mean"),  # tinker-cookbook
        ("Entropy", "policy/entropy"),
    ],
)
def test_known_names(name: str, key: str) -> None:
    meaning = meaning_of(name)
    assert meaning is not None
    assert meaning.key == key


def test_rates_of_failure_are_turned_round() -> None:
    meaning = meaning_of("train/lake/manager_invalid_action")
    assert meaning is not None
    assert meaning.how is How.COMPLEMENT


@pytest.mark.parametrize(
    "name", ["my_metric", "collapse_first_turn_sample/mi_estimate", "early_stopped/x", ""]
)
def test_unknown_names_stay_unknown(name: str) -> None:
    """RAGEN's length-normalised estimate is not information, and stop flags are no input."""
    assert meaning_of(name) is None


def test_an_own_key_wins_over_an_alias() -> None:
    columns = {"actor/entropy": np.array([9.0]), "policy/entropy": np.array([1.0])}
    named = to_our_names(columns)
    assert named.columns["policy/entropy"].tolist() == [1.0]
    assert named.sources["policy/entropy"] == "policy/entropy"


def test_summary_columns_of_wandb_are_left_out() -> None:
    assert is_summary_column("entropy__MIN")
    named = to_our_names({"entropy": np.array([1.0]), "entropy__MIN": np.array([0.0])})
    assert list(named.columns) == ["policy/entropy"]


def test_tags_are_averaged() -> None:
    named = to_our_names(
        {
            "train/lake/success": np.array([0.2, np.nan, np.nan]),
            "train/sokoban/success": np.array([0.4, 0.6, np.nan]),
        }
    )
    column = named.columns["rollout/success_rate"]
    assert column[:2] == pytest.approx([0.3, 0.6])  # (0.2 + 0.4) / 2, then 0.6 alone
    assert np.isnan(column[2])


def test_entropy_per_sequence_is_divided_by_the_length() -> None:
    """400 nats cannot be per token; over 800 tokens they are 0.5."""
    named = to_our_names(
        {
            "actor/entropy": np.array([400.0, 200.0]),
            "train/response_length": np.array([800.0, 400.0]),
        }
    )
    assert named.columns["policy/entropy"] == pytest.approx([0.5, 0.5])
    assert "per sequence" in named.notes[0]


def test_entropy_per_sequence_without_a_length_is_set_aside() -> None:
    named = to_our_names({"entropy": np.array([400.0, 410.0])})
    assert "policy/entropy" not in named.columns
    assert "blind" in named.notes[0]


def test_dependence_from_information_and_its_ceiling() -> None:
    named = to_our_names(
        {
            "collapse_first_turn_sample/mi_seq_estimate": np.array([1.0, -0.1, 5.0]),
            "collapse_first_turn_sample/mi_upper_bound": np.array([2.0, 2.0, 2.0]),
        }
    )
    # 1 / 2; a negative estimate is 0, one above the ceiling 1
    assert named.columns["info/first_turn/dependence"].tolist() == [0.5, 0.0, 1.0]


def test_step_columns_by_preference() -> None:
    assert step_column(["loss", "global_step", "Step"]) == "Step"
    assert step_column(["loss", "train/global_step"]) == "train/global_step"
    assert step_column(["loss"]) is None


def test_map_names_a_column() -> None:
    mapping = parse_map(["ent=policy/entropy", "bad = 1-rollout/action_valid_frac"], known_keys())
    assert mapping["ent"].key == "policy/entropy"
    assert mapping["bad"].how is How.COMPLEMENT
    assert parse_map(["it=step"], known_keys())["it"].key == "step"
    assert parse_map(["s=eval/lake/success_rate"], known_keys())["s"].key


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("entropy", "write NAME=KEY"),
        ("=policy/entropy", "write NAME=KEY"),
        ("e=policy/entropi", "did you mean 'policy/entropy'"),
        ("e=zzz", "no rule reads 'zzz'"),
    ],
)
def test_a_map_that_cannot_be_followed(entry: str, message: str) -> None:
    with pytest.raises(MetricNameError, match=message):
        parse_map([entry], known_keys())


def test_a_map_wins_over_the_name() -> None:
    mapping = parse_map(["reward=rollout/success_rate"], known_keys())
    named = to_our_names({"reward": np.array([0.5])}, mapping)
    assert named.columns["rollout/success_rate"].tolist() == [0.5]
    assert "reward/return_mean" not in named.columns


def test_the_environments_own_word_on_validity_is_second_best() -> None:
    own = {"train/lake/action_is_valid": np.array([0.5])}
    assert to_our_names(own).columns["rollout/action_valid_frac"].tolist() == [0.5]
    both = {**own, "train/lake/manager_invalid_action": np.array([0.2])}
    assert to_our_names(both).columns["rollout/action_valid_frac"].tolist() == [0.8]


def test_roles_of_rollouts_stand_on_either_side() -> None:
    """`--map ROLE=KEY`; what names a metric on the right stays one."""

    def parsed(*entries: str) -> dict[str, str]:
        mapping = parse_map(entries, known_keys(), has_rollouts=True)
        return {name: meaning.key for name, meaning in mapping.items()}

    assert parsed("prompt=question", "reply=out.text") == {
        "question": "prompt",
        "out.text": "reply",
    }
    assert parsed("question=prompt", "it=step") == {"question": "prompt", "it": "step"}
    assert parsed("step=it") == {"it": "step"}
    assert parsed("reward=rollout/success_rate") == {"reward": "rollout/success_rate"}
    assert parsed("success=reward") == {"reward": "success"}
    with pytest.raises(MetricNameError, match="For a key of rollouts write ROLE=rewrd: prompt,"):
        parse_map(["rewrd=score"], known_keys(), has_rollouts=True)
    with pytest.raises(MetricNameError, match="no rule reads 'question'"):
        parse_map(["prompt=question"], known_keys())
