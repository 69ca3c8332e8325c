"""Work on what strangers wrote in a process of its own, where the operating system sets the limits.

The child reads questions as lines of JSON and writes answers so; it ends when its input does. It
works on each question in a fork of itself: what takes too long or too much ends with its fork, and
nothing has to be loaded anew.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from queue import LifoQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

START_TIMEOUT_S = 60.0
_KEPT = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH")


class ChildError(Exception):
    """A child gave no answer; the message is a clause whose subject is the child."""


class Child:
    """A process that answers lines of JSON with such lines. Questions wait for each other.

    It starts when it is asked first, and again after it had to be killed.

    Args:
        code: Python that writes a line when it is ready, and then a line for each that it reads.
    """

    def __init__(self, code: str) -> None:
        self._code = code
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.generation = 0
        """How many processes there were: what an earlier one knew is gone."""

    def answer(self, question: Any, timeout_s: float, what: str = "the question") -> Any:
        """The answer to a question, which `what` names in an error.

        Raises:
            ChildError: the process ended, or took longer than `timeout_s` of wall clock.
        """
        with self._lock:
            process = self._started()
            try:
                assert process.stdin is not None
                process.stdin.write(f"{json.dumps(question)}\n")
                process.stdin.flush()
            except OSError:
                self._kill()
                raise ChildError(f"ended before {what}") from None
            return json.loads(self._line(process, timeout_s, what))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def arguments(self) -> Sequence[str]:
        """Of the command line of a process that starts."""
        return ()

    def _started(self) -> subprocess.Popen[str]:
        process = self._process
        if process is None or process.poll() is not None:
            self._kill()
            process = self._process = subprocess.Popen(
                # -P: only what is installed is imported, nothing of the folder it is started in.
                [sys.executable, "-P", "-c", self._code, *self.arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                env=environment(),
                start_new_session=True,  # Ctrl-C ends the caller in order, and the caller ends this
            )
            self.generation += 1
            self._line(process, START_TIMEOUT_S, "the start")
        return process

    def _line(self, process: subprocess.Popen[str], timeout_s: float, what: str) -> str:
        assert process.stdout is not None
        is_ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        line = process.stdout.readline() if is_ready else ""
        if not line.endswith("\n"):
            self._kill()
            reason = "ended during" if is_ready else f"took longer than {timeout_s:g} seconds for"
            raise ChildError(f"{reason} {what}")
        return line

    def _kill(self) -> None:
        if self._process is None:
            return
        kill_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what was not written goes nowhere
                if pipe is not None:
                    pipe.close()
        self._process = None


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End a process that has a session of its own, with all that it started, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class LimitedChildren:
    """Children that work within limits, each asked when it is free.

    Args:
        module: Its function `work` calls `serve`.
        number: Of children at most; one starts only where all that run are busy.
    """

    def __init__(self, module: str, number: int = 1) -> None:
        self._children = [Child(f"from {module} import work; work()") for _ in range(number)]
        self._idle: LifoQueue[Child] = LifoQueue()
        for child in self._children:
            self._idle.put(child)

    def ask(self, question: Any, timeout_s: float) -> Any:
        """The answer; None where the limits did not suffice, or `timeout_s` of wall clock."""
        child = self._idle.get()
        try:
            return child.answer(question, timeout_s)
        except ChildError:
            return None
        finally:
            self._idle.put(child)

    def close(self) -> None:
        for child in self._children:
            child.close()


@cache
def shared_children(module: str, number: int = 1) -> LimitedChildren:
    """Those of this process: one may take seconds to import what it needs."""
    children = LimitedChildren(module, number)
    atexit.register(children.close)
    return children


def serve(answer: Callable[[Any], Any], prepare: Callable[[Any], None] | None = None) -> None:
    """Answer questions until there are no more, each in a fork.

    Args:
        answer: Gives the answer to a question, as JSON has it. It calls `limit` first.
        prepare: Called with a question before the fork, to load what later forks need, too.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        question = json.loads(line)
        if prepare is not None:
            prepare(question)
        fork = os.fork()
        if fork == 0:
            code = 1
            try:
                answers.write(f"{json.dumps(answer(question))}\n")
                answers.flush()
                code = 0
            finally:
                os._exit(code)  # whatever happens, the fork must not read on
        if os.waitpid(fork, 0)[1]:
            answers.write("null\n")
            answers.flush()


def connected_child(
    module: str, env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Connection]:
    """A process that calls `work` of a module with a descriptor; the other end of it is ours."""
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    with theirs:
        code = f"from {module} import work; work({theirs.fileno()})"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=env,
        )
    return process, ours


def environment() -> dict[str, str]:
    """No more than such a process needs: what it reads might get at the rest."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | {
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",  # the same order of sets in every process
        # The limit of memory counts addresses, which pools of threads and allocators reserve.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }


def limit(
    *, memory_bytes: int, cpu_s: int, file_bytes: int | None = None, is_closed: bool = False
) -> None:
    """Limit this process from now on. It leaves no core dump, either.

    Args:
        memory_bytes: Of addresses, on top of those that it has.
        cpu_s: Seconds of a core, on a busy machine as on an idle one.
        file_bytes: The largest size of a file that it writes.
        is_closed: Open nothing more: no file, no connection, no program. What is open stays so,
            and what is not imported yet cannot be.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: pages * resource.getpagesize() + memory_bytes,
        resource.RLIMIT_CPU: cpu_s,
    }
    if file_bytes is not None:
        limits[resource.RLIMIT_FSIZE] = file_bytes
    if is_closed:
        limits[resource.RLIMIT_NOFILE] = 0
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
