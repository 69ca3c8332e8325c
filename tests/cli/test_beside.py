"""The dashboard beside a training run, as a person in a terminal meets it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from started import started

from echoscope.cli.beside import DashboardBeside
from echoscope.store.reader import open_run

PATIENCE_S = 240.0
ADDRESS = re.compile(r"dashboard (http://127\.0\.0\.1:\d+)(/live\?run=(\S+)&token=[\w-]{32})")
TINY_DEMO = (
    *("steps=1", "eval.before=false", "eval.every=0", "probe.every=0", "diagnostics.enabled=false"),
    *("envs.group_size=2", "envs.train.0.groups=1", "context.max_response_tokens=4"),
    *("checkpoint.every=0", "threads=1"),
)


class Terminal:
    """A command on a terminal of its own, which it controls: Ctrl-C goes where a shell's would."""

    def __init__(self, *arguments: str) -> None:
        self.text = ""
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            # Tests that run in the background may have been told to ignore it.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(sys.executable, [sys.executable, "-m", "echoscope", *arguments])
        self._code: int | None = None

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until the screen has shown it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            match = re.search(pattern, self.text)
            if match:
                return match
            assert self._read(), f"it ended without {pattern!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {pattern!r}:\n{self.text}"

    def press_ctrl_c(self) -> None:
        os.write(self._screen, b"\x03")

    def join(self) -> int:
        """Wait for the end; the exit code."""
        while self._read():
            pass
        return self._wait()

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
        os.close(self._screen)

    def _wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def _read(self) -> bool:
        ready, _, _ = select.select([self._screen], [], [], PATIENCE_S)
        assert ready, f"silent for {PATIENCE_S} s:\n{self.text}"
        try:
            data = os.read(self._screen, 65_536)
        except OSError:  # the other side is closed
            return False
        self.text += data.decode("utf-8", "replace")
        return bool(data)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield start
    for opened_terminal in opened:
        opened_terminal.kill()


_with_cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def is_served(url: str) -> bool:
    try:
        with _with_cookies.open(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


@pytest.mark.long
def test_the_demo_shows_its_dashboard_and_leaves_it_open_until_ctrl_c(
    tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    demo = terminal("demo", "--root", str(tmp_path / "runs"), *TINY_DEMO)
    demo.wait_for(r"the dashboard stays open until Ctrl-C: http://127\.0\.0\.1:\d+/live\?run=")
    match = ADDRESS.search(demo.text)
    assert match is not None
    url, page, name = match.groups()
    (run,) = [path.name for path in (tmp_path / "runs").iterdir() if path.name[0] != "."]
    assert name == run
    assert open_run(tmp_path / "runs" / run).info().status == "finished"
    assert is_served(url + page)
    demo.press_ctrl_c()
    assert demo.join() == 0
    assert "Traceback" not in demo.text
    assert not is_served(url)


@pytest.mark.long
def test_ctrl_c_while_training_ends_both_after_the_step(
    config_file: Path, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    path = tmp_path / "run"
    trainer = terminal(
        *("train", "--config", str(config_file), "-o", str(path), "--dashboard", "--headless"),
        *("steps=100000", "eval.every=0", "checkpoint.every=0", "diagnostics.enabled=false"),
    )
    url, page, _ = trainer.wait_for(ADDRESS.pattern).groups()
    trainer.wait_for(r"step +2/")
    assert is_served(url + page)
    trainer.press_ctrl_c()
    assert trainer.join() == 0
    assert "stays open" not in trainer.text
    assert "Traceback" not in trainer.text
    assert not is_served(url)
    info = open_run(path).info()
    assert info.status == "stopped"
    assert list((path / "checkpoints").glob("step_*"))


@pytest.mark.long
def test_a_dashboard_that_cannot_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "uvicorn.py").write_text("raise OSError('no web server here')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    said: list[str] = []
    beside = DashboardBeside(tmp_path)
    beside.announce(said.append, "x")
    beside.stay(said.append)  # there is nothing to stay for
    assert said == ["the dashboard did not start: no web server here; training goes on"]
    beside.end()


def test_no_python_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    said: list[str] = []
    with DashboardBeside(tmp_path) as beside:
        beside.announce(said.append, "")
        beside.stay(said.append)
    (line,) = said
    assert "the dashboard did not start: [Errno 2]" in line


def test_one_that_is_not_announced_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", started.append)
    with DashboardBeside(tmp_path) as beside:
        beside.stay(print)
    assert started == []


@pytest.mark.long
def test_a_dashboard_ends_with_whoever_holds_its_stdin(tmp_path: Path) -> None:
    """However the trainer dies: a closed pipe needs no handler of ours."""
    arguments = ("-m", "echoscope", "dashboard", "--until-stdin-ends", str(tmp_path))
    process = started(
        subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )
    assert process.stdin is not None
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert is_served(url)
    process.stdin.close()
    process.wait(PATIENCE_S)
    assert not is_served(url)
    process.stdout.close()
