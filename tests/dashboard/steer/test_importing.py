"""Imports that are started from a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import until

from echoscope.dashboard.data.foreign import Source, Sources
from echoscope.dashboard.steer import importing
from echoscope.store.query.listing import RunList
from echoscope.store.reader import open_run

FIXTURES = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
METRICS = Path(__file__).parents[2] / "diagnostics" / "read" / "fixtures"
TENSORBOARD = Path(__file__).parent / "fixtures" / "tensorboard_runs"


@pytest.fixture(autouse=True)
def _no_import_is_left() -> Iterator[None]:
    yield
    importing.forget()
    assert not importing.is_importing()


def source_of(root: Path, name: str) -> Source:
    return Sources(root).look([name])[0]


def ended(begun: importing.Import) -> importing.ImportReport:
    until(lambda: begun.report().is_done, "end of the import")
    return begun.report()


@pytest.mark.long
def test_a_source_becomes_a_run_beside_it_and_is_known_as_its_source(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "verl", tmp_path / "verl")
    source = source_of(tmp_path, "verl")
    name = importing.new_name(source, tmp_path)
    assert name == "verl-imported", "the folder itself has the name verl"
    report = ended(importing.start(source, name, tmp_path))
    assert report.problem == ""
    assert "added 4 episodes of verl JSONL" in report.sentences[0]
    assert not any(sentence.startswith("Next") for sentence in report.sentences)
    row = importing.run_of(source, RunList(tmp_path).rows())
    assert row is not None
    assert (row.run_id, row.trainer) == ("verl-imported", "verl")
    assert importing.import_of(source) is not None


def test_a_source_that_holds_nothing_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "x.jsonl").write_text('{"a": 1}\n')
    report = ended(importing.start(source_of(tmp_path, "odd"), "odd-imported", tmp_path))
    assert "holds neither rollouts nor metrics" in report.problem
    assert not (tmp_path / "odd-imported").exists()


@pytest.mark.long
def test_each_run_of_a_file_is_imported_into_a_run_of_its_own(tmp_path: Path) -> None:
    rows = ["Step,seed 0 - actor/entropy,seed 1 - actor/entropy", "1,0.5,0.4", "2,0.6,0.3"]
    (tmp_path / "chart.csv").write_text("\n".join(rows))
    source = source_of(tmp_path, "chart.csv")
    for run in source.runs:
        name = importing.new_name(source, tmp_path, run)
        assert ended(importing.start(source, name, tmp_path, run)).problem == ""
    listed = RunList(tmp_path).rows()
    made = {run: importing.run_of(source, listed, run) for run in ("seed 0", "seed 1")}
    assert {run: row and row.run_id for run, row in made.items()} == {
        "seed 0": "chart-seed-0",
        "seed 1": "chart-seed-1",
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "key", "last_of_run"),
    [
        (TENSORBOARD, "train/reward", {"seed-1": (6, 0.2), "seed-0": (4, 0.7)}),
        (METRICS / "trackio", "critic/score/mean", {"lake-1": (6, 0.3), "lake-2": (4, 0.4)}),
    ],
)
def test_each_run_that_a_tracker_wrote_is_offered_and_imported(
    tmp_path: Path, folder: Path, key: str, last_of_run: dict[str, tuple[int, float]]
) -> None:
    """A folder of TensorBoard has a folder for each run, trackio one file for a project."""
    shutil.copytree(folder, tmp_path / folder.name)
    source = source_of(tmp_path, folder.name)
    assert source.runs == tuple(last_of_run), "the longest first"
    for run, (last_step, value) in last_of_run.items():
        target = importing.new_name(source, tmp_path, run)
        assert ended(importing.start(source, target, tmp_path, run)).problem == ""
        steps, values = open_run(tmp_path / target).metrics(key)
        assert (steps[-1], values[-1]) == (last_step, pytest.approx(value, abs=1e-6))
    listed = RunList(tmp_path).rows()
    assert all(importing.run_of(source, listed, run) for run in last_of_run)
    assert importing.run_of(source, listed, "seed 2") is None


@pytest.mark.long
def test_what_is_not_taken_is_counted(tmp_path: Path) -> None:
    """The second line is no JSON, and the second file is no Parquet."""
    folder = tmp_path / "files"
    folder.mkdir()
    row = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    (folder / "chat.jsonl").write_text(f"{row}\n{{broken\n{row}\n")
    (folder / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    report = ended(importing.start(source_of(tmp_path, "files"), "files-imported", tmp_path))
    assert (report.problem, report.num_skipped, report.num_refused) == ("", 1, 1)
    assert [line for line in report.sentences if line.startswith("Skipped 1 row")]
    assert [line for line in report.sentences if line.startswith("Refused torn.parquet")]


def test_names_of_runs_are_fit_and_free(tmp_path: Path) -> None:
    def name(of: str) -> str:
        return importing.new_name(Source(path=Path("/data") / of), tmp_path)

    assert name("run.jsonl.zst") == "run"
    assert name("a b; rm -rf $HOME") == "a-b-rm-rf-HOME"
    assert name("...") == "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-imported").mkdir()
    assert name("run.csv") == "run-imported-2"


@pytest.mark.parametrize("output", ["", "a warning\n{}", "[]", '{"sentences": []}', "{" * 9])
def test_a_report_that_cannot_be_read_is_said(output: str) -> None:
    report = importing._told(output)
    assert report.is_done
    assert report.sentences == ("The import ended, but its report cannot be read.",)
