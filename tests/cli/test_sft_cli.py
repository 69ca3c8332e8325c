"""echoscope sft and echoscope models, as a person types them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from echoscope.cli import main, sft

SETTINGS = ("--iterations", "4", "--batch-episodes", "4")


def echoscope(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["echoscope", *arguments])
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sft") / "demos.jsonl"
    code, out, err = echoscope(
        *("sft", "generate", "frozen_lake", "bandit", "--episodes", "24"),
        *("--careful", "0.4", "--careful", "bandit=0.9", "-o", str(path), "--json"),
    )
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["episodes"] == 24
    assert set(report["success"]) == {"frozen_lake", "bandit"}
    return path


def test_demonstrations_are_one_json_object_a_line(demos: Path) -> None:
    rows = [json.loads(line) for line in demos.read_text().splitlines()]
    assert len(rows) == 24
    keys = {"env", "params", "env_seed", "noise_seed", "messages", "success"}
    assert all(set(row) == keys for row in rows)
    assert rows[0]["messages"][0]["role"] == "user"


@pytest.mark.long
def test_train_then_adapt_then_merge(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sft, "SILENT_S", 0.0)
    base, adapted, merged = (str(tmp_path / name) for name in ("base", "adapted", "merged"))
    fresh = ("--model", "fresh")
    code, out, err = echoscope("sft", "train", str(demos), *fresh, "-o", base, *SETTINGS)
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[:-1]] == [
        ["iteration", f"{number}/4"] for number in range(1, 5)
    ]
    assert "after 4 iterations, loss" in out
    lora = ("--model", base, "--lora", "--lora-rank", "4")
    code, out, _ = echoscope("sft", "train", str(demos), *lora, "-o", adapted, *SETTINGS, "--json")
    assert code == 0
    assert json.loads(out)["iterations"] == 4
    code, out, err = echoscope("sft", "merge", adapted, "-o", merged)
    assert (code, err) == (0, "")
    assert (Path(merged) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "frozen_lak", "-o", "x.jsonl"), "did you mean 'frozen_lake'?"),
        (("generate", "bandit", "--careful", "much", "-o", "x.jsonl"), "--careful is 'much'"),
        (
            ("generate", "bandit", "--careful", "2", "-o", "x.jsonl"),
            "at least 0 and at most 1",
        ),
        (("generate", "bandit", "-o", "."), "is a folder; name a file"),
        (("train", "missing.jsonl", "-o", "x"), "cannot read missing.jsonl"),
        (
            ("train", "missing.jsonl", "--lr", "-1", "-o", "x"),
            "lr is -1.0, but must be more than 0",
        ),
        (("train", "missing.jsonl", "--save-dtype", "int8", "-o", "x"), "--save-dtype is 'int8'"),
        (("merge", "missing", "-o", "x"), "holds no adapters"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = echoscope("sft", *arguments)
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())


def test_shipped_models_are_listed() -> None:
    code, out, err = echoscope("models", "list", "--json")
    assert (code, err) == (0, "")
    tiny = json.loads(out)["models"][0]
    assert (tiny["name"], tiny["origin"]) == ("tiny", "shipped")
    code, out, _ = echoscope("models", "list")
    assert code == 0
    assert "tiny" in out


OWN_WORLD = """
from dataclasses import dataclass
from echoscope.envs.worlds.bandit import Bandit, BanditConfig

class OwnArms(Bandit):
    pass
"""


@pytest.mark.long
def test_an_environment_beside_the_user_is_found_as_by_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new interpreter in a folder with a module and a run file, as preflight's command says."""
    (tmp_path / "own_arms.py").write_text(OWN_WORLD)
    (tmp_path / "own.yaml").write_text(
        "model: {path: tiny}\nenvs: {train: [{env: 'own_arms:OwnArms', groups: 1}]}\n"
    )
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-P", "-m", "echoscope", "sft", "generate"]
    for target in ("own.yaml", "own_arms:OwnArms"):
        arguments = [*command, target, "-o", "demos.jsonl", "--episodes", "3"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert len((tmp_path / "demos.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_demonstrations_that_do_not_end_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
    code, _, err = echoscope("sft", "train", str(path), "-o", str(tmp_path / "out"))
    assert (code, err.count("\n")) == (1, 1)
    assert "it is no file" in err
    assert not (tmp_path / "out").exists()
