"""Branches started from a page: each is `echoscope ctl RUN branch` as a process of its own.

A branch outlives the dashboard: it leads its own session, reads nothing from us and writes to a
log in `.branches/` under the root. What it is to do goes as a list of words, never through a shell.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from echoscope.store.log.layout import Layout

from ..web.gate import PASSWORD_VARIABLE
from .branch_orders import BranchError, BranchOrder, command

FOLDER = ".branches"
"""Under the root: the logs."""
MAX_LIVE = 4
"""Branches of one dashboard that train at once."""
MAX_KEPT = 200
CHECK_S = 60.0
"""Patience with the command when it is only asked whether it would start a branch."""
_READ_BYTES = 65_536
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class BranchState(StrEnum):
    """How far a launch has come."""

    STARTING = "starting"
    LOADING = "loading"
    """It was accepted; its run is not on the disk yet."""
    RUNNING = "running"
    """There is a run: its own page tells the rest."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchReport:
    """How a launch stands. Texts come from files: hostile."""

    state: BranchState
    run_id: str = ""
    text: str = ""
    """Why it was refused, one line."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key to [old, new], as the new run tells it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launch:
    """A process that was started."""

    order: BranchOrder
    root: Path
    log: Path
    at: float
    """When, in seconds since the epoch."""
    process: subprocess.Popen[bytes]

    def report(self) -> BranchReport:
        """How it stands now: reads the beginning and the end of its log."""
        has_ended = self.process.poll() is not None  # first: what it wrote last is then read
        start, last = _read(self.log)
        if start is None:
            if has_ended:
                return BranchReport(state=BranchState.REFUSED, text=last or "it ended silently")
            return BranchReport(state=BranchState.STARTING)
        run_id, changed = start["run_id"], start["changed"]
        if Layout(self.root / run_id).run_json.is_file():
            return BranchReport(state=BranchState.RUNNING, run_id=run_id, changed=changed)
        if has_ended:
            return BranchReport(state=BranchState.REFUSED, run_id=run_id, text=last)
        return BranchReport(state=BranchState.LOADING, run_id=run_id, changed=changed)


_launches: list[Launch] = []
_lock = threading.Lock()


def launches(parent: Path) -> list[Launch]:
    """Branches of a run that this dashboard started, the newest first."""
    with _lock:
        return [one for one in reversed(_launches) if one.order.parent == parent]


def launch(order: BranchOrder, root: Path) -> Launch:
    """Start a branch under `root`; it goes on when this process ends.

    Raises:
        BranchError: the order is not fit, too many train already, or the system refuses.
    """
    words = command(order, root)
    with _lock:
        busy = sum(one.process.poll() is None for one in _launches)
        if busy >= MAX_LIVE:
            raise BranchError(
                f"{busy} branches of this dashboard are training, at most {MAX_LIVE} may; "
                "stop one, or use `echoscope ctl RUN branch` in a terminal"
            )
        try:
            log, descriptor = _open_log(root)
            with os.fdopen(descriptor, "wb") as output:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise BranchError(f"the branch was not started: {error}") from error
        started = Launch(order=order, root=root, log=log, at=time.time(), process=process)
        _launches.append(started)
        del _launches[:-MAX_KEPT]
    return started


def check(order: BranchOrder, root: Path) -> None:
    """Have the command check an order, every value included; nothing is started or written.

    Raises:
        BranchError: it would refuse, with its reason; or it cannot be asked.
    """
    words = command(order, root, is_dry_run=True)
    try:
        found = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=_environment(),
            timeout=CHECK_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise BranchError(f"the settings could not be checked: {error}") from error
    if found.returncode:
        raise BranchError(_last_line(found.stderr) or "the command refused without a reason")


def _environment() -> dict[str, str]:
    """The branch runs what its parent ran: that code need not know how to get in here."""
    return {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}


def _open_log(root: Path) -> tuple[Path, int]:
    """A new file in a folder that is ours and no link."""
    folder = root / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise OSError(f"{folder} is a link; remove it")
    log = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND
    return log, os.open(log, flags, 0o600)


def _read(log: Path) -> tuple[dict[str, Any] | None, str]:
    """The line that says which run it is, if it is there, and the last line."""
    try:
        with log.open("rb") as file:
            head = file.read(_READ_BYTES)
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
            tail = file.read()
    except OSError as error:
        return None, f"{log}: {error.strerror}"
    lines = head.decode("utf-8", "replace").split("\n")[:-1]
    start = next((found for found in map(_start, lines) if found is not None), None)
    return start, _last_line(tail)


def _last_line(output: bytes) -> str:
    last = [line for line in output.decode("utf-8", "replace").split("\n") if line.strip()]
    return last[-1].removeprefix("error: ")[:2_000] if last else ""


def _start(line: str) -> dict[str, Any] | None:
    """The command's first line; None for any other."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_it = isinstance(found, dict) and found.get("outcome") == "starting"
    run_id = found.get("run_id") if is_it else None
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        return None
    changed = found.get("changed")
    return {"run_id": run_id, "changed": changed if isinstance(changed, dict) else {}}
