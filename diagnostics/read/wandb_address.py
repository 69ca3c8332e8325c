"""A run at a W&B server, by its address `wandb:ENTITY/PROJECT/RUN`, through wandb's public API.

wandb is asked in a process of its own: it starts further processes, retries for minutes, and may
hang. Where no row comes for `timeout_s`, the process is ended. The server is that of WANDB_BASE_URL
(default: wandb.ai), the key that of WANDB_API_KEY or `wandb login`; it is never an argument.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
_MAX_LINE = 64 << 20
_WORKER = "from echoscope.diagnostics.read.wandb_address import main; main()"

Progress = Callable[[int, int], None]


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
    path = path_of(address)
    if code == _WORKER:
        _require_wandb(address)
    collector = Collector(path=address, kind="wandb", mapping=mapping or {})
    name = path.rpartition("/")[2]
    done, of = 0, 0
    for answer in _answers(path, timeout_s, address, code):
        if "error" in answer:
            raise MetricsFileError(f"{address}: {answer['error']}")
        if "name" in answer:
            name, of = str(answer["name"]), int(answer["num_rows"])
        for row in answer.get("rows", ()):
            numbers = numbers_of_row(row)
            if numbers:
                collector.add(numbers)
            done += 1
        if progress and of:
            progress(min(done, of), of)
    if not collector.num_records:
        raise MetricsFileError(f"{address}: the run has no row of metrics")
    table = replace(collector.finish([]), run=name)
    return RunMetrics(name=name, table=table, files=(address,))


def _require_wandb(address: str) -> None:
    try:
        importlib.metadata.version("wandb")
    except importlib.metadata.PackageNotFoundError:
        raise MetricsFileError(
            f"{address}: asking W&B needs the package wandb: run pip install 'wandb>=0.22'. Files "
            "of wandb (run-ID.wandb) are read without it"
        ) from None


def _answers(path: str, timeout_s: float, address: str, code: str) -> Iterator[dict[str, Any]]:
    """What the process says, line by line, until it has said all."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, path, str(timeout_s)],
            stdin=subprocess.DEVNULL,  # nobody is there to type a key
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield from _lines(process, timeout_s, address)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # with what wandb started
            except (ProcessLookupError, PermissionError):
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _lines(
    process: subprocess.Popen[bytes], timeout_s: float, address: str
) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    rest, deadline = b"", time.monotonic() + timeout_s
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise MetricsFileError(
                f"{address}: W&B gave no answer within {timeout_s:g} s; is the server reached? "
                "(WANDB_BASE_URL)"
            )
        piece = os.read(process.stdout.fileno(), 1 << 20)
        if not piece:
            raise MetricsFileError(f"{address}: the process that asks W&B ended early")
        rest += piece
        if len(rest) > _MAX_LINE:
            raise MetricsFileError(f"{address}: a page of the run is larger than 64 MB")
        *whole, rest = rest.split(b"\n")
        for line in whole:
            answer: dict[str, Any] = json.loads(line)
            deadline = time.monotonic() + timeout_s
            yield answer
            if answer.get("is_end") or "error" in answer:
                return


def main() -> None:
    """The process: ask for a run, print what it is, its rows by pages, and the end."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what wandb prints is no answer

    def say(**answer: Any) -> None:
        print(json.dumps(answer, default=str), file=out, flush=True)

    path, timeout_s = sys.argv[1], float(sys.argv[2])
    try:
        import wandb

        api = wandb.Api(timeout=max(1, int(timeout_s)))
        run = api.run(path)
        say(name=str(run.name or run.id), num_rows=int(run.lastHistoryStep) + 1)
        rows = []
        for row in run.scan_history(page_size=PAGE, use_cache=False):
            rows.append(row)
            if len(rows) >= PAGE:
                say(rows=rows)
                rows = []
        say(rows=rows)
        say(is_end=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's package; it is answered
        say(error=_in_words(error))


def _in_words(error: BaseException) -> str:
    """A refusal in one sentence. The address of the server is left out, since it may hold a key.

    >>> _in_words(ValueError("could not find run <Run lab/ragen/x (not found)>"))
    'W&B has no such run, or the key may not see it'
    """
    text = re.sub(r"https?://\S+", "the server", " ".join(str(error).split()))[:300]
    low = text.lower()
    if "no api key" in low or "api_key" in low:
        return "W&B needs a key: set WANDB_API_KEY, or run `wandb login`"
    if type(error).__name__ == "AuthenticationError" or "permission" in low:
        return f"W&B does not take the key ({text}): set WANDB_API_KEY, or run `wandb login`"
    if "could not find" in low or "not found" in low:
        return "W&B has no such run, or the key may not see it"
    return f"W&B answers: {type(error).__name__}: {text}"
