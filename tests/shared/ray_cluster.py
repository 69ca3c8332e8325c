"""A run on a Ray cluster of this machine: its driver, its ranks, how far it has come."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from started import started

from echoscope.store.errors import StoreError
from echoscope.store.reader import open_run


@contextmanager
def cluster_of(num_nodes: int, *, cores: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without cores, and nodes with some each, all on the loopback address."""
    # Ray reads it when it is imported; despite its name it decides on every system.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    assert made.head_node.node_ip_address == "127.0.0.1"
    for _ in range(num_nodes):
        made.add_node(num_cpus=cores)
    yield made
    made.shutdown()


def driver(cluster: Any, run: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """`echoscope train` as on the head of a cluster."""
    command = [sys.executable, "-m", "echoscope", "train", *arguments]
    command += [] if "--resume" in arguments else ["-o", str(run)]
    with run.with_suffix(".log").open("ab") as log:
        return started(
            subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | {"RAY_ADDRESS": cluster.address}
            )
        )


def step_of(run: Path) -> int:
    try:
        return open_run(run).info().last_step
    except StoreError:
        return -1


def ranks(run: Path) -> list[psutil.Process]:
    """The processes of this run's ranks."""
    return [
        process
        for process in psutil.process_iter()
        if str(run) in (arguments := _words(process)) and "--headless" in arguments
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
