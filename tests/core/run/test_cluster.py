"""A run on a Ray cluster of three nodes on this machine: it goes on when a node is killed."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import cluster_of, driver, ranks, step_of
from recorded import metric

from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run

pytestmark = pytest.mark.ray
SMALL = ("steps=6", "checkpoint.every=1", "eval.every=0", "eval.before=false", "probe.every=0")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes are for ranks, one is to spare."""
    with cluster_of(3, cores=1, monkeypatch=monkeypatch) as made:
        yield made


def until_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while step_of(run) < step:
        assert process.poll() is None, run.with_suffix(".log").read_text()
        assert time.monotonic() < deadline, run.with_suffix(".log").read_text()
        time.sleep(0.2)


def kill_node_of_a_rank(cluster: Any, run: Path) -> None:
    """SIGKILL for everything of the node where a rank is; its processes are Ray's to end."""
    ancestors = {parent.pid for rank in ranks(run) for parent in rank.parents()}
    for node in cluster.worker_nodes:
        raylet = node.all_processes["raylet"][0].process.pid
        if raylet in ancestors:
            cluster.remove_node(node, allow_graceful=False)
            return
    pytest.fail("no node has a rank")


def test_a_killed_node_costs_no_stored_step(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = driver(cluster, run, "demo", *SMALL, "trainer.launcher=ray", "trainer.ranks=2")
    until_step(run, 2, process)
    assert len(ranks(run)) == 2
    before = step_of(run)
    kill_node_of_a_rank(cluster, run)
    log = run.with_suffix(".log")
    assert process.wait(240) == 0, log.read_text()
    info = open_run(run).info()
    assert (info.status, info.last_step) == ("finished", 6)
    assert info.attempt == 2
    assert "they are placed again" in log.read_text()
    assert step_of(run) >= before
    assert verify(run).problems == ()
    assert sorted(metric(run, "policy/entropy")) == [1, 2, 3, 4, 5, 6]
    assert ranks(run) == []


def test_ctrl_c_stops_after_the_step_and_resume_goes_on(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = driver(cluster, run, "demo", *SMALL, "trainer.launcher=ray", "trainer.ranks=2")
    until_step(run, 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0, run.with_suffix(".log").read_text()
    stopped = open_run(run).info()
    assert stopped.status == "stopped"
    assert 1 <= stopped.last_step < 6
    assert ranks(run) == []
    process = driver(cluster, run, "--resume", str(run))
    assert process.wait(240) == 0, run.with_suffix(".log").read_text()
    assert (open_run(run).info().status, step_of(run)) == ("finished", 6)


def test_a_run_that_cannot_start_is_given_up_with_its_reason(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ("demo", *SMALL, "trainer.launcher=ray", "model.path=/nowhere")
    process = driver(cluster, run, *arguments)
    assert process.wait(240) != 0
    text = run.with_suffix(".log").read_text()
    assert "/nowhere" in text
    assert "attempts in a row ended without a new step" in text
    assert "Traceback" not in text
