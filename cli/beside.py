"""A dashboard beside a training run: a process of its own that ends when this one does.

Whatever happens to it, training goes on. It leads its own session, so that Ctrl-C in the terminal
is for the trainer alone, which finishes its step and then ends the dashboard.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

PATIENCE_S = 5.0
"""How long a dashboard may take to end when it is told to."""
GLANCE_S = 0.25
"""Between two looks at it."""


class StartedDashboard:
    """A dashboard that was started, or what kept it from starting."""

    def __init__(self, root: Path) -> None:
        self._link = self._run = self._trouble = ""
        self._is_ending = False
        self._teller: threading.Thread | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- outlives this call
        self._process: subprocess.Popen[bytes] | None = None
        # It ends when its stdin does, however this process ends.
        command = [
            *(sys.executable, "-P", "-m", "echoscope", "dashboard"),
            *("--until-stdin-ends", "--", str(root.absolute())),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._trouble = str(error)

    def announce(self, say: Callable[[str], None], run: str) -> None:
        """Say where the page of a run is, as soon as the dashboard can be reached."""
        if self._process is None:
            say(f"the dashboard did not start: {self._trouble}; training goes on")
            return
        self._run = run
        self._teller = threading.Thread(
            target=self._tell, args=(say, self._process), name="dashboard", daemon=True
        )
        self._teller.start()

    def stay(self, say: Callable[[str], None]) -> None:
        """Say that it is still open, and wait until Ctrl-C, or until it ends."""
        if self._teller is None or self._process is None:
            return
        with contextlib.suppress(KeyboardInterrupt):
            # Looked at, not waited for: a Ctrl-C in the instant before a wait would be lost in it.
            while self._teller.is_alive():
                self._teller.join(GLANCE_S)
            if self._link and self._process.poll() is None:
                say(f"the dashboard stays open until Ctrl-C: {run_page(self._link, self._run)}")
                while self._process.poll() is None:
                    time.sleep(GLANCE_S)

    def end(self) -> None:
        """End it; nothing of it is left."""
        if self._process is None:
            return
        self._is_ending = True
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._teller is not None:
            self._teller.join(PATIENCE_S)

    def _tell(self, say: Callable[[str], None], process: subprocess.Popen[bytes]) -> None:
        """Its first line is the link that opens it."""
        assert process.stdout is not None
        self._link = process.stdout.readline().decode("utf-8", "replace").strip()
        if self._link:
            say(f"dashboard {run_page(self._link, self._run)}")
            return
        process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        why = lines[-1].removeprefix("error: ") if lines else "it ended without a word"
        if not self._is_ending:
            say(f"the dashboard did not start: {why}; training goes on")


def run_page(link: str, run: str) -> str:
    """The page Live of a run, from the link that opens the dashboard.

    >>> run_page("http://127.0.0.1:8501?token=t", "my run")
    'http://127.0.0.1:8501/live?run=my+run&token=t'
    """
    parts = urlsplit(link)
    query = urlencode([("run", run), *parse_qsl(parts.query)])
    return urlunsplit(parts._replace(path="/live", query=query))


@contextmanager
def dashboard_beside(root: Path, *, is_wanted: bool) -> Iterator[StartedDashboard | None]:
    """A dashboard for the runs under `root` while the block runs; None if it is not wanted."""
    if not is_wanted:
        yield None
        return
    beside = StartedDashboard(root)
    try:
        yield beside
    finally:
        beside.end()
