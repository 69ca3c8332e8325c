"""What the numbers of a run are is decided once: for a file by all rows, else by the first ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.read.foreign_names import How
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.names import NUM_DECIDING, RowNamer, parse_map
from echoscope.diagnostics.read.run_meaning import ColumnMeaning, RunMeaning, Scale
from echoscope.diagnostics.read.table import MetricTable, named_table

RETURN, SUCCESS = "reward/return_mean", "rollout/success_rate"


def to_our_names(columns: dict, mapping: dict | None = None) -> MetricTable:
    return named_table(np.arange(len(next(iter(columns.values())))), columns, mapping or {})


def keys(namer: RowNamer, step: int, values: dict[str, float]) -> dict[str, float]:
    namer.learn(step, values)
    return namer.named(values)


def test_a_record_is_read_back() -> None:
    columns = {"acc": [0.5], "invalid_action_rate": [0.25], "entropy": [-2.0]}
    meaning = to_our_names({name: np.array(v) for name, v in columns.items()}).meaning
    assert RunMeaning.from_payload(meaning.record(3).payload) == meaning
    assert {entry.how for entry in meaning.columns} == {How.COLUMN, How.COMPLEMENT, How.NEGATIVE}
    assert meaning.of_column["acc"] == ColumnMeaning(
        key=SUCCESS, of=("acc",), scale=Scale.SHARE, evidence="its name"
    )
    for broken in ("[{}]", "3", '[{"key": "a", "of": ["a"], "how": "x", "scale": "any"}]'):
        with pytest.raises(ValueError, match="no record"):
            RunMeaning.from_payload(broken)


def test_a_reward_stays_a_return_when_it_falls_below_0() -> None:
    namer = RowNamer()
    rewards = [0.6] * 60 + [-0.5] * 40
    by_step = [keys(namer, step, {"reward": value}) for step, value in enumerate(rewards)]
    assert [row[RETURN] for row in by_step] == rewards
    assert not any(SUCCESS in row for row in by_step)


def test_a_scale_that_is_decided_stays() -> None:
    """Percent or share: the first rows decide, and later values outside are left out."""
    namer = RowNamer()
    for step in range(NUM_DECIDING):
        assert keys(namer, step, {"accuracy": 0.5})[SUCCESS] == 0.5
    assert np.isnan(keys(namer, 50, {"accuracy": 45.0})[SUCCESS])
    assert keys(namer, 51, {"accuracy": 0.25})[SUCCESS] == 0.25


def test_a_scale_may_be_found_within_the_first_rows() -> None:
    namer = RowNamer()
    assert keys(namer, 1, {"accuracy": 0.8})[SUCCESS] == 0.8
    before = namer.meaning
    assert keys(namer, 2, {"accuracy": 12.0})[SUCCESS] == 0.12
    assert before.is_revised_by(namer.meaning)
    assert namer.meaning.row({"accuracy": 0.8})[SUCCESS] == pytest.approx(0.008)
    for step in range(3, 60):
        keys(namer, step, {"accuracy": 0.5})
    assert keys(namer, 60, {"accuracy": 50.0})[SUCCESS] == 0.5


def test_a_run_that_goes_on_keeps_what_was_decided() -> None:
    first = RowNamer()
    for step in range(NUM_DECIDING):
        keys(first, step, {"accuracy": 30.0 + step, "score": 0.5})
    again = RowNamer(meaning=first.meaning)
    assert keys(again, 90, {"accuracy": 0.9, "score": 0.5})[SUCCESS] == pytest.approx(0.009)
    assert keys(again, 91, {"accuracy": 0.9, "score": -3.0})[RETURN] == -3.0


def test_somebody_says_what_a_column_is() -> None:
    mapping = parse_map([f"score={SUCCESS}", f"bad=1-{SUCCESS}"], known_keys())
    assert keys(RowNamer(mapping=mapping), 1, {"score": 0.25})[SUCCESS] == 0.25
    assert keys(RowNamer(mapping=mapping), 1, {"bad": 0.25})[SUCCESS] == 0.75
    namer = RowNamer(mapping=mapping)
    assert SUCCESS not in keys(namer, 1, {"score": -3.0})
    assert "a share lies between 0 and 1" in namer.notes[0]


def test_what_was_counted_from_episodes_is_not_read_from_a_later_column() -> None:
    namer = RowNamer()
    keys(namer, 1, {"loss": 0.5})
    namer.leave([RETURN])
    assert RETURN not in keys(namer, 2, {"loss": 0.5, "reward": 0.5})
    assert namer.meaning.of_column["reward"].evidence == "counted from the episodes"


@pytest.mark.parametrize("name", ["rollout/success_rate", "accuracy", "val-core/x/acc/mean@1"])
def test_a_column_that_mixes_shares_and_percent_is_not_judged(name: str) -> None:
    values = np.array([0.4, 0.5, 0.45, 47.0, 50.0])
    named = to_our_names({name: values})
    assert not any(key.endswith("success_rate") for key in named.columns)
    assert named.notes == (
        f"{name} changes between shares and percent (0.45, then 47): it is not judged; write it in "
        "one unit",
    )


def test_a_rate_in_percent_that_begins_low_is_percent() -> None:
    named = to_our_names({"accuracy": np.array([0.5, 0.8, 2.0, 9.0, 30.0])})
    assert named.columns[SUCCESS] == pytest.approx([0.005, 0.008, 0.02, 0.09, 0.3])


@pytest.mark.parametrize(
    ("name", "key"),
    [("num_samples", "rollout/num_episodes"), ("num_prompts", "rollout/num_groups")],
)
def test_columns_that_count_episodes_are_read_unless_they_count_on(name: str, key: str) -> None:
    assert to_our_names({name: np.array([64.0, 64, 48])}).columns[key].tolist() == [64, 64, 48]
    assert key not in to_our_names({name: np.array([64.0, 128, 192])}).columns
    ours = to_our_names({"rollout/num_trajectories": np.array([32.0])}).columns
    assert ours["rollout/num_episodes"].tolist() == [32.0]


BAD = {
    "one row": [0.5],
    "constants": [0.5] * 40,
    "zeros": [0.0] * 40,
    "no number": [float("nan")] * 40,
    "a gap": [0.5] * 10 + [float("nan")] * 20 + [0.25] * 10,
    "infinite": [0.5] * 20 + [float("inf")] + [0.5] * 19,
    "percent and shares": [0.5] * 20 + [50.0] * 20,
    "a spike": [0.5] * 20 + [1e9] + [0.5] * 19,
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", ["reward", "accuracy", "val_acc", "rollout/success_rate"])
def test_odd_numbers_crash_nothing_and_raise_no_alarm(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": n, name: value, "loss": 1.0} for n, value in enumerate(BAD[kind])]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_metrics(path)
    if kind in ("percent and shares", "a spike") and name != "reward":
        assert not any(key.endswith("success_rate") for key in table.columns)
        assert any(f"{name} " in note for note in table.notes), "it is said"
    namer = RowNamer()
    for n, value in enumerate(BAD[kind]):
        success = keys(namer, n, {name: value, "loss": 1.0}).get(SUCCESS, 0.0)
        assert np.isnan(success) or 0 <= success <= 1


def test_a_record_is_short() -> None:
    """Only columns that mean something are in it."""
    columns = {f"perf/x{n}": np.array([0.5]) for n in range(500)} | {"reward": np.array([0.5])}
    assert len(json.loads(to_our_names(columns).meaning.record(1).payload)) == 1
