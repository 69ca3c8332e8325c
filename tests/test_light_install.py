"""Wheel and sdist outside of here, the base beside other trainers' pins, and what editors see.

`make test-install`: it downloads 150 MB, and the metadata of verl, TRL and verifiers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BESIDE = "\n".join(path for path in sys.path if path.endswith("-packages"))
"""Where the packages of these tests lie."""
PEERS = ("verl==0.9.1", "trl==1.16.0", "verifiers==0.4.0")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


def run(*command: str | Path, cwd: Path, expect: int = 0) -> str:
    """What a command prints. The paths of this test run are not handed on: it stands alone."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True
    )
    assert ended.returncode == expect, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the source distribution, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the base and nothing else."""
    folder = tmp_path_factory.mktemp("light")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    constraints = ROOT / "constraints.txt"
    run(folder / "bin" / "pip", "install", "-q", "-c", constraints, wheel, cwd=folder)
    return folder / "bin"


def test_the_base_brings_neither_torch_nor_transformers_nor_streamlit(light: Path) -> None:
    brought = run(light / "pip", "list", "--format=freeze", cwd=light).lower()
    heavy = ("torch", "transformers", "streamlit", "plotly", "gymnasium", "pandas")
    assert [name for name in heavy if f"\n{name}==" in f"\n{brought}"] == []


def test_a_trainer_records_a_run_and_reads_its_verdict(light: Path, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        """
import echoscope

recorder = echoscope.Recorder("runs/mine", total_steps=12)
for step in range(1, 13):
    for task in range(4):
        for reward in (0.0, 1.0):
            messages = [
                {"role": "user", "content": f"What is {task} + 2?"},
                {"role": "assistant", "content": f"It is {task + 2}."},
            ]
            recorder.episode(messages, reward=reward, success=reward == 1.0, group=str(task))
    recorder.step(step, {"loss": 0.1, "entropy": 1.0})
recorder.close()
""",
        encoding="utf-8",
    )
    run(light / "python", "loop.py", cwd=tmp_path)
    assert "healthy" in run(light / "echoscope", "diagnose", "runs/mine", cwd=tmp_path)


def test_rollouts_of_another_trainer_are_imported_and_followed(light: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "store" / "importers" / "fixtures" / "trl", tmp_path / "trl")
    run(light / "echoscope", "import", "trl", "-o", "runs/imported", cwd=tmp_path)
    assert "TRL" in run(light / "echoscope", "runs", "list", cwd=tmp_path)
    watch = (light / "echoscope", "watch", "trl", "-o", "runs/watched", "--once")
    assert "insufficient evidence" in run(*watch, cwd=tmp_path, expect=5)
    run(light / "echoscope", "query", "runs/imported", "select count(*) from steps", cwd=tmp_path)


@pytest.mark.parametrize(
    ("command", "extra"),
    [(("train", "frozen_lake"), "train"), (("dashboard",), "dashboard")],
    ids=str,
)
def test_a_missing_extra_is_one_sentence_with_its_command(
    light: Path, tmp_path: Path, command: tuple[str, ...], extra: str
) -> None:
    (tmp_path / "runs").mkdir()
    answer = run(light / "echoscope", *command, cwd=tmp_path, expect=1)
    assert answer.startswith("error: this needs ")
    assert f"pip install -e '.[{extra}]'" in answer
    assert "Traceback" not in answer


@pytest.mark.parametrize("peer", PEERS)
def test_the_base_moves_no_package_of_another_trainer(
    peer: str, wheel: Path, tmp_path: Path
) -> None:
    def resolved(*requirements: str | Path) -> dict[str, str]:
        report = tmp_path / "report.json"
        flags = ("--dry-run", "--ignore-installed", "--quiet", "--report", report)
        # This torch is there as a build for the CPU; another one brings gigabytes.
        run(
            sys.executable,
            "-m",
            "pip",
            "install",
            *flags,
            *requirements,
            "torch==2.13.0",
            cwd=tmp_path,
        )
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
        return {part["metadata"]["name"]: part["metadata"]["version"] for part in chosen}

    alone, with_ours = resolved(peer), resolved(peer, wheel)
    moved = {name: with_ours.get(name) for name in alone if with_ours.get(name) != alone[name]}
    assert moved == {}


@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_the_demo_trains_outside_of_here(kind: str, built: Path, tmp_path: Path) -> None:
    """With the packages of the extra `train` that these tests have: torch is gigabytes."""
    run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    bin_folder = tmp_path / "env" / "bin"
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run(bin_folder / "python", "-c", query, cwd=tmp_path).strip())
    (own / "beside.pth").write_text(BESIDE, encoding="utf-8")
    (package,) = built.glob(f"*.{kind}")
    run(bin_folder / "pip", "install", "-q", "--no-deps", package, cwd=tmp_path)
    query = "import echoscope; print(echoscope.__file__)"
    assert str(own) in run(bin_folder / "python", "-c", query, cwd=tmp_path)
    told = run(bin_folder / "echoscope", "demo", "--headless", "steps=2", cwd=tmp_path)
    assert "run finished" in told
    run(bin_folder / "echoscope", "runs", "verify", *(tmp_path / "runs").iterdir(), cwd=tmp_path)


SCRIPT = """\
import echoscope

reveal_type(echoscope.Recorder("runs/mine"))
reveal_type(echoscope.open_run("runs/mine"))
"""


def test_an_editor_and_mypy_resolve_a_users_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    pyright = Path(sys.executable).with_name("basedpyright")
    told = run(pyright, "--pythonpath", sys.executable, "script.py", cwd=tmp_path)
    assert '"Recorder"' in told
    assert '"RunReader"' in told
    told = run(sys.executable, "-m", "mypy", "--strict", "script.py", cwd=tmp_path)
    assert "echoscope.recorder.recorder.Recorder" in told
    assert "echoscope.store.reader.RunReader" in told


def test_an_editor_resolves_every_import_of_our_own_files() -> None:
    pyright = Path(sys.executable).with_name("basedpyright")
    python = ("--pythonpath", sys.executable)
    assert "0 errors" in run(pyright, "--level", "error", *python, "cli/ctl.py", cwd=ROOT)
