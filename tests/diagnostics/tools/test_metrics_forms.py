"""Every form of metrics becomes steps of a run: each line of a form is checked by hand."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.table import table_of_run
from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.importers.importing import ImportingError
from echoscope.store.reader import open_run

from .test_importing import episodes, numbers, write_metrics, write_rollouts

FIXTURES = Path(__file__).parents[1] / "read" / "fixtures"
STEPS = (1, 2, 3)


def verl_console() -> str:
    line = "(TaskRunner pid=7) step:{s} - actor/entropy:{e} - critic/score/mean:{r} - noise"
    return "\n".join(line.format(s=s, e=1 / s, r=2.0 * s) for s in STEPS)


def ragen_console() -> str:
    line = (
        "\x1b[36m(TaskRunner pid=7)\x1b[0m step:{s} - actor/entropy:{e} - critic/score/mean:{r} - "
        "train/CoordSokoban/success:0.5 - collapse/valid_thinking_rate:0.25"
    )
    return "\n".join(line.format(s=s, e=1 / s, r=2.0 * s) for s in STEPS)


def trl_console() -> str:
    rows = [{"loss": 0.1, "reward": 2.0 * s, "entropy": 1 / s, "step": s} for s in STEPS]
    bars = [f"{s * 33}%|###   | {s}/3 [00:0{s}<00:09,  1.00s/it]" for s in STEPS]
    return "\n".join(text for row, bar in zip(rows, bars, strict=True) for text in (str(row), bar))


def prime_console() -> str:
    line = "12:00:0{s}    INFO Step {s} | Time: 9.1s | Reward: {r} | Entropy: {e} | Loss: 0.1"
    return "\n".join(line.format(s=s, e=1 / s, r=2.0 * s) for s in STEPS)


def file_logger() -> str:
    rows = [
        {"step": s, "data": {"actor/entropy": 1 / s, "critic/score/mean": 2.0 * s}} for s in STEPS
    ]
    return "\n".join(map(json.dumps, rows))


def flat_jsonl() -> str:
    rows = [{"step": s, "entropy": 1 / s, "reward": 2.0 * s, "time": 1.7e9 + s} for s in STEPS]
    return "\n".join(map(json.dumps, rows))


def wandb_run_csv() -> str:
    rows = [f'"{s}","{1 / s}","{2.0 * s}"' for s in STEPS]
    return "\n".join(['"Step","actor/entropy","critic/score/mean"', *rows])


FORMS: dict[str, tuple[str, Callable[[], str]]] = {
    "verl's console": ("train.log", verl_console),
    "RAGEN's console": ("train.log", ragen_console),
    "TRL's console": ("out.txt", trl_console),
    "prime-rl's console": ("trainer.log", prime_console),
    "verl's FileLogger": ("exp.jsonl", file_logger),
    "prime-rl's and tinker's metrics.jsonl": ("metrics.jsonl", flat_jsonl),
    "W&B's CSV of one run": ("export.csv", wandb_run_csv),
}


@pytest.mark.parametrize("form", FORMS)
def test_entropy_and_return_of_each_form_stand_at_their_steps(form: str, tmp_path: Path) -> None:
    name, text = FORMS[form]
    (tmp_path / name).write_text(text() + "\n", encoding="utf-8")
    import_path(tmp_path / name, tmp_path / "run")
    stored = numbers(tmp_path / "run")
    assert sorted(stored) == [1, 2, 3]
    for step in STEPS:
        assert stored[step]["policy/entropy"] == pytest.approx(1 / step)
        assert stored[step]["reward/return_mean"] == pytest.approx(2.0 * step)
    beside = tmp_path / "both"
    write_rollouts(beside / "rollouts", range(2, 4))
    (beside / name).write_text(text() + "\n", encoding="utf-8")
    import_path(beside, tmp_path / "joined")
    assert episodes(tmp_path / "joined") == {2: 2, 3: 2}
    assert numbers(tmp_path / "joined")[3]["reward/return_mean"] == pytest.approx(6.0)


def test_ragens_own_numbers_keep_their_names_too(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(ragen_console())
    import_path(tmp_path / "train.log", tmp_path / "run")
    step = numbers(tmp_path / "run")[2]
    assert step["train/CoordSokoban/success"] == 0.5
    assert step["rollout/success_rate"] == 0.5
    assert step["collapse/valid_thinking_rate"] == 0.25
    assert step["rollout/reasoning_closed_frac"] == 0.25


def test_trainer_state_of_transformers() -> None:
    table = read_metrics(FIXTURES / "transformers" / "trainer_state.json")
    means = table.columns["reward/return_mean"]
    assert table.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert means == pytest.approx([0.5 + 0.1 * s for s in range(1, 7)])
    assert table.columns["policy/entropy"] == pytest.approx([1 / s for s in range(1, 7)])
    assert table.columns["rollout/response_length_mean"].tolist() == [61, 62, 63, 64, 65, 66]
    assert math.isnan(table.columns["policy/ref_kl"][1])
    assert table.columns["reward/zero_std_frac"].tolist() == [0.125] * 6
    assert table.raw["train_runtime"][-1] == 12.5


def test_a_chart_of_wandb_has_a_column_per_run(tmp_path: Path) -> None:
    header = ["Step"]
    for run in ("lake-1", "lake-2"):
        header += [f"{run} - critic/score/mean{end}" for end in ("", "__MIN", "__MAX")]
    lines = [",".join(f'"{name}"' for name in header)]
    lines += [f"{s},{2 * s},0,99,{3 * s},0,99" for s in STEPS]
    file = tmp_path / "chart.csv"
    file.write_text("\n".join(lines))
    for run, factor in (("lake-1", 2), ("lake-2", 3)):
        import_path(file, tmp_path / run, run=run)
        stored = numbers(tmp_path / run)
        assert stored[2] == {"critic/score/mean": 2 * factor, "reward/return_mean": 2 * factor}


def test_the_clock_of_the_trainer_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(flat_jsonl())
    import_path(tmp_path / "m.jsonl", tmp_path / "run")
    rows = open_run(tmp_path / "run").sql("SELECT wall_time FROM steps ORDER BY step")
    assert rows.column("wall_time").to_pylist() == [1.7e9 + s for s in STEPS]


def test_a_verdict_of_the_run_is_that_of_its_file(tmp_path: Path) -> None:
    """The trainer's names are stored beside ours, and are not read a second time."""
    file = tmp_path / "m.jsonl"
    write_metrics(file, [{"step": s, "reward": 0.02 * s, "entropy": 1.0} for s in range(1, 31)])
    import_path(file, tmp_path / "run")
    table = table_of_run(open_run(tmp_path / "run"))
    assert sorted(table.columns) == sorted(read_metrics(file).columns)
    assert diagnose(tmp_path / "run").state is diagnose(file).state


