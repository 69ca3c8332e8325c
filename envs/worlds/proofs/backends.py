"""Two ways to run Lean: a Kimina Lean Server over HTTP, and a REPL on this machine.

Kimina (github.com/project-numina/kimina-lean-server, 2.0):

    POST /api/check  {"snippets": [{"id", "code"}], "timeout", "debug", "reuse"}
    -> {"results": [{"id", "time", "error" or "response"}]}

A `response` is what Lean's REPL says (github.com/leanprover-community/repl): {"env", "messages":
[{"severity", "pos": {"line", "column"}, "endPos", "data"}], "sorries": [...]}, or {"message"} where
the REPL could not run the code at all.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import math
import os
import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base import EnvParamsError, EnvUnavailableError, shorten
from ..remote.http_client import HttpClient, HttpError
from .verdicts import PROBE, LeanAnswer, LeanFailedError, LeanMessage, LeanTimeoutError

if TYPE_CHECKING:  # an optional package
    from lean_interact import LeanServer

KEY_VARIABLE = "LEAN_SERVER_API_KEY"
"""Environment variable with the key of a server, as Kimina's own client reads it."""
MAX_ANSWER_BYTES = 8 << 20
MAX_MESSAGES = 200
HEADER_TIMEOUT_S = 300.0
"""Of a local REPL to start, and for the imports of a theorem, which it reads once."""
_SNIPPET = "step"
_COMMANDS_PER_PROCESS = 400
"""After so many commands the REPL starts anew: it keeps every environment that it ever made."""


class KiminaServer:
    """A Kimina Lean Server. Checking changes nothing, so what failed on the way is asked again.

    Args:
        url: of the server, such as `http://127.0.0.1:8000`.
        wait_s: how long an answer may take beyond the time that Lean has.
    """

    def __init__(self, url: str, wait_s: float) -> None:
        self._client = HttpClient(
            url,
            max_bytes=MAX_ANSWER_BYTES,
            token=os.environ.get(KEY_VARIABLE, ""),
            token_headers=("Authorization", "X-Auth-Token"),  # newer servers read the second
        )
        self._wait_s = wait_s
        self.name = f"the Lean server at {url}"

    def check(self, header: str, body: str, timeout_s: float) -> LeanAnswer:
        """Lean's answer; see `LeanBackend.check`."""
        code = f"{header}\n\n{body}" if header else body
        seconds = math.ceil(timeout_s)
        content = {
            "snippets": [{"id": _SNIPPET, "code": code}],
            "timeout": seconds,
            "debug": False,
            "reuse": True,
        }
        try:
            answer = self._client.post_json(
                "/api/check", content, timeout_s=timeout_s + self._wait_s
            )
        except HttpError as error:
            raise LeanFailedError(str(error)) from None
        return self._read(answer, seconds)

    def _read(self, answer: Any, seconds: int) -> LeanAnswer:
        match answer:
            case {"results": [{"id": name, "error": str(error)}]} if name == _SNIPPET and error:
                if "header" in error and "timed out" in error:
                    raise EnvUnavailableError(
                        f"{self.name} did not read a header within {seconds} s: raise timeout_s"
                    )
                if "timed out" in error:
                    raise LeanTimeoutError(f"{seconds} s")
                raise LeanFailedError(f"reports {shorten(error, 120)}")
            case {"results": [{"id": name, **result}]} if name == _SNIPPET:
                return read_repl_answer(result.get("response"))
        raise LeanFailedError("answered something else than results")


def read_repl_answer(response: Any) -> LeanAnswer:
    """What the REPL said, from its JSON.

    Raises:
        LeanFailedError: it is not what a REPL says.
    """
    match response:
        case {"message": str(failure)}:
            raise LeanFailedError(f"reports {shorten(failure, 120)}")
        case {"env": _} if isinstance(listed := response.get("messages") or [], list):
            messages = tuple(map(_message, listed[:MAX_MESSAGES]))
            return LeanAnswer(messages=messages, has_sorry=bool(response.get("sorries")))
    raise LeanFailedError("answered something else than a response of Lean's REPL")


def _message(content: Any) -> LeanMessage:
    match content:
        case {"severity": str(severity), "pos": {"line": line}, "data": str(text)} if (
            type(line) is int
        ):
            return LeanMessage(severity=severity, line=line, text=text)
    raise LeanFailedError("answered a message without severity, position or text")


