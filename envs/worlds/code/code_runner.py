"""Runs inside the sandbox, where nothing but Python's own library is: the program, once an input.

The standard input has the request. Every input has a process of its own, and what the program
prints goes to files in memory, whose size is bounded; one line of JSON an input, [output, errors,
exit code, timed out], goes to the standard output.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from typing import IO, Any

_LOOK_EVERY_S = 0.002
_SET_DUMPABLE, _SET_SECCOMP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 4, 22, 36, 38
"""Of prctl(2)."""
_SECCOMP_FILTER = 2
_CLOSE_ON_EXEC = 1
"""Of memfd_create(2)."""


class _Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def main() -> None:
    """`python code_runner.py`, with {program, inputs, seconds, output_chars, walls} to read.

    `walls` are {limits, filter, user}; null runs the program without them.
    """
    request = json.loads(sys.stdin.buffer.read())
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process hears no signal so
    if sys.platform == "linux":
        _control(_SET_CHILD_SUBREAPER, 1)
        _control(_SET_DUMPABLE, 0)  # no other process may look inside, of the same user neither
    source = request["program"].encode("utf-8", "replace")
    for given in request["inputs"]:
        answer = _run(source, given, request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _run(source: bytes, given: str, request: dict[str, Any]) -> list[Any]:
    output_chars = request["output_chars"]
    with _memory_file() as stdin, _memory_file() as output, _memory_file() as errors:
        stdin.write(given.encode("utf-8", "replace"))
        stdin.seek(0)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate((stdin, output, errors)):
                os.dup2(file.fileno(), number)
            _become(source, request["walls"])
        exit_code, timed_out = _wait(pid, time.monotonic() + request["seconds"])
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read(4 * output_chars).decode("utf-8", "replace")[:output_chars])
        return [*texts, exit_code, timed_out]


def _memory_file() -> IO[bytes]:
    """In the sandbox no folder can be written to.

    By the C library: Python lacks `os.memfd_create` where it was built for older ones.
    """
    if sys.platform == "linux":
        return os.fdopen(ctypes.CDLL(None).memfd_create(b"program", _CLOSE_ON_EXEC), "w+b")
    import tempfile

    return tempfile.TemporaryFile()


def _wait(pid: int, deadline: float) -> tuple[int, bool]:
    timed_out = False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            timed_out = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)
    _end_what_it_left(pid)
    return os.waitstatus_to_exitcode(status), timed_out


def _end_what_it_left(pid: int) -> None:
    """End every process that the program started and did not wait for.

    Linux gives them to this process when their parents end, those with a session of their own too.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(_LOOK_EVERY_S)


def _children() -> list[int]:
    child_pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):  # it ended in between
                continue
            if parent == os.getpid():
                child_pids.append(int(name))
    return child_pids


def _become(source: bytes, walls: dict[str, Any] | None) -> None:
    """Be the program from here on. Does not return."""
    exit_code = 0
    try:
        os.setsid()
        os.closerange(3, 256)
        if walls is not None:
            _raise_walls(walls)
        sys.argv = ["program.py"]
        sys.set_int_max_str_digits(0)  # right answers may be long
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        inside = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, inside)
        exit_code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:  # noqa: BLE001 - the program may have closed them
            exit_code = exit_code or 1
        os._exit(exit_code & 0xFF)


def _raise_walls(walls: dict[str, Any]) -> None:
    """Give up, for good, what the program may not have. Raises if the kernel keeps any of it."""
    for kind, most in walls["limits"]:
        resource.setrlimit(kind, (most, most))
    if (user := walls["user"]) is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _control(_SET_DUMPABLE, 1)  # or its own /proc/self, and with it /dev/stdin, is closed to it
    _control(_SET_NO_NEW_PRIVILEGES, 1)
    steps = base64.b64decode(walls["filter"])
    kept = ctypes.create_string_buffer(steps, len(steps))
    program = _Filter(len(steps) // 8, ctypes.addressof(kept))
    _control(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.addressof(program))


def _control(option: int, *arguments: int) -> None:
    """prctl(2)."""
    values = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


if __name__ == "__main__":
    main()
