"""What a newcomer sees of `make demo`: no silent minutes, and where to go on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.cli.options import new_run_path

ROOT = Path(__file__).parents[2]
TINY = (
    *("steps=1", "eval.before=false", "eval.every=0", "probe.every=0", "diagnostics.enabled=false"),
    *("envs.group_size=2", "envs.train.0.groups=1", "context.max_response_tokens=4", "threads=1"),
)


@pytest.mark.parametrize(
    ("arguments", "why"), [((), "the output is no terminal"), (("--headless",), "--headless")]
)
def test_a_demo_without_a_dashboard_says_so_and_how_to_open_one(
    tmp_path: Path, type_command: Callable[..., Any], arguments: tuple[str, ...], why: str
) -> None:
    root = tmp_path / "my runs"
    answer = type_command("demo", *arguments, "--root", root, *TINY)
    assert (answer.code, answer.err) == (0, "")
    (run,) = [path for path in root.iterdir() if path.name[0] != "."]
    lines = answer.out.splitlines()
    assert lines[:3] == [
        "demo: the shipped small policy learns FrozenLake; this takes about three minutes",
        f"no dashboard ({why}); `echoscope dashboard '{root}'` in another terminal opens one",
        f"run {run}",
    ]
    after = lines[lines.index("next:") + 1 :]
    assert after[:2] == [
        f"  echoscope diagnose '{run}'    # is it healthy, and what to do",
        f"  echoscope dashboard '{run}'    # its curves and episodes, in a browser",
    ]


def test_torch_is_loaded_while_the_view_already_says_that_the_run_starts(tmp_path: Path) -> None:
    """On a busy machine torch takes minutes."""
    code = (
        "import sys\n"
        "from echoscope.cli import train, training_view\n"
        "def watch(*_, **__):\n"
        "    print('torch' in sys.modules)\n"
        "    raise SystemExit\n"
        "training_view.watch = watch\n"
        f"train.train('demo', root=train.Path({str(tmp_path)!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_installation_says_each_phase_and_hides_no_download(tmp_path: Path) -> None:
    """A Python that only makes a pip, which says how it was called: nothing is installed."""
    python = tmp_path / "python"
    lines = (
        "#!/bin/sh",
        "mkdir -p $3/bin",  # it is called as: python -m venv FOLDER
        "printf '#!/bin/sh\\necho pip \"$@\"\\n' > $3/bin/pip",
        "chmod +x $3/bin/pip",
    )
    python.write_text("\n".join(lines), encoding="utf-8")
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "--no-print-directory", "install", f"PYTHON={python}", f"VENV={tmp_path}/new"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    phases = [line for line in done.stdout.splitlines() if line.startswith(("install", "pip"))]
    starts = ["install, 1 of 3", "install, 2 of 3", "pip install", "install, 3 of 3", "pip install"]
    starts += ["installed: "]
    assert [line[: len(start)] for line, start in zip(phases, starts, strict=True)] == starts
    assert not any("--quiet" in line for line in phases)


def test_new_runs_get_names_of_their_own(tmp_path: Path) -> None:
    names = {new_run_path(tmp_path, "lake").name for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("lake-") for name in names)
