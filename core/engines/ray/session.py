"""Ray as a run uses it: the right version, on loopback, without a dashboard, and gone afterwards.

Without an address a run starts a Ray of its own on this machine and ends it. With one it joins a
cluster that somebody else started, and leaves it as it was but for its own actors.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

from ...config.loading import ConfigError

VERSION = "2.60.0"
INSTALL = f"pip install 'ray=={VERSION}'"
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
# Despite its name it decides on every system whether Ray may be reached from other machines.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_CONNECT_S = 10.0


def check_ray(setting: str = "engine.kind=ray") -> None:
    """Refuse a machine without Ray, or with another version than the one that is tested.

    Args:
        setting: what asks for Ray.

    Raises:
        ConfigError: it names the command that installs it.
    """
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{setting} needs Ray, which is not installed: {INSTALL}") from None
    if version.rpartition(".")[0] != VERSION.rpartition(".")[0]:
        raise ConfigError(
            f"{setting} is made for Ray {VERSION}, but {version} is installed: {INSTALL}"
        )


class Session:
    """One connection of this process to Ray. Leases share it; the last one closes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_leases = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self.folder = ""
        """Of the files of a Ray that was started here; removed when it ends."""

    def acquire(self, address: str | None, *, num_cpus: int) -> Any:
        """Ray's module, connected. `release` once for each call.

        Args:
            address: `host:port` of a running cluster, `auto` for the one of this machine, None to
                start Ray here, reachable on loopback alone.
            num_cpus: what a Ray that is started here counts as its cores.

        Raises:
            ConfigError: Ray is missing or of another version, or the cluster cannot be reached.
        """
        check_ray()
        with self._lock:
            os.environ.update(_ENVIRONMENT)
            if address is None and "ray" not in sys.modules:
                os.environ.update(_LOOPBACK)
            ray: Any = importlib.import_module("ray")
            if not ray.is_initialized():
                if address is None:
                    self._start(ray, num_cpus)
                else:
                    _join(ray, address)
            self._num_leases += 1
            return ray

    def release(self) -> None:
        with self._lock:
            self._num_leases -= 1
            if not self._num_leases:
                importlib.import_module("ray").shutdown()
                self._end_guard()

    def _start(self, ray: Any, num_cpus: int) -> None:
        # Ray's sockets lie below its folder, and a socket's path has at most 107 characters.
        self.folder = tempfile.mkdtemp(prefix="echoscope-ray-", dir="/tmp")
        guard = Path(__file__).with_name("guard.py")
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-S", str(guard), self.folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        before = os.environ.get("RAY_TMPDIR")
        os.environ["RAY_TMPDIR"] = self.folder  # inherited by every process of this Ray
        try:
            ray.init(
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except BaseException:
            self._end_guard()
            raise
        finally:
            del os.environ["RAY_TMPDIR"]
            if before is not None:
                os.environ["RAY_TMPDIR"] = before

    def _end_guard(self) -> None:
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()  # it gives up by itself
            self._guard = None


SESSION = Session()
"""Ray allows one connection a process."""


def _join(ray: Any, address: str) -> None:
    try:
        if address != "auto":  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"engine.address is {address!r}, where no Ray cluster answers ({reason}): start one "
            "with `ray start --head`, or leave engine.address at null"
        ) from None


def first_sentence(error: BaseException | str) -> str:
    """The first sentence of what Ray says."""
    text = str(error).strip().split("\n", 1)[0].strip()
    return " ".join(text.split())[:160] or type(error).__name__
