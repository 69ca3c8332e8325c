"""EasyR1's log of generations while it grows: the samples of whole validations.

EasyR1 writes no step. As in an import, the next validation begins where the prompts come again, and
its number stands for the step. A validation is handed out when all of it is there, so nothing is
read while the file is being written.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.store.importers.lines import BadJsonError
from echoscope.store.importers.sources import FoundRow
from echoscope.store.importers.spooled.easyr1_log import (
    Sample,
    period_of,
    prompt_digest,
    row_of,
    samples,
)

_MARK_BYTES = 64


@dataclass(frozen=True, slots=True)
class _KnownSample:
    place: int
    size: int
    prompt: bytes
    """Digest of the prompt."""


class Generations:
    """One file, as a source of rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._samples: list[_KnownSample] = []
        self._end, self._mark = 0, b""
        """Behind the last whole sample, and the bytes before this place."""
        self._period = 0
        """Samples of a validation; 0 as long as there is one validation."""
        self._num_taken = 0

    @property
    def num_waiting(self) -> int:
        """Whole samples of a validation that is not whole yet."""
        return len(self._samples) - self._num_taken

    def read(self, num_bytes: int) -> tuple[bool, bool]:
        """Take in the whole samples that are new, of about so many bytes.

        Returns whether the file was written anew, and whether there is more to read.

        Raises:
            OSError: it cannot be read.
        """
        with self._path.open("rb") as file:
            start = max(0, self._end - _MARK_BYTES)
            file.seek(start)
            is_new_text = file.read(self._end - start) != self._mark
            if is_new_text:
                self._samples, self._end, self._period, self._num_taken = [], 0, 0, 0
                file.seek(0)
            limit = self._end + num_bytes
            before: Sample | None = None
            for sample in samples(file):
                if before is not None:
                    self._take(before)
                before = sample
                if sample.place > limit:
                    break
            is_more = before is not None and before.place > limit
            if before is not None and before.is_closed and not is_more:
                self._take(before)
            start = max(0, self._end - _MARK_BYTES)
            file.seek(start)
            self._mark = file.read(self._end - start)
        return is_new_text, is_more

    def _take(self, sample: Sample) -> None:
        self._samples.append(_KnownSample(sample.place, sample.size, prompt_digest(sample)))
        self._end = sample.place + sample.size

    def validations(self) -> tuple[bool, Iterator[FoundRow]]:
        """The samples of whole validations that were not handed out yet.

        Returns also whether all samples are handed out once more, because those that were handed
        out before belong to other validations than it seemed.
        """
        prompts = [sample.prompt for sample in self._samples]
        period, num_all = period_of(prompts) or self._period, len(prompts)
        if period:
            num_whole = num_all - num_all % period
        elif self._num_taken and prompts[self._num_taken :] == prompts[: self.num_waiting]:
            num_whole = self._num_taken  # the next one has begun
        else:
            num_whole = num_all
        before, self._period = self._period, period
        is_other = any(
            _number(row, before) != _number(row, period) for row in range(self._num_taken)
        )
        first, self._num_taken = 0 if is_other else self._num_taken, num_whole
        return is_other, self._rows(range(first, num_whole))

    def scan(self) -> Iterator[FoundRow]:
        """The samples that were handed out."""
        return self._rows(range(self._num_taken))

    def row(self, place: int, size: int) -> Any:
        """A sample again. Raises BadJsonError where the file has changed, or OSError."""
        number = bisect.bisect_left(self._samples, place, key=lambda known: known.place)
        if number == len(self._samples) or self._samples[number].place != place:
            raise BadJsonError("the file was written anew")
        return next(self._rows(range(number, number + 1))).value

    def close(self) -> None:
        """No file stays open."""

    def _rows(self, numbers: range) -> Iterator[FoundRow]:
        with self._path.open("rb") as file:
            for number in numbers:
                known = self._samples[number]
                file.seek(known.place)
                sample = next(samples(file), Sample())
                row = row_of(sample, _number(number, self._period))
                yield FoundRow(known.place, known.size, row, data=b"\0".join(sample.texts))


def _number(sample: int, period: int) -> int:
    """Of a sample's validation."""
    return sample // period if period else 0
