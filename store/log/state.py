"""What the records of a journal add up to: attempts, acknowledged steps, files that count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import StoreError
from ..schema import SCHEMA_VERSION, check_version
from .layout import FileGroup


class RunState:
    """The state after some journal records. The writer keeps one, each reader its own.

    A rewind to step c begins a new attempt: whatever earlier attempts wrote for steps after c is
    hidden from then on, and stays on the disk.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.description: Mapping[str, Any] | None = None
        """What `run.json` says."""
        self.attempt = 1
        self.rewinds: list[tuple[int, int]] = []
        """(attempt that it began, last step that it left visible), in order."""
        self.last_step = -1
        """Last acknowledged step that is visible."""
        self.status: str | None = None
        """How the run ended; None while nobody said so."""
        self.ended_at: float | None = None
        self.unfinished: dict[str, FileGroup] = {}
        """Micro-segments of steps that have no step record yet."""
        self.committed: list[FileGroup] = []
        """Segments of acknowledged steps that no pack holds."""

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take one more record.

        Raises:
            StoreError: the record contradicts the schema.
        """
        handler = _HANDLERS.get(record["kind"])
        if handler is None:
            return
        try:
            handler(self, record)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"journal of {self.run_id}: a {record['kind']!r} record is not what this version "
                f"writes ({error!r})"
            ) from error

    def header(self, wall_time: float) -> dict[str, Any]:
        """The first record of the next piece: enough to forget the pieces before."""
        return {
            "schema": SCHEMA_VERSION,
            "description": self.description,
            "attempt": self.attempt,
            "rewinds": [list(pair) for pair in self.rewinds],
            "last_step": self.last_step,
            "status": self.status,
            "ended_at": self.ended_at,
            "unfinished": [segment.to_json() for segment in self.unfinished.values()],
            "wall_time": wall_time,
        }

    def limit(self, attempt: int) -> int | None:
        """The last visible step of an attempt; None where no later attempt rewound it."""
        limits = [step for began, step in self.rewinds if began > attempt]
        return min(limits) if limits else None

    def _journal(self, record: Mapping[str, Any]) -> None:
        check_version(record["schema"], f"journal of {self.run_id}")
        self.description = record["description"]
        self.attempt = int(record["attempt"])
        self.rewinds = [(int(attempt), int(step)) for attempt, step in record["rewinds"]]
        self.last_step = int(record["last_step"])
        self.status, self.ended_at = record["status"], record["ended_at"]
        segments = [FileGroup.from_json(value) for value in record["unfinished"]]
        self.unfinished = {segment.id: segment for segment in segments}

    def _micro(self, record: Mapping[str, Any]) -> None:
        segment = FileGroup.from_json(record["segment"])
        self.unfinished[segment.id] = segment

    def _step(self, record: Mapping[str, Any]) -> None:
        for replaced in record["replaces"]:
            self.unfinished.pop(replaced, None)
        if record["segment"] is not None:
            self.committed.append(FileGroup.from_json(record["segment"]))
        self.last_step = int(record["step"])

    def _rewind(self, record: Mapping[str, Any]) -> None:
        self.attempt = int(record["attempt"])
        self.last_step = int(record["from_step"])
        self.rewinds.append((self.attempt, self.last_step))
        self.unfinished.clear()
        self.status = self.ended_at = None

    def _close(self, record: Mapping[str, Any]) -> None:
        self.status, self.ended_at = str(record["status"]), float(record["wall_time"])


_HANDLERS = {
    "journal": RunState._journal,
    "micro": RunState._micro,
    "step": RunState._step,
    "rewind": RunState._rewind,
    "close": RunState._close,
}
"""By the kind of record. Other records hold events alone."""
