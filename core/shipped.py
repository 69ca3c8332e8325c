"""Names of the models that come with the package. Light: imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_ASSETS = Path(__file__).parent / "assets"
_MAX_HEADER = 100_000_000

SHIPPED: Mapping[str, str] = MappingProxyType(
    {
        "tiny": "Qwen2 shape; plays bandit, frozen_lake and small sokoban boards by name of arm "
        "and relative observation",
    }
)
"""Name -> one line on what it can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedModel:
    name: str
    folder: Path
    description: str
    num_parameters: int
    num_bytes: int
    is_present: bool


def shipped_folder(name: str) -> Path:
    """Where a shipped model lies; KeyError for a name that is not shipped."""
    if name not in SHIPPED:
        raise KeyError(name)
    return _ASSETS / name


def list_shipped() -> list[ShippedModel]:
    """Every shipped model, in the order of `SHIPPED`; sizes are zero where files are missing."""
    return [_describe(name) for name in SHIPPED]


def _describe(name: str) -> ShippedModel:
    folder = shipped_folder(name)
    weights = folder / "model.safetensors"
    is_present = weights.is_file()
    return ShippedModel(
        name=name,
        folder=folder,
        description=SHIPPED[name],
        num_parameters=_count_parameters(weights) if is_present else 0,
        num_bytes=sum(file.stat().st_size for file in folder.iterdir()) if is_present else 0,
        is_present=is_present,
    )


def weight_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor of a safetensors file, from its header alone.

    Raises:
        OSError, ValueError: it cannot be read, or is no such file.
    """
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > _MAX_HEADER:
            raise ValueError(f"{file.name} is not a safetensors file")
        header = json.loads(opened.read(size))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _count_parameters(weights: Path) -> int:
    return sum(math.prod(shape) for shape in weight_shapes(weights).values())
