"""Which rows of rollouts count, where several files hold the same rows.

As in an import, the rows of a file count once where another file begins with all of them, such as
an older backup of a file that grew. Here files grow and appear, so that is decided anew whenever
one of them has new rows: a file that was a copy may be none any more.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echoscope.store.importers.survey import copies_among

Past = Callable[[], Iterable[int]]
"""Reads the facts of the rows again that an earlier watch has read."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Rows of a file, by their numbers in it."""

    file: str
    counted: Sequence[int]
    """They count from now on."""
    dropped: Sequence[int]
    """They count no more: a file that they also stand in is read as well."""


@dataclass(slots=True, kw_only=True)
class _FileRows:
    first: int
    """Fact of the first row."""
    num_past: int = 0
    """Rows that an earlier watch has read, and whose facts are not known here."""
    past: Past | None = None
    facts: array.array[int] = field(default_factory=lambda: array.array("Q"))
    """What each row says, behind those of the past."""
    counts: bytearray = field(default_factory=bytearray)
    """Row -> whether it counts, those of the past included."""

    @property
    def num_rows(self) -> int:
        return len(self.counts)

    def recall(self) -> bool:
        """Read the facts of the past again; whether they are those that were read then."""
        if self.past is None:
            return True
        facts = array.array("Q", itertools.islice(self.past(), self.num_past + 1))
        if len(facts) != self.num_past or facts[0] != self.first:
            return False
        self.facts, self.num_past, self.past = facts + self.facts, 0, None
        return True


class Copies:
    """The rows of all files.

    Args:
        folder: Names of files are relative to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _FileRows] = {}
        self._alike: dict[int, list[str]] = {}
        """First row -> the files that begin with it."""
        self._changed: dict[int, None] = {}
        """First rows of the files that have changed."""
        self.originals: dict[str, str] = {}
        """File that is passed over -> the file that holds its rows."""

    def note(self, file: str, fact: int) -> int:
        """Take in the next row of a file; its number."""
        rows = self._files.get(file)
        if rows is None:
            rows = self._files[file] = _FileRows(first=fact)
            self._alike.setdefault(fact, []).append(file)
        rows.facts.append(fact)
        rows.counts.append(False)
        self._changed[rows.first] = None
        return rows.num_rows - 1

    def resume(self, file: str, *, first: int, num_rows: int, original: str, past: Past) -> None:
        """An earlier watch has read the first rows of a file.

        Args:
            original: The file that holds them all, so that they did not count; "" for none.
        """
        self._files[file] = _FileRows(
            first=first,
            num_past=num_rows,
            past=past,
            counts=bytearray([not original]) * num_rows,
        )
        self._alike.setdefault(first, []).append(file)
        if original:
            self.originals[file] = original

    def replaced(self, file: str) -> None:
        """What follows is another text."""
        rows = self._files.pop(file, None)
        if rows is not None:
            self._alike[rows.first].remove(file)
            self._changed[rows.first] = None
            self.originals.pop(file, None)

    def first(self, file: str) -> int | None:
        """The fact of a file's first row; None where it has none."""
        return self._files[file].first if file in self._files else None

    def num_rows(self, file: str) -> int:
        return self._files[file].num_rows if file in self._files else 0

    def count(self, file: str, number: int, *, does_count: bool) -> None:
        """Say what became of a row."""
        self._files[file].counts[number] = does_count

    def decide(self) -> Iterator[Decision]:
        """What rows that came since the last call change."""
        changed, self._changed = list(self._changed), {}
        for first in changed:
            yield from self._decide_among(list(self._alike.get(first, ())))

    def _decide_among(self, names: Sequence[str]) -> Iterator[Decision]:
        """For files with the same first row."""
        copies = self._copies(names)
        for name in names:
            if name in copies:
                self.originals[name] = copies[name]
            else:
                self.originals.pop(name, None)
        for name in names:
            if name in copies:
                continue
            same = [name, *(copy for copy, original in copies.items() if original == name)]
            times = np.zeros(self._files[name].num_rows, dtype=np.int64)
            for file in same:
                counts = self._counts(file)
                times[: len(counts)] += counts
            yield Decision(name, np.flatnonzero(times == 0).tolist(), ())
            for file in same[1:]:
                counts = self._counts(file)
                twice = np.flatnonzero((times[: len(counts)] > 1) & (counts > 0))
                times[twice] -= 1
                if len(twice):
                    yield Decision(file, (), twice.tolist())

    def _counts(self, file: str) -> NDArray[np.uint8]:
        return np.array(self._files[file].counts, dtype=np.uint8)

    def _copies(self, names: Sequence[str]) -> dict[str, str]:
        """File that is a copy -> the file that holds its rows."""
        if len(names) < 2:
            return {}
        is_new = any(self._files[name].past is None for name in names)
        grew = any(len(self._files[name].facts) > 0 for name in names if name in self.originals)
        if not (is_new or grew):  # what an earlier watch found still holds
            return {n: self.originals[n] for n in names if n in self.originals}
        known = [name for name in names if self._recall(name)]
        facts = [np.array(self._files[name].facts, dtype=np.uint64)[:, None] for name in known]
        found = copies_among([(self._folder / n, f) for n, f in zip(known, facts, strict=True)])
        return {known[copy]: known[original] for copy, original in found.items()}

    def _recall(self, file: str) -> bool:
        """Whether a file can be compared; one whose past is another now counts as it is."""
        rows = self._files[file]
        if rows.recall():
            return True
        self._alike[rows.first].remove(file)
        rows.first = -len(self._files)  # no row says that
        self._alike.setdefault(rows.first, []).append(file)
        rows.counts = bytearray([True]) * rows.num_past + rows.counts[rows.num_past :]
        return False
