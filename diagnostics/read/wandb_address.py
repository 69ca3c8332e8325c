"""A run at a W&B server, by its address `wandb:ENTITY/PROJECT/RUN`, through wandb's public API.

wandb is asked in a process of its own: it starts further processes, retries for minutes, and may
hang. Where no row comes for `timeout_s`, the process is ended. The server is that of WANDB_BASE_URL
(default: wandb.ai), the key that of WANDB_API_KEY or `wandb login`; it is never an argument.

wandb retries silently, and says of a server that fails that it does not take the key. So where
wandb has no answer, one plain request without a key tells what is wrong with the server.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import queue
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .foreign_names import Meaning
from .forms.wandb_file import numbers_of_row
from .records import Collector, MetricsFileError
from .runs import RunMetrics

PREFIX = "wandb:"
TIMEOUT_S = 60.0
PAGE = 500
"""Rows a request."""
SILENT_S = 15.0
"""After so long without an answer the server is asked by a plain request what is wrong."""
GRACE_S = 30.0
"""So much longer than `timeout_s` the process has to load wandb, and to say why nothing comes."""
_PLAIN_S = 5.0
"""How long that plain request may take: a slow server is no failure."""
_LOOK_S = 0.2
_MAX_LINE = 64 << 20
_KEY = "W&B does not take the key"
_WORKER = "from echoscope.diagnostics.read.wandb_address import main; main()"

Progress = Callable[[int, int], None]


class NoAnswerError(MetricsFileError):
    """The server gives no usable answer now; it may give one later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """What a server says of a run."""

    metrics: RunMetrics | None
    """None where the run has no row yet."""
    state: str
    """`running`, `finished`, `failed`, `crashed`, `killed` or another word of W&B; may be empty."""


def is_address(text: str | Path) -> bool:
    """Whether somebody names a run at a W&B server."""
    return str(text).startswith(PREFIX)


def path_of(address: str) -> str:
    """`ENTITY/PROJECT/RUN` of an address.

    >>> path_of("wandb:lab/ragen/3f8a2c1d")
    'lab/ragen/3f8a2c1d'

    Raises:
        MetricsFileError: it has not these three parts.
    """
    parts = address.removeprefix(PREFIX).strip("/").split("/")
    if len(parts) != 3 or not all(part.strip() and part.isprintable() for part in parts):
        raise MetricsFileError(
            f"{address}: write wandb:ENTITY/PROJECT/RUN, where RUN is the id at the end of the "
            "run's address, such as wandb:lab/ragen/3f8a2c1d"
        )
    return "/".join(parts)


def read_address(
    address: str,
    mapping: Mapping[str, Meaning] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    progress: Progress | None = None,
    code: str = _WORKER,
) -> RunMetrics:
    """The metrics of a run at a W&B server.

    Args:
        timeout_s: how long to wait for the next rows.
        progress: called with (rows, of rows).
        code: Python that asks the server, instead of `main`.

    Raises:
        MetricsFileError: no such address, package, run, right or answer; one line.
    """
    collector = Collector(path=address, kind="wandb", mapping=mapping or {})
    name, _ = _ask(address, collector, timeout_s=timeout_s, progress=progress, code=code)
    if not collector.num_records:
        raise MetricsFileError(f"{address}: the run has no row of metrics")
    return _metrics(address, collector, name)


def ask(
    address: str,
    mapping: Mapping[str, Meaning],
    *,
    timeout_s: float = TIMEOUT_S,
    is_wanted: Callable[[], bool] = lambda: True,
) -> ServerRun:
    """A run that may still grow: one without rows, or without a mapped column, is no error.

    Args:
        is_wanted: asked several times a second; where it is false, the question is given up.

    Raises:
        NoAnswerError: the server does not answer now, or the question was given up.
        MetricsFileError: no such address, package, run or right; one line.
    """
    collector = Collector(path=address, kind="wandb", mapping=mapping)
    name, state = _ask(address, collector, timeout_s=timeout_s, is_wanted=is_wanted)
    if not collector.num_records:
        return ServerRun(metrics=None, state=state)
    collector.mapping = {column: mapping[column] for column in mapping if column in collector.names}
    return ServerRun(metrics=_metrics(address, collector, name), state=state)


