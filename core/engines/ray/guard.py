"""Ends what a driver's own Ray leaves behind, however the driver ended. A script; imports little.

Ray ends most of its processes when its driver is killed, but two agents stay for a minute and more,
and the session's folder stays for good. Every process of a session carries a mark in its
environment; agents may carry the folder alone, as RAY_TMPDIR. This process waits until its standard
input ends or its parent is gone, then kills what carries one of both and removes the folder. It
reads /proc, so on other systems than Linux it only removes the folder.

    python guard.py NAME=VALUE FOLDER PARENT_PID
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

GLANCE_S = 0.25
PATIENCE_S = 10.0


def marked(*marks: str) -> list[int]:
    """Other processes with one of the marks in their environment."""
    wanted = {mark.encode() for mark in marks}
    out = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or of another user
            continue
        if not wanted.isdisjoint(words) and int(folder.name) != os.getpid():
            out.append(int(folder.name))
    return out


def kill_marked(*marks: str) -> None:
    """A process may start another one while it is killed: look again until there is none."""
    until = time.monotonic() + PATIENCE_S
    while (pids := marked(*marks)) and time.monotonic() < until:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def wait_for_end(parent: int) -> None:
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], GLANCE_S)
        if ready and not os.read(sys.stdin.fileno(), 1):
            return


def main() -> None:
    mark, folder, parent = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_for_end(int(parent))
    kill_marked(mark, f"RAY_TMPDIR={folder}")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
