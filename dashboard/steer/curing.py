"""Cures started from a page: each is `echoscope cure` as a process of its own.

It goes on when the dashboard is closed. A browser names no setting: what is tried is what the
diagnosis proposes, and what goes on is one of the branches on record.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from echoscope.store.steer.cures import cure_file, is_being_cured
from echoscope.store.steer.steering import SteeringError

from .branching import check_lines, last_lines, start_apart

MAX_STEPS = 10_000
MAX_MINUTES = 1_440


def compare(run: Path, *, steps: int, minutes: int, author: str) -> None:
    """Start or go on to compare treatments of a run.

    Raises:
        SteeringError: somebody does so already, or the system refuses.
    """
    _start(run, author, f"--steps={steps}", f"--minutes={minutes}")


def promote(run: Path, branch: str, *, author: str) -> None:
    """Let a branch go on as the successor of a run.

    Raises:
        SteeringError: a comparison goes on, or the system refuses.
    """
    _start(run, author, f"--choose={branch}", "--yes")


_started: dict[Path, subprocess.Popen[bytes]] = {}
"""The last command for each run: it holds no lock before it has loaded."""


def is_starting(run: Path) -> bool:
    """Whether a command that was started here goes on."""
    process = _started.get(run)
    return process is not None and process.poll() is None


def log_of(run: Path) -> Path:
    """What the last command printed."""
    return cure_file(run).with_suffix(".log")


def last_words(run: Path) -> str:
    """The last line that the last command printed where it failed; else empty. Hostile text."""
    try:
        with log_of(run).open("rb") as file:
            last = "".join(last_lines(file)[-1:])
    except OSError:
        return ""
    return last.removeprefix("error: ")[:1_000] if last.startswith("error: ") else ""


def _start(run: Path, author: str, *words: str) -> None:
    if is_being_cured(run) or is_starting(run):
        raise SteeringError("somebody is curing this run now; wait until that has ended")
    check_lines("", author)
    log = log_of(run)
    try:
        log.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(log, flags, 0o600), "wb") as output:
            command = ["cure", *words, f"--by={author}", "--", str(run.absolute())]
            _started[run] = start_apart(command, output)
    except (OSError, ValueError) as error:
        raise SteeringError(f"the cure was not started: {error}") from error
