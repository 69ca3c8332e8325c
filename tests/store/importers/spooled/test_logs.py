"""EasyR1's log of generations: what is no whole sample, and where a validation begins."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from rollout_import import import_run

from echoscope.store.importers.importing import ImportingError, ImportReport
from echoscope.store.reader import open_run


def sample(prompt: str, score: float = 1.0) -> str:
    return f"[prompt] {prompt}\n[output] o\n[ground_truth] t\n[score] {score}\n\n"


def imported(folder: Path, text: str) -> tuple[ImportReport, list[tuple[int, float]]]:
    """The report, and step and return of each episode."""
    folder.mkdir()
    (folder / "generations.log").write_text(text)
    report = import_run(folder, folder.parent / "run")
    rows = open_run(report.path).sql("SELECT step, episode_return FROM trajectories ORDER BY id")
    columns = (rows.column(name).to_pylist() for name in ("step", "episode_return"))
    return report, list(zip(*columns, strict=True))


def test_a_validation_that_is_being_written_counts(tmp_path: Path) -> None:
    text = sample("a", 0.0) + sample("b", 1.0) + sample("a", 2.0) + sample("b", 3.0) + sample("a")
    report, episodes = imported(tmp_path / "in", text)
    assert episodes == [(0, 0.0), (0, 1.0), (1, 2.0), (1, 3.0), (2, 1.0)]
    assert report.reconstructed["validations"] == 5


def test_a_prompt_that_is_torn_hides_no_validation(tmp_path: Path) -> None:
    text = sample("a1") + sample("b1") + sample("a1") + sample("b1") + "[prompt] a"
    report, episodes = imported(tmp_path / "in", text)
    assert [step for step, _ in episodes] == [0, 0, 1, 1]
    assert dict(report.survey.refused_rows.counts) == {"the sample is not written to its end": 1}


def test_a_byte_order_mark_belongs_to_no_sample(tmp_path: Path) -> None:
    _, episodes = imported(tmp_path / "in", "\ufeff" + sample("a", 0.5))
    assert episodes == [(0, 0.5)]


def test_prompts_that_never_come_again_are_one_step(tmp_path: Path) -> None:
    report, episodes = imported(tmp_path / "in", sample("a") + sample("b") + sample("a"))
    assert [step for step, _ in episodes] == [0, 0, 0]
    assert "validations" not in report.reconstructed


def test_a_sample_without_its_end_is_skipped(tmp_path: Path) -> None:
    report, episodes = imported(tmp_path / "in", sample("a", 0.5) + sample("b")[:-2])
    assert episodes == [(0, 0.5)]
    assert dict(report.survey.refused_rows.counts) == {"the sample is not written to its end": 1}


@pytest.mark.long
def test_a_sample_that_is_too_large_is_skipped_alone(tmp_path: Path) -> None:
    long = sample("b").replace("[output] o", "[output] " + "long\n" * 900_000)
    tracemalloc.start()
    report, episodes = imported(tmp_path / "in", sample("a", 0.5) + long + sample("c", 0.25))
    assert tracemalloc.get_traced_memory()[1] < 60 << 20
    tracemalloc.stop()
    assert episodes == [(0, 0.5), (0, 0.25)]
    assert dict(report.survey.refused_rows.counts) == {"a sample of more than 4 MB": 1}


def test_a_text_that_only_begins_so_is_no_log_of_generations(tmp_path: Path) -> None:
    with pytest.raises(ImportingError, match="holds neither rollouts nor metrics"):
        imported(tmp_path / "in", "[prompt] a\nand no other label\n")
