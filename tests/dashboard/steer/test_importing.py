"""Imports that are started from a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from browsing import until

from echoscope.dashboard.data.foreign import ForeignSource, ForeignSources
from echoscope.dashboard.steer import importing
from echoscope.store.query.listing import RunList

FIXTURES = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
METRICS = Path(__file__).parents[2] / "diagnostics" / "read" / "fixtures"
TENSORBOARD = Path(__file__).parent / "fixtures" / "tensorboard_runs"


def source_of(root: Path, name: str) -> ForeignSource:
    sources = ForeignSources(root)
    sources.known([name])
    until(lambda: bool(sources._seen), "look at the files")
    return sources._seen[0]


def ended(begun: importing.Import) -> importing.ImportProgress:
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


def test_of_several_runs_none_is_imported_and_the_ways_out_are_said(tmp_path: Path) -> None:
    rows = ["Step,seed 0 - actor/entropy,seed 1 - actor/entropy", "1,0.5,0.4", "2,0.6,0.3"]
    (tmp_path / "chart.csv").write_text("\n".join(rows))
    source = source_of(tmp_path, "chart.csv")
    report = ended(importing.start(source, importing.new_name(source, tmp_path), tmp_path))
    assert "holds metrics of 2 runs. Choose one with --run NAME" in report.problem


@pytest.mark.long
def test_what_is_not_taken_is_said(tmp_path: Path) -> None:
    """The second line is no JSON, and the second file is no Parquet."""
    folder = tmp_path / "files"
    folder.mkdir()
    row = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    (folder / "chat.jsonl").write_text(f"{row}\n{{broken\n{row}\n")
    (folder / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    report = ended(importing.start(source_of(tmp_path, "files"), "files-imported", tmp_path))
    assert report.problem == ""
    assert [line for line in report.sentences if line.startswith("Skipped 1 row")]
    assert [line for line in report.sentences if line.startswith("Refused torn.parquet")]


def test_names_of_runs_are_fit_and_free(tmp_path: Path) -> None:
    def name(of: str) -> str:
        return importing.new_name(ForeignSource(path=Path("/data") / of), tmp_path)

    assert name("run.jsonl.zst") == "run"
    assert name("a b; rm -rf $HOME") == "a-b-rm-rf-HOME"
    assert name("...") == "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-imported").mkdir()
    assert name("run.csv") == "run-imported-2"
