"""Names of the models that come with the package. Light: imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_ASSETS = Path(__file__).parent / "assets"

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


def _count_parameters(weights: Path) -> int:
    # A safetensors file begins with the length of a JSON header that holds every shape.
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    total = 0
    for name, entry in header.items():
        if name != "__metadata__":
            size = 1
            for extent in entry["shape"]:
                size *= extent
            total += size
    return total
