"""A real GRPO run of TRL, without a line of ours in it, watched live by its log and completions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs TRL: make test-trl")

from echoscope.dashboard.data import queries
from echoscope.dashboard.steer.steering import send_command
from echoscope.dashboard.web.settings import DashboardSettings, configure
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAction
from echoscope.store.status import Status
from echoscope.store.steer.steering import SteeringError
from echoscope.watch.watching import Watch

PROGRAM = Path(__file__).parent.parent / "shared" / "trl_process.py"
STEPS, SAME_FROM = 20, 8


def test_a_run_of_trl_is_watched_while_it_trains(tmp_path: Path) -> None:
    folder, run = tmp_path / "outputs", tmp_path / "runs" / "trl"
    configure(DashboardSettings(root=run.parent))
    messages: list[str] = []
    steps: list[int] = []
    watch = Watch(
        folder, run, on_message=messages.append, on_step=lambda step, *_: steps.append(step)
    )
    watch.look()
    folder.mkdir()
    log = folder / "train.log"
    with log.open("wb") as output:
        trainer = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(STEPS), "0.5", str(SAME_FROM)],
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
        )
    num_live = 0
    deadline = time.monotonic() + 300
    try:
        while watch.last_step < STEPS and time.monotonic() < deadline:
            watch.look()
            if trainer.poll() is None:
                num_live = len(steps)
            time.sleep(watch.rest_s)
        assert not any("began again" in line or "late" in line for line in messages), messages
        shows_on_the_dashboard("trl")
    finally:
        trainer.kill()
        trainer.wait()
    watch.close()
    assert steps == list(range(1, STEPS + 1))
    assert num_live >= STEPS // 2
    stored = open_run(run)
    assert stored.info().status == "finished"
    assert stored.info().config["trainer"] == "TRL"
    assert verify(run).problems == ()
    for step in (1, STEPS):
        rows = stored.trajectories_of_step(step)
        assert len(rows) == 8
        mean = sum(t.episode_return for t in rows) / len(rows)
        keys, values = stored.metrics("reward/return_mean")
        logged = dict(zip(keys.tolist(), values.tolist(), strict=True))[step]
        assert logged == pytest.approx(mean, abs=1e-3)
    assert "policy/entropy" in stored.metric_keys()


def shows_on_the_dashboard(run_id: str) -> None:
    """What its pages read of a run that is watched: steps, reward, verdict, alarm, and no stop."""
    (row,) = queries.runs()
    assert (row.run_id, queries.row_status(row).status) == (run_id, Status.LIVE)
    table = queries.step_table(run_id)
    assert table["step"].tolist() == list(range(1, STEPS + 1))
    rewards = queries.series(run_id, ["reward/return_mean"]).set_index("step")["value"]
    for step in (1, STEPS):
        listed = queries.listing(run_id, step)
        assert rewards[step] == pytest.approx(listed["episode_return"].mean(), abs=1e-3)
    assert rewards[STEPS] == 0.5
    verdict = queries.verdict(run_id, wait_s=60)
    assert verdict.last_step == STEPS
    assert "STARVED_SIGNAL" in verdict.kinds
    (alarm,) = [
        open_alarm
        for open_alarm in queries.open_alarms(run_id)
        if open_alarm.rule == "STARVED_SIGNAL"
    ]
    assert SAME_FROM < alarm.step <= STEPS
    with pytest.raises(SteeringError, match="Echoscope follows the files of TRL and cannot send"):
        send_command(run_id, CommandAction.STOP, {}, "anna", "")
    assert queries.commands(run_id) == []
