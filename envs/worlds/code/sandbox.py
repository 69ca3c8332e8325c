"""Runs Python that nobody trusts: in namespaces of its own, without a network, within limits.

bubblewrap (Debian: `apt install bubblewrap`) makes a file system of the interpreter and its
libraries, all of it read-only, and namespaces for processes, network and names. Inside, the runner
(code_runner.py) starts the program as a user that owns nothing, with resource limits and a filter
of system calls (system_calls.py). A program is one process that can neither start another nor hold
memory outside its address space, so the limit of that is the limit of all its memory.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...base import EnvUnavailableError, shorten
from . import code_runner
from .system_calls import system_call_filter, why_no_filter

_FIRST_USER = 1_000_000
"""User ids from here on belong to nobody. A limit of threads counts those of one user, so every
program that runs has a user of its own."""
_USERS_PER_PROCESS = 64
_programs = itertools.count()
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
    """All of it but what `file_mb` counts."""
    threads: int = 8
    file_mb: int = 8
    """Of the input, of the output and of the errors: each is a file in memory, and there are no
    others to write to."""
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

        One sandbox serves all inputs: the first process in it starts the program for each in turn.
        """
        command = _unsafe_command() if self._unsafe else _command()
        request = _request(program, inputs, self._limits, unsafe=self._unsafe)
        lines, _ = _last_words(command, request, self._limits.seconds * len(inputs) + _START_S)
        outcomes = [_outcome(answer, self._limits) for answer in _values(lines)[: len(inputs)]]
        return outcomes + [_GONE] * (len(inputs) - len(outcomes))


_GONE = Outcome(output="", errors="", exit_code=-signal.SIGKILL, timed_out=True)
"""Of a program that took what runs it along."""


def _request(program: str, inputs: Sequence[str], limits: Limits, *, unsafe: bool) -> bytes:
    """What the runner reads."""
    user = _FIRST_USER + os.getpid() * _USERS_PER_PROCESS + next(_programs) % _USERS_PER_PROCESS
    seconds, file_bytes = max(1, math.ceil(limits.seconds)), limits.file_mb * _MIB
    walls = (
        None
        if unsafe
        else {
            "limits": [
                (resource.RLIMIT_AS, limits.memory_mb * _MIB),
                (resource.RLIMIT_CPU, seconds),
                (resource.RLIMIT_NPROC, limits.threads),
                (resource.RLIMIT_FSIZE, file_bytes),
                (resource.RLIMIT_NOFILE, 64),
                (resource.RLIMIT_SIGPENDING, 64),
                (resource.RLIMIT_MEMLOCK, 0),
                (resource.RLIMIT_CORE, 0),
            ],
            "filter": base64.b64encode(system_call_filter()).decode(),
            "user": user if _is_root() else None,
        }
    )
    request = {
        "program": program,
        "inputs": list(inputs),
        "seconds": limits.seconds,
        "output_chars": limits.output_chars,
        "walls": walls,
    }
    return json.dumps(request).encode()


def _last_words(command: list[str], request: bytes, timeout_s: float) -> tuple[str, str]:
    """What the runner wrote until its end, or until time was up: output and errors."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(request)
        given.seek(0)
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=output,
            stderr=errors,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass  # what it wrote until then counts
        finally:
            # The first process of the namespace dies with bwrap, and all others with the first.
            _kill_group(process)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace"))
    return texts[0], texts[1]


def _values(lines: str) -> list[Any]:
    """The JSON values of lines, up to one that is none."""
    values = []
    for line in lines.splitlines():
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return values


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


_TRIAL = """
import ctypes, decimal, heapq, os
for what, call in (
    ("start another process", lambda: os.fork() or os._exit(0)),
    ("write a file", lambda: open("/tmp/file", "w")),
    ("make a user namespace", lambda: ctypes.CDLL(None).unshare(0x10000000) == 0 or open("/none")),
):
    try:
        call()
    except OSError:
        continue
    print("a program can", what)
    break
else:
    print(42)