def test_what_trainers_write_badly(tmp_path: Path) -> None:
    """Literals that are no JSON, a torn line, steps out of order, and a step that came again."""
    lines = [
        '{"step": 3, "reward": NaN, "loss": Infinity}',
        '{"step": 1, "reward": 5.0, "loss": 0.1}',
        '{"step": 2, "reward": 6.0, "loss": 0.1}',
        '{"step": 1, "reward": 7.0, "loss": 0.1}',
        '{"step": 4, "rewa',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    report = import_path(tmp_path / "metrics.jsonl", tmp_path / "run")
    stored = numbers(tmp_path / "run")
    assert sorted(stored) == [1, 2, 3]
    assert stored[1]["reward"] == 7.0, "the trainer began again: the later value counts"
    assert "reward/return_mean" not in stored[3]
    assert math.isinf(stored[3]["loss"])
    assert report.metrics is not None
    assert "left out: 1 line without a JSON object" in report.metrics.table.notes


def test_one_bad_file_does_not_keep_the_others_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_rollouts(folder / "rollouts", range(1, 3))
    (folder / "trainer.db").write_bytes(b"SQLite format 3\x00" + b"\x01" * 200)
    (folder / "empty-metrics.csv").write_text("")
    (folder / "events.out.tfevents.1").write_bytes(b"\x18" + b"\x00" * 11 + b"brain.Event:2")
    (folder / "metrics.jsonl.gz").write_bytes(gzip.compress(file_logger().encode())[:12])
    (folder / "train.log").write_bytes(verl_console().encode("utf-16"))
    (folder / "latin.log").write_bytes("Schritt für Schritt\n".encode("latin-1") * 3)
    (folder / "long.txt").write_text("x" * 3_000_000)
    (tmp_path / "elsewhere.csv").write_text("step,reward\n1,99\n2,99\n")
    (folder / "link.csv").symlink_to(tmp_path / "elsewhere.csv")
    report = import_path(folder, tmp_path / "run")
    assert report.metrics is not None
    assert report.metrics.files == ("train.log",)
    refused = {file_name: why for why, file_name in report.refused.places.items()}
    assert refused["link.csv"] == "a link that leads out of the folder"
    assert "damaged" in refused["trainer.db"]
    assert refused["empty-metrics.csv"] == "is empty"
    assert "damaged record" in refused["events.out.tfevents.1"]
    assert "cannot be unpacked" in refused["metrics.jsonl.gz"]
    assert sorted(numbers(tmp_path / "run")) == [1, 2, 3]
    assert numbers(tmp_path / "run")[2]["policy/entropy"] == 0.5


def test_steps_that_a_run_cannot_have_are_left_out(tmp_path: Path) -> None:
    write_metrics(tmp_path / "m.jsonl", [{"step": s, "reward": 1.5} for s in (-1, 5, 10**9)])
    report = import_path(tmp_path / "m.jsonl", tmp_path / "run")
    assert sorted(numbers(tmp_path / "run")) == [5]
    assert report.rows.counts == {"a step must be at least 0 and at most 99999999": 2}


def test_a_file_that_holds_neither_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(ImportingError, match="neither rollouts nor metrics of a known form"):
        import_path(tmp_path / "notes.txt", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_success_that_rollouts_know_is_not_guessed_from_a_reward(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "rollouts"
    folder.mkdir(parents=True)
    for step in STEPS:
        row = {"input": "q", "output": "a", "gts": "", "score": 0.5, "acc": True, "step": step}
        (folder / f"{step}.jsonl").write_text(json.dumps(row))
    rows = [{"step": s, "critic/score/mean": 0.5} for s in STEPS]
    write_metrics(tmp_path / "in" / "log.jsonl", rows)
    import_path(tmp_path / "in", tmp_path / "run")
    table = table_of_run(open_run(tmp_path / "run"))
    assert table.columns["rollout/success_rate"].tolist() == [1.0] * 3
    assert "reward/success_rate" not in table.columns


def test_a_number_that_broke_stays_visible_under_an_unknown_name_too(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1, "reward": 2.5, "mine": NaN}\n')
    import_path(tmp_path / "m.jsonl", tmp_path / "run")
    assert math.isinf(numbers(tmp_path / "run")[1]["mine"])
