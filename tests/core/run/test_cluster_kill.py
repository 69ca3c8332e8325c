"""Ranks, engines, nodes and the driver of a run on Ray, killed at any instant: nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import cluster_of, driver, ranks, step_of
from recorded import metric

from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run

pytestmark = [pytest.mark.ray, pytest.mark.slow]
KILLS = int(os.environ.get("ECHOSCOPE_KILLS", "40"))
SEED = int(os.environ.get("ECHOSCOPE_SEED", str(random.randrange(10**6))))
VICTIMS = ("rank", "engine", "node", "driver")
NUM_NODES = 3


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three nodes of two cores: two hold two ranks and two engines."""
    with cluster_of(NUM_NODES, cores=2, monkeypatch=monkeypatch) as made:
        yield made


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def engines() -> list[psutil.Process]:
    out = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::EngineActor"):
                out.append(process)
        except psutil.Error:
            continue
    return out


def kill(victim: str, process: Any, cluster: Any, run: Path, draw: random.Random) -> str:
    """Kill one of a kind, if there is one; what was killed."""
    if victim == "node":
        node = draw.choice(sorted(cluster.worker_nodes, key=lambda node: node.node_id))
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=2)
        return "node"
    targets = {"rank": lambda: ranks(run), "engine": engines, "driver": lambda: [process]}
    processes = targets[victim]()
    if not processes:
        return "nothing"
    os.kill(draw.choice(processes).pid, signal.SIGKILL)
    return victim


@pytest.mark.timeout(3600)
def test_the_demo_learns_on_three_nodes_while_one_is_killed(cluster: Any, tmp_path: Path) -> None:
    """Two ranks and two engines; where the node is lost they are placed on the other two."""
    run, log = tmp_path / "run", tmp_path / "run.log"
    arguments = (
        "demo",
        "eval.every=60",
        "checkpoint.every=5",
        "trainer.launcher=ray",
        "trainer.ranks=2",
    )
    process = driver(cluster, run, *arguments, "engine={kind: ray, num_engines: 2}")
    while step_of(run) < 22:
        assert process.poll() is None, log.read_text()
        time.sleep(0.5)
    parents = {parent.pid for rank in ranks(run) for parent in rank.parents()}
    (node, *_) = [
        node
        for node in cluster.worker_nodes
        if node.all_processes["raylet"][0].process.pid in parents
    ]
    cluster.remove_node(node, allow_graceful=False)
    assert process.wait(2400) == 0, log.read_text()
    info = open_run(run).info()
    assert (info.status, info.last_step, info.attempt) == ("finished", 60, 2), log.read_text()
    success = metric(run, "eval/frozen_lake/success_rate", phase="eval")
    say(f"success by step: {success}")
    assert success[60] > 0.85 > 0.6 > success[0]
    assert verify(run).problems == ()
    assert not ranks(run)


@pytest.mark.timeout(7200)
def test_kills_at_any_instant_lose_no_stored_step(cluster: Any, tmp_path: Path) -> None:
    say(f"ECHOSCOPE_SEED={SEED}")
    draw = random.Random(SEED)
    run, log = tmp_path / "run", tmp_path / "run.log"
    arguments = ("demo", "steps=1000", "checkpoint.every=1", "eval.every=0", "eval.before=false")
    arguments += ("trainer.launcher=ray", "trainer.ranks=2", "engine={kind: ray, num_engines: 2}")
    arguments += ("diagnostics.enabled=false", "probe.every=0")
    killed: Counter[str] = Counter()
    process = driver(cluster, run, *arguments)
    while sum(killed.values()) - killed["nothing"] < KILLS:
        before = step_of(run)
        if draw.random() < 0.7:  # else in the start, mostly
            deadline = time.monotonic() + 120
            while step_of(run) == before and time.monotonic() < deadline:
                time.sleep(0.2)
        time.sleep(draw.uniform(0.5, 15.0))
        before = step_of(run)
        victim = kill(draw.choice(VICTIMS), process, cluster, run, draw)
        killed[victim] += 1
        if victim == "driver":
            process.wait()
            deadline = time.monotonic() + 60
            while ranks(run) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert not ranks(run), "ranks outlive their driver"
        if process.poll() is not None:
            assert victim == "driver" or "attempts in a row" in log.read_text(), log.read_text()
            again = ("--resume", str(run)) if (run / "run.json").exists() else arguments
            process = driver(cluster, run, *again)
        assert step_of(run) >= before - 1, "at most the step under way is played again"
        say(f"{sum(killed.values())} {victim} at step {before}")
    steps_then = step_of(run)
    deadline = time.monotonic() + 300
    while step_of(run) <= steps_then:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(180) == 0, log.read_text()
    assert open_run(run).info().status == "stopped"
    assert verify(run).problems == ()
    rows = open_run(run).sql("SELECT DISTINCT step FROM trajectories ORDER BY step").to_pylist()
    assert [row["step"] for row in rows] == list(range(1, step_of(run) + 1))
    assert not ranks(run)
    assert "Traceback" not in log.read_text()
    say(f"{dict(killed)} {step_of(run)} steps, {open_run(run).info().attempt} attempts")
