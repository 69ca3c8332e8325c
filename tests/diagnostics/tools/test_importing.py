"""Rollouts and metrics of one training run become one run, at their steps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.runs import read_runs
from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.importers.importing import ImportingError
from echoscope.store.reader import open_run

Numbers = dict[int, dict[str, float]]


def write_rollouts(folder: Path, steps: range) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        rows = [{"input": "q", "output": "a", "gts": "", "score": k, "step": step} for k in (0, 3)]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_metrics(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def numbers(run: Path) -> Numbers:
    """Step -> key -> value, without what is unknown."""
    out: Numbers = {}
    for row in open_run(run).sql("SELECT step, key, value FROM metrics").to_pylist():
        if row["value"] is not None and not math.isnan(row["value"]):
            out.setdefault(row["step"], {})[row["key"]] = row["value"]
    return out


def episodes(run: Path) -> dict[int, int]:
    rows = open_run(run).sql("SELECT step, count(*) n FROM trajectories GROUP BY step ORDER BY 1")
    return {row["step"]: row["n"] for row in rows.to_pylist()}


def test_rollouts_and_metrics_of_a_step_are_one_step(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "in" / "rollouts", range(2, 4))
    rows = [{"step": s, "data": {"actor/entropy": 1 / s, "mine": s}} for s in range(1, 5)]
    write_metrics(tmp_path / "in" / "metrics.jsonl", rows)
    report = import_path(tmp_path / "in", tmp_path / "run")
    stored = numbers(tmp_path / "run")
    assert episodes(tmp_path / "run") == {2: 2, 3: 2}, "a step with metrics alone has none"
    assert sorted(stored) == [1, 2, 3, 4]
    assert stored[1] == {"actor/entropy": 1.0, "policy/entropy": 1.0, "mine": 1.0}
    assert stored[2]["policy/entropy"] == 0.5
    assert stored[2]["reward/return_mean"] == 1.5
    assert (report.written.num_kept, report.written.num_steps_with_numbers) == (4, 4)
    assert report.metrics is not None
    assert report.metrics.files == ("metrics.jsonl",)


def test_metrics_alone_make_a_run(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write_metrics(file, [{"step": s, "reward": 2.0 * s, "loss": 1.0} for s in (3, 5)])
    report = import_path(file, tmp_path / "run")
    assert report.written.format == ""
    stored = numbers(tmp_path / "run")
    assert {step: values["reward/return_mean"] for step, values in stored.items()} == {3: 6, 5: 10}
    assert stored[3]["reward"] == 6, "the trainer's own name is kept"


def test_a_step_without_trajectories_shows_the_return_that_its_metrics_say(tmp_path: Path) -> None:
    """`runs list` and the page Runs read the table of steps."""
    for name, rewards in (("score", (2.0, 4.0)), ("share", (0.25, 0.5))):
        rows = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]
        write_metrics(tmp_path / f"{name}.jsonl", rows)
        import_path(tmp_path / f"{name}.jsonl", tmp_path / name)
        returns = open_run(tmp_path / name).sql("SELECT return_mean FROM steps ORDER BY step")
        assert tuple(returns.column("return_mean").to_pylist()) == rewards


def test_a_file_that_is_neither_rollouts_nor_metrics_is_refused_once(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "in", range(1, 3))
    (tmp_path / "in" / "other.csv").write_text("step,reward\n1,0.5\n2,0.5\n", encoding="utf-16-le")
    report = import_path(tmp_path / "in", tmp_path / "run")
    counts = report.written.survey.refused_files.counts + report.refused.counts
    assert list(counts.values()) == [1]
    (sentence,) = report.sentences()
    assert sentence.startswith("refused other.csv: seems to be text in UTF-16LE: save the file as")


def test_another_encoding_of_documents_and_metrics_is_named(tmp_path: Path) -> None:
    episode = {"messages": [{"role": "assistant", "content": "K\u00e4se"}], "reward": 1.0}
    document = json.dumps([episode, {**episode, "reward": 0.0}], indent=1, ensure_ascii=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "episodes.json").write_text(document, encoding="cp1252")
    table = "step,reward,K\u00e4se\n" + "".join(f"{n},{n}.5,{n}\n" for n in range(1, 4))
    (tmp_path / "metrics.csv").write_text(table, encoding="cp1252")
    report = import_path(tmp_path / "in", tmp_path / "rollouts")
    assert report.sentences()[-1] == (
        "2 rows had bytes that are not UTF-8; U+FFFD stands for them. If their text matters, save "
        "the file as UTF-8 (iconv -f ENCODING -t UTF-8 FILE > NEW), and import NEW into a new run"
    )
    assert read_metrics(tmp_path / "metrics.csv").num_rows == 3


def test_a_second_import_adds_nothing_and_a_grown_file_what_is_new(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "in", range(1, 3))
    rows = [{"step": s, "reward": s, "loss": 0.1} for s in range(1, 4)]
    write_metrics(tmp_path / "in" / "log.jsonl", rows)
    import_path(tmp_path / "in", tmp_path / "run")
    again = import_path(tmp_path / "in", tmp_path / "run").written
    assert (again.num_steps, again.num_steps_there, again.num_there) == (0, 3, 4)
    write_metrics(tmp_path / "in" / "log.jsonl", [*rows, {"step": 4, "reward": 9, "loss": 0.1}])
    grown = import_path(tmp_path / "in", tmp_path / "run").written
    assert (grown.num_steps, grown.first_step, grown.last_step) == (1, 4, 4)
    assert sorted(numbers(tmp_path / "run")) == [1, 2, 3, 4]


def test_rollouts_that_come_after_the_metrics_of_their_step_are_added_to_it(tmp_path: Path) -> None:
    rows = [{"step": s, "actor/entropy": 1.0, "loss": s} for s in range(1, 4)]
    write_metrics(tmp_path / "in" / "log.jsonl", rows)
    import_path(tmp_path / "in", tmp_path / "run")
    write_rollouts(tmp_path / "in", range(3, 4))
    import_path(tmp_path / "in", tmp_path / "run")
    assert episodes(tmp_path / "run") == {3: 2}
    assert numbers(tmp_path / "run")[3]["policy/entropy"] == 1.0
    info = open_run(tmp_path / "run").info()
    imported = info.config["imported"]
    assert (imported["formats"], imported["num_files"], imported["num_rows"]) == (
        ["verl JSONL"],
        1,
        2,
    )
    assert imported["metrics"]["files"] == ["log.jsonl"]
    assert info.tags == ("imported", "verl")


def test_metrics_that_come_after_the_rollouts_are_in_the_configuration(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "a", range(1, 3))
    import_path(tmp_path / "a", tmp_path / "run")
    write_metrics(tmp_path / "b" / "log.jsonl", [{"step": s, "entropy": 1.0} for s in (3, 4)])
    import_path(tmp_path / "b", tmp_path / "run")
    imported = open_run(tmp_path / "run").info().config["imported"]
    assert (imported["formats"], imported["num_rows"]) == (["verl JSONL"], 4)
    assert imported["metrics"]["files"] == ["log.jsonl"]
    assert imported["trainer"] == "verl"


def test_a_key_has_one_source_in_all_steps(tmp_path: Path) -> None:
    """Two sources measure two things: a change between them would look like a collapse."""
    write_rollouts(tmp_path / "in", range(1, 5))  # mean return 1.5
    write_metrics(tmp_path / "in" / "a.jsonl", [{"step": s, "reward": 7 * s} for s in (2, 4)])
    import_path(tmp_path / "in", tmp_path / "few")
    means = [step["reward/return_mean"] for step in numbers(tmp_path / "few").values()]
    assert means == [1.5] * 4, "the metrics say it in two steps of four only"
    write_metrics(tmp_path / "in" / "a.jsonl", [{"step": s, "reward": 7 * s} for s in range(1, 5)])
    import_path(tmp_path / "in", tmp_path / "all")
    means = [step["reward/return_mean"] for step in numbers(tmp_path / "all").values()]
    assert means == [7, 14, 21, 28], "the trainer's number is that of the whole batch"


def test_two_files_with_other_values_at_the_same_steps_are_two_runs(tmp_path: Path) -> None:
    for seed in (0, 1):
        rows = [{"step": s, "reward": s * (seed + 1.5), "lr": 1e-5} for s in range(6 - seed)]
        write_metrics(tmp_path / "in" / f"seed{seed}" / "metrics.jsonl", rows)
    with pytest.raises(ImportingError, match=r"2 runs\. Choose one .*: seed0, seed1$"):
        import_path(tmp_path / "in", tmp_path / "run")
    import_path(tmp_path / "in", tmp_path / "run", run="seed1")
    assert numbers(tmp_path / "run")[4]["reward"] == 10.0
    with pytest.raises(ImportingError, match="holds no run 'seed2'; its runs are: seed0"):
        import_path(tmp_path / "in", tmp_path / "other", run="seed2")


def test_files_that_say_the_same_or_follow_each_other_are_one_run(tmp_path: Path) -> None:
    rows = [{"step": s, "reward": s / 3, "loss": 1.0 / (s + 1)} for s in range(10)]
    write_metrics(tmp_path / "in" / "a.jsonl", rows[:6])
    write_metrics(tmp_path / "in" / "b.jsonl", [{**row, "reward": 9} for row in rows[4:]])
    lines = [f"step:{s} - critic/score/mean:{s / 3:.2f}" for s in range(10)]
    (tmp_path / "in" / "train.log").write_text("\n".join(lines))
    report = import_path(tmp_path / "in", tmp_path / "run")
    assert report.metrics is not None
    assert report.metrics.files == ("a.jsonl", "b.jsonl", "train.log")
    stored = numbers(tmp_path / "run")
    assert (stored[3]["reward"], stored[5]["reward"]) == (1.0, 9), "the later file counts"


def test_rows_without_a_step_are_not_laid_beside_rollouts(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "in", range(1, 3))
    write_metrics(tmp_path / "in" / "history.jsonl", [{"reward": s, "loss": 1} for s in range(9)])
    report = import_path(tmp_path / "in", tmp_path / "run")
    assert report.metrics is None
    assert report.refused.places == {
        "no step is written, so its rows belong to no step": "history.jsonl"
    }
    assert sorted(numbers(tmp_path / "run")) == [1, 2]


def write_trl_state(path: Path, steps: range) -> None:
    rows = [
        {"step": s, "reward": 3.0 - 0.01 * s, "kl": 0.001 * s, "completions/mean_length": 90.0 + s}
        for s in steps
    ]
    path.write_text(json.dumps({"log_history": rows}))


def test_metrics_with_the_names_of_two_trainers_are_two_runs(tmp_path: Path) -> None:
    """No column has the same name in both, so only the names can tell."""
    rows = [{"step": s, "data": {"critic/score/mean": 0.01 * s}} for s in range(20)]
    write_metrics(tmp_path / "in" / "verl.jsonl", rows)
    write_trl_state(tmp_path / "in" / "trainer_state.json", range(19))
    with pytest.raises(ImportingError) as error:
        import_path(tmp_path / "in", tmp_path / "run")
    assert str(error.value) == (
        f"{tmp_path / 'in'}: holds metrics of 2 runs. Choose one with --run NAME, or give the file "
        "of one of them. The runs: verl.jsonl, trainer_state.json"
    )


def test_other_names_of_other_numbers_are_two_runs_where_two_quantities_differ(
    tmp_path: Path,
) -> None:
    steps = range(20)
    log = [{"step": s, "mean_reward": 0.01 * s, "entropy": 1.0 - 0.01 * s} for s in steps]
    write_metrics(tmp_path / "in" / "a.jsonl", log)
    other = [{"step": s, "reward": 0.4 - 0.02 * s, "policy_entropy": 2.0 + s} for s in steps]
    write_metrics(tmp_path / "in" / "b.jsonl", other)
    assert len(read_runs(tmp_path / "in").runs) == 2
    rows = [{"step": s, "reward": 0.4 - 0.02 * s} for s in steps]
    write_metrics(tmp_path / "in" / "b.jsonl", rows)
    assert len(read_runs(tmp_path / "in").runs) == 1, "two rewards may be two columns of one run"


@pytest.mark.long
@pytest.mark.parametrize("num_runs", [2, 100])
def test_every_run_of_a_file_can_be_found_by_its_name(num_runs: int, tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    rows = [f"lake-{run},{step},{run}.5" for run in range(num_runs) for step in range(3)]
    file.write_text("\n".join(["run,step,reward", *rows]))
    with pytest.raises(ImportingError) as error:
        import_path(file, tmp_path / "run")
    names = [f"lake-{run}" for run in range(num_runs)]
    assert str(error.value).endswith(f"The runs: {', '.join(names)}")
    import_path(file, tmp_path / "run", run=names[-1])
    assert numbers(tmp_path / "run")[2]["reward"] == num_runs - 0.5


def test_a_value_of_its_own_in_each_row_names_no_runs(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("\n".join(["seed,step,reward", *(f"{s},{s},0.5" for s in range(100))]))
    with pytest.raises(MetricsFileError, match="the column seed tells more than 64 runs apart"):
        read_metrics(file)
