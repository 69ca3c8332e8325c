"""What a number is, is decided once a run, and the same however the run reaches us."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest
from followed_run import followed

from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.sources import open_source
from echoscope.diagnostics.read.table import MetricTable, stored_meaning, stored_rows
from echoscope.diagnostics.tools.importing import import_path
from echoscope.diagnostics.tools.setting_errors import SettingError
from echoscope.recorder.recorder import Recorder
from echoscope.store.reader import open_run

RETURN, SUCCESS = "reward/return_mean", "rollout/success_rate"
EVAL = "eval/x/return_mean"
Rows = Mapping[int, Mapping[str, float]]

TABLE: Rows = {
    step: {
        "reward": 0.6 if step <= 60 else -0.5,
        "accuracy": 0.5 * step,  # in percent
        "actor/entropy": 1.5,
        "num_samples": 64.0,
        **({"val-core/x/reward/mean@1": 0.25} if step % 10 == 0 else {}),
    }
    for step in range(1, 101)
}
OURS = (RETURN, SUCCESS, "policy/entropy", "rollout/num_episodes", EVAL)


def recorded(path: Path, rows: Rows, **settings: object) -> Path:
    with Recorder(path, **settings) as recorder:  # type: ignore[arg-type]
        for step, values in rows.items():
            recorder.step(step, values)
    assert not recorder.problem
    return path


def written(path: Path, rows: Rows) -> Path:
    names = list(dict.fromkeys(name for values in rows.values() for name in values))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["step", *names])
        writer.writeheader()
        writer.writerows({"step": step, **values} for step, values in rows.items())
    return path


def stored(path: Path) -> dict[int, dict[str, float]]:
    return ours(open_source(path).table)


def ours(table: MetricTable) -> dict[int, dict[str, float]]:
    return {
        step: {key: round(value, 9) for key, value in values.items() if key in OURS}
        for step, values in table.rows()
    }


def test_one_table_means_the_same_live_watched_imported_and_diagnosed(tmp_path: Path) -> None:
    source = written(tmp_path / "metrics.csv", TABLE)
    expected = ours(read_metrics(source))
    assert set(expected[10]) == set(OURS)
    assert expected[10][SUCCESS] == pytest.approx(0.05)
    assert [expected[step][RETURN] for step in (60, 61)] == [0.6, -0.5]
    assert stored(recorded(tmp_path / "live", TABLE)) == expected
    import_path(source, tmp_path / "imported")
    assert stored(tmp_path / "imported") == expected
    with followed(source, tmp_path / "watched") as watch:
        assert watch.look(5) == list(TABLE)
    assert stored(tmp_path / "watched") == expected


def test_a_scale_that_is_found_late_holds_for_the_first_steps_too(tmp_path: Path) -> None:
    rows = {1: {"accuracy": 0.8}, 2: {"accuracy": 12.0}, 3: {"accuracy": 30.0}}
    run = recorded(tmp_path / "run", rows)
    table = open_source(run).table
    assert table.columns[SUCCESS] == pytest.approx([0.008, 0.12, 0.3])


def test_a_resumed_run_keeps_its_meaning(tmp_path: Path) -> None:
    recorded(tmp_path / "run", {s: {"accuracy": 30.0} for s in range(1, 30)})
    recorded(tmp_path / "run", {s: {"accuracy": 0.9} for s in range(25, 60)})
    assert stored(tmp_path / "run")[40][SUCCESS] == pytest.approx(0.009)
    assert stored_meaning(open_run(tmp_path / "run")).of_key[SUCCESS].of == ("accuracy",)


def test_the_caller_says_what_a_metric_is(tmp_path: Path) -> None:
    meanings = {"score": SUCCESS}
    recorded(tmp_path / "run", {1: {"score": 0.25}}, meanings=meanings)
    assert stored(tmp_path / "run")[1] == {SUCCESS: 0.25}
    with pytest.raises(SettingError, match="meanings 'score=success': no rule reads 'success'"):
        Recorder(tmp_path / "b", meanings={"score": "success"})
    with pytest.raises(SettingError, match="meanings is 'score', but must be a dict"):
        Recorder(tmp_path / "c", meanings="score")  # type: ignore[arg-type]


def test_a_map_changes_the_meaning_for_the_whole_run(tmp_path: Path) -> None:
    from echoscope.diagnostics.judge.courses.channels import known_keys
    from echoscope.diagnostics.read.names import parse_map
    from echoscope.diagnostics.read.records import MetricsFileError

    run = recorded(tmp_path / "run", {s: {"reward": 0.5} for s in range(1, 9)})
    mapping = parse_map([f"reward={SUCCESS}"], known_keys())
    assert open_source(run, mapping).table.columns[SUCCESS].tolist() == [0.5] * 8
    with pytest.raises(MetricsFileError, match="names the column 'x', which the run has not"):
        open_source(run, parse_map([f"x={SUCCESS}"], known_keys()))


def test_episodes_and_a_trainers_number_are_not_mixed_in_one_curve(tmp_path: Path) -> None:
    """The trainer's own return comes at every second step, and the episodes have one at each."""
    with Recorder(tmp_path / "run") as recorder:
        for step in range(1, 9):
            for sample in range(4):
                recorder.episode(
                    [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}],
                    reward=float(sample),
                )
            recorder.step(step, {"reward": 7.0} if step % 2 else {"loss": 1.0})
    rows = dict(stored_rows(open_run(tmp_path / "run")))
    assert {step: row[RETURN] for step, row in rows.items() if RETURN in row} == dict.fromkeys(
        (1, 3, 5, 7), 7.0
    )
    assert rows[2]["rollout/num_episodes"] == 4.0
    assert rows[2]["rollout/num_groups"] == 1.0
