"""Episodes that stand in several places of a file, or in another form: joined, one a line.

agent-lightning writes an event a line, so an episode is many lines, mixed with those of others. ART
wrote its groups as YAML at first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from ..lines import BadJsonError

MAX_DOCUMENT = 32 << 20
_MAX_DEPTH = 100
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Rows(Protocol):
    """A source of rows, as `sources.py` makes them."""

    def scan(self) -> Iterator[Any]: ...
    def row(self, place: int, size: int) -> Any: ...


def is_event(row: Any) -> bool:
    """Whether a row is an event of agent-lightning."""
    names = ("event_type", "rollout_id", "attempt_id", "data")
    return isinstance(row, Mapping) and all(name in row for name in names)


def write_events(source: _Rows, target: Path) -> None:
    """Write the events of each attempt at a rollout as one line, in their order.

    Only the places of the events are kept in memory, and the events of one attempt.
    """
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with target.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for found in source.scan():
            if is_event(found.value):
                key = (str(found.value["rollout_id"]), str(found.value["attempt_id"]))
                places.setdefault(key, []).append((found.place, found.size))
            else:
                # Counted as a row that is none of the format's.
                file.write(json.dumps(found.problem or "not an event") + "\n")
        for (rollout, attempt), own in places.items():
            events = [source.row(place, size) for place, size in own]
            row = {"lightning_rollout": rollout, "attempt_id": attempt, "events": events}
            file.write(json.dumps(row) + "\n")


class _Documents(_Loader):  # type: ignore[misc]
    """Plain values alone. Merge keys are left out: a few of them stand for billions of values."""

    def flatten_mapping(self, node: Any) -> None:
        return


def is_groups_yaml(path: Path, head: bytes) -> bool:
    """Whether a file is one of ART's older ones, by its name and its first bytes."""
    return path.suffix.lower() in (".yaml", ".yml") and bool(
        re.match(rb"\s*-\s+trajectories:", head)
    )


def write_groups(path: Path, target: Path) -> None:
    """Write the groups of a YAML file of ART as JSON lines.

    Raises:
        BadJsonError: it is no such file, or damaged, or a bomb.
    """
    if path.stat().st_size > MAX_DOCUMENT:
        raise BadJsonError("a YAML document of more than 32 MB; JSON lines have no limit")
    try:
        groups = yaml.load(path.read_bytes(), Loader=_Documents)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise BadJsonError(f"not a YAML document: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise BadJsonError("YAML nested too deeply") from None
    # References are not copied by the loader, so that what comes out may be far larger.
    budget = [64 << 20]
    with target.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for group in groups if isinstance(groups, list) else ():
            file.write(json.dumps(_plain(group, budget)) + "\n")


def _plain(value: Any, budget: list[int], depth: int = 0) -> Any:
    budget[0] -= 16 + (len(value) if isinstance(value, str) else 0)
    if budget[0] < 0:
        raise BadJsonError("its references unpack to more than 64 MB, as a bomb does")
    if depth > _MAX_DEPTH:
        raise BadJsonError("YAML nested too deeply")
    if isinstance(value, dict):
        return {str(key): _plain(entry, budget, depth + 1) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, budget, depth + 1) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
