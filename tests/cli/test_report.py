"""`echoscope report`: a file, and plain words where there is none to make."""

from __future__ import annotations

from pathlib import Path

from made_run import make_run
from typer.testing import CliRunner

from echoscope.cli import app


def test_it_writes_one_file_and_does_not_replace_one_unasked(tmp_path: Path) -> None:
    run, output = make_run(tmp_path / "runs" / "a"), tmp_path / "new" / "r.html"
    command = ["report", str(run), "-o", str(output)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert output.read_text(encoding="utf-8").startswith("<!doctype html>")
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "--overwrite" in again.output
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 0


def test_a_trajectory_that_is_not_there_is_said_without_pages(tmp_path: Path) -> None:
    run, output = make_run(tmp_path / "runs" / "a"), tmp_path / "r.html"
    for name in ("nosuch", "t00000120-00037"):
        result = CliRunner().invoke(app, ["report", str(run), "-o", str(output), "-t", name])
        assert result.exit_code == 4
        assert name in result.output
        assert "page" not in result.output


def test_what_is_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path / "none"), "-o", str(tmp_path / "r")])
    assert result.exit_code == 4
    assert "Traceback" not in result.output
    assert "page" not in result.output
    assert not (tmp_path / "r").exists()
