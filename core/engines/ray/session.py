"""Ray as a run uses it: the right version, on loopback, without a dashboard, and gone afterwards.

Without an address a run starts a Ray of its own on this machine and ends it. With one it joins a
cluster that somebody else started, and leaves it as it was but for its own actors.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from importlib import metadata
from typing import Any

from ...config.loading import ConfigError

VERSION = "2.60.0"
INSTALL = f"pip install 'ray=={VERSION}'"
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
# Despite its name it decides on every system whether Ray may be reached from other machines.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_CONNECT_S = 10.0


def check_ray() -> None:
    """Refuse a machine without Ray, or with another version than the one that is tested.

    Raises:
        ConfigError: it names the command that installs it.
    """
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"engine.kind=ray needs Ray, which is not installed: {INSTALL}") from None
    if version.rpartition(".")[0] != VERSION.rpartition(".")[0]:
        raise ConfigError(
            f"engine.kind=ray is made for Ray {VERSION}, but {version} is installed: {INSTALL}"
        )


def connected(address: str | None, *, num_cpus: int) -> tuple[Any, bool]:
    """Ray's module, connected, and whether this call made the connection.

    Args:
        address: `host:port` of a running cluster, `auto` for the one of this machine, None for the
            one that the environment names (RAY_ADDRESS, as in a job of Ray), or else to start Ray
            here, reachable on loopback alone.
        num_cpus: what a Ray that is started here counts as its cores.

    Raises:
        ConfigError: Ray is missing or of another version, or the cluster cannot be reached.
    """
    check_ray()
    address = address or os.environ.get("RAY_ADDRESS") or None
    os.environ.update(_ENVIRONMENT | (_LOOPBACK if address is None else {}))
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        return ray, False
    settings = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        ray.init(num_cpus=num_cpus, include_dashboard=False, **settings)
        return ray, True
    try:
        if address != "auto":  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        ray.init(address=address, **settings)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"at {address!r} (engine.address or RAY_ADDRESS) no Ray cluster answers "
            f"({first_sentence(error)}): start one with `ray start --head`, or leave both out"
        ) from None
    return ray, True


def first_sentence(error: BaseException | str) -> str:
    """The first sentence of what Ray says."""
    text = str(error).strip().split("\n", 1)[0]
    return " ".join(text.split())[:160] or type(error).__name__
