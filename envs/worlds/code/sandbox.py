"""Runs Python that nobody trusts: in namespaces of its own, without a network, within limits.

bubblewrap (Debian: `apt install bubblewrap`) makes a file system of the interpreter, /usr and an
empty /tmp, and namespaces for processes, network and names. Inside, util-linux sets resource limits
and gives up every right. For root that matters twice: the kernel bounds neither its processes nor
what it may do, so the program runs as a user that owns nothing.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from ...base import EnvUnavailableError, shorten

_FIRST_USER = 1_000_000
"""User ids from here on belong to nobody. A limit of processes counts those of one user, so every
program that runs has a user of its own."""
_USERS_PER_PROCESS = 64
_programs = itertools.count()
_TOOLS = ("bwrap", "prlimit", "setpriv")
_MIB = 1 << 20
_START_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use."""

    seconds: float = 3.0
    """Wall clock and processor time."""
    memory_mb: int = 256
    """Of each process."""
    processes: int = 4
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
    """A way to run programs. `unsafe=True` runs them as they are: with limits, but no walls."""

    def __init__(self, limits: Limits, *, unsafe: bool = False) -> None:
        self._limits = limits
        self._unsafe = unsafe
        if not unsafe and (problem := why_not()):
            raise EnvUnavailableError(problem)

    def run(self, program: str, stdin: str = "") -> Outcome:
        """Run a program to its end, or to its limits."""
        with (
            tempfile.TemporaryDirectory(prefix="echoscope-code-") as folder,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
        ):
            file = Path(folder) / "program.py"
            file.write_text(program, encoding="utf-8", errors="replace")
            Path(folder).chmod(0o755)
            file.chmod(0o644)
            given.write(stdin.encode("utf-8", "replace"))
            given.seek(0)
            command = _unsafe_command(file) if self._unsafe else _command(file, self._limits)
            exit_code, timed_out = self._wait(command, folder, (given, output, errors))
            return Outcome(
                output=self._text(output),
                errors=self._text(errors),
                exit_code=exit_code,
                timed_out=timed_out,
            )

    def _wait(
        self, command: list[str], folder: str, files: tuple[IO[bytes], IO[bytes], IO[bytes]]
    ) -> tuple[int, bool]:
        given, output, errors = files
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=output,
            stderr=errors,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            # Starting takes its own time on a busy machine; processor time is bounded from inside.
            exit_code = process.wait(self._limits.seconds + _START_S * (not self._unsafe) / 10)
        except subprocess.TimeoutExpired:
            # The first process of the namespace dies with bwrap, and all others with the first.
            _kill_group(process)
            return -signal.SIGKILL, True
        finally:
            if process.poll() is None:
                _kill_group(process)
        # bwrap tells a signal as a shell does.
        exit_code = 128 - exit_code if exit_code > 128 else exit_code
        return exit_code, exit_code in (-signal.SIGXCPU, -signal.SIGKILL)

    def _text(self, file: IO[bytes]) -> str:
        file.seek(0)
        content = file.read(4 * self._limits.output_chars).decode("utf-8", "replace")
        return content[: self._limits.output_chars]


@lru_cache(maxsize=1)
def why_not() -> str:
    """Why no sandbox can be made here; "" where one can. Tried once in a process."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return (
            f"running code needs {' and '.join(missing)}, which is not installed: apt install "
            "bubblewrap util-linux, or set unsafe to true to run code without a sandbox"
        )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "program.py"
        file.write_text("print(6 * 7)")
        file.chmod(0o644)
        try:
            trial = subprocess.run(
                _command(file, Limits(seconds=_START_S)),
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


def _command(file: Path, limits: Limits) -> list[str]:
    is_root = os.geteuid() == 0
    user = _FIRST_USER + os.getpid() * _USERS_PER_PROCESS + next(_programs) % _USERS_PER_PROCESS
    walls = [
        "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv",
        "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin",
        "--ro-bind", sys.base_prefix, "/python", "--ro-bind", str(file), "/program.py",
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
    return [*walls, *bounds, *rights, python, "-I", "/program.py"]


def _unsafe_command(file: Path) -> list[str]:
    return [sys.executable, "-I", str(file)]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
