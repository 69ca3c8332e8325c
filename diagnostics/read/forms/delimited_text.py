"""Records of metrics in CSV of any dialect: the header is found, whatever stands before it."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..foreign_names import WORDS, is_understood, meaning_of, spelled
from ..records import DECIMAL_COMMA, GROUPED, Collector, Reading, to_number

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


def dialect_of(lines: Sequence[str]) -> Dialect | None:
    """The dialect of a text that begins with these lines; None where it is no table."""
    dialects = [d for delimiter in DELIMITERS if (d := _dialect(lines, delimiter)) is not None]
    return max(
        dialects, key=lambda d: (sum(map(is_understood, d.names)), len(d.names)), default=None
    )


def _dialect(lines: Sequence[str], delimiter: str) -> Dialect | None:
    try:
        rows = [
            next(csv.reader([line], delimiter=delimiter)) if line.strip() else [] for line in lines
        ]
    except (csv.Error, StopIteration):
        return None
    for row_index, header in enumerate(rows):
        if len(header) < 2 or lines[row_index].startswith("#"):
            continue
        is_text = [math.isnan(to_number(cell)) for cell in header]
        following = [row for row in rows[row_index + 1 :] if len(row) == len(header)]
        cells = [cell for row in following for cell in row if cell.strip()]
        num_numbers = sum(not math.isnan(to_number(cell)) for cell in cells)
        is_table = num_numbers >= max(1, 0.2 * len(cells))
        is_known = any(map(is_understood, header))
        is_known = is_known and not any(":" in cell and "{" in cell for cell in header)
        if sum(is_text) >= 0.7 * len(header) and (is_table or (is_known and not following)):
            # `1,234` alone may be a thousand; beside `0,5` or `1,23` it is none.
            has_commas = any(
                DECIMAL_COMMA.fullmatch(cell) and not GROUPED.fullmatch(cell.strip())
                for cell in cells
            )
            return Dialect(
                delimiter=delimiter,
                num_before=row_index,
                names=_distinct(header),
                has_decimal_commas=has_commas and delimiter != ",",
            )
    return None


def _distinct(cells: Iterable[str]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for index, cell in enumerate(cells):
        name = cell.strip().lstrip("#").strip() or f"column {index + 1}"
        names[name if name not in names else f"{name} ({index + 1})"] = None
    return tuple(names)


class Columns:
    """A table, a row a line."""

    def __init__(self, reading: Reading, dialect: Dialect) -> None:
        self.collector = Collector(reading, "csv")
        self._dialect, self._names = dialect, _names(dialect, reading.path)
        self._num_before = dialect.num_before + 1

    def feed(self, lines: Iterable[str]) -> None:
        """Those of the first call begin with what stands before the table.

        Raises csv.Error where a cell is too long to be read.
        """
        body = itertools.islice(lines, self._num_before, None)
        self._num_before = 0
        for row in csv.reader(body, delimiter=self._dialect.delimiter):
            if not any(cell.strip(" :-=") for cell in row):
                continue  # empty, or a rule under the header
            if self._dialect.has_decimal_commas:
                row = [c.replace(",", ".") if DECIMAL_COMMA.fullmatch(c) else c for c in row]
            if len(row) != len(self._names):
                self.collector.left_out["line", "with another number of cells"] += 1
            elif [cell.strip() for cell in row] != self._names:
                self.collector.add(dict(zip(self._names, row, strict=True)))

    def best(self) -> Collector:
        return self.collector


def _names(dialect: Dialect, path: str) -> list[str]:
    """TensorBoard's `Wall time,Step,Value` leaves the name of the metric to the file's."""
    names = list(dialect.names)
    spellings = [spelled(name) for name in names]
    has_series = any(word in WORDS["series"] for word in spellings)
    is_known = any(meaning_of(name) for name in names)
    if "value" in spellings and not has_series and len(names) <= 3 and not is_known:
        names[spellings.index("value")] = Path(path).stem.rpartition("tag-")[2]
    return names