class LocalRepl:
    """Lean's REPL on this machine, through lean-interact. One process, one command at a time.

    Args:
        repl: folder of a built REPL (`lake build` in a clone of leanprover-community/repl).
        project: folder of a built Lean project whose packages may be imported; "" for none.
        lake: the program `lake`.
        memory_mb: what the process may use.
    """

    def __init__(self, repl: str, project: str, lake: str, memory_mb: int) -> None:
        self.name = f"the Lean REPL in {repl}"
        self._repl, self._project, self._lake = repl, project, lake
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._server: LeanServer | None = None
        self._environments: dict[str, int] = {}
        self._num_commands = 0

    def check(self, header: str, body: str, timeout_s: float) -> LeanAnswer:
        """Lean's answer; see `LeanBackend.check`. A header is read once."""
        with self._lock:
            if self._num_commands >= _COMMANDS_PER_PROCESS:
                self._stop()
            if header and header not in self._environments:
                try:
                    told = self._run({"cmd": header}, HEADER_TIMEOUT_S)
                except LeanTimeoutError as error:
                    raise EnvUnavailableError(
                        f"{self.name} did not read a header within {error}"
                    ) from None
                read = read_repl_answer(told)
                if read.errors:
                    text = shorten(read.errors[0].text, 200)
                    raise EnvUnavailableError(f"{self.name} cannot read a header: {text}")
                self._environments[header] = _environment(told)
            command: dict[str, Any] = {"cmd": body}
            if header:
                command["env"] = self._environments[header]
            return read_repl_answer(self._run(command, timeout_s))

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _run(self, command: dict[str, Any], timeout_s: float) -> Any:
        server = self._started()
        self._num_commands += 1
        try:
            return server.run_dict(command, timeout=timeout_s)
        except TimeoutError:
            self._stop()
            raise LeanTimeoutError(f"{timeout_s:g} s") from None
        except (OSError, ValueError) as error:  # gone, or no JSON
            self._stop()
            kind = "answered no JSON" if isinstance(error, json.JSONDecodeError) else "ended"
            raise LeanFailedError(kind) from None

    def _started(self) -> LeanServer:
        if self._server is not None and self._server.is_alive():
            return self._server
        self._stop()
        from lean_interact import LeanREPLConfig, LeanServer, LocalProject

        try:
            project = LocalProject(directory=self._project, auto_build=False)
            config = LeanREPLConfig(
                local_repl_path=self._repl,
                build_repl=False,
                project=project if self._project else None,
                lake_path=self._lake,
                memory_hard_limit_mb=self._memory_mb,
            )
            server = LeanServer(config)
            # A step after a restart would otherwise spend its time on waiting for the start.
            server.run_dict({"cmd": PROBE}, timeout=HEADER_TIMEOUT_S)
        except (OSError, ValueError, RuntimeError, AssertionError) as error:
            reason = shorten(" ".join(str(error).split()) or type(error).__name__, 160)
            raise EnvUnavailableError(f"{self.name} does not start: {reason}") from None
        self._server = server
        return server

    def _stop(self) -> None:
        if self._server is not None:
            self._server.kill()
        self._server = None
        self._environments.clear()
        self._num_commands = 0


def _environment(told: Any) -> int:
    number = told.get("env")
    if type(number) is not int:
        raise LeanFailedError("answered a header without an environment")
    return number


@lru_cache(maxsize=8)
def shared_repl(repl: str, project: str, lake: str, memory_mb: int) -> LocalRepl:
    """The REPL of this process for these folders: each takes seconds and gigabytes."""
    if importlib.util.find_spec("lean_interact") is None:
        raise EnvUnavailableError(
            "lean with repl needs lean-interact, which is not installed: pip install "
            "-e '.[lean]' in the folder of Echoscope"
        )
    for folder in filter(None, (repl, project)):
        if not Path(folder).is_dir():
            raise EnvParamsError(f"{shorten(folder, 200)} is no folder: build the REPL there first")
    # Lean starts in the folder of the REPL, where relative paths would mean something else.
    backend = LocalRepl(
        str(Path(repl).resolve()),
        str(Path(project).resolve()) if project else "",
        str(Path(lake).resolve()) if os.sep in lake else lake,
        memory_mb,
    )
    atexit.register(backend.close)
    return backend
