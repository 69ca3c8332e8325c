"""Ranks and runs killed at random instants: nothing acknowledged is lost, nothing stays running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from harness_seed import draw

from echoscope import open_run
from echoscope.store.checkpoints import checkpoint_folders
from echoscope.store.log.verify import verify

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
NUM_KILLS = int(os.environ.get("ECHOSCOPE_KILLS", "40"))


def train(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "echoscope", "train", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def acknowledged(run: Path) -> int:
    """The last finished step; -1 before there is one."""
    try:
        return open_run(run).info().last_step
    except OSError:
        return -1


def test_kills_at_random_instants(tmp_path: Path) -> None:
    rng = random.Random(draw())
    run, num_resumed = tmp_path / "run", 0
    for kill in range(NUM_KILLS):
        ranks = rng.choice((2, 3))
        has_run = (run / "run.json").exists()
        arguments = ["--resume", str(run)] if has_run else ["bandit", "--output", str(run)]
        if not has_run:
            arguments += [
                "eval.before=false",
                "eval.every=0",
                "probe.every=0",
                "checkpoint.every=1",
            ]
        saved = [folder.name for folder in checkpoint_folders(run / "checkpoints")]
        before = acknowledged(run)
        process = train(*arguments, "steps=100000", f"trainer.ranks={ranks}")
        parent = psutil.Process(process.pid)
        if rng.random() < 0.6:  # else mostly in the start, which takes longer on a busy machine
            deadline = time.monotonic() + 120
            while acknowledged(run) <= before and time.monotonic() < deadline:
                time.sleep(0.2)
            time.sleep(rng.uniform(0.0, 4.0))
        else:
            time.sleep(rng.uniform(1.0, 14.0))
        family = parent.children(recursive=True)
        victim = rng.choice([parent, *family])
        victim.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=90)
        _, alive = psutil.wait_procs(family, timeout=30)
        assert alive == [], f"kill {kill}"
        assert "Traceback" not in output, output
        if not (run / "run.json").exists():
            continue
        num_resumed += has_run
        assert verify(run).problems == ()
        after = acknowledged(run)
        newest = max((int(name.removeprefix("step_")) for name in saved), default=0)
        assert after >= min(before, newest), f"kill {kill}: step {before} became {after}"
        steps, _ = open_run(run).metrics("loss/policy")
        assert list(steps) == list(range(1, len(steps) + 1))
    assert acknowledged(run) > 0
    assert num_resumed > NUM_KILLS // 2
