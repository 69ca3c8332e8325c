"""A file of answers is one evaluation: a rate with its interval, and a comparison of two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from echoscope.cli.diagnose import diagnose
from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.names import parse_map
from echoscope.diagnostics.read.records import AnswersError, MetricsFileError
from echoscope.diagnostics.tools.evaluation_file import compare, evaluation_of
from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.importers.importing import ImportingError

app = typer.Typer()
app.command("diagnose")(diagnose)
app.callback()(lambda: None)  # or the only command would need no name
runner = CliRunner()

Rows = Sequence[Mapping[str, Any]]


def written(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(right: Sequence[bool | int], **more: Any) -> list[dict[str, Any]]:
    return [{"question_id": n, "correct": value, **more} for n, value in enumerate(right)]


def test_answers_have_a_rate_with_the_interval_of_wilson(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", answers([True] * 43 + [False] * 57))
    rate = evaluation_of(path).rate
    assert (rate.value, rate.num_rows, rate.num_questions) == (0.43, 100, 100)
    assert (rate.low, rate.high) == pytest.approx((0.337, 0.528), abs=5e-4)
    with pytest.raises(AnswersError, match="its 100 rows are answers of one evaluation, not steps"):
        read_metrics(path)


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": n, "prompt": "2 + 2?", "correct": n < 3} for n in range(8)],
        [{"task_id": n % 4, "trial": n // 4, "reward": float(n < 3)} for n in range(8)],
        [{"question": f"q{n}", "prediction": "4", "acc": n < 3} for n in range(8)],
        [{"step": 100, "task": "a", "success": int(n < 3)} for n in range(8)],
        [{"idx": n, "answer": 4, "is_correct": n < 3} for n in range(8)],
    ],
    ids=["dump", "trials", "predictions", "one step", "is_correct"],
)
def test_these_rows_are_answers(tmp_path: Path, rows: Rows) -> None:
    file = evaluation_of(written(tmp_path / "a.jsonl", rows))
    assert file.rate.value == 0.375
    assert file.rate.is_share


@pytest.mark.parametrize(
    "rows",
    [
        [{"loss": 1.0, "reward": n / 8} for n in range(8)],
        [{"step": n, "prompt": "go", "correct": n < 3} for n in range(8)],
        [{"step": n // 2, "task_id": n, "reward": 0.5} for n in range(8)],
        [{"epoch": n / 10, "reward": 0.5, "id": n} for n in range(8)],
        [{"loss": 1.0, "reward": 1.0}],
    ],
    ids=["plain", "steps", "episodes of steps", "fractions", "one row"],
)
def test_these_rows_are_a_course(tmp_path: Path, rows: Rows) -> None:
    path = written(tmp_path / "a.jsonl", rows)
    assert read_metrics(path).columns
    with pytest.raises(MetricsFileError, match="of a run, and no answers of one evaluation"):
        evaluation_of(path)


def test_somebody_may_say_that_the_rows_are_steps(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", answers([1, 0, 1, 1]))
    table = read_metrics(path, parse_map(["question_id=step"], known_keys()))
    assert table.steps.tolist() == [0, 1, 2, 3]


def test_rows_of_one_question_are_not_independent(tmp_path: Path) -> None:
    """Ten answers to each of ten questions that agree are worth ten rows."""
    rows = [
        {"task_id": q, "trial": t, "reward": float(q < 4)} for q in range(10) for t in range(10)
    ]
    rate = evaluation_of(written(tmp_path / "a.jsonl", rows)).rate
    alone = evaluation_of(written(tmp_path / "b.jsonl", answers([1] * 4 + [0] * 6))).rate
    assert (rate.num_rows, rate.num_questions) == (100, 10)
    assert rate.value == alone.value == 0.4
    assert rate.low == pytest.approx(alone.low, abs=0.02)
    assert rate.high == pytest.approx(alone.high, abs=0.02)
    same = [{"task_id": q, "trial": t, "reward": 1.0} for q in range(10) for t in range(10)]
    assert evaluation_of(written(tmp_path / "c.jsonl", same)).rate.low == pytest.approx(
        0.722, abs=1e-3
    )


def test_a_score_has_a_mean(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "score": float(value)} for n, value in enumerate([1, 2, 3, 4])]
    rate = evaluation_of(written(tmp_path / "a.jsonl", rows)).rate
    half = 1.96 * np.std([1, 2, 3, 4], ddof=1) / 2
    assert (rate.value, rate.low, rate.high) == pytest.approx((2.5, 2.5 - half, 2.5 + half))


def test_answers_without_an_outcome_say_what_to_map(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "ok": n % 2, "response_length": 9} for n in range(8)]
    path = written(tmp_path / "a.jsonl", rows)
    with pytest.raises(MetricsFileError, match="say so: --map NAME=rollout/success_rate"):
        evaluation_of(path)
    mapping = parse_map(["ok=rollout/success_rate"], known_keys())
    assert evaluation_of(path, mapping).rate.value == 0.5
    mapping = parse_map(["ok=1-rollout/success_rate"], known_keys())
    assert evaluation_of(path, mapping).scores["q1"] == (0.0,)


def test_rows_without_a_value_are_left_out(tmp_path: Path) -> None:
    rows = [*answers([1, 0, 1]), {"question_id": 9, "correct": None}]
    file = evaluation_of(written(tmp_path / "a.jsonl", rows))
    assert (file.rate.num_rows, file.num_without) == (3, 1)
    assert "Left out: 1 row without a value there." in file.text


def test_two_files_are_compared_question_by_question(tmp_path: Path) -> None:
    """Nine questions were gained and one lost."""
    before = [1] * 10 + [0] * 10
    after = [0] + [1] * 9 + [1] * 9 + [0]
    a = evaluation_of(written(tmp_path / "a.jsonl", answers(before)))
    b = evaluation_of(written(tmp_path / "b.jsonl", answers(after)))
    gap = compare(a, b)
    assert (gap.num_pairs, gap.value) == (20, pytest.approx(0.4))
    # Clopper-Pearson of 9 in 10 is 0.5550 to 0.9975
    assert (gap.low, gap.high) == pytest.approx((0.0550, 0.4975), abs=1e-4)
    assert gap.text.startswith("In the second file success is higher, beyond chance.")
    assert compare(a, a).text.startswith("No difference beyond chance. Difference: 0 points")
    assert compare(b, a).value == pytest.approx(-0.4)


def test_two_samples_are_compared_without_pairs(tmp_path: Path) -> None:
    """The example of Newcombe (1998): 56 of 70 against 48 of 80."""

    def of(name: str, right: int, total: int) -> Path:
        rows = [{"task": "a", "step": 5, "success": int(n < right)} for n in range(total)]
        return written(tmp_path / name, rows)

    gap = compare(evaluation_of(of("a", 48, 80)), evaluation_of(of("b", 56, 70)))
    assert (gap.num_pairs, gap.value) == (0, pytest.approx(0.2))
    assert (gap.low, gap.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert "two samples of 80 and 70 rows" in gap.text


def test_shares_and_scores_are_not_compared(tmp_path: Path) -> None:
    a = evaluation_of(written(tmp_path / "a.jsonl", answers([1, 0, 1])))
    rows = [{"question": f"q{n}", "score": 2.0 * n} for n in range(4)]
    b = evaluation_of(written(tmp_path / "b.jsonl", rows))
    with pytest.raises(MetricsFileError, match="correct and score are not the same measure"):
        compare(a, b)


def test_the_command_prints_an_evaluation_and_compares_two(tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", answers([1] * 3 + [0] * 7))
    b = written(tmp_path / "b.jsonl", answers([1] * 9 + [0]))
    single = runner.invoke(app, ["diagnose", str(a)])
    assert single.exit_code == 0
    assert "Success: 30 % (95 % interval 10.8 to 60.3 %; 10 rows)" in single.stdout
    both = runner.invoke(app, ["diagnose", str(a), str(b)])
    assert both.exit_code == 0
    assert "Difference: +60 points" in both.stdout
    gap = json.loads(runner.invoke(app, ["diagnose", str(a), str(b), "--json"]).stdout)
    assert (gap["kind"], gap["num_pairs"]) == ("comparison", 10)
    course = tmp_path / "c.csv"
    course.write_text("step,reward\n1,0.5\n2,0.5\n")
    refused = runner.invoke(app, ["diagnose", str(a), str(course)])
    assert refused.exit_code == 4
    assert "holds 2 steps of a run" in refused.output


def test_replies_without_steps_are_an_evaluation_too(tmp_path: Path) -> None:
    """Rows that are read as rollouts: one step has no course."""
    rows = [{"prompt": f"{n} + 1?", "response": "x", "reward": float(n < 4)} for n in range(8)]
    gap = runner.invoke(app, ["diagnose", str(written(tmp_path / "a.jsonl", rows))])
    assert gap.exit_code == 0
    assert "Success: 50 %" in gap.stdout


def test_an_import_refuses_answers_with_the_same_words(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", answers([1, 0, 1]))
    with pytest.raises(ImportingError) as refused:
        import_path(path, tmp_path / "run")
    with pytest.raises(AnswersError) as read:
        read_metrics(path)
    assert str(refused.value) == str(read.value)
    assert "are answers of one evaluation" in str(refused.value)


def test_the_roles_of_rollouts_name_the_outcome_of_an_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    rows = ({"id": k, "q": f"q{k}", "out": "a", "fine": k % 4 == 0} for k in range(80))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mapping = parse_map(["reply=out", "success=fine"], known_keys(), has_rollouts=True)
    file = evaluation_of(path, mapping)
    assert (file.outcome, file.rate.value, file.rate.num_rows) == ("fine", 0.25, 80)
