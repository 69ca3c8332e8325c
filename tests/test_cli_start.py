"""The command line answers before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "torch",
    "transformers",
    "peft",
    "numpy",
    "pyarrow",
    "duckdb",
    "sklearn",
    "pandas",
    "gymnasium",
    "streamlit",
    "plotly",
}


def imported(*arguments: str) -> tuple[set[str], str]:
    """Top-level modules that a command line imports, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "echoscope", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    return {name.split(".")[0] for name in names}, done.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("train", "--help"), ("ctl", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    names, out = imported(*arguments)
    assert "typer" in names
    assert names & HEAVY == set()
    assert "Usage" in out


def test_help_without_a_terminal_draws_no_boxes() -> None:
    """Half of the processor time of `--help` was importing what draws them."""
    names, out = imported("--help")
    assert "rich" not in names
    assert "diagnose" in out


def test_a_metrics_file_is_judged_without_what_only_stored_runs_need(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = "".join(f"{step},0.5,1.0\n" for step in range(250))
    path.write_text("step,success_rate,entropy\n" + rows, encoding="utf-8")
    names, out = imported("diagnose", str(path))
    assert "healthy" in out
    assert "numpy" in names
    assert names & (HEAVY - {"numpy"}) == set()


def test_help_names_every_command() -> None:
    _, out = imported("--help")
    for command in ("demo", "train", "query", "ctl", "runs", "envs", "sft", "models", "config"):
        assert f" {command} " in out


def test_listing_models_needs_no_torch() -> None:
    names, _ = imported("models", "list", "--json")
    assert not names & {"torch", "transformers", "streamlit"}


def test_the_package_itself_is_light() -> None:
    code = "import sys, echoscope; print(sorted(set(sys.modules) & set(sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