def _metrics(address: str, collector: Collector, name: str) -> RunMetrics:
    table = replace(collector.finish([]), run=name)
    return RunMetrics(name=name, table=table, files=(address,))


def _ask(
    address: str,
    collector: Collector,
    *,
    timeout_s: float,
    progress: Progress | None = None,
    code: str = _WORKER,
    is_wanted: Callable[[], bool] = lambda: True,
) -> tuple[str, str]:
    """Collect a run's rows; how the server calls the run, and the state that it says it has."""
    path = path_of(address)
    if code == _WORKER:
        _require_wandb(address)
    name, state = path.rpartition("/")[2], ""
    done, of = 0, 0
    for answer in _answers(path, timeout_s, address, code, is_wanted):
        if "name" in answer:
            name, state = str(answer["name"]), str(answer.get("state", ""))
            of = int(answer["num_rows"])
        for row in answer.get("rows", ()):
            numbers = numbers_of_row(row)
            if numbers:
                collector.add(numbers)
            done += 1
        if progress and of:
            progress(min(done, of), of)
    return name, state


def _require_wandb(address: str) -> None:
    try:
        importlib.metadata.version("wandb")
    except importlib.metadata.PackageNotFoundError:
        raise MetricsFileError(
            f"{address}: asking W&B needs the package wandb: run pip install 'wandb>=0.31'. Files "
            "of wandb (run-ID.wandb) are read without it"
        ) from None


