"""Whole runs on several ranks: the same stored numbers, resume on another number, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from waiting import wait_until

from echoscope import open_run
from echoscope.store.checkpoints import checkpoint_folders

pytestmark = pytest.mark.ranks
SETTINGS = ("bandit", "eval.before=false", "eval.every=0", "probe.every=0")


def train(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = launcher or (sys.executable,)
    return subprocess.Popen(
        [*command, "-m", "echoscope", "train", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


def new_run(folder: Path, *arguments: str) -> Path:
    finished(train(*SETTINGS, *arguments, "--output", str(folder)))
    return folder


def stored(run: Path, key: str) -> np.ndarray:
    return open_run(run).metrics(key)[1]


def replies(run: Path) -> list[str]:
    rows = open_run(run).sql("SELECT response FROM turns ORDER BY trajectory_id, turn")
    return [str(text) for text in rows.column("response").to_pylist()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_run(tmp_path_factory.mktemp("alone") / "run", "steps=3")


def test_a_run_on_two_ranks_stores_what_one_process_stores(alone: Path, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", "steps=3", "trainer.ranks=2")
    assert replies(run) == replies(alone)
    for key in ("loss/policy", "optim/grad_norm", "policy/ratio_mean", "rollout/success_rate"):
        np.testing.assert_allclose(stored(run, key), stored(alone, key), rtol=1e-4, err_msg=key)


def test_torchrun_names_the_ranks(alone: Path, tmp_path: Path) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    launcher = (torchrun, "--standalone", "--nproc-per-node", "2")
    arguments = (*SETTINGS, "steps=3", "--output", str(tmp_path / "run"))
    finished(train(*arguments, launcher=launcher))
    assert replies(tmp_path / "run") == replies(alone)


def test_a_run_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    """4, then 2, then 1: what is sampled is what one process would have sampled."""
    expected = new_run(tmp_path / "expected", "steps=6")
    run = new_run(tmp_path / "run", "steps=2", "trainer.ranks=4")
    for steps, ranks in ((4, 2), (6, 1)):
        finished(train("--resume", str(run), f"steps={steps}", f"trainer.ranks={ranks}"))
    assert replies(run) == replies(expected)
    np.testing.assert_allclose(
        stored(run, "loss/policy"), stored(expected, "loss/policy"), rtol=1e-4
    )


def test_at_the_same_number_of_ranks_resuming_changes_no_bit(tmp_path: Path) -> None:
    expected = new_run(tmp_path / "expected", "steps=4", "trainer.ranks=2")
    run = new_run(tmp_path / "run", "steps=2", "trainer.ranks=2")
    finished(train("--resume", str(run), "steps=4"))
    ours, theirs = saved(run), saved(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def last_checkpoint(run: Path) -> Path:
    return checkpoint_folders(run / "checkpoints")[-1]


def saved(run: Path) -> dict[tuple[str, str], torch.Tensor]:
    """Every tensor of the last checkpoint by its file; step counts are the same in any of them."""
    folder, out = last_checkpoint(run), {}
    for path in folder.rglob("*.safetensors"):
        for name, tensor in load_file(path).items():
            out[path.name if tensor.ndim else "", name] = tensor
    return out


def test_a_preflight_tries_an_update_on_all_ranks() -> None:
    command = [sys.executable, "-m", "echoscope", "preflight", *SETTINGS, "trainer.ranks=2"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Ready to start: no problem found." in output


@pytest.mark.parametrize("whom", ["a rank", "the run"])
def test_a_kill_ends_every_rank_and_loses_no_step_before_the_checkpoint(
    tmp_path: Path, whom: str
) -> None:
    run = tmp_path / "run"
    process = train(
        *SETTINGS, "steps=400", "checkpoint.every=2", "trainer.ranks=3", "--output", str(run)
    )
    others = ranks_of(process)
    wait_until(lambda: checkpoint_folders(run / "checkpoints"), patience_s=90)
    killed = others[-1] if whom == "a rank" else psutil.Process(process.pid)
    killed.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    psutil.wait_procs(others, timeout=30)
    assert not [each for each in others if each.is_running()]
    if whom == "a rank":
        assert process.returncode == 1
        assert "was ended by signal 9: resume the run from its last checkpoint" in output
        assert "Traceback" not in output
    saved = int(last_checkpoint(run).name.removeprefix("step_"))
    finished(train("--resume", str(run), f"steps={saved + 2}"))
    steps, _ = open_run(run).metrics("loss/policy")
    assert list(steps) == list(range(1, saved + 3))


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    wait_until(lambda: len(parent.children()) >= 2, patience_s=90)
    return parent.children()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("trainer.ranks=0",), "trainer.ranks"),
        (("trainer.ranks=2", "optim.offload=true"), "optim.offload"),
    ],
)
def test_settings_that_ranks_cannot_have_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    process = train(*SETTINGS, *arguments, "--output", str(tmp_path / "run"))
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert sentence in output
    assert not (tmp_path / "run").exists()
