"""Rows of rollouts in files that grow or appear: where they stand, and of which step they are.

Of each row its place is kept until its step is written; rows are converted only then.
"""

from __future__ import annotations

import array
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from echoscope.store.importers.draft import Draft, RowError
from echoscope.store.importers.format import NO_ROLES, Format, RewardValues, Roles, Where
from echoscope.store.importers.lines import MAX_LINE_BYTES, BadJsonError, json_of
from echoscope.store.importers.registry import FORMATS
from echoscope.store.importers.sources import FoundRow, Source, SourceError
from echoscope.store.importers.survey import MAX_STEP, format_of
from echoscope.store.records import MAX_INDEX

from .copies import Copies

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
    number: int
    """Among the rows of its file."""
    step: int
    """-1 where nothing says it."""
    is_file_step: bool

    @property
    def is_without_step(self) -> bool:
        """Nothing says a step: all such rows are one evaluation, as in an import."""
        return self.step < 0


@dataclass(slots=True)
class Rollouts:
    """All rows of a path by step."""

    root: Path
    """The folder that the names of files are relative to."""
    roles: Roles = NO_ROLES
    """What a user says of the keys of rows."""
    trainer: str = ""
    """Of the first row: rows of others are left out."""
    changed_at: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    """Why rows were left out, and how many."""
    is_closed_kind: bool = True
    """All files so far are written at once (Parquet, documents), none row by row."""
    num_rows: int = 0
    is_evaluation: bool = False
    """A row without a step counts: all such rows are step 0."""
    num_left_out: int = 0
    """Episodes that came too long after their step was judged."""
    _fresh: dict[str, list[FoundEpisodes]] = field(default_factory=dict)
    """Rows of each file since the last `settle`."""
    _steps: dict[int, list[FoundEpisodes]] = field(default_factory=dict)
    _again: dict[int, list[FoundEpisodes]] = field(default_factory=dict)
    """Rows of steps that were written."""
    _rest: dict[int, list[FoundEpisodes]] = field(default_factory=dict)
    """Those of them that go on where the rows of their step ended."""
    _late: dict[int, list[FoundEpisodes]] = field(default_factory=dict)
    """Written step -> all its rows, with those that it was written without."""
    _written: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Step -> how many rows of it the run has, and their hash."""
    _digests: dict[int, array.array[int]] = field(default_factory=dict)
    """Step -> those of the rows that it was written with, as far as they are known."""
    _last_step: dict[str, int] = field(default_factory=dict)
    """File -> the step of its last row that was no row of a written step once more."""
    _rewritten: set[str] = field(default_factory=set)
    _rewards: RewardValues = field(default_factory=RewardValues)
    """Of all episodes that were converted so far."""
    _sources: dict[str, Source] = field(default_factory=dict)
    _copies: Copies = field(init=False)

    def __post_init__(self) -> None:
        self._copies = Copies(self.root)

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    @property
    def steps(self) -> Sequence[int]:
        return list(self._steps)

    @property
    def newest(self) -> int:
        return max(self._steps, default=-1)

    @property
    def copies(self) -> Mapping[str, str]:
        """File that is passed over because its rows are the first rows of another -> that file."""
        return self._copies.originals

    # --- rows come

    def take(
        self, file: str, source: Source, found: FoundRow, likely: Format | None
    ) -> Format | None:
        """Note a row; its format, None where it has no known one. It counts after `settle`."""
        known = self._known(file, found, likely)
        if isinstance(known, str):
            self.refused[known] += 1
            return likely
        form, step, is_file_step = known
        self._sources.setdefault(file, source)
        number = self._copies.note(file, _fact(file, found.data, form, step))
        self._fresh.setdefault(file, []).append(
            _row(file, found, form, number, step, is_file_step=is_file_step)
        )
        self.num_rows += 1
        return form

    def _known(
        self, file: str, found: FoundRow, likely: Format | None
    ) -> tuple[Format, int, bool] | str:
        """A row's format, its step, -1 where nothing says it, and whether the file's name does; or
        why it is left out."""
        if found.problem:
            return found.problem
        value = self.roles.mark(found.value)
        form = format_of(value, likely) if isinstance(value, dict) else None
        if form is None:
            return "a row of no known format"
        if self.trainer and form.trainer != self.trainer:
            return f"rows of {form.trainer} beside those of {self.trainer}"
        self.trainer = self.trainer or form.trainer
        try:
            step, is_file_step = form.step_of(value, Where(path=PurePath(file)))
        except BAD_ROW:
            return "its values are not of the kinds that its keys promise"
        if step is None:
            return form, -1, False
        if not 0 <= step <= MAX_STEP:
            return f"its step is not in [0, {MAX_STEP}]"
        return form, step, is_file_step

    def settle(self) -> None:
        """Let the new rows count, but those of copies."""
        for decision in self._copies.decide():
            for row in self._rows(decision.file, decision.counted):
                self._copies.count(row.file, row.number, does_count=True)
                self._enter(row)
            if decision.dropped:
                self._drop(decision.file, set(decision.dropped))
        self._fresh.clear()

    def _rows(self, file: str, numbers: Sequence[int]) -> Iterator[FoundEpisodes]:
        """Rows of a file; those that are not new are read again."""
        fresh = {row.number: row for row in self._fresh.get(file, ())}
        old = {number for number in numbers if number not in fresh}
        if old:
            yield from (row for row in self._read_again(file, max(old) + 1) if row.number in old)
        yield from (fresh[number] for number in numbers if number in fresh)

    def _read_again(self, file: str, num_rows: int) -> Iterator[FoundEpisodes]:
        source, number = self._sources[file], 0
        form: Format | None = None
        try:
            for found in source.scan():
                known = self._known(file, found, form)
                if isinstance(known, str):
                    continue
                form, step, is_file_step = known
                yield _row(file, found, form, number, step, is_file_step=is_file_step)
                number += 1
                if number == num_rows:
                    return
        except (BadJsonError, SourceError, OSError):
            self.refused["the file changed before it was read"] += num_rows - number
        finally:
            source.close()

    def _enter(self, row: FoundEpisodes) -> None:
        step = max(0, row.step)
        self.is_evaluation |= row.is_without_step
        goes_on = step in self._written and self._goes_on(row, step)
        if step in self._written and not goes_on:
            waiting = self._again
        else:
            waiting = self._rest if goes_on else self._steps
            self._last_step[row.file] = step
        rows = waiting.setdefault(step, [])
        if len(rows) <= MAX_INDEX:
            rows.append(row)
        else:
            self.refused[f"a step holds at most {MAX_INDEX + 1:,} episodes"] += 1

    def _goes_on(self, row: FoundEpisodes, step: int) -> bool:
        """Whether a row stands right behind the rows that its step was written with, and they were
        fewer than those of the step before."""
        if self._last_step.get(row.file) != step or step not in self._digests:
            return False
        return row.is_without_step or self._is_short(step)

    def _is_short(self, step: int) -> bool:
        sizes = {s: n for s, (n, _) in self._written.items() if s < step and n}
        num_rows = self._written[step][0] + len(self._rest.get(step, ()))
        return not sizes or num_rows < sizes[max(sizes)]

    def _drop(self, file: str, numbers: set[int]) -> None:
        """Rows of a file count no more, as far as their steps were not written."""
        for step in [step for step in self._steps if step not in self._written]:
            kept = []
            for row in self._steps[step]:
                if row.file == file and row.number in numbers:
                    self._copies.count(file, row.number, does_count=False)
                else:
                    kept.append(row)
            self._steps[step] = kept
            if not kept:
                del self._steps[step]

    def replaced(self, file: str) -> None:
        """A file was written again: its rows that are not written yet are void."""
        self._sources.pop(file, None)
        self._fresh.pop(file, None)
        self._copies.replaced(file)
        if self._last_step.pop(file, None) is not None:
            self._rewritten.add(file)
        for waiting in (self._steps, self._again, self._rest):
            for step in list(waiting):
                if step in self._written and waiting is self._steps:
                    continue
                waiting[step] = [row for row in waiting[step] if row.file != file]
                if not waiting[step]:
                    del waiting[step]

    # --- rows that come after their step was written

    def trained_again(self) -> int | None:
        """The first written step whose episodes have come again; its new rows then count.

        A file that was written again as it was is no news. Rows that a step was written without
        are `late`.
        """
        for step in sorted({*self._again, *self._rest}):
            again, rest = self._again.get(step, []), self._rest.pop(step, [])
            num_written, digest = self._written[step]
            rows = self._late.get(step) or self._steps.get(step, [])
            known = {*self._digests.get(step, ()), *(row.digest for row in rows)}
            fresh = [row for row in again if row.digest not in known]
            if not fresh or (not rows and digest_of(again) == digest):
                again, fresh = [], []
                self._again.pop(step, None)
            if not self.is_known(step):
                self.num_left_out += len(rest)
                is_late, rest = False, []
            elif fresh and num_written and known <= {row.digest for row in again}:
                is_late, rows, fresh = True, [], again  # all of it once more, and further rows
            else:
                is_late = bool(fresh) and (not num_written or self._are_beside(fresh, step))
            if is_late:
                rest += fresh
                del self._again[step]
            elif fresh and len(again) + len(rest) >= AGAIN * num_written:
                self._rest[step] = rest
                self._begin_again(step)
                return step
            if rest:
                self._late[step] = rows + rest
        return None

    def _are_beside(self, rows: Sequence[FoundEpisodes], step: int) -> bool:
        """Whether the newest step was written without these files of its folder."""
        if step < self.newest or not self._is_short(step):
            return False
        folders = {PurePath(row.file).parent for row in self._steps.get(step, ())}
        files = {row.file for row in rows}
        return not files & self._rewritten and {PurePath(f).parent for f in files} <= folders

    def _begin_again(self, first: int) -> None:
        again: dict[int, list[FoundEpisodes]] = {}
        for waiting in (self._again, self._rest):
            for step in [step for step in waiting if step >= first]:
                again.setdefault(step, []).extend(waiting[step])
        self.forget(first)
        self._steps |= again

    @property
    def late(self) -> Mapping[int, int]:
        """Written step -> how many of its episodes it was written without."""
        return {step: len(rows) - self._written[step][0] for step, rows in self._late.items()}

    def take_late(self, step: int) -> None:
        """A step is written once more, with the episodes that came late."""
        self._steps[step] = self._late.pop(step)

    def leave_late(self, step: int) -> None:
        """The episodes of a step that came late are left out."""
        self.num_left_out += self.late[step]
        del self._late[step]

    @property
    def stragglers(self) -> Mapping[int, int]:
        """Written step -> episodes of it that came later, and are too few to replace it."""
        return {step: len(rows) for step, rows in self._again.items()}

    @property
    def num_late(self) -> int:
        """Episodes that came after their step was judged, and that the run does not have."""
        return self.num_left_out + sum(self.late.values()) + sum(self.stragglers.values())

    def forget(self, first: int) -> None:
        """Forget steps from `first` on: they come again."""
        for waiting in (self._steps, self._again, self._rest, self._late):
            for step in [step for step in waiting if step >= first]:
                del waiting[step]
        self._digests = {step: d for step, d in self._digests.items() if step < first}
        self.take_back(first)

    def take_back(self, first: int) -> None:
        """Steps from `first` on are to be written once more."""
        for step in [step for step in self._late if step >= first]:
            self.take_late(step)
        self._written = {step: n for step, n in self._written.items() if step < first}

    # --- steps are written

    def written(self, step: int) -> None:
        """A step is in the run."""
        rows = self._steps.get(step, ())
        self._written[step] = len(rows), digest_of(rows)
        self._digests[step] = array.array("Q", map(_digest, rows))
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

    # --- a restart

    def first_waiting(self, file: str) -> FoundEpisodes | None:
        """The first row of a file that is not written yet."""
        rows = [
            row
            for step, rows in self._steps.items()
            if step not in self._written
            for row in rows
            if row.file == file
        ]
        return min(rows, key=lambda row: row.place, default=None)

    def state(self, file: str, waiting: FoundEpisodes | None) -> dict[str, Any]:
        """What tells after a restart whether another file is a copy of this one.

        Args:
            waiting: Of `first_waiting`.
        """
        first = self._copies.first(file)
        if first is None:
            return {}
        num_rows = self._copies.num_rows(file) if waiting is None else waiting.number
        return {"first": first, "rows": num_rows, "copy_of": self.copies.get(file, "")}

    def resume(
        self, file: str, state: Mapping[str, Any], past: Callable[[], Iterator[FoundRow]]
    ) -> None:
        """Go on with a file of which an earlier watch has read `past`."""
        if "first" not in state or not state["rows"]:
            return
        is_copy = bool(state["copy_of"])
        self._copies.resume(
            file,
            first=int(state["first"]),
            num_rows=int(state["rows"]),
            original=str(state["copy_of"]),
            past=lambda: self._facts(file, past(), does_count=not is_copy),
        )

    def _facts(self, file: str, past: Iterator[FoundRow], *, does_count: bool) -> Iterator[int]:
        """What rows say; their written steps are known afterwards."""
        likely: Format | None = None
        for found in past:
            known = self._known(file, found, likely)
            if isinstance(known, str):
                continue
            likely, step, _ = known
            if does_count and step in self._written:
                self._digests.setdefault(step, array.array("Q")).append(_digest_of(found.data))
            yield _fact(file, found.data, likely, step)

    def drafts(self, step: int) -> Iterator[tuple[Draft, str, str]]:
        """The episodes of a step, each with its place and its format; refusals are counted.

        Where all rewards so far are 0 or 1, or -1 or 1, they are the success, as in an import.
        """
        found = list(self._drafts(step))
        for draft, _, _ in found:
            self._rewards.add(draft)
        for draft, place, name in found:
            if self._rewards.say_success:
                RewardValues.read_success(draft)
            yield draft, place, name

    def _drafts(self, step: int) -> Iterator[tuple[Draft, str, str]]:
        used: set[str] = set()
        for row in self._steps.get(step, ()):
            place = f"{row.file}:{row.place}"
            form = FORMATS[row.format]
            source = self._sources[row.file]
            used.add(row.file)
            try:
                value = source.row(row.place, row.size)
                where = Where(path=PurePath(row.file))
                for draft in form.episodes(self.roles.mark(value), where):
                    if row.is_file_step:
                        draft.reconstructed.add("step")
                    yield draft, place, form.name
            except RowError as error:
                self.refused[str(error)] += 1
            except (BadJsonError, OSError):
                self.refused["the file changed before it was read"] += 1
            except BAD_ROW:
                self.refused["its values are not of the kinds that its keys promise"] += 1
        for file in used:
            self._sources[file].close()


def _row(
    file: str, found: FoundRow, form: Format, number: int, step: int, *, is_file_step: bool
) -> FoundEpisodes:
    return FoundEpisodes(
        file=file,
        place=found.place,
        size=found.size,
        format=FORMATS.index(form),
        digest=_digest_of(found.data),
        number=number,
        step=step,
        is_file_step=is_file_step,
    )


def _digest_of(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _fact(file: str, data: bytes, form: Format, step: int) -> int:
    """Equal for rows that an import takes for the same."""
    is_evaluation = Where(path=PurePath(file)).is_evaluation
    text = f" {form.name} {step} {is_evaluation}".encode()
    return _digest_of(data + text)


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
