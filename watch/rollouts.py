"""Rows of rollouts in files that grow or appear: where they stand, and of which step they are.

Of each row its place is kept until its step is written; rows are converted only then.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from echoscope.store.importers.draft import Draft, RowError
from echoscope.store.importers.format import Format, Where
from echoscope.store.importers.lines import MAX_LINE_BYTES, BadJsonError, json_of
from echoscope.store.importers.registry import FORMATS
from echoscope.store.importers.sources import FoundRow, Source
from echoscope.store.importers.survey import MAX_STEP, format_of
from echoscope.store.records import MAX_INDEX

BLOCK_ROWS = 256
"""Where nothing says a step, so many rows are one."""
KEPT_STEPS = 64
"""Steps whose rows stay known after they were written, in case numbers come late."""
AGAIN = 0.5
"""A written step of which at least this share of episodes comes again has been trained again."""
BAD_ROW = (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class FoundEpisodes:
    """A row of rollouts and where it stands."""

    file: str
    place: int
    size: int
    format: int
    """Index into FORMATS."""
    digest: int
    is_file_step: bool
    is_block: bool


@dataclass(slots=True)
class Rollouts:
    """All rows of a path by step."""

    root: Path
    trainer: str = ""
    """Of the first row: rows of others are left out."""
    changed_at: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    """Why rows were left out, and how many."""
    is_closed_kind: bool = True
    """All files so far are written at once (Parquet, documents), none row by row."""
    num_rows: int = 0
    _steps: dict[int, list[FoundEpisodes]] = field(default_factory=dict)
    _again: dict[int, list[FoundEpisodes]] = field(default_factory=dict)
    """Rows of steps that were written."""
    _written: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Step -> how many rows of it the run has, and their hash."""
    _num_unnumbered: int = 0
    _sources: dict[str, Source] = field(default_factory=dict)

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    @property
    def steps(self) -> Sequence[int]:
        return list(self._steps)

    @property
    def newest(self) -> int:
        return max(self._steps, default=-1)

    def take(
        self, file: str, source: Source, found: FoundRow, likely: Format | None
    ) -> Format | None:
        """Note a row; its format, None where it has no known one."""
        if found.problem:
            self.refused[found.problem] += 1
            return likely
        form = format_of(found.value, likely) if isinstance(found.value, dict) else None
        if form is None:
            self.refused["a row of no known format"] += 1
            return likely
        if self.trainer and form.trainer != self.trainer:
            self.refused[f"rows of {form.trainer} beside those of {self.trainer}"] += 1
            return likely
        self.trainer = self.trainer or form.trainer
        where = Where(path=PurePath(file))
        try:
            step = form.step(found.value)
            is_file_step = step is None
            step = form.file_step(where) if step is None else step
        except BAD_ROW:
            self.refused["its values are not of the kinds that its keys promise"] += 1
            return form
        is_block = step is None
        if step is None:
            step, is_file_step = self._num_unnumbered // BLOCK_ROWS, False
            self._num_unnumbered += 1
        if not 0 <= step <= MAX_STEP:
            self.refused[f"its step is not in [0, {MAX_STEP}]"] += 1
            return form
        digest = hashlib.blake2b(found.data, digest_size=8).digest()
        row = FoundEpisodes(
            file=file,
            place=found.place,
            size=found.size,
            format=FORMATS.index(form),
            digest=int.from_bytes(digest, "little"),
            is_file_step=is_file_step,
            is_block=is_block,
        )
        self._sources.setdefault(file, source)
        rows = (self._again if step in self._written else self._steps).setdefault(step, [])
        if len(rows) <= MAX_INDEX:
            rows.append(row)
            self.num_rows += 1
        else:
            self.refused[f"a step holds at most {MAX_INDEX + 1:,} episodes"] += 1
        return form

    def replaced(self, file: str) -> None:
        """A file was written again: its rows that are not written yet are void."""
        self._sources.pop(file, None)
        for waiting in (self._steps, self._again):
            for step in list(waiting):
                if step in self._written and waiting is self._steps:
                    continue
                waiting[step] = [row for row in waiting[step] if row.file != file]
                if not waiting[step]:
                    del waiting[step]

    def trained_again(self) -> int | None:
        """The first written step whose episodes have come again; its new rows then count.

        A file that was written again as it was is no news.
        """
        first = None
        for step in sorted(self._again):
            rows = self._again[step]
            num_written, digest = self._written[step]
            known = {row.digest for row in self._steps.get(step, ())}
            if digest_of(rows) == digest or all(row.digest in known for row in rows):
                del self._again[step]
            elif len(rows) >= AGAIN * num_written:
                first = step
                break
        if first is None:
            return None
        again = {step: rows for step, rows in self._again.items() if step >= first}
        self.forget(first)
        self._steps |= again
        return first

    def forget(self, first: int) -> None:
        """Forget steps from `first` on: they come again."""
        for waiting in (self._steps, self._again):
            for step in [step for step in waiting if step >= first]:
                del waiting[step]
        self.take_back(first)

    def take_back(self, first: int) -> None:
        """Steps from `first` on are to be written once more."""
        self._written = {step: n for step, n in self._written.items() if step < first}

    def num_late(self) -> int:
        """Rows of written steps that will not be judged; they are forgotten."""
        late = sum(map(len, self._again.values()))
        self._again.clear()
        return late

    def written(self, step: int) -> None:
        """A step is in the run."""
        rows = self._steps.get(step, ())
        self._written[step] = len(rows), digest_of(rows)
        for old in sorted(s for s in self._steps if s in self._written)[:-KEPT_STEPS]:
            del self._steps[old]

    def is_known(self, step: int) -> bool:
        """Whether the rows of a written step are still known."""
        return step in self._steps or not self._written.get(step, (0, ""))[0]

    def know(self, steps: Mapping[int, tuple[int, str]]) -> None:
        """Steps that the run has already: of how many rows, and their hash."""
        self._written = dict(steps)

    def signature(self, step: int) -> tuple[int, str]:
        """How many rows a step has here, and their hash."""
        rows = self._steps.get(step, ())
        return len(rows), digest_of(rows)

    def first_waiting(self, file: str) -> int | None:
        """Where in a file the first row stands that is not written yet."""
        places = [
            row.place
            for step, rows in self._steps.items()
            if step not in self._written
            for row in rows
            if row.file == file
        ]
        return min(places, default=None)

    def drafts(self, step: int) -> Iterator[tuple[Draft, str, str]]:
        """The episodes of a step, each with its place and its format; refusals are counted."""
        used: set[str] = set()
        for row in self._steps.get(step, ()):
            place = f"{row.file}:{row.place}"
            form = FORMATS[row.format]
            source = self._sources[row.file]
            used.add(row.file)
            try:
                value = source.row(row.place, row.size)
                for draft in form.drafts(value, Where(path=PurePath(row.file))):
                    if row.is_file_step:
                        draft.reconstructed.add("step")
                    if row.is_block:
                        draft.reconstructed.add("blocks")
                    yield draft, place, form.name
            except RowError as error:
                self.refused[str(error)] += 1
            except (BadJsonError, OSError):
                self.refused["the file changed before it was read"] += 1
            except BAD_ROW:
                self.refused["its values are not of the kinds that its keys promise"] += 1
        for file in used:
            self._sources[file].close()


def digest_of(rows: Sequence[FoundEpisodes]) -> str:
    """A hash of rows, whatever their order."""
    data = b"".join(row.digest.to_bytes(8, "little") for row in sorted(rows, key=_digest))
    return hashlib.blake2b(data, digest_size=8).hexdigest() if rows else ""


def _digest(row: FoundEpisodes) -> int:
    return row.digest


def rows_of_lines(start: int, data: bytes) -> Iterator[FoundRow]:
    """The rows of whole JSON lines that stand at `start` of their file."""
    place = start
    for line in data.splitlines(keepends=True):
        if line.strip():
            if len(line) > MAX_LINE_BYTES:
                yield FoundRow(place, len(line), None, "a line of more than 16 MB")
            else:
                try:
                    value, is_clean = json_of(line)
                    yield FoundRow(place, len(line), value, "", not is_clean, line)
                except BadJsonError as error:
                    yield FoundRow(place, len(line), None, str(error))
        place += len(line)
