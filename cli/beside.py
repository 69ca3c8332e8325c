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


class Beside:
    """A dashboard that was started, or what kept it from starting."""

    def __init__(self, root: Path) -> None:
        self.link = ""
        """Opens it, token included; empty before it can be reached, and if it never will."""
        self._say: Callable[[str], None] | None = None
        self._run = self._trouble = ""
        self._is_told = False
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._is_ending = False
        self._reader = threading.Thread(target=self._read, name="dashboard", daemon=True)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- outlives this call
        self._process: subprocess.Popen[bytes] | None = None
        # It ends when its stdin does, however this process ends.
        words = [
            *(sys.executable, "-P", "-m", "echoscope", "dashboard"),
            *("--until-stdin-ends", "--", str(root.absolute())),
        ]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._tell(f"the dashboard did not start: {error}; training goes on")
            return
        self._reader.start()

    def announce(self, say: Callable[[str], None], run: str) -> None:
        """Say where the page of a run is, now or as soon as it is known."""
        with self._lock:
            self._say, self._run = say, run
            self._flush()

    def stay(self, say: Callable[[str], None]) -> None:
        """Say that it is still open, and wait until Ctrl-C, or until it ends."""
        if self._process is None:
            return
        with contextlib.suppress(KeyboardInterrupt):
            # Looked at, not waited for: a Ctrl-C in the instant before a wait would be lost in it.
            while not self._answered.wait(GLANCE_S):
                pass
            if self.link and self._process.poll() is None:
                say(f"the dashboard stays open until Ctrl-C: {run_page(self.link, self._run)}")
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
        self._reader.join(PATIENCE_S)

    def _read(self) -> None:
        """Its first line is the link that opens it."""
        assert self._process is not None
        assert self._process.stdout is not None
        first = self._process.stdout.readline().decode("utf-8", "replace").strip()
        if first:
            self.link = first
            self._tell("")
        elif self._process.wait() and not self._is_ending:
            why = self._last_error()
            self._tell(f"the dashboard did not start: {why}; training goes on")
        self._answered.set()

    def _last_error(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else "it ended without a word"

    def _tell(self, trouble: str) -> None:
        with self._lock:
            self._trouble = trouble
            self._flush()

    def _flush(self) -> None:
        if self._say is None:
            return
        news = f"dashboard {run_page(self.link, self._run)}" if self.link else self._trouble
        if news and not self._is_told:
            self._is_told = True
            self._say(news)


def run_page(link: str, run: str) -> str:
    """The page Live of a run, from the link that opens the dashboard.

    >>> run_page("http://127.0.0.1:8501?token=t", "my run")
    'http://127.0.0.1:8501/live?run=my+run&token=t'
    """
    parts = urlsplit(link)
    query = urlencode([("run", run), *parse_qsl(parts.query)])
    return urlunsplit(parts._replace(path="/live", query=query))


@contextmanager
def dashboard_beside(root: Path, *, is_wanted: bool) -> Iterator[Beside | None]:
    """A dashboard for the runs under `root` while the block runs; None if it is not wanted."""
    if not is_wanted:
        yield None
        return
    beside = Beside(root)
    try:
        yield beside
    finally:
        beside.end()
