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
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

PATIENCE_S = 5.0
"""How long a dashboard may take to end when it is told to."""
GLANCE_S = 0.25
"""Between two looks at it."""


class DashboardBeside:
    """A dashboard for the runs under a folder, while the block runs. It starts when announced."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._link = self._run = ""
        self._is_ending = False
        self._teller: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DashboardBeside:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def announce(self, say: Callable[[str], None], run: str) -> None:
        """Start it, and say where the page of a run is, as soon as it can be reached."""
        self._run = run
        errors = tempfile.TemporaryFile()  # noqa: SIM115 -- outlives this call
        # It ends when its stdin does, however this process ends.
        command = [
            *(sys.executable, "-P", "-m", "echoscope", "dashboard"),
            *("--until-stdin-ends", "--", str(self._root.absolute())),
        ]
        try:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            say(f"the dashboard did not start: {error}; training goes on")
            return
        self._teller = threading.Thread(
            target=self._tell, args=(say, process, errors), name="dashboard", daemon=True
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

    def _tell(
        self, say: Callable[[str], None], process: subprocess.Popen[bytes], errors: IO[bytes]
    ) -> None:
        """Its first line is the link that opens it."""
        assert process.stdout is not None
        self._link = process.stdout.readline().decode("utf-8", "replace").strip()
        if self._link:
            say(f"dashboard {run_page(self._link, self._run)}")
            return
        process.wait()
        errors.seek(0)
        text = errors.read().decode("utf-8", "replace")
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
