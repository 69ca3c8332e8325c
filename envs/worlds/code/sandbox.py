"""Runs Python that nobody trusts: in namespaces of its own, without a network, within limits.

bubblewrap (Debian: `apt install bubblewrap`) makes a file system of the interpreter, /usr and an
empty /tmp, and namespaces for processes, network and names. Inside, util-linux sets resource limits
and gives up every right. For root that matters twice: the kernel bounds neither its processes nor
what it may do, so the program runs as a user that owns nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...base import EnvUnavailableError, shorten
from . import code_runner

_FIRST_USER = 1_000_000
"""User ids from here on belong to nobody. A limit of processes counts those of one user, so every
program that runs has a user of its own."""
_USERS_PER_PROCESS = 64
_programs = itertools.count()
_TOOLS = ("bwrap", "prlimit", "setpriv")
_MIB = 1 << 20
_START_S = 10.0
"""What starting may take on a busy machine, on top of the programs' own time."""
_MAX_ANSWER_BYTES = 64 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use."""

    seconds: float = 3.0
    """Wall clock and processor time."""
    memory_mb: int = 256
    """Of each process."""
    processes: int = 8
    """And threads, with the one that starts the program."""
    file_mb: int = 8
    """Of all files together, and of one; output is a file."""
    output_chars: int = 20_000
    """Of the output that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program did."""

    output: str
    errors: str
    exit_code: int
    """Negative: the signal that ended it."""
    timed_out: bool


class Sandbox:
    """A way to run programs. `unsafe=True` runs them without walls: only time is bounded then."""

    def __init__(self, limits: Limits, *, unsafe: bool = False) -> None:
        self._limits = limits
        self._unsafe = unsafe
        if not unsafe and (problem := why_not()):
            raise EnvUnavailableError(problem)

    def run(self, program: str, inputs: Sequence[str] = ("",)) -> list[Outcome]:
        """Run a program on each input, to its end or to its limits.

        One sandbox serves all inputs: a process in it starts the program for each in turn. What
        that process says is believed no more than the program itself, which might speak for it.
        """
        with tempfile.TemporaryDirectory(prefix="echoscope-code-") as name:
            folder = Path(name)
            files = {
                "program.py": program.encode("utf-8", "replace"),
                "runner.py": Path(code_runner.__file__).read_bytes(),
                "request.json": json.dumps(
                    {
                        "inputs": list(inputs),
                        "seconds": self._limits.seconds,
                        "output_chars": self._limits.output_chars,
                    }
                ).encode(),
            }
            folder.chmod(0o755)
            for file_name, content in files.items():
                (folder / file_name).write_bytes(content)
                (folder / file_name).chmod(0o644)
            command = _unsafe_command(folder) if self._unsafe else _command(folder, self._limits)
            answers = _last_words(command, self._limits.seconds * len(inputs) + _START_S)
        outcomes = [_outcome(answer, self._limits) for answer in answers[: len(inputs)]]
        return outcomes + [_GONE] * (len(inputs) - len(outcomes))


_GONE = Outcome(output="", errors="", exit_code=-signal.SIGKILL, timed_out=True)
"""Of a program that took what runs it along."""


def _last_words(command: list[str], timeout_s: float) -> list[Any]:
    """What the runner wrote, one JSON value a line; what is no such line is left out."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass  # what it wrote until then counts
        finally:
            # The first process of the namespace dies with bwrap, and all others with the first.
            _kill_group(process)
        output.seek(0)
        lines = output.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace").splitlines()
    answers = []
    for line in lines:
        try:
            answers.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return answers


def _outcome(answer: Any, limits: Limits) -> Outcome:
    match answer:
        case [str(output), str(errors), int(exit_code), bool(timed_out)]:
            return Outcome(
                output=output[: limits.output_chars],
                errors=errors[: limits.output_chars],
                exit_code=exit_code,
                timed_out=timed_out or exit_code in (-signal.SIGXCPU, -signal.SIGKILL),
            )
    return _GONE


@lru_cache(maxsize=1)
def why_not() -> str:
    """Why no sandbox can be made here; "" where one can. Tried once in a process."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return (
            f"running code needs {' and '.join(missing)}, which is not installed: apt install "
            "bubblewrap util-linux, or set unsafe to true to run code without a sandbox"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file_name, content in (
            ("runner.py", "print(6 * 7)"),
            ("program.py", ""),
            ("request.json", ""),
        ):
            (folder / file_name).write_text(content)
            (folder / file_name).chmod(0o644)
        try:
            trial = subprocess.run(
                _command(folder, Limits(seconds=_START_S)),
                capture_output=True,
                text=True,
                timeout=_START_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"the sandbox did not start in {_START_S:g} seconds"
    if trial.stdout.strip() == "42":
        return ""
    return (
        f"the sandbox does not start here ({shorten(trial.stderr.strip(), 150)}): bubblewrap "
        "needs root or user namespaces; or set unsafe to true to run code without a sandbox"
    )


def _command(folder: Path, limits: Limits) -> list[str]:
    is_root = os.geteuid() == 0
    user = _FIRST_USER + os.getpid() * _USERS_PER_PROCESS + next(_programs) % _USERS_PER_PROCESS
    walls = [
        "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv",
        "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin",
        "--ro-bind", sys.base_prefix, "/python", "--ro-bind", str(folder), "/code",
        "--proc", "/proc", "--dev", "/dev",
        "--perms", "1777", "--size", str(limits.file_mb * _MIB), "--tmpfs", "/tmp",
        "--chdir", "/tmp", "--setenv", "LANG", "C.UTF-8", "--remount-ro", "/",
    ]  # fmt: skip
    if not is_root:
        walls += ["--unshare-user", "--uid", str(user), "--gid", str(user)]
    bounds = [
        "/usr/bin/prlimit", f"--nproc={limits.processes}", f"--as={limits.memory_mb * _MIB}",
        f"--cpu={max(1, round(limits.seconds))}", f"--fsize={limits.file_mb * _MIB}",
        "--nofile=64", "--core=0",
    ]  # fmt: skip
    person = ["--reuid", str(user), "--regid", str(user), "--clear-groups"] * is_root
    rights = ["/usr/bin/setpriv", *person, "--no-new-privs", "--inh-caps=-all"]
    rights += ["--bounding-set=-all"] * is_root
    python = f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return [*walls, *bounds, *rights, python, "-I", "/code/runner.py"]


def _unsafe_command(folder: Path) -> list[str]:
    return [sys.executable, "-I", str(folder / "runner.py")]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
