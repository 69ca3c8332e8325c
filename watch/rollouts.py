"""Rows of rollouts in files that grow or appear: where they stand, and of which step they are.

Of each row its place is kept until its step is old; rows are converted only when their step is
judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from echoscope.store.importers.draft import Draft, RowError
from echoscope.store.importers.format import Format, RewardValues, Roles
from echoscope.store.importers.lines import BadJsonError
from echoscope.store.importers.sources import FoundRow
from echoscope.store.importers.steps.episodes import StepEpisodes
from echoscope.store.importers.survey import NotedRow, Refusals, SurveyedFile, note
from echoscope.store.records import MAX_INDEX

KEPT_STEPS = 64
"""Steps whose rows stay known after they were written, in case more of a step comes late."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a step of the run was written from."""

    num_rows: int = 0
    """Of rollouts."""
    rows: int = 0
    """Sum of the digests of these rows, modulo 2 ** 64."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    is_stored: bool = False
    """Its numbers are those of the run, after a restart: under our names they may be converted."""


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """All rows of a path by step.

    Args:
        claims: what the steps of the run were written from; the ledger changes it.
        roles: what a user says of the keys of rows.
    """

    claims: Mapping[int, Claim]
    roles: Roles
    trainer: str = ""
    """Of the first row: rows of others are left out."""
    changed_at: float = 0.0
    is_closed_kind: bool = True
    """All files so far are written at once (Parquet, documents), none row by row."""
    is_evaluation: bool = False
    """A row without a step counts: all such rows are step 0."""
    num_rows: int = 0
    refused: Refusals = field(default_factory=Refusals)
    """Why rows were left out, and how many."""
    num_late: int = 0
    """Rows that came too long after their step was judged."""
    touched: set[int] = field(default_factory=set)
    """Steps whose rows changed since the ledger looked."""
    is_reading_again: bool = False
    """The run is there already, and the files were not read up to where it stands."""
    _steps: dict[int, list[NotedRow]] = field(default_factory=dict)
    _last_step: dict[str, int] = field(default_factory=dict)
    """File -> the step of its last row; -1 where the file was written anew."""
    _rewards: RewardValues = field(default_factory=RewardValues)
    """Of all episodes that were converted so far."""

    @property
    def steps(self) -> AbstractSet[int]:
        return self._steps.keys()

    @property
    def newest(self) -> int:
        return max(self._steps, default=-1)

    def signature(self, step: int, most: int | None = None) -> tuple[int, int]:
        """How many rows a step has, and the sum of their digests.

        Args:
            most: Count so many of the first rows alone.
        """
        rows = self._steps.get(step, [])[:most]
        return len(rows), sum(int.from_bytes(row.digest, "little") for row in rows) % (1 << 64)

    def take(self, file: SurveyedFile, row: FoundRow, likely: Format | None) -> Format | None:
        """Note a row; its format, `likely` where it has no known one."""
        noted, name = note(row, file, self.roles, likely), str(file.where.path)
        if isinstance(noted, NotedRow) and self.trainer not in ("", noted.format.trainer):
            noted = f"rows of {noted.format.trainer} beside those of {self.trainer}"
        if isinstance(noted, str):
            self.refused.add(noted, name)
            return likely
        self.trainer = noted.format.trainer
        self.num_rows += 1
        self.is_evaluation |= noted.step is None
        self._enter(name, noted)
        return noted.format

    def _enter(self, file: str, row: NotedRow) -> None:
        step, last = row.step or 0, self._last_step.get(file, self.newest)
        is_written = step in self.claims and self.claims[step].num_rows > 0
        if is_written and step < last and not (row.step is None or self.is_reading_again):
            self.num_late += 1  # adding it would judge the run anew from an old step
            return
        self._last_step[file] = step
        self.touched.add(step)
        rows = self._steps.setdefault(step, [])
        if len(rows) <= MAX_INDEX:
            rows.append(row)
        else:
            self.refused.add(f"a step holds at most {MAX_INDEX + 1:,} episodes", file)

    def replaced(self, file: SurveyedFile) -> None:
        """A file was written again: its rows are void."""
        if str(file.where.path) in self._last_step:
            self._last_step[str(file.where.path)] = -1
        for step, rows in self._steps.items():
            self._steps[step] = [row for row in rows if row.file is not file]
        self._steps = {step: rows for step, rows in self._steps.items() if rows}

    def is_known(self, step: int) -> bool:
        """Whether the rows of a written step are still known."""
        return step in self._steps or not self.claims[step].num_rows

    def forget(self, step: int) -> None:
        """Forget the rows of a step: they come again."""
        for row in self._steps.pop(step, []):
            self._last_step[str(row.file.where.path)] = -1

    def trim(self) -> None:
        """Forget the rows of written steps that are old."""
        for step in sorted(self._steps.keys() & self.claims.keys())[:-KEPT_STEPS]:
            del self._steps[step]

    def content(self, step: int) -> StepEpisodes:
        """The episodes of a step; refusals of rows are counted.

        Where all rewards so far are 0 or 1, or -1 or 1, they are the success, as in an import.
        """
        drafts = list(self._drafts(step))
        for draft, _ in drafts:
            self._rewards.add(draft)
        content = StepEpisodes(step)
        for draft, row in drafts:
            if self._rewards.say_success:
                RewardValues.read_success(draft)
            content.add(draft, source=row.location, format_name=row.format.name)
        return content

    def _drafts(self, step: int) -> Iterator[tuple[Draft, NotedRow]]:
        rows = self._steps.get(step, ())
        for row in rows:
            try:
                for draft in row.episodes(self.roles):
                    yield draft, row
            except RowError as error:
                self.refused.add(str(error), row.location)
            except (BadJsonError, OSError):
                self.refused.add("the file changed before it was read", row.location)
        for row in rows:
            row.file.source.close()
