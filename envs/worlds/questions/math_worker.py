"""Are two mathematical texts equal? Asked in processes of their own, which may be killed.

The texts come from a policy and from files. math-verify hands them to a computer algebra system,
which nothing bounds: so it runs where time, memory and processes are limited. A worker reads lines
of JSON {"given", "wanted"} and answers {"equal"}; it ends when its input does. Each question is
worked on by a fork of the worker: what takes too long ends with its fork, and nothing has to be
loaded anew.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import subprocess
import sys
import threading
from collections import OrderedDict
from functools import lru_cache
from queue import LifoQueue

MAX_CHARS = 300
"""Of a text that is compared; longer ones are not equal to anything."""
CPU_S = 1
"""Seconds of a core that one comparison may take, on a busy machine as on an idle one."""
ANSWER_TIMEOUT_S = 30.0
"""Seconds of wall clock after which a worker that gives no answer is replaced."""
START_TIMEOUT_S = 60.0
MAX_MEMORY_BYTES = 2 << 30
MAX_WORKERS = 4
MAX_REMEMBERED = 50_000
"""Verdicts that are kept: siblings of a group give the same answers again and again."""

_WARM_UP = ((r"x + 1 = \frac{1}{2}", r"\sqrt{2}, 5^2"), ("x+1", "1+x"), ("(1,2)", "(2,1)"))
"""Compared once, so that no fork has to load what these need."""
_EQUAL, _UNEQUAL = 0, 1
"""Exit codes of a fork; any other end of it is no equality."""


class MathWorker:
    """One such process. It starts when it is asked first, and again after it had to be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def are_equal(self, given: str, wanted: str) -> bool:
        """Whether two texts mean the same; False where `CPU_S` do not suffice to find that out."""
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
        return self._answer(ANSWER_TIMEOUT_S)

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


class MathWorkers:
    """Some workers, each asked when it is free, and a memory of their verdicts.

    Args:
        number: of workers at most; one starts only where all that run are busy.
        max_remembered: verdicts that are kept; the one that was not asked for longest goes first.
    """

    def __init__(self, number: int, max_remembered: int = MAX_REMEMBERED) -> None:
        self._workers = [MathWorker() for _ in range(number)]
        self._idle: LifoQueue[MathWorker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._max_remembered = max_remembered
        self._verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._lock = threading.Lock()

    def are_equal(self, given: str, wanted: str) -> bool:
        """As `MathWorker.are_equal`; a pair that was asked before is not worked on again."""
        pair = (given, wanted)
        with self._lock:
            if pair in self._verdicts:
                self._verdicts.move_to_end(pair)
                return self._verdicts[pair]
        worker = self._idle.get()
        try:
            verdict = worker.are_equal(given, wanted)
        finally:
            self._idle.put(worker)
        with self._lock:
            self._verdicts[pair] = verdict
            while len(self._verdicts) > self._max_remembered:
                self._verdicts.popitem(last=False)
        return verdict

    def close(self) -> None:
        """End every process."""
        for worker in self._workers:
            worker.close()


@lru_cache(maxsize=1)
def shared_workers() -> MathWorkers:
    """The workers of this process: one takes two seconds to start."""
    workers = MathWorkers(min(MAX_WORKERS, os.cpu_count() or 1))
    atexit.register(workers.close)
    return workers


def work() -> None:
    """What a worker does: `python -c "from ... import work; work()"`."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for given, wanted in _WARM_UP:
        _are_equal(given, wanted)
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        question = json.loads(line)
        fork = os.fork()
        if fork == 0:
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
                is_equal = _are_equal(question["given"], question["wanted"])
            except BaseException:  # noqa: BLE001 - whatever it is, the fork must not read on
                is_equal = False
            os._exit(_EQUAL if is_equal else _UNEQUAL)
        _, status = os.waitpid(fork, 0)
        sys.stdout.write(json.dumps({"equal": status == _EQUAL}) + "\n")
        sys.stdout.flush()


def _are_equal(given: str, wanted: str) -> bool:
    from math_verify import parse, verify  # type: ignore[import-untyped]

    sides = [parse(f"${text}$") for text in (wanted, given)]
    return all(sides) and bool(verify(*sides))


def _environment() -> dict[str, str]:
    """No more than the worker needs: what it reads comes from a policy."""
    kept = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "PYTHONPATH")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": path}