def _answers(
    path: str, timeout_s: float, address: str, code: str, is_wanted: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """What the process says, line by line, until it has said all."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, path, str(timeout_s)],
        stdin=subprocess.DEVNULL,  # nobody is there to type a key
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(process, lines), daemon=True).start()
    waiting = _Waiting(address, timeout_s, is_wanted)
    try:
        while True:
            line = waiting.next_line(lines)
            if len(line) > _MAX_LINE:
                raise MetricsFileError(f"{address}: a page of the run is larger than 64 MB")
            if not line:
                raise NoAnswerError(f"{address}: the process that asks W&B ended early")
            answer: dict[str, Any] = json.loads(line)
            waiting.server = answer.get("server", waiting.server)
            if "error" in answer:
                raise _refusal(address, answer, waiting.server, timeout_s)
            yield answer
            if answer.get("is_end"):
                return
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # with what wandb started
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()


def _read_lines(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Hand on what a process says; an empty line at its end."""
    assert process.stdout is not None
    with process.stdout as stream:
        while line := stream.readline(_MAX_LINE + 1):
            lines.put(line)
    lines.put(b"")


@dataclass(slots=True)
class _Waiting:
    """Waits for lines as long as that is worth it."""

    address: str
    timeout_s: float
    is_wanted: Callable[[], bool]
    server: str = ""
    """Its address, once wandb is loaded."""

    def next_line(self, lines: queue.SimpleQueue[bytes]) -> bytes:
        """Raises NoAnswerError where none comes in time, or the question was given up."""
        begun, was_asked = time.monotonic(), False
        while True:
            try:
                return lines.get(timeout=_LOOK_S)
            except queue.Empty:
                silent_s = time.monotonic() - begun
            if not self.is_wanted():
                raise NoAnswerError(f"{self.address}: the question was given up")
            if not was_asked and silent_s >= min(SILENT_S, self.timeout_s):
                was_asked = True
                trouble = _trouble(self.server)
                if trouble and lines.empty():
                    raise NoAnswerError(f"{self.address}: {trouble}")
            # A busy machine may take long to load wandb.
            if silent_s >= self.timeout_s + (0.0 if self.server else GRACE_S):
                raise NoAnswerError(f"{self.address}: {_no_answer(self.timeout_s)}")


def _no_answer(timeout_s: float) -> str:
    return (
        f"the server gave no answer within {timeout_s:g} s. The variable WANDB_BASE_URL names the "
        "server; the default is wandb.ai"
    )


def _refusal(
    address: str, answer: Mapping[str, Any], server: str, timeout_s: float
) -> MetricsFileError:
    """What is wrong, where wandb gave up: its own word for it may be wrong."""
    kind, text = str(answer.get("kind", "")), str(answer["error"])
    reason = _in_words(kind, text)
    if reason is None or reason.startswith(_KEY):
        trouble = _trouble(server)
        if trouble != "":
            return NoAnswerError(f"{address}: {trouble or _no_answer(timeout_s)}")
    if reason is None:
        return NoAnswerError(f"{address}: W&B answers: {kind}: {text}")
    return MetricsFileError(f"{address}: {reason}")


def main() -> None:
    """The process: ask for a run, print what it is, its rows by pages, and the end."""
    path, timeout_s = sys.argv[1], float(sys.argv[2])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what wandb prints is no answer

    def say(**answer: Any) -> None:
        print(json.dumps(answer, default=str), file=out, flush=True)

    try:
        import wandb

        say(server=str(wandb.setup().settings.base_url))
        run = wandb.Api(timeout=max(1, int(timeout_s))).run(path)
        num_rows = int(run.lastHistoryStep) + 1
        say(name=str(run.name or run.id), num_rows=num_rows, state=str(run.state))
        rows = []
        for row in run.scan_history(page_size=PAGE, use_cache=False):
            rows.append(row)
            if len(rows) >= PAGE:
                say(rows=rows)
                rows = []
        say(rows=rows)
        say(is_end=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's package; it is answered
        # One line. The address of the server is left out, since it may hold a key.
        text = re.sub(r"https?://\S+", "the server", " ".join(str(error).split()))[:300]
        say(error=text, kind=type(error).__name__)


def _trouble(server: str) -> str | None:
    """What is wrong with a W&B server, in one sentence. Empty where it answers as one does, or its
    address is not known yet; None where it does not answer in time.

    The request has no key: whether the key is taken is not asked.
    """
    import httpx  # here: only who asks a server needs it

    if not server:
        return ""
    where = "is the variable WANDB_BASE_URL the address of W&B?"
    question = {"query": "query { serverInfo { cliVersionInfo } }"}
    try:
        answer = httpx.post(f"{server.rstrip('/')}/graphql", json=question, timeout=_PLAIN_S)
        if answer.status_code == 429:
            return "the server takes no more questions now (HTTP 429, too many requests)"
        if answer.status_code >= 500:
            return f"the server fails (HTTP {answer.status_code})"
        if answer.status_code == 404:
            return f"the server has no W&B there (HTTP 404); {where}"
        if answer.status_code == 200:
            answer.json()
    except httpx.TimeoutException:
        return None
    except httpx.ConnectError as error:
        if isinstance(error.__context__ and error.__context__.__context__, ssl.SSLError):
            return ""  # wandb may know certificates that Python does not
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        return f"the server cannot be reached ({reason}); {where}"
    except httpx.HTTPError as error:
        return f"the server ends the connection ({type(error).__name__})"
    except ValueError:
        return f"the answer of the server is not JSON; {where}"
    return ""


def _in_words(kind: str, text: str) -> str | None:
    """A refusal in one sentence; None where it is none that is known.

    >>> _in_words("ValueError", "permission denied")
    'W&B does not take the key (permission denied): set WANDB_API_KEY, or run `wandb login`'
    """
    low = text.lower()
    if "no api key" in low or "api_key" in low:
        return "W&B needs a key: set WANDB_API_KEY, or run `wandb login`"
    if kind == "AuthenticationError" or "permission" in low:
        return f"{_KEY} ({text}): set WANDB_API_KEY, or run `wandb login`"
    if "could not find" in low or "not found" in low:
        return (
            "W&B has no such run, or your key may not read it: take ENTITY, PROJECT and RUN from "
            "the address of the run's page (RUN is its id, not its name), and check the account of "
            "`wandb login`"
        )
    return None
