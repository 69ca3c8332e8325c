"""A run at a W&B server, by its address `wandb:ENTITY/PROJECT/RUN`, through wandb's public API.

wandb is asked in a process of its own: it starts further processes, asks for a key where it has
none, and retries for hours. Where nothing comes for `TIMEOUT_S`, the process is ended. The server
is that of WANDB_BASE_URL (default: wandb.ai), the key that of WANDB_API_KEY or `wandb login`.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .foreign_names import Meaning
from .forms.wandb_file import numbers_of_row
from .records import MetricsFileError, Reading
from .runs import RunMetrics

PREFIX = "wandb:"
TIMEOUT_S = 60.0
"""How long to wait for the next rows."""
PAGE = 500
_LOOK_S = 0.1
_PROGRAM = "from echoscope.diagnostics.read.wandb_address import main; main()"


class NoAnswerError(MetricsFileError):
    """The server gives no usable answer now; it may give one later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """What a server says of a run."""

    name: str
    state: str
    """`running`, `finished`, `failed`, `crashed`, `killed` or another word of W&B; may be empty."""
    rows: list[dict[str, float]]


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


def read_address(address: str, mapping: Mapping[str, Meaning] | None = None) -> RunMetrics:
    """The metrics of a run at a W&B server.

    Raises:
        MetricsFileError: no such address, package, run, right or answer; one line.
    """
    question = WandbProcess(address)
    try:
        while not question.is_done():
            time.sleep(_LOOK_S)
        run = question.answer()
    finally:
        question.close()
    reading = Reading(address, mapping or {})
    table = reading.table("wandb", lambda _: run.rows, "the run has no row of metrics")
    return RunMetrics(name=run.name, table=replace(table, run=run.name), files=(address,))


class WandbProcess:
    """A process that asks a server for all rows of a run.

    Raises:
        MetricsFileError: no such address or package; one line.
    """

    def __init__(self, address: str) -> None:
        path = path_of(address)
        _require_wandb(address)
        self._address = address
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        self._size, self._heard_at = 0, time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, path, str(TIMEOUT_S)],
            stdin=subprocess.DEVNULL,  # nobody is there to type a key
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def is_done(self) -> bool:
        """Whether the whole answer is there, or nothing came for too long."""
        size = os.fstat(self._output.fileno()).st_size
        if size > self._size:
            self._size, self._heard_at = size, time.monotonic()
        is_late = time.monotonic() - self._heard_at > TIMEOUT_S
        return self._process.poll() is not None or is_late

    def answer(self) -> ServerRun:
        """What the server says, once it is done.

        Raises:
            NoAnswerError: the server does not answer now.
            MetricsFileError: no such run, or no right to read it; one line.
        """
        if self._process.poll() is None:
            raise NoAnswerError(
                f"{self._address}: the server gave no answer within {TIMEOUT_S:g} s. The "
                "variable WANDB_BASE_URL names the server; the default is wandb.ai"
            )
        self._output.seek(0)
        rows: list[dict[str, float]] = []
        for line in self._output:
            part = json.loads(line)
            if "error" in part:
                raise _refusal(self._address, part["kind"], part["error"])
            if "name" in part:
                return ServerRun(name=part["name"], state=part["state"], rows=rows)
            rows += filter(None, map(numbers_of_row, part["rows"]))
        raise NoAnswerError(f"{self._address}: the process that asks W&B ended early")

    def close(self) -> None:
        """End the process, with what wandb started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def _require_wandb(address: str) -> None:
    try:
        importlib.metadata.version("wandb")
    except importlib.metadata.PackageNotFoundError:
        raise MetricsFileError(
            f"{address}: asking W&B needs the package wandb: run pip install 'wandb>=0.31'. Files "
            "of wandb (run-ID.wandb) are read without it"
        ) from None


def _refusal(address: str, kind: str, text: str) -> MetricsFileError:
    """What is wrong, in one sentence.

    >>> str(_refusal("wandb:a/b/c", "ValueError", "permission denied"))
    'wandb:a/b/c: W&B refuses the key (permission denied): set WANDB_API_KEY, or run `wandb login`'
    """
    low = text.lower()
    if "api key" in low or "api_key" in low:
        reason = "W&B needs a key: set WANDB_API_KEY, or run `wandb login`"
    elif kind == "AuthenticationError" or "permission" in low:
        reason = f"W&B refuses the key ({text}): set WANDB_API_KEY, or run `wandb login`"
    elif "could not find" in low or "not found" in low:
        reason = (
            "W&B has no such run, or your key may not read it: take ENTITY, PROJECT and RUN from "
            "the address of the run's page (RUN is its id, not its name)"
        )
    else:
        return NoAnswerError(f"{address}: W&B answers: {kind}: {text}")
    return MetricsFileError(f"{address}: {reason}")


def main() -> None:
    """The process: print the rows of a run by pages, and at the end what the run is."""
    path, timeout_s = sys.argv[1], float(sys.argv[2])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what wandb prints is no answer

    def say(**answer: Any) -> None:
        print(json.dumps(answer, default=str), file=out, flush=True)

    try:
        import wandb

        run = wandb.Api(timeout=max(1, int(timeout_s))).run(path)
        # A generator: W&B's own iterator begins to ask again when it is asked after its end.
        rows = (row for row in run.scan_history(page_size=PAGE, use_cache=False))
        while page := list(itertools.islice(rows, PAGE)):
            say(rows=page)
        say(name=str(run.name or run.id), state=str(run.state))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's package; it is answered
        # One line. The address of the server is left out, since it may hold a key.
        text = re.sub(r"https?://\S+", "the server", " ".join(str(error).split()))[:300]
        say(error=text, kind=type(error).__name__)
