"""Records of metrics in CSV of any dialect: the header is found, whatever stands before it."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..foreign_names import meaning_of, spelled, step_rank
from ..records import SERIES, to_number

DELIMITERS = ",\t;|"
NUM_SAMPLED = 60
csv.field_size_limit(1 << 25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a text holds a table."""

    delimiter: str
    num_before: int
    """Lines before the header."""
    names: tuple[str, ...]
    has_decimal_commas: bool = False


_DECIMAL = re.compile(r"\s*[-+]?\d+,\d+(?:[eE][-+]?\d+)?\s*")


def dialect_of(lines: Sequence[str]) -> Dialect | None:
    """The dialect of a text that begins with these lines; None where it is no table."""
    dialects = [d for delimiter in DELIMITERS if (d := _dialect(lines, delimiter)) is not None]

    def num_known(dialect: Dialect) -> tuple[int, int]:
        names = dialect.names
        num_understood = sum(meaning_of(n) is not None or step_rank(n) is not None for n in names)
        return num_understood, len(names)

    return max(dialects, key=num_known, default=None)


def _dialect(lines: Sequence[str], delimiter: str) -> Dialect | None:
    try:
        rows = [
            next(csv.reader([line], delimiter=delimiter)) if line.strip() else []
            for line in lines[:NUM_SAMPLED]
        ]
    except (csv.Error, StopIteration):
        return None
    for row_index, header in enumerate(rows):
        if len(header) < 2 or lines[row_index].startswith("#"):
            continue
        is_text = [math.isnan(to_number(cell)) for cell in header]
        following = [row for row in rows[row_index + 1 :] if len(row) == len(header)]
        numbers = sum(not math.isnan(to_number(cell)) for row in following for cell in row)
        filled = sum(bool(cell.strip()) for row in following for cell in row)
        is_table = bool(following) and numbers >= max(1, 0.2 * filled)
        is_known = any(meaning_of(cell) or step_rank(cell) is not None for cell in header)
        is_known = is_known and not any(":" in cell and "{" in cell for cell in header)
        if sum(is_text) >= 0.7 * len(header) and (is_table or (is_known and not following)):
            cells = [cell for row in following for cell in row if cell.strip()]
            # `1,234` alone may be a thousand; beside `0,5` or `1,23` it is none.
            has_commas = any(
                _DECIMAL.fullmatch(cell) and math.isnan(_as_thousands(cell)) for cell in cells
            )
            return Dialect(
                delimiter=delimiter,
                num_before=row_index,
                names=_distinct(header),
                has_decimal_commas=has_commas and delimiter != ",",
            )
    return None


def _as_thousands(cell: str) -> float:
    """The number of a cell whose commas stand between thousands; NaN where they do not."""
    is_grouped = re.fullmatch(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+", cell.strip())
    return to_number(cell.strip()) if is_grouped else math.nan


def _distinct(cells: Iterable[str]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for index, cell in enumerate(cells):
        name = cell.strip().lstrip("#").strip() or f"column {index + 1}"
        names[name if name not in names else f"{name} ({index + 1})"] = None
    return tuple(names)


@dataclass(slots=True)
class DelimitedText:
    """The records of a table in a text."""

    dialect: Dialect
    path: str
    num_skipped: int = 0
    _is_begun: bool = False

    def records(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The records of lines; those of the first call begin with what stands before the table.

        Raises csv.Error where a cell is too long to be read.
        """
        names = self._names()
        has_commas = self.dialect.has_decimal_commas
        body = itertools.islice(lines, 0 if self._is_begun else self.dialect.num_before + 1, None)
        self._is_begun = True
        for row in csv.reader(body, delimiter=self.dialect.delimiter):
            if not any(cell.strip(" :-=") for cell in row):
                continue  # empty, or a rule under the header
            if has_commas:
                row = [cell.replace(",", ".") if _DECIMAL.fullmatch(cell) else cell for cell in row]
            if len(row) == len(names):
                if any(cell.strip() != name for cell, name in zip(row, names, strict=True)):
                    yield dict(zip(names, row, strict=True))
            elif row:
                self.num_skipped += 1

    def _names(self) -> list[str]:
        """TensorBoard's `Wall time,Step,Value` leaves the name of the metric to the file's."""
        names = list(self.dialect.names)
        spellings = [spelled(name) for name in names]
        has_series = any(word in SERIES for word in spellings)
        if (
            "value" in spellings
            and not has_series
            and len(names) <= 3
            and not any(meaning_of(name) for name in names)
        ):
            names[spellings.index("value")] = Path(self.path).stem.rpartition("tag-")[2]
        return names
