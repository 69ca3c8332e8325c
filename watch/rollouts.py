"""Rows of rollouts in files that grow or appear: where they stand, and of which step they are.

Of each row its place is kept until its step is old; rows are converted only when their step is
judged. Rows of a step that is in the run already belong to it if they go on where its rows ended,
or are the trainer's second attempt at the step; `resolve` says which.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from echoscope.recorder.episodes import StepEpisodes
from echoscope.store.importers.draft import Draft, RowError
from echoscope.store.importers.format import NO_ROLES, Format, RewardValues, Roles, Where
from echoscope.store.importers.lines import MAX_LINE_BYTES, BadJsonError, json_of
from echoscope.store.importers.registry import FORMATS
from echoscope.store.importers.sources import FoundRow, Source
from echoscope.store.importers.survey import MAX_STEP, format_of
from echoscope.store.records import MAX_INDEX

KEPT_STEPS = 64
"""Steps whose rows stay known after they were written, in case more of a step comes late."""
_AGAIN = 0.5
"""A written step of which at least this share of episodes comes again has been trained again."""
_BAD_ROW = (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)
_BAD_VALUES = "its values are not of the kinds that its keys promise"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a step of the run was written from: the run keeps it, and a restart compares it."""

    num_rows: int = 0
    """Of rollouts."""
    rows: int = 0
    """Sum of the digests of these rows, modulo 2 ** 64."""
    numbers: str = ""
    """Hash of the trainer's numbers; "" where that is not known."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A row of rollouts and where it stands."""

    file: str
    place: int
    size: int
    format: int
    """Index into FORMATS."""
    digest: int
    number: int
    """Among all rows in the order in which they came."""
    is_file_step: bool
    """Its step is that of the file's name."""


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """All rows of a path by step.

    Args:
        claims: what the steps of the run were written from; others change it.
    """

    claims: Mapping[int, Claim]
    roles: Roles = NO_ROLES
    """What a user says of the keys of rows."""
    trainer: str = ""
    """Of the first row: rows of others are left out."""
    changed_at: float = 0.0
    began_again: int | None = None
    """The trainer was started again at this step, since `Ledger.began_again` was asked."""
    is_growing: bool = True
    is_closed_kind: bool = True
    """All files so far are written at once (Parquet, documents), none row by row."""
    is_evaluation: bool = False
    """A row without a step counts: all such rows are step 0."""
    num_rows: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Why rows were left out, and how many."""
    num_left_out: int = 0
    """Rows that came too long after their step was judged."""
    changed: set[int] = field(default_factory=set)
    """Steps of the run that got rows since `Ledger.late` was asked."""
    is_reading_again: bool = False
    """The run is there already, and the files were not read up to where it stands."""
    _steps: dict[int, list[RolloutRow]] = field(default_factory=dict)
    _again: dict[int, list[RolloutRow]] = field(default_factory=dict)
    """Rows of written steps that do not go on where the rows of their step ended."""
    _last_step: dict[str, int] = field(default_factory=dict)
    """File -> the step of its last row that was no row of a written step once more; -1 where the
    file was written anew."""
    _rewards: RewardValues = field(default_factory=RewardValues)
    """Of all episodes that were converted so far."""
    _sources: dict[str, Source] = field(default_factory=dict)

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    @property
    def steps(self) -> Sequence[int]:
        return list(self._steps)

    @property
    def newest(self) -> int:
        return max(self._steps, default=-1)

    def signature(self, step: int) -> tuple[int, int]:
        """How many rows a step has, and the sum of their digests, whatever their order."""
        return _signature(self._steps.get(step, ()))

    # --- rows come

    def take(
        self, file: str, source: Source, row: FoundRow, likely: Format | None
    ) -> Format | None:
        """Note a row; its format, `likely` where it has no known one."""
        if row.problem:
            return self._refuse(row.problem, likely)
        value = self.roles.mark(row.value)
        form = format_of(value, likely) if isinstance(value, dict) else None
        if form is None:
            return self._refuse("a row of no known format", likely)
        if self.trainer and form.trainer != self.trainer:
            return self._refuse(f"rows of {form.trainer} beside those of {self.trainer}", likely)
        self.trainer = form.trainer
        try:
            step, is_file_step = form.step_of(value, Where(path=PurePath(file)))
        except _BAD_ROW:
            return self._refuse(_BAD_VALUES, likely)
        if step is not None and not 0 <= step <= MAX_STEP:
            return self._refuse(f"its step is not in [0, {MAX_STEP}]", likely)
        self._sources.setdefault(file, source)
        self.num_rows += 1
        self.is_evaluation |= step is None
        number, digest = FORMATS.index(form), _digest(row.data)
        noted = RolloutRow(file, row.place, row.size, number, digest, self.num_rows, is_file_step)
        self._enter(noted, step or 0, is_without_step=step is None)
        return form

    def _refuse(self, why: str, likely: Format | None) -> Format | None:
        self.refused[why] += 1
        return likely

    def _enter(self, row: RolloutRow, step: int, *, is_without_step: bool) -> None:
        claim, last = self.claims.get(step), self._last_step.get(row.file)
        waiting = self._steps
        if self.is_reading_again:
            self._last_step[row.file] = step if last is None else max(step, last)
        else:
            if claim is not None and claim.num_rows:
                is_behind = last == step or (last is None and step >= self.newest)
                # Rows without a step are one evaluation, which grows.
                if not (is_behind and (is_without_step or self._is_short(step))):
                    waiting = self._again
            if waiting is self._steps:
                self._last_step[row.file] = step
                self.changed.add(step)
        rows = waiting.setdefault(step, [])
        if len(rows) <= MAX_INDEX:
            rows.append(row)
        else:
            self.refused[f"a step holds at most {MAX_INDEX + 1:,} episodes"] += 1

    def _is_short(self, step: int) -> bool:
        """Whether a step has fewer rows than the one before."""
        before = max((s for s, c in self.claims.items() if s < step and c.num_rows), default=None)
        rows = self._steps.get(step, ())
        return bool(rows) and (before is None or len(rows) < self.claims[before].num_rows)

    def replaced(self, file: str) -> None:
        """A file was written again: its rows that are not written yet are void."""
        self._sources.pop(file, None)
        if file in self._last_step:
            self._last_step[file] = -1
        for waiting in (self._steps, self._again):
            for step in [s for s in waiting if waiting is self._again or s not in self.claims]:
                waiting[step] = [row for row in waiting[step] if row.file != file]
                if not waiting[step]:
                    del waiting[step]

    # --- rows of steps that are in the run

    def compare(self) -> list[int]:
        """After a restart, once all files were read again: the steps of the run whose rows are
        other ones now. Rows that came behind those of their step are then new."""
        self.is_reading_again = False
        different, new = [], []
        for step in sorted(self._steps.keys() & self.claims.keys()):
            claim, rows = self.claims[step], self._steps.pop(step)
            start = _place_of(claim, rows)
            if start is None:
                self._steps[step] = rows
                if len(rows) >= _AGAIN * claim.num_rows:  # else most of its files are gone
                    different.append(step)
                continue
            end = start + claim.num_rows
            new += [(row, step) for row in rows[end:]]
            if claim.num_rows:
                self._steps[step] = rows[start:end]
        for row, step in new:
            self._enter(row, step, is_without_step=self.is_evaluation)
        return different

    def resolve(self) -> None:
        """Find the first written step that was trained again: its new rows then count, and those of
        the steps behind it do not. A file that was written again as it was is no news."""
        for step in sorted(self._again.keys() & self.claims.keys()):
            rows, claim = self._again[step], self.claims[step]
            earlier = {row.digest for row in self._steps.get(step, ())}
            if _signature(rows) == (claim.num_rows, claim.rows):
                del self._again[step]
            elif len(rows) >= _AGAIN * claim.num_rows and any(
                r.digest not in earlier for r in rows
            ):
                self._begin_again(step)
                return

    def _begin_again(self, first: int) -> None:
        """What came behind the first row of the second attempt is of this attempt."""
        self.began_again = first
        began = min(row.number for row in self._again[first])
        both = [*self._steps.items(), *self._again.items()]
        self.forget(first)
        for step, rows in both:
            if step >= first and (left := [row for row in rows if row.number >= began]):
                self._steps.setdefault(step, []).extend(left)

    @property
    def num_late(self) -> int:
        """Rows that came after their step was judged, and that the run does not have."""
        return self.num_left_out + sum(map(len, self._again.values()))

    def leave(self, step: int) -> None:
        """What came late of a step is left out."""
        if step in self._steps:
            self.num_left_out += len(self._steps.pop(step)) - self.claims[step].num_rows

    def is_known(self, step: int) -> bool:
        """Whether the rows of a written step are still known."""
        return step in self._steps or not self.claims[step].num_rows

    def forget(self, first: int) -> None:
        """Forget steps from `first` on: they come again."""
        for waiting in (self._steps, self._again):
            for step in [step for step in waiting if step >= first]:
                del waiting[step]

    def trim(self, last: int) -> None:
        """Forget the rows of written steps that are old."""
        for step in sorted(self._steps.keys() & self.claims.keys())[:-KEPT_STEPS]:
            del self._steps[step]

    # --- episodes

    def content(self, step: int) -> StepEpisodes:
        """The episodes of a step; refusals of rows are counted.

        Where all rewards so far are 0 or 1, or -1 or 1, they are the success, as in an import.
        """
        drafts = list(self._drafts(step))
        for draft, _, _ in drafts:
            self._rewards.add(draft)
        content = StepEpisodes(step)
        for draft, place, name in drafts:
            if self._rewards.say_success:
                RewardValues.read_success(draft)
            content.add(draft, source=place, format_name=name)
        return content

    def _drafts(self, step: int) -> Iterator[tuple[Draft, str, str]]:
        rows = self._steps.get(step, ())
        for row in rows:
            form = FORMATS[row.format]
            try:
                if row.file not in self._sources:
                    raise BadJsonError("the file was written again")
                value = self.roles.mark(self._sources[row.file].row(row.place, row.size))
                for draft in form.episodes(value, Where(path=PurePath(row.file))):
                    if row.is_file_step:
                        draft.reconstructed.add("step")
                    yield draft, f"{row.file}:{row.place}", form.name
            except RowError as error:
                self.refused[str(error)] += 1
            except (BadJsonError, OSError):
                self.refused["the file changed before it was read"] += 1
            except _BAD_ROW:
                self.refused[_BAD_VALUES] += 1
        for file in {row.file for row in rows} & self._sources.keys():
            self._sources[file].close()


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _signature(rows: Sequence[RolloutRow]) -> tuple[int, int]:
    return len(rows), sum(row.digest for row in rows) % (1 << 64)


def _place_of(claim: Claim, rows: Sequence[RolloutRow]) -> int | None:
    """Where the rows that a step was written from begin among all that its files hold now; None
    where they are not all there, one behind the other."""
    total, size = 0, claim.num_rows
    if not size:
        return 0
    for end, row in enumerate(rows, 1):
        total += row.digest - (rows[end - size - 1].digest if end > size else 0)
        if end >= size and (total - claim.rows) % (1 << 64) == 0:
            return end - size
    return None


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
