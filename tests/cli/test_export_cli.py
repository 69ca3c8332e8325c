"""`echoscope export`: the report in sentences and as JSON, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.main
from click.testing import CliRunner, Result
from made_run import make_run, step_metrics
from trajectories import make_trajectory

from echoscope.cli import app
from echoscope.store.exporters.exporting import FORMATS
from echoscope.store.exporters.format import ABOUT, BESIDE_EPISODES
from echoscope.store.records import Split, Turn
from echoscope.store.writer import RunWriter


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_run(tmp_path / "run", num_steps=2)


def export(*arguments: str) -> Result:
    return CliRunner().invoke(typer.main.get_command(app), ["export", "run", *arguments])


def test_the_report(run: Path) -> None:
    answer = export("--to", "messages", "-o", "out.jsonl", "--steps", "1")
    assert answer.output.splitlines() == [
        "out.jsonl: wrote 4 conversations (step 1).",
        "Took 4 of 8 episodes (in training).",
        f"Not in the export (messages): {BESIDE_EPISODES}.",
    ]


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`run` with two groups of four in training, three episodes of evaluations, one of a probe."""
    monkeypatch.chdir(tmp_path)
    turn = Turn(index=0, observation="go", response="up")
    made = [
        make_trajectory(
            turn, index=k, group_index=k // 4, sibling_index=k % 4, is_success=k % 4 < 3
        )
        for k in range(8)
    ]
    made += [
        make_trajectory(turn, index=8 + k, group_index=k, split=Split.EVAL, is_success=k < 2)
        for k in range(3)
    ]
    made.append(make_trajectory(turn, index=11, split=Split.PROBE, is_success=True))
    with RunWriter.create(tmp_path / "run", run_id="run", config={}, is_packing=False) as writer:
        metrics = [step_metrics("run", 1, {"policy/entropy": 1.0})]
        writer.commit_step(metrics=metrics, trajectories=made, outcomes=[])
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "Took 12 of 12 episodes (8 in training, 3 in evaluations, 1 on probe tasks)."),
        (("--split", "eval"), "Took 4 of 12 episodes (3 in evaluations, 1 on probe tasks)."),
        (
            ("--split", "train", "--where", "success", "--best", "2"),
            "Took 4 of 12 episodes (in training).",
        ),
        (
            ("--where", "is_success"),
            "Took 9 of 12 episodes (6 in training, 2 in evaluations, 1 on probe tasks).",
        ),
    ],
    ids=["all", "eval", "best", "where"],
)
def test_the_report_counts_what_is_taken(
    mixed: Path, arguments: tuple[str, ...], line: str
) -> None:
    answer = export("--to", "messages", "-o", "out.jsonl", *arguments)
    assert answer.output.splitlines()[1:-1] == [line]


def test_pairs_are_counted_by_their_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rewards = [[1.0, 0.0], [0.75, 0.5], [0.5, 0.5]]
    made = [
        make_trajectory(
            Turn(index=0, observation="go", response=f"r{k}", reward=reward, actions=("up",) * k),
            index=2 * group + k,
            group_index=group,
            sibling_index=k,
            prompt_key="q",
        )
        for group, pair in enumerate(rewards)
        for k, reward in enumerate(pair)
    ]
    with RunWriter.create(tmp_path / "run", run_id="run", config={}, is_packing=False) as writer:
        writer.commit_step(metrics=[step_metrics("run", 1, {})], trajectories=made, outcomes=[])
    answer = export("--to", "dpo", "-o", "pairs.jsonl", "--margin", "0.5")
    assert answer.output.splitlines() == [
        "pairs.jsonl: wrote 1 pair (step 1).",
        "Took 2 of 6 episodes (in training).",
        "Left out 4 episodes: the returns of the two siblings are too close.",
        "Not in the export (dpo): everything except the messages, returns, steps and groups of the "
        "pairs.",
    ]


def test_the_report_of_a_damaged_run_names_the_repair(run: Path) -> None:
    (damaged,) = (run / "seg" / "turns").glob("*00000001-*.parquet")
    damaged.write_bytes(b"")
    lines = export("--to", "messages", "-o", "out.jsonl").output.splitlines()
    assert lines[-2] == (
        "`echoscope runs verify run` lists all damage, and `echoscope runs repair run` copies what "
        "is intact."
    )


def test_the_report_as_json(run: Path) -> None:
    answer = export("--to", "csv", "-o", "out", "--where", "is_success", "--json")
    value = json.loads(answer.output)
    assert (value["rows"], value["first_step"], value["last_step"]) == (4, 0, 1)
    assert value["is_live"] is False
    assert (value["episodes_in_run"], value["episodes_by_split"]) == (8, {"train": 4})


def test_the_help_describes_each_format_in_a_line() -> None:
    answer = CliRunner().invoke(typer.main.get_command(app), ["export", "--help"])
    lines = answer.output.partition("Formats")[2].splitlines()[1:]
    assert [tuple(line.split(maxsplit=1)) for line in lines] == list(ABOUT.items())
    assert [form.name for form in FORMATS] == list(ABOUT)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--to", "messages", "-o", "out", "--steps", "1-2"), "must be A:B"),
        (("--to", "messages", "-o", "out", "--split", "test"), "must be train, eval or all"),
        (
            ("--to", "excel", "-o", "out"),
            "--to 'excel' is no format; known: csv, dpo, duckdb, inspect, messages, sft "
            "(`echoscope export --help` says what each is)",
        ),
        (("--to", "sft", "-o", "out", "--best", "0"), "--best is 0, but must be 1 or more"),
        (("--to", "dpo", "-o", "out", "--margin", "-1"), "--margin is -1.0, but must be 0 or more"),
        (("--to", "messages", "-o", "run"), "lies inside the run"),
        (("--to", "message", "-o", "out"), "--to 'message' is no format; did you mean 'messages'?"),
    ],
    ids=["steps", "split", "format", "best", "margin", "run", "mistyped"],
)
def test_a_mistake(run: Path, arguments: tuple[str, ...], part: str) -> None:
    answer = export(*arguments)
    assert part in str(answer.exception)
    assert not Path("out").exists()
