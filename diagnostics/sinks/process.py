"""The run's side of a sink's process: a thread that hands over records and never holds anybody up.

What fails there is said once and stands in the sink's status; the run goes on. A sink that does not
answer in time is ended, and so is one that fails five times in a row.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from echoscope.text.amounts import counted

from .records import Record
from .settings import SinkName
from .status import SinkStatus, write_status

MAX_WAITING = 1000
"""Records that wait for a sink; while more come, the oldest are lost, and counted."""
MAX_FAILURES = 5
_MAX_ANSWER = 10_000
_WORKER = "from echoscope.diagnostics.sinks.worker import main; main()"


class _SinkGoneError(Exception):
    """The process ended, or did not answer in time."""


class SinkProcess:
    """One sink of one run.

    Args:
        opening: the first record.
        status: what is known from before, such as the identity of a run that goes on.
        timeout_s: longest wait for an answer.
        on_message: told of what goes wrong, from a thread.
        code: Python that serves the records, instead of `worker.main`.
    """

    def __init__(
        self,
        opening: Record,
        *,
        run_path: Path,
        status: SinkStatus,
        timeout_s: float,
        on_message: Callable[[str], None],
        code: str = _WORKER,
    ) -> None:
        self.name: SinkName = status.sink
        self.status = status
        self._opening, self._run_path = opening, run_path
        self._timeout_s, self._say, self._code = timeout_s, on_message, code
        self._waiting: deque[Callable[[], Record]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_given_up = False
        self._end = ""
        self._num_dropped = 0
        self._num_failures = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name=f"sink {self.name}", daemon=True)
        self._thread.start()

    def put(self, make: Callable[[], Record]) -> None:
        """Hand over a record, which the thread makes. Returns at once."""
        with self._changed:
            if self._is_closed:
                return
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self._num_dropped += 1
            self._waiting.append(make)
            self._changed.notify_all()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def close(self, status: str) -> None:
        """Let the sink take what waits and finish; `join` waits for it."""
        with self._changed:
            self._is_closed, self._end = True, status
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end; a sink that needs longer is ended."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._is_given_up = True
            self._kill()
            self._thread.join(5.0)

    def _work(self) -> None:
        try:
            self._start()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._is_closed)
                    make = self._waiting.popleft() if self._waiting else None
                    num_dropped, self._num_dropped = self._num_dropped, 0
                if num_dropped:
                    self._lose(num_dropped, f"too slow: {counted(num_dropped, 'record')} lost")
                if make is None:
                    break
                self._hand_over(make())
            answer = self._ask({"kind": "close", "status": self._end})
            if problem := answer.get("error") or answer.get("warning"):
                self._trouble(problem)
            self._note(state="failed" if "error" in answer else "finished")
        except _SinkGoneError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a copy is never worth a run; it is said
            self._fail(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        finally:
            with self._changed:
                self._is_closed = True
                self._waiting.clear()
            self._kill()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", self._code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,  # Ctrl-C ends the run in order, and the run ends its sinks
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        answer = self._ask(self._opening)
        if "error" in answer:
            raise _SinkGoneError(f"it refuses the run: {answer['error']}")
        self._note(where=answer.get("where", ""), identity=answer.get("identity", ""))

    def _hand_over(self, record: Record) -> None:
        answer = self._ask(record)
        problem = answer.get("error") or answer.get("warning", "")
        if "error" in answer:
            self._num_failures += 1
            self._lose(1, problem)
            if self._num_failures >= MAX_FAILURES:
                raise _SinkGoneError(f"it failed {MAX_FAILURES} times in a row: {problem}")
            return
        self._num_failures = 0
        if problem:
            self._trouble(problem)
        if record["kind"] == "step":
            self._note(last_step=record["step"])

    def _ask(self, record: Mapping[str, Any]) -> dict[str, str]:
        """The answer to a record.

        Raises:
            _SinkGoneError: there is none in time, or the process ended.
        """
        process, deadline = self._process, time.monotonic() + self._timeout_s
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        rest = memoryview(json.dumps(record, default=str).encode() + b"\n")
        while rest:
            self._wait([], [process.stdin], deadline)
            try:
                rest = rest[os.write(process.stdin.fileno(), rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise _SinkGoneError(self._last_words()) from None
        line = b""
        while not line.endswith(b"\n"):
            self._wait([process.stdout], [], deadline)
            piece = os.read(process.stdout.fileno(), _MAX_ANSWER)
            line += piece
            if not piece:
                raise _SinkGoneError(self._last_words())
            if len(line) > _MAX_ANSWER:
                raise _SinkGoneError(f"its answer has over {_MAX_ANSWER} bytes")
        answer: dict[str, str] = json.loads(line)
        return answer

    def _wait(self, reads: list[Any], writes: list[Any], deadline: float) -> None:
        ready = select.select(reads, writes, [], max(0.0, deadline - time.monotonic()))
        if not (ready[0] or ready[1]):
            raise _SinkGoneError(f"no answer within {self._timeout_s:g} s")

    def _last_words(self) -> str:
        """Why the process ended, from what it printed."""
        if self._is_given_up:
            return "it did not finish in time"
        assert self._process is not None
        try:
            code: int | str = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = "unknown"
        words = ""
        if self._errors is not None:
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, self._errors.tell() - 2000))
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            words = f": {lines[-1][:200]}" if lines else ""
        return f"its process ended (code {code}){words}"

    def _kill(self) -> None:
        """End the process and what it started."""
        process = self._process
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
        if threading.current_thread() is self._thread:
            for pipe in (process.stdin, process.stdout, self._errors):
                if pipe is not None:
                    pipe.close()

    def _fail(self, why: str) -> None:
        num_lost = len(self._waiting)
        self._say(
            f"sink {self.name}: stopped: {why}; the run goes on. `echoscope mirror "
            f"{self._run_path} --to {self.name}` copies the rest later"
        )
        self._note(state="failed", problem=why, num_lost=self.status.num_lost + num_lost)

    def _lose(self, count: int, why: str) -> None:
        self._trouble(why)
        self._note(num_lost=self.status.num_lost + count)

    def _trouble(self, why: str) -> None:
        if why != self.status.problem:
            self._say(f"sink {self.name}: {why}")
        self._note(problem=why)

    def _note(self, **values: Any) -> None:
        self.status = self.status.changed(**values)
        try:
            write_status(self._run_path, self.status)
        except OSError as error:
            if not self.status.problem:
                self.status = self.status.changed(problem=f"its status is not written: {error}")
                self._say(f"sink {self.name}: {self.status.problem}")
