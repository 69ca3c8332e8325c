"""The first pass: which rows a path holds, of which format, at which step; and what is refused.

Of each row its place is kept. Rows are then converted in the order of their steps, whatever the
order of the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from echoscope.text.amounts import bounds

from ..records import MAX_INDEX, MAX_STEP
from .draft import Draft
from .format import MAPPED, NO_ROLES, Format, Roles, Row, Where
from .formats.table import PAIRS
from .lines import BadJsonError
from .registry import FORMATS
from .sources import MAX_FILES, FoundRow, RowSource, SourceError, files_of, source_of

EVALUATION_BYTES = 256 << 20
"""Where nothing says a step, so many bytes of rows are read: all of them are one step."""
_EXAMPLES = 200
MAX_NAMED = 4
"""Places that are kept of each reason."""
_ROWS_LOOKED_AT = 20
_FILES_LOOKED_AT = 200
_UNKNOWN = "a row of no known format"

Progress = Callable[[int, int], None]
"""Called with (done, of): bytes in the first pass, rows in the second."""


@dataclass(slots=True, kw_only=True)
class Refusals:
    """What was not taken: reason -> how often, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> the first places, `max_named` at most."""
    max_named: int = MAX_NAMED

    def add(self, reason: str, where: str, times: int = 1) -> None:
        if len(self.counts) >= _EXAMPLES and reason not in self.counts:
            reason = "another reason"
        self.counts[reason] += times
        named = self.names.setdefault(reason, [])
        if len(named) < self.max_named:
            named.append(where)

    @property
    def places(self) -> dict[str, str]:
        """Reason -> the first place."""
        return {reason: named[0] for reason, named in self.names.items()}

    @property
    def total(self) -> int:
        return self.counts.total()


@dataclass(slots=True, kw_only=True)
class SurveyedFile:
    """A file with rows of a format."""

    where: Where
    source: RowSource


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedRow:
    """Where a row stands, and of which format and step it is."""

    file: SurveyedFile
    place: int
    size: int
    format: Format
    """Variants of one trainer's format may be mixed."""
    step: int | None
    """None where nothing says it."""
    digest: bytes
    """Of the bytes that it was read from."""

    @property
    def location(self) -> str:
        """As it is stored with the episodes."""
        return f"{self.file.where.path}:{self.place}"

    def episodes(self, roles: Roles) -> Iterator[Draft]:
        """The episodes of the row, which is read again.

        Raises:
            RowError: it has none; the reason.
            BadJsonError, OSError: the file changed.
        """
        value = self.file.source.row(self.place, self.size)
        return self.format.episodes(roles.mark(value), self.file.where)


