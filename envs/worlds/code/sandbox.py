"""Runs Python that nobody trusts: in namespaces of its own, without a network, within limits.

bubblewrap (Debian: `apt install bubblewrap`) makes a file system of the interpreter and its
libraries, all of it read-only, and namespaces for processes, network and names. Inside, the runner
(code_runner.py) starts the program as a user that owns nothing, with resource limits and a filter
of system calls for seccomp.

The filter is a list of what is allowed, so what a later kernel brings is refused. Nothing on it
makes a process, a name space, a socket to elsewhere, or memory that no limit counts: then the limit
of one process's address space is the limit of all memory.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from echoscope.text.limited_child import kill_group

from ...base import EnvUnavailableError, shorten
from . import code_runner

_LOAD, _JUMP_IF_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
"""What is not on the list does not exist: the C library then falls back from new calls to old."""

_CLONE_THREAD = 0x00010000
_CLONE_KINDS = _CLONE_THREAD | 0x7E020000
"""The bits of `clone` that decide: a thread of this process, or something in new name spaces."""

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Audit architectures, from linux/audit.h."""

_FREE = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None),
    "fstat": (5, 80), "lstat": (6, None), "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "access": (21, None),
    "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216),
    "msync": (26, 227), "mincore": (27, 232), "madvise": (28, 233), "dup": (32, 23),
    "dup2": (33, None), "pause": (34, None), "nanosleep": (35, 101), "getitimer": (36, 102),
    "alarm": (37, None), "setitimer": (38, 103), "getpid": (39, 172), "sendto": (44, 206),
    "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "getsockopt": (55, 209), "exit": (60, 93), "wait4": (61, 260),
    "kill": (62, 129), "uname": (63, 160), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "getdents": (78, None), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169),
    "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153),
    "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177),
    "getppid": (110, 173), "getpgrp": (111, None), "getgroups": (115, 158),
    "getresuid": (118, 148), "getresgid": (120, 150), "getpgid": (121, 155), "getsid": (124, 156),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "statfs": (137, 43), "fstatfs": (138, 44),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "arch_prctl": (158, None), "setrlimit": (160, 164), "gettid": (186, 178), "tkill": (200, 130),
    "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123),
    "getdents64": (217, 61), "set_tid_address": (218, 96), "restart_syscall": (219, 128),
    "fadvise64": (221, 223), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None),
    "epoll_ctl": (233, 21), "tgkill": (234, 131), "waitid": (247, 95), "openat": (257, 56),
    "newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48),
    "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "epoll_pwait": (281, 22), "epoll_create1": (291, 20),
    "dup3": (292, 24), "pipe2": (293, 59), "getcpu": (309, 168), "getrandom": (318, 278),
    "statx": (332, 291), "rseq": (334, 293), "close_range": (436, 436), "faccessat2": (439, 439),
}  # fmt: skip
"""Calls that are allowed with any arguments: (number on x86_64, number on aarch64)."""

_BOUND: dict[str, tuple[tuple[int, int], int, int, tuple[int, ...]]] = {
    "ioctl": ((16, 29), 1, ~0, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # Duplicate, and flags: no locks, whose number nothing bounds, and no larger pipes.
    "fcntl": ((72, 25), 1, ~0, (0, 1, 2, 3, 4, 1030)),
    "socketpair": ((53, 199), 0, ~0, (1,)),
    "clone": ((56, 220), 0, _CLONE_KINDS, (_CLONE_THREAD,)),
    "prlimit64": ((302, 261), 0, ~0, (0,)),  # of itself, not of what watches it
}
"""Calls of which one argument must have one of some values, after a mask: numbers, which argument,
mask, values."""


def why_no_filter(machine: str | None = None) -> str:
    """Why no filter can be made for a machine, this one unless told; "" where one can."""
    machine = machine or platform.machine()
    if machine in _MACHINES:
        return ""
    return f"the filter of system calls knows {' and '.join(_MACHINES)}, not {machine}"


@lru_cache
def system_call_filter(machine: str | None = None) -> bytes:
    """The filter for a machine, this one unless told, as `struct sock_filter[]` in its order.

    See linux/seccomp.h and linux/filter.h. A call of another architecture ends the program.
    """
    machine = machine or platform.machine()
    machine_index = list(_MACHINES).index(machine)
    steps = [
        _step(_LOAD, 4),  # seccomp_data.arch
        _step(_JUMP_IF_EQUAL, _MACHINES[machine], if_so=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, 0),  # seccomp_data.nr
    ]
    for numbers, argument, mask, values in _BOUND.values():
        checks = [_step(_LOAD, 16 + 8 * argument), _step(_AND, mask)]  # the low half of it
        for value in values:
            checks += [_step(_JUMP_IF_EQUAL, value, if_not=1), _step(_RETURN, _ALLOW)]
        checks.append(_step(_RETURN, _ERROR | _EPERM))
        steps += [_step(_JUMP_IF_EQUAL, numbers[machine_index], if_not=len(checks)), *checks]
    for free in _FREE.values():
        if (number := free[machine_index]) is not None:
            steps += [_step(_JUMP_IF_EQUAL, number, if_not=1), _step(_RETURN, _ALLOW)]
    steps.append(_step(_RETURN, _ERROR | _ENOSYS))
    return b"".join(steps)


def _step(code: int, value: int, *, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value & 0xFFFFFFFF)


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
class SandboxLimits:
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
class ProgramRun:
    """What a program did."""

    output: str
    errors: str
    exit_code: int
    """Negative: the signal that ended it."""
    timed_out: bool


class Sandbox:
    """A way to run programs. `unsafe=True` runs them without walls: only time is bounded then."""

    def __init__(self, limits: SandboxLimits, *, unsafe: bool = False) -> None:
        self._limits = limits
        self._unsafe = unsafe
        if not unsafe and (problem := why_not()):
            raise EnvUnavailableError(problem)

    def run(self, program: str, inputs: Sequence[str] = ("",)) -> list[ProgramRun]:
        """Run a program on each input, to its end or to its limits.

        One sandbox serves all inputs: the first process in it starts the program for each in turn.
        """
        command = [sys.executable, "-I", code_runner.__file__] if self._unsafe else _command()
        request = _request(program, inputs, self._limits, unsafe=self._unsafe)
        lines, _ = _last_words(command, request, self._limits.seconds * len(inputs) + _START_S)
        outcomes = [_outcome(answer, self._limits) for answer in _values(lines)[: len(inputs)]]
        return outcomes + [_GONE] * (len(inputs) - len(outcomes))


_GONE = ProgramRun(output="", errors="", exit_code=-signal.SIGKILL, timed_out=True)
"""Of a program that took what runs it along."""


def _request(program: str, inputs: Sequence[str], limits: SandboxLimits, *, unsafe: bool) -> bytes:
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
            "user": user if os.geteuid() == 0 else None,
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
            kill_group(process)
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


def _outcome(answer: Any, limits: SandboxLimits) -> ProgramRun:
    match answer:
        case [str(output), str(errors), int(exit_code), bool(timed_out)]:
            return ProgramRun(
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
    limits = SandboxLimits(seconds=_START_S)
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
    if os.geteuid() == 0:  # to start programs as users that own nothing, and to end them
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
