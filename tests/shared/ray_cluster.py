"""A run on a Ray cluster of this machine: its driver, its ranks, how far it has come."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from started import started

from echoscope.store.errors import StoreError
from echoscope.store.reader import open_run


def driver(cluster: Any, run: Path, *words: str) -> subprocess.Popen[bytes]:
    """`echoscope train` as on the head of a cluster."""
    command = [sys.executable, "-m", "echoscope", "train", *words]
    command += [] if "--resume" in words else ["-o", str(run)]
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
        if str(run) in (words := _words(process)) and "--headless" in words
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
