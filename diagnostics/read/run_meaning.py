"""What the numbers of a run are: one record a run, decided once and stored with it.

`names.Decision` makes the record from columns. Here it is kept, written as JSON, and followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from pydantic import TypeAdapter, ValidationError

from echoscope.store.records import DiagnosticRecord, FloatArray64

from .foreign_names import How

KIND = "meaning"
"""Of the diagnostic record that stores a `RunMeaning`."""
LARGEST_SHARE = 1.01
"""A share is no greater, but for rounding."""


class Scale(StrEnum):
    """In what unit a column is written."""

    ANY = "any"
    SHARE = "share"
    PERCENT = "percent"


_OF_A_COLUMN = frozenset({How.COLUMN, How.COMPLEMENT, How.NEGATIVE, How.UNREAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeaning:
    """Where one key comes from."""

    key: str
    """Ours; the column's own name where that stays; "" where the column is not read."""
    of: tuple[str, ...]
    """The column; or the keys that it is made from."""
    how: How = How.COLUMN
    scale: Scale = Scale.ANY
    evidence: str = ""

    @property
    def is_of_a_column(self) -> bool:
        return self.how in _OF_A_COLUMN

    def values(self, column: FloatArray64) -> FloatArray64:
        """The key's values from its column's (R,); NaN where a share lies outside of 0 and 1."""
        if self.scale is not Scale.ANY:
            column = column / 100.0 if self.scale is Scale.PERCENT else column
            column = np.where((column >= 0) & (column <= LARGEST_SHARE), column, np.nan)
        if self.how is How.COMPLEMENT:
            return np.asarray(1.0 - column)
        return np.asarray(-column) if self.how is How.NEGATIVE else column


def _differs(earlier: ColumnMeaning, now: ColumnMeaning | None) -> bool:
    """Whether a key comes from something else now; a mean may take in more."""
    if earlier.how is How.MEAN:
        return False
    return now is None or replace(earlier, evidence="") != replace(now, evidence="")


_COLUMNS: TypeAdapter[tuple[ColumnMeaning, ...]] = TypeAdapter(tuple[ColumnMeaning, ...])


@dataclass(frozen=True)
class RunMeaning:
    """Which key each column of a run is, on what scale, and from which evidence."""

    columns: tuple[ColumnMeaning, ...] = ()
    """In the order in which they are applied: those made from keys come after these keys."""

    @cached_property
    def of_column(self) -> Mapping[str, ColumnMeaning]:
        """By the trainer's name."""
        return {entry.of[0]: entry for entry in self.columns if entry.is_of_a_column}

    @cached_property
    def of_key(self) -> Mapping[str, ColumnMeaning]:
        return {entry.key: entry for entry in self.columns if entry.key}

    def apply(
        self, columns: Mapping[str, FloatArray64]
    ) -> tuple[dict[str, FloatArray64], dict[str, str]]:
        """Columns under our keys, each (R,), and the column or columns that each came from.

        A column without a meaning keeps its name.
        """
        out: dict[str, FloatArray64] = {}
        sources: dict[str, str] = {}
        for name, values in columns.items():
            entry = self.of_column.get(name)
            if entry is None or entry.key == name:
                out[name] = values if entry is None else entry.values(values)
                sources[name] = name
        for entry in self.columns:
            if not entry.is_of_a_column:
                self._derive(entry, out, sources)
            elif entry.key not in ("", entry.of[0]) and entry.of[0] in columns:
                out[entry.key] = entry.values(columns[entry.of[0]])
                sources[entry.key] = entry.of[0]
        return out, sources

    def _derive(
        self,
        entry: ColumnMeaning,
        out: dict[str, FloatArray64],
        sources: dict[str, str],
    ) -> None:
        """A key from others; nothing where one is missing, or all of a mean."""
        parts = [part for part in entry.of if part in out]
        if not parts or (len(parts) < len(entry.of) and entry.how is not How.MEAN):
            return
        stacked = np.stack([out[part] for part in parts])
        if entry.how is How.MEAN:
            is_there = np.isfinite(stacked)
            count = is_there.sum(axis=0)
            total = np.where(is_there, stacked, 0.0).sum(axis=0)
            out[entry.key] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
            sources[entry.key] = ", ".join(sources[part] for part in parts)
        else:
            over = np.where(stacked[1] > 0, stacked[1], np.nan)
            ratio = stacked[0] / over
            is_share = entry.how is How.SHARE_OF
            out[entry.key] = np.clip(ratio, 0.0, 1.0) if is_share else ratio
            sources[entry.key] = sources[parts[0]]

    def row(self, values: Mapping[str, float]) -> dict[str, float]:
        """The keys that follow from the trainer's numbers of one row."""
        columns = {name: np.array([value]) for name, value in values.items() if name in self._used}
        return {key: float(numbers[0]) for key, numbers in self.apply(columns)[0].items()}

    def is_revised_by(self, later: RunMeaning) -> bool:
        """Whether rows that were named by this mean something else now."""
        return any(
            _differs(entry, later.of_column.get(entry.of[0]))
            if entry.is_of_a_column
            else _differs(entry, later.of_key.get(entry.key))
            for entry in self.columns
        )

    @cached_property
    def _used(self) -> frozenset[str]:
        return frozenset(name for entry in self.columns for name in entry.of)

    def record(self, step: int) -> DiagnosticRecord:
        """As it is stored with the run, at the step from which it holds."""
        payload = _COLUMNS.dump_json(self.columns).decode()
        return DiagnosticRecord(step=step, kind=KIND, payload=payload)

    @classmethod
    def from_payload(cls, payload: str) -> RunMeaning:
        """From the payload of its record.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(_COLUMNS.validate_json(payload))
        except ValidationError as error:
            raise ValueError(
                f"no record of what a run's numbers mean: {error.errors()[0]['msg']}"
            ) from None
