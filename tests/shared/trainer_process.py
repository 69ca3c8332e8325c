"""A trainer in a process of its own, which tests may kill, stop and steer.

Processes are forked from a server that has imported everything, so that each starts at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from started import started

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["echoscope.core.run.launch"])
PATIENCE_S = 120.0


class TrainerProcess:
    """`function(*args)` in a process that leads its own group; its output goes to a file."""

    def __init__(self, output: Path, function: Callable[..., Any], *args: Any) -> None:
        self.output = output
        output.touch()
        self._process = _CONTEXT.Process(target=_main, args=(output, function, args))
        self._process.start()
        started(self)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        """Until the output has `text`."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.text:
            assert self.is_alive, f"it ended without {text!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {text!r} in {PATIENCE_S} s:\n{self.text}"
            time.sleep(0.001)

    def interrupt(self) -> None:
        os.kill(self._pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the whole group: no handler runs, nothing is flushed. Once is enough."""
        if self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self._process.join()

    def join(self) -> int:
        """Wait for the end; the exit code."""
        self._process.join(PATIENCE_S)
        assert not self.is_alive, f"still going after {PATIENCE_S} s:\n{self.text}"
        code = self._process.exitcode
        assert code is not None
        return code

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


def _main(output: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.setsid()
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    for text_stream in (sys.stdout, sys.stderr):
        text_stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    function(*args)


def train(path: Path, config_json: str) -> None:
    """Start a run, or resume it where there is one; tells each phase as `<step> <phase>;`."""
    from echoscope.core.config.settings import RunConfig
    from echoscope.core.run.launch import resume, start
    from echoscope.core.run.observers import SilentEvents

    class Phases(SilentEvents):
        def phase(self, step: int, name: str) -> None:
            os.write(1, f"{step} {name};\n".encode())

    if (path / "run.json").exists():
        resume(path, Phases())
    else:
        start(RunConfig.model_validate_json(config_json), path, Phases())


def hold_shared_folder() -> None:
    """A folder of weights in shared memory, until the process is killed."""
    from echoscope.core.engines.vllm.weights import SharedFolder

    folder = SharedFolder()  # its lock is held as long as the object lives
    os.write(1, f"{folder.path}\n".encode())
    time.sleep(3600)


def echoscope(*arguments: str) -> None:
    """The command line."""
    from echoscope.cli import main

    sys.argv = ["echoscope", *arguments]
    main()
