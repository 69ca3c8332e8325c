"""Events of agent-lightning, joined: it writes an event a line, so an episode is many lines, mixed
with those of others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol


class _Rows(Protocol):
    """A source of rows, as `sources.py` makes them."""

    def scan(self) -> Iterator[Any]: ...
    def row(self, offset: int, size: int) -> Any: ...


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
        for row in source.scan():
            if is_event(row.value):
                key = (str(row.value["rollout_id"]), str(row.value["attempt_id"]))
                places.setdefault(key, []).append((row.place, row.size))
            else:
                file.write(json.dumps(row.problem or "not an event") + "\n")
        for (rollout, attempt), events_at in places.items():
            events = [source.row(offset, size) for offset, size in events_at]
            row = {"lightning_rollout": rollout, "attempt_id": attempt, "events": events}
            file.write(json.dumps(row) + "\n")
