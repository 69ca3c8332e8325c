"""Runs inside the sandbox, where nothing but Python's own library is: the program, once an input.

Every input has a process of its own. What the program prints goes to files, whose size is bounded;
one line of JSON an input, [output, errors, exit code, timed out], goes to the standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

_LOOK_EVERY_S = 0.002


def main() -> None:
    """`python runner.py`, beside `program.py` and `request.json`."""
    folder = Path(__file__).parent
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    source = (folder / "program.py").read_bytes()
    for given in request["inputs"]:
        answer = _run(source, given, request["seconds"], request["output_chars"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _run(source: bytes, given: str, seconds: float, output_chars: int) -> list[Any]:
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        stdin.write(given.encode("utf-8", "replace"))
        stdin.seek(0)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate((stdin, output, errors)):
                os.dup2(file.fileno(), number)
            _become(source)
        exit_code, timed_out = _wait(pid, time.monotonic() + seconds)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read(4 * output_chars).decode("utf-8", "replace")[:output_chars])
        return [*texts, exit_code, timed_out]


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
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # what the program started goes with it
    return os.waitstatus_to_exitcode(status), timed_out


def _become(source: bytes) -> None:
    """Be the program from here on. Does not return."""
    exit_code = 0
    try:
        os.setsid()
        os.closerange(3, 256)
        sys.argv = ["program.py"]
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


if __name__ == "__main__":
    main()
