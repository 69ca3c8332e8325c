"""`echoscope bench collapse`: sets, tables, one JSON object, one-line errors."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echoscope.cli import bench
from echoscope.diagnostics.bench import report as bench_report
from echoscope.diagnostics.bench.cures.kinds import kinds
from echoscope.diagnostics.bench.cures.records import Records
from echoscope.diagnostics.judge.alarms import RULES_BY_NAME

RUNNER = CliRunner()


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    """One run that loses its format at step 40, and one that does not."""
    for name, bad_from in (("bad", 40), ("good", 1000)):
        lines = ["step,rollout/action_valid_frac,eval/a/success_rate"]
        for step in range(90):
            is_bad = step >= bad_from
            lines.append(
                f"{step},{0.2 if is_bad else 0.95},{0.02 if step > bad_from + 20 else 0.6}"
            )
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    labels = {
        "bad": {"label": "format_collapse", "collapsed": True, "onset_early": {"step": 40}},
        "good": {"label": "healthy", "collapsed": False, "regime": "diverse"},
    }
    (tmp_path / "labels.json").write_text(json.dumps({"runs": labels}))
    return tmp_path


def test_curves_as_tables(curves: Path) -> None:
    result = RUNNER.invoke(bench.app, ["collapse", "--curves", str(curves)])
    assert result.exit_code == 0, result.output
    for phrase in ("FORMAT_COLLAPSE", "regime right", "z-score", "RAGEN: empty selection"):
        assert phrase in result.output


def test_curves_as_json(curves: Path) -> None:
    result = RUNNER.invoke(bench.app, ["collapse", "--curves", str(curves), "--json"])
    answer = json.loads(result.output)
    assert answer["verdict"]["collapsed"] == 1
    assert {run["name"] for run in answer["runs"]} == {"bad", "good"}


def test_a_detector_of_ones_own_stands_beside_the_others(
    curves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_alarm.py").write_text("def never(run):\n    return False\n")
    monkeypatch.chdir(tmp_path)
    args = ["collapse", "--curves", str(curves), "--detector"]
    answer = json.loads(RUNNER.invoke(bench.app, [*args, "own_alarm:never", "--json"]).output)
    own = answer["baselines"][0]
    assert (own["name"], own["detected"], own["false"]) == ("own_alarm:never", 0, 0)
    refused = RUNNER.invoke(bench.app, [*args, "own_alarm:missing"])
    assert "has no function 'missing'" in str(refused.exception)


@pytest.mark.long
def test_made_runs_only() -> None:
    args = ["collapse", "--part", "made", "--seeds", "1", "--json"]
    answer = json.loads(RUNNER.invoke(bench.app, args).output)
    assert list(answer) == ["made"]
    assert {"FORMAT_COLLAPSE", "NON_FINITE"} <= set(answer["made"]["rules"]) <= set(RULES_BY_NAME)


@pytest.mark.long
def test_small_runs_in_the_same_format(curves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_report.RECORDED, "small", curves)
    result = RUNNER.invoke(bench.app, ["collapse", "--part", "small"])
    assert result.exit_code == 0, result.output
    assert "small: 2 runs" in result.output
    answer = json.loads(RUNNER.invoke(bench.app, ["collapse", "--part", "small", "--json"]).output)
    assert list(answer) == ["small"]


@pytest.mark.long
def test_a_saved_part_is_scored_like_the_part_itself(
    curves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench_report.RECORDED, "small", curves)  # all six take a minute
    folder = tmp_path / "bench"
    parts = ["--part", "cures", "--part", "small"]
    saved = RUNNER.invoke(bench.app, ["collapse", *parts, "--save", str(folder)])
    assert saved.exit_code == 0, saved.output
    assert "Version 2" in (folder / "README.md").read_text()
    assert json.loads((folder / "small" / "labels.json").read_text())["version"] == 2
    assert (folder / "cures" / "labels.json").is_file()
    again = RUNNER.invoke(bench.app, ["collapse", "--curves", str(folder / "small"), "--json"])
    part = RUNNER.invoke(bench.app, ["collapse", "--part", "small", "--json"])
    assert json.loads(again.output) == json.loads(part.output)["small"]
    refused = RUNNER.invoke(bench.app, ["collapse", *parts, "--save", str(folder)])
    assert refused.exit_code == 2
    assert "is not empty" in refused.output


def test_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = RUNNER.invoke(bench.app, ["collapse", "--curves", str(tmp_path)])
    assert result.exit_code == 4
    assert "labels.json" in result.output
    both = RUNNER.invoke(bench.app, ["collapse", "--curves", str(tmp_path), "--part", "made"])
    assert both.exit_code == 2
    monkeypatch.setitem(bench_report.RECORDED, "small", tmp_path / "nothing")
    none = RUNNER.invoke(bench.app, ["collapse", "--part", "small"])
    assert none.exit_code == 4
    assert "holds no runs of small" in none.output


def test_cures_shows_every_kind_and_what_is_not_trained() -> None:
    values = json.loads(RUNNER.invoke(bench.app, ["cures", "--json"]).output)
    assert {row["kind"].strip("`") for row in values["kinds"]} == set(kinds())
    assert values["pieces"]["trained"] <= values["pieces"]["wanted"]
    page = RUNNER.invoke(bench.app, ["cures"])
    assert page.exit_code == 0, page.output
    assert "rewound only" in page.output


def test_a_damaged_record_is_one_line_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bandit-rate.ndjson").write_text("no record\n")
    monkeypatch.setattr(Records.__init__, "__defaults__", (tmp_path,))
    result = RUNNER.invoke(bench.app, ["cures"])
    assert "bandit-rate.ndjson, line 1, is no record" in str(result.exception) + result.output
    assert "Traceback" not in result.output
