"""Printing that all commands share: strict JSON, safe text, bars."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_run import make_run

from echoscope import __version__
from echoscope.cli.terminal import print_json, printable, progress_bars


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rate": math.nan, "path": Path("runs/a"), "steps": (1, 2)})
    assert json.loads(capsys.readouterr().out) == {"rate": None, "path": "runs/a", "steps": [1, 2]}


def test_text_of_strangers_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"


def test_nothing_is_drawn_where_the_error_stream_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_bars() as bar:
        bar("measuring")(1, 3)
    assert capsys.readouterr().err.strip() == ""


def test_a_bar_is_seen_from_its_first_report_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bars() as bar:
        report = bar("measuring")
        bar("never begun")
        report(1, 3)
    drawn = capsys.readouterr().err
    assert "measuring" in drawn
    assert "1/3" in drawn
    assert "never begun" not in drawn


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        pytest.param(("--version",), 0, marks=pytest.mark.long),
        pytest.param(("whatif", "RUN"), 0, marks=pytest.mark.long),
        (("query", "RUN", "SELECT * FROM range(100000)", "--format", "csv"), 0),
        pytest.param(("query", "RUN", "SELECT 1"), 0, marks=pytest.mark.long),
        pytest.param(("query", "RUN", "SELECT nothing"), 1, marks=pytest.mark.long),
        (("explode",), 2),
    ],
)
def test_whoever_reads_only_the_head_hears_of_no_failure(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    run = make_run(tmp_path / "a", 3)
    read, write = os.pipe()
    os.close(read)
    command = [
        sys.executable,
        "-m",
        "echoscope",
        *(str(run) if w == "RUN" else w for w in arguments),
    ]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert "Broken pipe" not in ended.stderr


def test_the_version_is_told() -> None:
    command = [sys.executable, "-m", "echoscope", "--version"]
    assert subprocess.check_output(command, text=True) == f"echoscope {__version__}\n"
