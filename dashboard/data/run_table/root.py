"""What this process keeps of the runs of a root, for all who look at the page Runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echoscope.store.query.listing import RunRow

from ...web.settings import settings
from .facts import Facts
from .table import RunsTable, catalogue_of

KEPT_S = 10.0
"""For so long ages and the word for how a live run stands are used again."""


@dataclass(slots=True, kw_only=True)
class RootRuns:
    """Of one root."""

    facts: Facts = field(default_factory=Facts)
    _made: tuple[Any, int, RunsTable] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def table(self, rows: Sequence[RunRow]) -> RunsTable:
        """The runs as they are known now; made anew where one has moved or was read."""
        now = time.time()
        mark = (self.facts.version, hash(tuple(rows)), int(now / KEPT_S))
        num_judged = self.facts.num_judged
        with self._lock:
            made = self._made if self._made and self._made[0] == mark else None
            if made is not None and made[1] == num_judged:
                return made[2]
            standings = [self.facts.standing(row) for row in rows]
            if made is not None:
                table = made[2].judged(standings)
            else:
                facts = [self.facts.of(row) for row in rows]
                table = RunsTable(
                    rows=rows,
                    facts=facts,
                    standings=standings,
                    now=now,
                    catalogue=catalogue_of(facts),
                )
            self._made = mark, num_judged, table
            return table


_roots: dict[Path, RootRuns] = {}
_lock = threading.Lock()


def root_runs() -> RootRuns:
    """Of the root that this process serves."""
    with _lock:
        return _roots.setdefault(settings().root, RootRuns())