"""


@lru_cache(maxsize=1)
def why_not() -> str:
    """Why no sandbox can be made here; "" where one can. Tried once in a process."""
    way_out = "or set unsafe to true to run code without a sandbox"
    if problem := why_no_filter():
        return f"running code in a sandbox does not work here: {problem}; {way_out}"
    if _bubblewrap() is None:
        return (
            f"running code needs bwrap, which is not installed: apt install bubblewrap, {way_out}"
        )
    limits = Limits(seconds=_START_S)
    request = _request(_TRIAL, [""], limits, unsafe=False)
    lines, errors = _last_words(_command(), request, _START_S)
    outcome = next((_outcome(value, limits) for value in _values(lines)), None)
    if outcome is not None and outcome.output == "42\n":
        return ""
    if outcome is None:
        last = errors.strip().splitlines()[-1:] or ["it said nothing"]
        reason = f"{last[0]}): bubblewrap needs root or user namespaces"
    else:
        last_words = outcome.errors.strip().splitlines()[-1:] or [outcome.output.strip()]
        reason = f"{last_words[0]}): it would not hold programs"
    return f"the sandbox does not start here ({shorten(reason, 250)}; {way_out}"


def _is_root() -> bool:
    return os.geteuid() == 0


@lru_cache(maxsize=1)
def _bubblewrap() -> str | None:
    """Found once, by the user's PATH: what was tried is what runs."""
    return shutil.which("bwrap")


@lru_cache(maxsize=1)
def _command() -> list[str]:
    """The sandbox with the runner as its first process, which no signal from inside reaches."""
    walls = [
        _bubblewrap() or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session",
        "--as-pid-1", "--cap-drop", "ALL",
    ]  # fmt: skip
    if _is_root():  # to start programs as users that own nothing, and to end them
        walls += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL"]
    else:
        walls += ["--unshare-user", "--uid", str(_FIRST_USER), "--gid", str(_FIRST_USER)]
    walls += [*_file_system(), "--chdir", "/tmp", "--remount-ro", "/"]
    python = f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return [*walls, python, "-I", "-S", "/runner.py"]


def _file_system() -> list[str]:
    """Python with its own library and what that links to; nothing in it can be written to."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base, library = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib"))
    home = f"/python/{library.parent.relative_to(base)}"
    arguments = [
        argument
        for folder in ("/usr", "/usr/lib", "/python", "/python/bin", home, "/dev", "/tmp")
        for argument in ("--dir", folder)
    ]
    for link in (Path("/lib"), Path("/lib64")):
        if link.is_symlink():
            arguments += ["--symlink", f"usr{link}", str(link)]
    for folder in _system_libraries():
        arguments += _bound(folder, str(folder), hidden=list(folder.glob("python*")))
    if base == Path("/usr"):
        arguments += _bound(library, f"{home}/{name}", hidden=_packages(library))
    else:  # its shared libraries are there, and maybe much else
        others = [path for path in library.parent.iterdir() if path != library]
        arguments += _bound(library.parent, home, hidden=[*others, *_packages(library)])
    arguments += ["--ro-bind", str(base / "bin" / name), f"/python/bin/{name}"]
    arguments += ["--ro-bind", code_runner.__file__, "/runner.py"]
    for device in ("null", "zero", "full", "random", "urandom"):
        arguments += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        arguments += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{stream}"]
    return [*arguments, "--symlink", "/proc/self/fd", "/dev/fd", "--proc", "/proc"]


def _system_libraries() -> list[Path]:
    """Where the shared libraries of this machine are: Debian keeps them apart from all else."""
    folders = [Path("/usr/lib64"), Path("/lib"), Path("/lib64")]
    apart = Path("/usr/lib", str(sysconfig.get_config_var("MULTIARCH")))
    folders.append(apart if apart.is_dir() else Path("/usr/lib"))
    return [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]


def _packages(library: Path) -> list[Path]:
    """What others have put into Python's own library, this package with its data perhaps."""
    return [library / "site-packages", library / "dist-packages"]


def _bound(folder: Path, target: str, *, hidden: list[Path]) -> list[str]:
    arguments = ["--ro-bind", str(folder), target]
    for path in hidden:
        if path.is_dir() and not path.is_symlink():
            covered = f"{target}/{path.relative_to(folder)}"
            arguments += ["--tmpfs", covered, "--remount-ro", covered]
    return arguments


def _unsafe_command() -> list[str]:
    return [sys.executable, "-I", code_runner.__file__]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
