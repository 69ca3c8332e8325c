"""What this process keeps of the runs of a root, for all who look at the page Runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echoscope.store.query.listing import RunRow

from ...web.settings import settings
from .curves import CurveStore
from .facts import Facts
from .table import RunsTable, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRuns:
    """Of one root."""

    facts: Facts = field(default_factory=Facts)
    tables: Tables = field(default_factory=Tables)
    curves: CurveStore = field(default_factory=CurveStore)

    def table(self, rows: Sequence[RunRow]) -> RunsTable:
        """The runs as they are known now."""
        return self.tables.of(self.facts, rows)


_roots: dict[Path, RootRuns] = {}
_lock = threading.Lock()


def root_runs() -> RootRuns:
    """Of the root that this process serves."""
    with _lock:
        return _roots.setdefault(settings().root, RootRuns())
