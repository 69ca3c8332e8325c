"""Servers of worlds: in a thread of the test, or as a process of their own."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from started import started

from echoscope.envs.base import StepResult
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake
from echoscope.envs.worlds.remote.server import TokenGate, make_app
from echoscope.envs.worlds.remote.sessions import Served, SessionLimits
from echoscope.text.network import listening

KILL_FILE = "ECHOSCOPE_TEST_KILL_FILE"


@contextmanager
def served(*worlds: Served, limits: SessionLimits | None = None, token: str = "") -> Iterator[str]:
    """The url of a server in a thread of this process."""
    gate = TokenGate(address="127.0.0.1", token=token)
    app = make_app(worlds, limits or SessionLimits(), gate)
    opened = listening("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[opened])), daemon=True
    )
    thread.start()
    while not server.started:
        time.sleep(0.002)
    try:
        yield f"http://127.0.0.1:{opened.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        opened.close()
        assert not thread.is_alive()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def ask(
    url: str,
    path: str,
    content: Any = None,
    *,
    method: str = "POST",
    data: bytes | None = None,
    **headers: str,
) -> tuple[int, dict[str, Any]]:
    """Status and content of an answer, which is JSON whatever was asked."""
    body = json.dumps({} if content is None else content).encode() if data is None else data
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.request(
        method,
        url + path,
        content=body,
        headers={"Content-Type": "application/json", **names},
        timeout=20,
        trust_env=False,
    )
    return answer.status_code, answer.json()


def error(answer: tuple[int, dict[str, Any]]) -> tuple[int, str, str]:
    status, content = answer
    assert "Traceback" not in json.dumps(content)
    return status, content["error"]["kind"], content["error"]["message"]


class ServerProcess:
    """`echoscope envs serve ...` in a process of its own; `url` once it answers."""

    def __init__(
        self, *arguments: str, port: int = 0, variables: dict[str, str] | None = None
    ) -> None:
        code = "from echoscope.cli import main; main()"
        command = [sys.executable, "-c", code, "envs", "serve", *arguments, "--port", str(port)]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(variables or {})},
        )
        started(self)
        self.line = self._read_line()
        self.url = self.line.split(" at ")[1].split(" ")[0] if " at " in self.line else ""

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 60)
        assert ready, "the server says nothing"
        return self._process.stdout.readline()

    def wait(self) -> tuple[int, str]:
        """Exit code and the rest of the output, once it has ended."""
        assert self._process.stdout is not None
        return self._process.wait(60), self._process.stdout.read()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class KillingLake(FrozenLake):
    """A lake that kills its process at a step, or at a bad reply, once `KILL_FILE` is there."""

    num_tasks = 100_000  # declared, so that nobody counts them by asking

    def invalid_notice(self, action: str) -> str:
        _kill_if_told()
        return super().invalid_notice(action)

    def step(self, action: str) -> StepResult:
        _kill_if_told()
        return super().step(action)


def _kill_if_told() -> None:
    path = os.environ.get(KILL_FILE, "")
    if path and os.path.exists(path):
        os.remove(path)
        os.kill(os.getpid(), signal.SIGKILL)
