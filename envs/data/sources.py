"""Which data each world reads: what ships, what a full public set is, how it is loaded.

The facts stand in `sources.yaml`. The table of README.md beside it is made of them
(`python -m echoscope.envs.data.sources` prints it), and `echoscope envs data` shows them.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from echoscope.text.yaml_text import read_yaml_file

FOLDER = Path(__file__).parent
DRAWN = "drawn by the world"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFile:
    """A file of this folder. `origin` and `licence` are Markdown of one line."""

    name: str
    rows: int
    what: str
    origin: str
    licence: str

    @property
    def is_there(self) -> bool:
        """Whether the installation has the file."""
        return (FOLDER / self.name).is_file()

    def count(self) -> int:
        """The rows that the file has."""
        reader = gzip.open if self.name.endswith(".gz") else open
        with reader(FOLDER / self.name, "rt", encoding="utf-8") as lines:
            return sum(1 for line in lines if line.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """A public data set that a world reads, which does not ship.

    `params` are those of the world that load it. `described`: where its format is described.
    `variable`: the environment variable that may name its folder instead.
    """

    name: str
    size: str
    params: tuple[str, ...]
    described: str
    variable: str = ""

    @property
    def is_there(self) -> bool | None:
        """Whether the folder in `variable` is there; None where only a parameter can tell."""
        return (
            Path(os.environ.get(self.variable) or "/dev/null").is_dir() if self.variable else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldData:
    """What some worlds read. `made`: where their tasks come from without any file."""

    worlds: tuple[str, ...]
    made: str = ""
    shipped: tuple[ShippedFile, ...] = ()
    public: tuple[PublicSet, ...] = ()


SOURCES: tuple[WorldData, ...] = TypeAdapter(tuple[WorldData, ...]).validate_python(
    read_yaml_file(FOLDER / "sources.yaml")
)


def data_of(env_id: str) -> WorldData:
    """What a world reads; a world that is not listed draws its tasks and reads nothing."""
    for data in SOURCES:
        if env_id in data.worlds:
            return data
    return WorldData(worlds=(env_id,), made=DRAWN)


def readme_table(sources: Sequence[WorldData] = SOURCES) -> str:
    """The table of the files that ship, in Markdown."""
    files = [file for data in sources for file in data.shipped]
    rows = [f"| `{each.name}` | {each.what} | {each.origin} | {each.licence} |" for each in files]
    return "\n".join(["| file | what | origin | licence |", "| --- | --- | --- | --- |", *rows])


def as_json(env_id: str) -> Mapping[str, object]:
    """What a world reads, as plain data."""
    data = data_of(env_id)
    return {
        "id": env_id,
        "made": data.made,
        "shipped": [
            {
                "file": each.name,
                "rows": each.rows,
                "present": each.is_there,
                "origin": each.origin,
                "licence": each.licence,
            }
            for each in data.shipped
        ],
        "public": [
            {
                "name": each.name,
                "size": each.size,
                "params": list(each.params),
                "described": each.described,
                "present": each.is_there,
            }
            for each in data.public
        ],
    }


if __name__ == "__main__":
    import sys

    sys.stdout.write(f"{readme_table()}\n")
