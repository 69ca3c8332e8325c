"""What an import measures: the text of a sample of steps, and its evaluation episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echoscope.diagnostics.measure.text import sample as sampling
from echoscope.diagnostics.read.sources import open_source
from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.reader import open_run

FIXTURES = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
WORDS = [
    "left",
    "right",
    "up",
    "down",
    "near",
    "far",
    "goal",
    "hole",
    "ice",
    "box",
    "wall",
    "red",
    "blue",
    "green",
    "one",
    "two",
]


def reply(step: int, task: int, sibling: int) -> str:
    rng = np.random.default_rng([step, task, sibling])
    sentence = "I move toward the goal." if step >= 6 else " ".join(rng.choice(WORDS, 12))
    return f"<think>task {task}: {sentence}</think><answer>{rng.choice(WORDS[:4])}</answer>"


def write_step(folder: Path, step: int, tasks: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "input": f"user\ntask {t}\nassistant\n",
            "output": reply(step, t, s),
            "score": float(s % 2),
        }
        | {"acc": float(s % 2), "gts": "", "step": step}
        for t in range(tasks)
        for s in range(4)
    ]
    write(folder / f"{step}.jsonl", rows)


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def values(run: Path, prefix: str, phase: str = "train") -> dict[int, dict[str, float]]:
    sql = "SELECT step, key, value FROM metrics WHERE starts_with(key, $1) AND phase = $2"
    out: dict[int, dict[str, float]] = {}
    for row in open_run(run).sql(sql, [prefix, phase]).to_pylist():
        if row["value"] is not None and not math.isnan(row["value"]):
            out.setdefault(row["step"], {})[row["key"]] = row["value"]
    return out


def text_records(run: Path) -> list[int]:
    rows = open_run(run).sql("SELECT step FROM diagnostics WHERE kind = 'text' ORDER BY step")
    return [int(step) for step in rows.column("step").to_pylist()]


def collapsing(folder: Path) -> Path:
    for step in range(1, 13):
        write_step(folder, step)
    return folder


def test_large_steps_are_measured_by_the_same_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MAX_TRAJECTORIES", 6)
    write_step(tmp_path / "in", 1)
    import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert values(tmp_path / "run", "text/num_prompts") == {1: {"text/num_prompts": 2.0}}


def test_a_second_import_measures_nothing_and_new_steps_get_their_measures(tmp_path: Path) -> None:
    for step in (1, 2):
        write_step(tmp_path / "in", step)
    first = import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    again = import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert (first.num_measured, again.num_measured) == (2, 0)
    before = values(tmp_path / "run", "text/")
    write_step(tmp_path / "in", 3)
    grown = import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert grown.num_measured == 1
    after = values(tmp_path / "run", "text/")
    assert text_records(tmp_path / "run") == sorted(after) == [1, 2, 3]
    assert {step: after[step] for step in before} == before


def test_of_many_steps_some_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_STEPS", 3)
    for step in range(1, 6):
        write_step(tmp_path / "in", step, tasks=2)
    report = import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert report.num_measured == 3
    assert text_records(tmp_path / "run") == [1, 3, 5]
    note = "text of 3 of 5 steps was measured, at most 64 trajectories of each"
    assert note in open_source(tmp_path / "run").table.notes


def test_measures_in_the_metrics_files_are_not_mixed_with_ours(tmp_path: Path) -> None:
    write_step(tmp_path / "in", 1)
    write(tmp_path / "in" / "metrics.jsonl", [{"step": s, "text/loop_frac": 0.5} for s in (1, 2)])
    report = import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert report.num_measured == 0
    stored = values(tmp_path / "run", "text/")
    assert stored == {s: {"text/loop_frac": 0.5} for s in (1, 2)}


def evaluated(folder: Path, tasks: Sequence[tuple[str, str, float | None, float]]) -> None:
    """An evaluation beside training at step 2: (data source, prompt, acc, score) of each row."""
    write_step(folder / "rollouts", 2)
    rows = [
        {"input": prompt, "output": "a", "gts": "", "score": score, "step": 2, "data_source": tag}
        | ({} if acc is None else {"acc": acc})
        for tag, prompt, acc, score in tasks
    ]
    write(folder / "val" / "2.jsonl", rows)


def test_evaluation_episodes_give_the_numbers_of_an_evaluation(tmp_path: Path) -> None:
    evaluated(
        tmp_path / "in",
        [("", "q1", 1.0, 2.0), ("", "q1", 0.0, 0.0), ("", "q2", 1.0, 4.0)],
    )
    import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    stored = values(tmp_path / "run", "eval/", "eval")
    low, high = (stored[2].pop(f"eval/all/success_rate_{end}") for end in ("low", "high"))
    assert stored == {
        2: {
            "eval/all/success_rate": 0.75,  # q1 half, q2 whole
            "eval/all/return_mean": 2.0,
            "eval/all/num_tasks": 2.0,
        }
    }
    assert 0 < low < 0.75 < high < 1
    assert values(tmp_path / "run", "rollout/success")[2]["rollout/success_rate"] == 0.5


def test_each_set_of_tasks_has_its_numbers_and_what_is_not_known_is_absent(tmp_path: Path) -> None:
    evaluated(tmp_path / "in", [("math", "q1", 1.0, 1.0), ("lake", "q2", None, 3.0)])
    import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    stored = values(tmp_path / "run", "eval/", "eval")[2]
    outcomes = {k: v for k, v in stored.items() if k.endswith(("success_rate", "return_mean"))}
    assert outcomes == {
        "eval/math/success_rate": 1.0,
        "eval/math/return_mean": 1.0,
        "eval/lake/return_mean": 3.0,
        "eval/all/success_rate": 1.0,
        "eval/all/return_mean": 2.0,
    }


def test_the_evaluations_of_a_metrics_file_are_believed(tmp_path: Path) -> None:
    evaluated(tmp_path / "in", [("math", "q1", 1.0, 5.0)])
    import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert values(tmp_path / "run", "eval/", "eval")[2]["eval/math/success_rate"] == 1.0
    write(tmp_path / "in" / "log.jsonl", [{"step": 4, "eval/math/success_rate": 0.25, "lr": 1.0}])
    import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert values(tmp_path / "run", "eval/", "eval") == {
        4: {"eval/math/success_rate": 0.25},
    }


def test_rollouts_of_training_alone_have_no_evaluation(tmp_path: Path) -> None:
    write_step(tmp_path / "in", 1)
    import_path(tmp_path / "in", tmp_path / "run", is_packing=False)
    assert not values(tmp_path / "run", "eval/", "eval")
