"""Are two mathematical texts equal? Asked in a process of its own, which may be killed.

The texts come from a policy and from files. math-verify hands them to a computer algebra system,
which nothing bounds: so it runs where time, memory and processes are limited. The worker reads
lines of JSON {"given", "wanted"} and answers {"equal"}; it ends when its input does.
"""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
import threading
from functools import lru_cache

MAX_CHARS = 300
"""Of a text that is compared; longer ones are not equal to anything."""
TIMEOUT_S = 5.0
START_TIMEOUT_S = 60.0
MAX_MEMORY_BYTES = 2 << 30


class MathWorker:
    """One such process. It starts when it is asked first, and again after it had to be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def are_equal(self, given: str, wanted: str) -> bool:
        """Whether two texts mean the same; False where that cannot be found out in `TIMEOUT_S`."""
        if max(len(given), len(wanted)) > MAX_CHARS:
            return False
        with self._lock:
            return self._ask(json.dumps({"given": given, "wanted": wanted})) == '{"equal": true}'

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _ask(self, question: str) -> str:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import work; work()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=_environment(),
            )
            self._answer(START_TIMEOUT_S)
        process = self._process
        if process is None or process.stdin is None:
            return ""
        try:
            process.stdin.write(f"{question}\n")
            process.stdin.flush()
        except OSError:
            self._kill()
            return ""
        return self._answer(TIMEOUT_S)

    def _answer(self, timeout_s: float) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        is_ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        line = process.stdout.readline().strip() if is_ready else ""
        if not line:
            self._kill()
        return line

    def _kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not written goes nowhere
                    continue
        self._process = None


@lru_cache(maxsize=1)
def shared_worker() -> MathWorker:
    """The worker of this process: it takes two seconds to start."""
    worker = MathWorker()
    atexit.register(worker.close)
    return worker


def work() -> None:
    """What the worker does: `python -c "from ... import work; work()"`."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from math_verify import parse, verify  # type: ignore[import-untyped]

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        question = json.loads(line)
        try:
            wanted, given = (parse(f"${question[name]}$") for name in ("wanted", "given"))
            is_equal = bool(wanted and given and verify(wanted, given))
        except (ArithmeticError, MemoryError, RecursionError, ValueError, TypeError):
            is_equal = False
        sys.stdout.write(json.dumps({"equal": is_equal}) + "\n")
        sys.stdout.flush()


def _environment() -> dict[str, str]:
    """No more than the worker needs: what it reads comes from a policy."""
    import os

    kept = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "PYTHONPATH")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": path}
