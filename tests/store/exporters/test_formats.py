"""Each format: what other readers see in it, and what an import of it gives back."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from stored_steps import build_outcome, build_trajectory
from trajectories import make_trajectory

from echoscope.store.exporters.exporting import FORMATS, ExportReport, export_run
from echoscope.store.exporters.format import Options
from echoscope.store.records import Split, StopReason, Trajectory, Turn

from .conftest import imported, stored, write_run

CONTROLS = "a\x00b\r\nc\x1b[31m"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps of two groups of two, with tokens and advantages, and two evaluations."""
    trained = [build_trajectory(step, index) for step in range(2) for index in range(4)]
    evaluated = [build_trajectory(1, index, split=Split.EVAL) for index in range(2)]
    outcomes = [build_outcome(trajectory) for trajectory in trained]
    return write_run(tmp_path / "run", [*trained, *evaluated], outcomes)


def turn(index: int, **values: object) -> Turn:
    return Turn(index=index, **({"observation": f"o{index}", "response": f"r{index}"} | values))


def sibling(index: int, reward: float, *, response: str = "", **fields: object) -> Trajectory:
    reply = turn(0, observation="Q", response=response or f"answer {index}", reward=reward)
    plain = {"step": 0, "index": index, "sibling_index": index, "prompt_key": "q"}
    return make_trajectory(reply, **(plain | fields))


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("to", "suffix"), [("messages", ".jsonl"), ("inspect", ".eval")])
def test_an_import_gives_the_episodes_back(run: Path, tmp_path: Path, to: str, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    assert export_run(run, to, target).num_rows == 10
    back = imported(target, tmp_path / "back")

    def facts(trajectory: Trajectory) -> list[object]:
        return [
            (trajectory.step, trajectory.split is Split.EVAL),
            (trajectory.group_index, trajectory.sibling_index),
            (trajectory.episode_return, trajectory.is_success, trajectory.stop_reason),
            (trajectory.env_id, trajectory.duration_s) if to == "inspect" else (),
            [(turn.observation, turn.response) for turn in trajectory.turns],
        ]

    assert list(map(facts, back)) == list(map(facts, stored(run)))


def test_the_report_names_what_the_format_has_no_place_for(run: Path, tmp_path: Path) -> None:
    assert export_run(run, "messages", tmp_path / "out.jsonl").leaves_out.startswith("token ids")
    assert export_run(run, "duckdb", tmp_path / "out.duckdb").leaves_out == ""


def test_an_inspect_sample_is_a_group_and_an_epoch_a_sibling(run: Path, tmp_path: Path) -> None:
    report = export_run(run, "inspect", tmp_path / "out.eval")
    assert (report.num_rows, report.noun) == (10, "episode")
    assert report.notes == ("A group is a sample, and a sibling an epoch: 5 samples.",)
    with zipfile.ZipFile(tmp_path / "out.eval") as archive:
        header = json.loads(archive.read("header.json"))
        sample = json.loads(archive.read("samples/00000001-train-00001_epoch_2.json"))
        summaries = json.loads(archive.read("summaries.json"))
    assert (header["eval"]["dataset"]["samples"], header["eval"]["config"]["epochs"]) == (5, 2)
    assert header["results"]["total_samples"] == len(summaries) == 10
    means = {s["name"]: s["metrics"]["mean"]["value"] for s in header["results"]["scores"]}
    assert means == {"return": 1.25, "success": 0.5}
    assert (sample["epoch"], sample["scores"]["return"]["value"]) == (2, 1.25)
    assert sample["metadata"]["turn_rewards"] == [0.5, 0.5]


def test_siblings_of_an_inspect_log_keep_their_order(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [sibling(index, float(index)) for index in range(12)])
    export_run(run, "inspect", tmp_path / "out.eval")
    back = imported(tmp_path / "out.eval", tmp_path / "back")
    assert [t.episode_return for t in back] == [float(index) for index in range(12)]


def test_a_duckdb_file_opens_without_us(run: Path, tmp_path: Path) -> None:
    export_run(run, "duckdb", tmp_path / "out.duckdb")
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as connection:
        names = {name for (name,) in connection.sql("SHOW TABLES").fetchall()}
        ((mean,),) = connection.sql("SELECT avg(episode_return) FROM trajectories").fetchall()
        tokens = connection.sql("SELECT count(*) FROM tokens").fetchall()
        ((comment,),) = connection.sql(
            "SELECT comment FROM duckdb_columns() WHERE table_name = 'turns' "
            "AND column_name = 'response'"
        ).fetchall()
    assert {"trajectories", "turns", "tokens", "metrics", "steps", "runs", "images"} <= names
    assert (mean, tokens) == (1.25, [(20,)])
    assert comment == "What the policy said, decoded for people."


def test_csv_opens_in_pandas(run: Path, tmp_path: Path) -> None:
    export_run(run, "csv", tmp_path / "out")
    trajectories = pd.read_csv(tmp_path / "out" / "trajectories.csv")
    turns = pd.read_csv(tmp_path / "out" / "turns.csv")
    steps = pd.read_csv(tmp_path / "out" / "steps.csv")
    assert (len(trajectories), len(turns), len(steps)) == (10, 20, 2)
    assert trajectories["episode_return"].mean() == 1.25
    assert json.loads(turns["actions"][0]) == ["Up"]


def test_csv_has_no_formula_and_no_control_character(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", CONTROLS, 'quote " and, comma\nline', "plain"]
    replies = [turn(index, response=text, reward=-1.0) for index, text in enumerate(texts)]
    run = write_run(tmp_path / "run", [make_trajectory(*replies)])
    export_run(run, "csv", tmp_path / "out")
    with (tmp_path / "out" / "turns.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["response"] for row in rows] == [
        *("'=1+1", "'+1", "'-1", "'@x", "'\t=1"),
        "a\ufffdb\r\nc\ufffd[31m",
        'quote " and, comma\nline',
        "plain",
    ]
    assert {row["reward"] for row in rows} == {"-1.0"}, "numbers stay numbers"


def test_demonstrations_end_with_a_reply(tmp_path: Path) -> None:
    good = make_trajectory(turn(0), turn(1), step=0, final_observation="you won", is_success=True)
    failed = make_trajectory(turn(0), step=0, index=1, stop_reason=StopReason.ENV_ERROR)
    run = write_run(tmp_path / "run", [good, failed])
    report = export_run(run, "sft", tmp_path / "out.jsonl")
    (row,) = rows_of(tmp_path / "out.jsonl")
    assert [m["content"] for m in row["messages"]] == ["o0", "r0", "o1", "r1"]
    assert sum(report.skipped.values()) == 1


def test_the_best_of_each_group(tmp_path: Path) -> None:
    group = [sibling(index, reward) for index, reward in enumerate([0.0, 2.0, 1.0])]
    run = write_run(tmp_path / "run", group)
    export_run(run, "sft", tmp_path / "out.jsonl", Options(best=2))
    replies = [row["messages"][-1]["content"] for row in rows_of(tmp_path / "out.jsonl")]
    assert replies == ["answer 1", "answer 2"]


def pairs(tmp_path: Path, *group: Trajectory, margin: float = 0.0) -> tuple[list[dict], dict]:
    run = write_run(tmp_path / "run", group)
    report = export_run(run, "dpo", tmp_path / "out.jsonl", Options(margin=margin))
    return rows_of(tmp_path / "out.jsonl"), dict(report.skipped)


def test_the_best_sibling_is_preferred_to_the_worst(tmp_path: Path) -> None:
    group = [sibling(index, reward) for index, reward in enumerate([0.25, 1.0, 0.0, 0.75, 0.5])]
    rows, skipped = pairs(tmp_path, *group, margin=0.5)
    assert rows == [
        {
            "prompt": [{"role": "user", "content": "Q"}],
            "chosen": [{"role": "assistant", "content": "answer 1"}],
            "rejected": [{"role": "assistant", "content": "answer 2"}],
            "chosen_return": 1.0,
            "rejected_return": 0.0,
            "step": 0,
            "group_id": "train-0-0",
        },
        {
            "prompt": [{"role": "user", "content": "Q"}],
            "chosen": [{"role": "assistant", "content": "answer 3"}],
            "rejected": [{"role": "assistant", "content": "answer 0"}],
            "chosen_return": 0.75,
            "rejected_return": 0.25,
            "step": 0,
            "group_id": "train-0-0",
        },
    ]
    assert list(skipped.values()) == [1], "the middle one"


def test_what_makes_no_pair(tmp_path: Path) -> None:
    rows, skipped = pairs(
        tmp_path,
        sibling(0, 1.0),
        sibling(1, 0.0),
        *[sibling(2 + k, 0.5, group_index=1) for k in range(2)],
        *[sibling(4 + k, float(k), group_index=2, response="same") for k in range(2)],
        *[sibling(6 + k, float(k), group_index=3, prompt_key=f"p{k}") for k in range(2)],
        sibling(8, math.nan, group_index=4),
        sibling(9, 1.0, group_index=4, stop_reason=StopReason.TIMEOUT),
    )
    assert len(rows) == 1
    assert skipped == {
        "the returns of the two siblings are too close": 2,
        "both siblings wrote the same text": 2,
        "there is no sibling with the same prompt": 2,
        "the return is not known": 1,
        "the environment failed, or a command dropped the step (stop_reason is env_error, timeout "
        "or aborted)": 1,
    }


def played(index: int, reward: float, *actions: str) -> Trajectory:
    reply = turn(0, observation="Q", response=f"r{index}", reward=reward, actions=actions)
    return make_trajectory(reply, step=0, index=index, sibling_index=index, prompt_key="q")


def test_siblings_that_executed_the_same_actions_make_no_pair(tmp_path: Path) -> None:
    # Returns 1.0 > 0.75 > 0.5 > 0.25 > 0.0 > -0.1: pairs (0, 5), (1, 4), (2, 3).
    group = [
        *(played(0, 1.0, "left"), played(1, 0.75, "left"), played(2, 0.5)),
        *(played(3, 0.25), played(4, 0.0, " left "), played(5, -0.1, "left", "left")),
    ]
    run = write_run(tmp_path / "run", group)
    report = export_run(run, "dpo", tmp_path / "out.jsonl")
    returns = [(row["chosen_return"], row["rejected_return"]) for row in rows_of(report.path)]
    assert returns == [(1.0, -0.1), (0.5, 0.25)], "without a recorded action nothing is compared"
    assert list(report.skipped.values()) == [2]
    assert report.taken == {"train": 4}


def test_a_split_keeps_tasks_of_evaluation_out_of_lessons(run: Path, tmp_path: Path) -> None:
    lessons = [form.name for form in FORMATS if form.split == "train"]
    assert lessons == ["sft", "dpo"]
    assert export_run(run, "sft", tmp_path / "out.jsonl").taken == {"train": 8}
    report = export_run(run, "sft", tmp_path / "eval.jsonl", Options(split="eval"))
    assert (report.taken, report.num_all) == ({"eval": 2}, 10)


def test_steps_and_a_condition(run: Path, tmp_path: Path) -> None:
    options = Options(where="is_success -- and no more", first_step=1, last_step=1)
    report = export_run(run, "messages", tmp_path / "out.jsonl", options)
    rows = rows_of(tmp_path / "out.jsonl")
    assert report.num_rows == 3
    assert {(row["step"], row["success"]) for row in rows} == {(1, True)}


def test_progress_counts_episodes(run: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = export_run(
        run, "csv", tmp_path / "out", progress=lambda done, of: calls.append((done, of))
    )
    assert isinstance(report, ExportReport)
    assert calls[-1] == (10, 10)
    assert np.all(np.diff([done for done, _ in calls]) > 0)


def test_rewards_of_turns_come_back_where_they_add_up(tmp_path: Path) -> None:
    rewards = [0.5, -0.25, 1.0]
    played = make_trajectory(*[turn(k, reward=reward) for k, reward in enumerate(rewards)])
    export_run(write_run(tmp_path / "run", [played]), "messages", tmp_path / "out.jsonl")
    (back,) = imported(tmp_path / "out.jsonl", tmp_path / "back")
    assert [turn.reward for turn in back.turns] == rewards
