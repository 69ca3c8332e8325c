"""Ends what a driver's own Ray leaves behind, however the driver ended. A script; imports little.

Ray ends most of its processes when its driver is killed, but two agents stay for a minute and more,
and the session's folder stays for good. Every process of a session has the folder in its
environment, as RAY_TMPDIR. This process waits until its standard input ends, as it does with its
parent, then kills what carries the folder and removes it. It reads /proc, so on other systems than
Linux it only removes the folder.

    python guard.py FOLDER
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 10.0


def processes_of(folder: str) -> list[int]:
    """Other processes of the Ray whose files are in this folder."""
    mark = f"RAY_TMPDIR={folder}".encode()
    out = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or of another user
            continue
        if mark in words and int(process.name) != os.getpid():
            out.append(int(process.name))
    return out


def main() -> None:
    [folder] = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.read()
    until = time.monotonic() + PATIENCE_S
    # A process may start another one while it is killed: look again until there is none.
    while (pids := processes_of(folder)) and time.monotonic() < until:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