@dataclass(slots=True, kw_only=True)
class Survey:
    """What a path holds."""

    format: Format | None = None
    """The format of the run: that of most rows; None where no row has a known one."""
    files: list[SurveyedFile] = field(default_factory=list)
    rows: dict[int, list[NotedRow]] = field(default_factory=dict)
    """Step -> its rows; the steps in order."""
    digests: dict[int, str] = field(default_factory=dict)
    """Step -> hash of the bytes of its rows."""
    refused_rows: Refusals = field(default_factory=Refusals)
    refused_files: Refusals = field(default_factory=lambda: Refusals(max_named=MAX_FILES))
    others: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Format that was left out -> its rows, and the first file."""
    is_evaluation: bool = False
    """Nothing says a step: all episodes are one evaluation, stored as step 0, and no course."""
    num_unclean: int = 0
    """Rows with bytes that are not UTF-8."""
    without_rows: set[str] = field(default_factory=set)
    """Files that hold no row of a known format, and that were not refused."""
    roles: Roles = NO_ROLES
    """What a user says of the keys of rows."""
    unseen: tuple[str, ...] = ()
    """Of these roles, those whose key no row has."""
    keys: tuple[str, ...] = ()
    """Of the first row, where a role is unseen."""
    copies: dict[str, str] = field(default_factory=dict)
    """File that was left out because its rows are those of another file -> that file."""

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.rows.values()))

    def close(self) -> None:
        for file in self.files:
            file.source.close()


def format_of(row: Row, likely: Format | None = None) -> Format | None:
    """The format of a row, by its keys, or by what a user says of them."""
    if "reply" in (row.get(MAPPED) or {}):
        return PAIRS if PAIRS.matches(row) else None
    if likely is not None and (likely.goes_on or likely.matches)(row):
        return likely
    return next((form for form in FORMATS if form.matches(row)), None)


def note(
    row: FoundRow, file: SurveyedFile, roles: Roles, likely: Format | None, tag: bytes = b""
) -> NotedRow | str:
    """What is noted of a row; or why it is none of rollouts.

    Args:
        likely: The format of the row before.
        tag: What the digest depends on besides the row.
    """
    marked = roles.mark(row.value)
    form = format_of(marked, likely) if isinstance(marked, dict) else None
    if row.problem or form is None:
        return row.problem or _UNKNOWN
    step, _ = form.step_of(marked, file.where)
    if step is not None and not 0 <= step <= MAX_STEP:
        return f"its step is {str(step)[:20]}, but must be {bounds(0, MAX_STEP)}"
    return NotedRow(
        file=file,
        place=row.place,
        size=row.size,
        format=form,
        step=step,
        digest=hashlib.blake2b(row.data + tag, digest_size=8).digest(),
    )


def is_rollouts(path: Path, roles: Roles = NO_ROLES, run: str | None = None) -> bool:
    """Whether a file or folder holds rollouts, by the first rows of its first files."""
    files = itertools.islice(files_of(path), _FILES_LOOKED_AT)
    return any(look(file, roles, run).is_rollouts for file, problem in files if not problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """What the first rows of a file say."""

    is_rollouts: bool = False
    """One of them is of a known format."""
    problem: str = ""
    """Why no row can be read; "" where one can, or where the file is of another kind."""
    keys: tuple[str, ...] = ()
    """Of the first row, where no row is of a known format."""


def look(file: Path, roles: Roles = NO_ROLES, run: str | None = None) -> FirstLook:
    """Look at the first rows of a file; arguments as of `survey`."""
    keys: tuple[str, ...] = ()
    problem = ""
    try:
        with contextlib.closing(_first_rows(file, run)) as rows:
            for row in rows:
                if isinstance(row.value, dict):
                    if format_of(roles.mark(row.value)):
                        return FirstLook(is_rollouts=True)
                    keys = keys or tuple(map(str, row.value))
                problem = problem or row.problem
    except OSError as error:
        return FirstLook(problem=error.strerror or str(error))
    except (SourceError, BadJsonError) as error:
        return FirstLook(problem=str(error))
    return FirstLook(keys=keys) if keys or not problem else FirstLook(problem=no_row(problem))


def _first_rows(file: Path, run: str | None) -> Generator[FoundRow]:
    """The first rows of a file; none of one that cannot hold rollouts."""
    with tempfile.TemporaryDirectory(prefix="echoscope-look-") as spool:
        source = source_of(file, Path(spool), run)
        if source is not None:
            with contextlib.closing(source):
                yield from itertools.islice(source.scan(), _ROWS_LOOKED_AT)


def no_row(problem: str) -> str:
    """What is said of a file whose rows have nothing but problems, by the commonest."""
    return f"no row can be read: {problem}"


def survey(
    path: Path,
    spool: Path,
    progress: Progress | None = None,
    skipped: Collection[str] = (),
    roles: Roles = NO_ROLES,
    run: str | None = None,
) -> Survey:
    """Read all rows of a path once.

    Args:
        path: A file or a folder.
        spool: A folder for unpacked copies; it must exist until the rows were converted.
        skipped: Files of the folder that are something else, relative to it.
        roles: What a user says of the keys of rows.
        run: As of `source_of`.

    Raises:
        OSError: the path cannot be read.
    """
    pass_ = _FirstPass(roles, run)
    files = list(files_of(path))
    done, total = 0, sum(_size(file) for file, problem in files if not problem)
    for file, problem in files:
        file_name = str(file.relative_to(path)) if path.is_dir() else file.name
        if problem and file_name not in skipped:
            pass_.survey.refused_files.add(problem, file_name)
            continue
        if file_name not in skipped:
            pass_.read(file, file_name, spool)
        done += _size(file)
        if progress and file_name not in skipped:
            progress(done, total)
    return pass_.surveyed()


class _FirstPass:
    """Notes the rows of files, and makes a survey of them."""

    def __init__(self, roles: Roles, run: str | None) -> None:
        self._run = run
        self.survey = Survey(roles=roles)
        self._rows: list[NotedRow] = []
        self._files_by_rows: dict[bytes, str] = {}
        self._seen: set[str] = set()
        """Roles whose key a row has."""
        self._tag = repr(roles.given).encode() if roles.given else b""

    def read(self, file: Path, file_name: str, spool: Path) -> None:
        """Note the rows of a file, or why it is refused."""
        survey, length = self.survey, len(self._rows)
        where = Where(path=PurePath(file_name))
        try:
            source = source_of(file, spool, self._run)
            if source is None or not self._scan(SurveyedFile(where=where, source=source)):
                survey.without_rows.add(file_name)
            elif original := self._original(self._rows[length:]):
                survey.copies[file_name] = original
                del self._rows[length:]
            else:
                survey.files.append(self._rows[-1].file)
            if source is not None:
                source.close()
        except (SourceError, BadJsonError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            survey.refused_files.add(reason or str(error), file_name)
            del self._rows[length:]  # those that were read before the damage

    def _original(self, rows: Sequence[NotedRow]) -> str:
        """The earlier file with the rows of this one; "" for none.

        A file whose rows are all equal is no copy: attempts may be written as a file each, and be
        equal.
        """
        if len({row.digest for row in rows}) == 1:
            return ""
        where = rows[0].file.where
        facts = repr([where.is_evaluation, *((row.digest, row.step) for row in rows)])
        original = self._files_by_rows.setdefault(
            hashlib.blake2b(facts.encode(), digest_size=16).digest(), str(where.path)
        )
        return "" if original == str(where.path) else original

    def _scan(self, file: SurveyedFile) -> bool:
        """Note the rows of a file; whether it has any of a known format."""
        survey, refused = self.survey, Refusals()
        likely: Format | None = None
        for row in file.source.scan():
            noted = note(row, file, survey.roles, likely, self._tag)
            if survey.roles.given and isinstance(row.value, dict):
                survey.keys = survey.keys or tuple(map(str, row.value))
                self._seen |= survey.roles.mark(row.value).get(MAPPED, {}).keys()
            if isinstance(noted, str):
                location = f", byte {row.place}" if row.size else f" {row.place}"
                refused.add(noted, f"{file.where.path}{location}")
                continue
            likely = noted.format
            survey.num_unclean += row.is_unclean
            self._rows.append(noted)
        if likely is not None:
            for reason, times in refused.counts.items():
                survey.refused_rows.add(reason, refused.places[reason], times)
        elif refused.counts and _UNKNOWN not in refused.counts:
            raise SourceError(no_row(refused.counts.most_common(1)[0][0]))
        return likely is not None

    def surveyed(self) -> Survey:
        """The survey of what was noted."""
        survey = self.survey
        for row in self._of_one_trainer():
            survey.rows.setdefault(row.step or 0, []).append(row)
        reason = f"a step holds at most {MAX_INDEX + 1:,} episodes"
        survey.rows = {
            step: self._kept(rows, [index <= MAX_INDEX for index in range(len(rows))], reason)
            for step, rows in sorted(survey.rows.items())
        }
        for step, rows in survey.rows.items():
            digests = b"".join(row.digest for row in rows)
            survey.digests[step] = hashlib.blake2b(digests, digest_size=12).hexdigest()
        # The key of the step may be one of metrics beside rollouts that say their steps themselves.
        needed = [role for role in survey.roles.given if role != "step" or survey.is_evaluation]
        survey.unseen = tuple(role for role in needed if role not in self._seen)
        return survey

    def _of_one_trainer(self) -> list[NotedRow]:
        """The rows of the trainer with most of them, without those that have no place in a step."""
        survey, counts = self.survey, Counter(row.format.name for row in self._rows)
        there = [form for form in FORMATS if counts[form.name]]
        by_trainer: Counter[str] = Counter()
        for form in there:
            by_trainer[form.trainer] += counts[form.name]
        trainer = max(by_trainer, key=lambda name: by_trainer[name], default="")
        own = [form for form in there if form.trainer == trainer]
        survey.format = max(own, key=lambda form: counts[form.name], default=None)
        firsts = {row.format.name: row.file for row in reversed(self._rows)}
        survey.others = {
            form.name: (counts[form.name], str(firsts[form.name].where.path))
            for form in there
            if form.trainer != trainer
        }
        rows = [row for row in self._rows if row.format.trainer == trainer]
        has_step = [row.step is not None for row in rows]
        survey.is_evaluation = bool(rows) and not any(has_step)
        if not survey.is_evaluation:
            return self._kept(rows, has_step, "it has no step, and other rows have")
        reason = "no step is written, and one evaluation has at most"
        reason = f"{reason} {EVALUATION_BYTES >> 20} MB"
        sizes = itertools.accumulate(row.size for row in rows)
        is_kept = [size <= EVALUATION_BYTES for size in sizes]
        return self._kept(rows, is_kept, reason, "the last rows")

    def _kept(
        self, rows: list[NotedRow], is_kept: Sequence[bool], reason: str, location: str = ""
    ) -> list[NotedRow]:
        """The rows that are kept; the others are refused, at the file of the first of them."""
        left = [row for row, is_it in zip(rows, is_kept, strict=True) if not is_it]
        if left:
            location = location or str(left[0].file.where.path)
            self.survey.refused_rows.add(reason, location, len(left))
        return list(itertools.compress(rows, is_kept))


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0
