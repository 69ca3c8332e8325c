"""echoscope diagnose, as a person and as a script use it."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from made_evaluation import make_evaluation, open_evaluation
from typer.testing import CliRunner

from echoscope.cli.diagnose import diagnose
from echoscope.store.records import StepMetrics
from echoscope.store.writer import RunWriter

app = typer.Typer()
app.command("diagnose")(diagnose)
app.callback()(lambda: None)  # or the only command would need no name
runner = CliRunner()


def csv_of(path: Path, **columns: np.ndarray) -> Path:
    names = [name.replace("__", "/") for name in columns]
    rows = zip(*columns.values(), strict=True)
    lines = [",".join([str(step), *map(str, row)]) for step, row in enumerate(rows)]
    path.write_text("\n".join([",".join(["step", *names]), *lines]) + "\n")
    return path


@pytest.fixture
def collapsed(tmp_path: Path) -> Path:
    steps = np.arange(80)
    return csv_of(
        tmp_path / "bad.csv",
        rollout__action_valid_frac=np.where(steps < 50, 0.95, 0.2),
        rollout__success_rate=np.where(steps < 50, 0.6, 0.1),
    )


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    steps = np.arange(80)
    return csv_of(tmp_path / "w.csv", reward_std=np.where(steps < 50, 0.4, 0.01))


def test_a_collapse_exits_with_3(collapsed: Path) -> None:
    result = runner.invoke(app, ["diagnose", str(collapsed)])
    assert result.exit_code == 3
    assert "collapsed" in result.stdout
    assert "Format collapse, starting " in result.stdout
    assert "Evidence: valid actions: " in result.stdout


def test_json_is_one_object(collapsed: Path) -> None:
    result = runner.invoke(app, ["diagnose", str(collapsed), "--json"])
    assert result.exit_code == 3
    answer = json.loads(result.stdout)
    assert answer["state"] == "collapsed"
    assert answer["kinds"][0] == "FORMAT_COLLAPSE"


def test_watch_fails_only_if_asked(watched: Path) -> None:
    assert runner.invoke(app, ["diagnose", str(watched)]).exit_code == 0
    assert runner.invoke(app, ["diagnose", str(watched), "--fail-on", "watch"]).exit_code == 3


def test_too_little_exits_with_5(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "short.csv", entropy=np.ones(3))
    assert runner.invoke(app, ["diagnose", str(path)]).exit_code == 5


@pytest.mark.parametrize("text", ["", "hello\n", "a,b\n1,2\n"])
def test_unreadable_exits_with_4_and_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    result = runner.invoke(app, ["diagnose", str(path)])
    assert result.exit_code == 4
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_missing_file_exits_with_4(tmp_path: Path) -> None:
    assert runner.invoke(app, ["diagnose", str(tmp_path / "none")]).exit_code == 4


def test_a_folder_that_is_neither_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    result = runner.invoke(app, ["diagnose", str(tmp_path)])
    assert result.exit_code == 4
    assert "holds neither rollouts nor metrics of a known form, and no run" in result.stderr
    assert "a console log with lines such as `step:1 - reward:0.5`, files of" in result.stderr


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "one", run_id="one", config={}).close(status="finished")
    result = runner.invoke(app, ["diagnose", str(tmp_path)])
    assert result.exit_code == 4
    assert "holds runs; name one of them: one" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "tiny", "--checkpoint", "3"], 2, "exclude each other"),
        (["--every", "3"], 2, "give --model or --checkpoint"),
        (["--model", "tiny"], 4, "has no trajectories with recorded tokens"),
        (["--model", "tinny"], 2, "did you mean 'tiny'"),
        (["--checkpoint", "3"], 2, "has no checkpoint of step 3; it has none"),
    ],
)
def test_scoring_a_run_that_cannot_be(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    writer = RunWriter.create(tmp_path / "one", run_id="one", config={})
    metrics = StepMetrics(
        run_id="one",
        step=1,
        phase="train",
        policy_version=0,
        wall_time=0.0,
        values={"reward/return_mean": 1.0},
    )
    writer.commit_step(metrics=[metrics], trajectories=[], outcomes=[])
    writer.close(status="finished")
    result = runner.invoke(app, ["diagnose", str(tmp_path / "one"), *arguments])
    assert result.exit_code == code
    assert message in result.stderr


def test_only_a_stored_run_can_be_scored(collapsed: Path) -> None:
    result = runner.invoke(app, ["diagnose", str(collapsed), "--model", "tiny"])
    assert result.exit_code == 4
    assert "is no stored run" in result.stderr


def test_map(tmp_path: Path) -> None:
    steps = np.arange(60)
    path = csv_of(tmp_path / "m.csv", broken=np.where(steps < 30, 0.05, 0.7))
    unmapped = runner.invoke(app, ["diagnose", str(path)])
    assert unmapped.exit_code == 5
    mapped = runner.invoke(
        app, ["diagnose", str(path), "--map", "broken=1-rollout/action_valid_frac", "--json"]
    )
    assert json.loads(mapped.stdout)["kinds"] == ["FORMAT_COLLAPSE"]
    wrong = runner.invoke(app, ["diagnose", str(path), "--map", "broken=nonsense"])
    assert wrong.exit_code == 2


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "esc.csv"
    steps = range(60)
    rows = "".join(f"{s},{0.95 if s < 30 else 0.2}\n" for s in steps)
    path.write_text("step,eval/\x1b[31m/action_valid_frac\n" + rows)
    result = runner.invoke(app, ["diagnose", str(path)])
    assert "\x1b[31m" not in result.stdout


def test_an_evaluation_is_not_judged(tmp_path: Path) -> None:
    """One sentence: what it is, whose, and where its success can be read."""
    run = make_evaluation(tmp_path / "e", {"lake": ["11", "10"]}, who="qwen")
    again = runner.invoke(app, ["diagnose", str(run)])
    assert again.exit_code == 0
    assert again.output == (
        f"{run} is an evaluation of qwen, not a training, so there is no verdict. Its success is "
        "on the page Evaluations of `echoscope dashboard`. `echoscope eval WHO --against "
        f"{run}` compares another model with it.\n"
    )
    as_json = json.loads(runner.invoke(app, ["diagnose", str(run), "--json"]).output)
    assert (as_json["state"], as_json["actions"]) == ("evaluation", [])


def test_an_evaluation_that_was_killed_is_not_judged_either(tmp_path: Path) -> None:
    writer = open_evaluation(tmp_path / "e", {"lake": ["1"]}, planned=9)
    writer._lock.release()  # as the system does when a process dies
    again = runner.invoke(app, ["diagnose", str(tmp_path / "e")])
    assert again.exit_code == 0
    assert "is an evaluation of tiny" in again.output
