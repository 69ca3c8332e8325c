"""The first pass: which rows a path holds, of which format, at which step; and what is refused.

Of each row 37 bytes are kept. Rows are then converted in the order of their steps, whatever the
order of the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import MAX_INDEX
from .draft import Draft
from .format import MAPPED, NO_ROLES, Format, Roles, Row, Where
from .formats.table import PAIRS
from .lines import BadJsonError
from .registry import FORMATS
from .sources import MAX_FILES, FoundRow, Source, SourceError, files_of, source_of

EVALUATION_BYTES = 256 << 20
"""Where nothing says a step, so many bytes of rows are read: all of them are one step."""
MAX_STEP = 99_999_999
_NO_STEP = -1
_EXAMPLES = 200
MAX_NAMED = 4
"""Places that are kept of each reason."""
_ROWS_LOOKED_AT = 20
_FILES_LOOKED_AT = 200
_UNKNOWN = "a row of no known format"

_PLACE = np.dtype(
    [
        ("step", "<i8"),
        ("place", "<i8"),
        ("size", "<i8"),
        ("digest", "<u8"),
        ("file", "<i4"),
        ("format", "i1"),
    ]
)
"""What is kept of a row: `format` is its index in FORMATS, since variants of one trainer's format
may be mixed."""
Places = NDArray[np.void]

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

    def without(self, names: Collection[str]) -> Refusals:
        """What is left without some places. All places must be named."""
        remaining = Refusals(max_named=self.max_named)
        for reason, places in self.names.items():
            for where in places:
                if where not in names:
                    remaining.add(reason, where)
        return remaining

    @property
    def total(self) -> int:
        return self.counts.total()


@dataclass(slots=True, kw_only=True)
class SurveyedFile:
    """A file with rows of a format."""

    where: Where
    source: Source


@dataclass(slots=True, kw_only=True)
class Survey:
    """What a path holds. Legend: **R** rows, in the order in which they are converted."""

    format: Format | None = None
    """The format of the run: that of most rows; None where no row has a known one."""
    files: list[SurveyedFile] = field(default_factory=list)
    rows_R: Places = field(default_factory=lambda: np.empty(0, dtype=_PLACE))
    digests: Mapping[int, str] = field(default_factory=dict)
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
        return len(self.rows_R)

    def steps(self) -> Iterator[tuple[int, range]]:
        """Each step with the rows it has."""
        steps, starts = np.unique(self.rows_R["step"], return_index=True)
        for step, (first, last) in zip(
            steps.tolist(), itertools.pairwise([*starts.tolist(), self.num_rows]), strict=True
        ):
            yield step, range(first, last)

    def file_of(self, row: int) -> SurveyedFile:
        return self.files[int(self.rows_R[row]["file"])]

    def format_of(self, row: int) -> Format:
        return FORMATS[int(self.rows_R[row]["format"])]

    def episodes(self, row: int) -> Iterator[Draft]:
        """The episodes of a row, which is read again.

        Raises:
            RowError: it has none; the reason.
            BadJsonError: the file changed.
        """
        file, noted = self.file_of(row), self.rows_R[row]
        value = file.source.row(int(noted["place"]), int(noted["size"]))
        return self.format_of(row).episodes(self.roles.mark(value), file.where)

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


def is_rollouts(path: Path, roles: Roles = NO_ROLES, run: str | None = None) -> bool:
    """Whether a file or folder holds rollouts, by the first rows of its first files."""
    files = itertools.islice(files_of(path), _FILES_LOOKED_AT)
    return any(look(file, roles, run).is_rollouts for file, problem in files if not problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the first rows of a file say."""

    is_rollouts: bool = False
    """One of them is of a known format."""
    problem: str = ""
    """Why no row can be read; "" where one can, or where the file is of another kind."""
    keys: tuple[str, ...] = ()
    """Of the first row, where no row is of a known format."""


def look(file: Path, roles: Roles = NO_ROLES, run: str | None = None) -> Look:
    """Look at the first rows of a file; arguments as of `survey`."""
    keys: tuple[str, ...] = ()
    problem = ""
    try:
        with contextlib.closing(_first_rows(file, run)) as rows:
            for row in rows:
                if isinstance(row.value, dict):
                    if format_of(roles.mark(row.value)):
                        return Look(is_rollouts=True)
                    keys = keys or tuple(map(str, row.value))
                problem = problem or row.problem
    except OSError as error:
        return Look(problem=error.strerror or str(error))
    except (SourceError, BadJsonError) as error:
        return Look(problem=str(error))
    return Look(keys=keys) if keys or not problem else Look(problem=no_row(problem))


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
        self._rows = bytearray()
        self._firsts: dict[int, str] = {}
        """Number of a format -> the first file with it."""
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
            if source is None or not self._scan(source, where):
                survey.without_rows.add(file_name)
            elif original := self._original(length, where):
                survey.copies[file_name] = original
                del self._rows[length:]
            else:
                survey.files.append(SurveyedFile(where=where, source=source))
            if source is not None:
                source.close()
        except (SourceError, BadJsonError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            survey.refused_files.add(reason or str(error), file_name)
            del self._rows[length:]  # those that were read before the damage

    def _original(self, start: int, where: Where) -> str:
        """The earlier file with the same rows; "" for none.

        A file whose rows are all equal is no copy: attempts may be written as a file each, and be
        equal.
        """
        rows = np.frombuffer(bytes(self._rows[start:]), dtype=_PLACE)
        if (rows["digest"] == rows["digest"][0]).all():
            return ""
        facts = rows["digest"].tobytes() + rows["step"].tobytes() + bytes([where.is_evaluation])
        original = self._files_by_rows.setdefault(
            hashlib.blake2b(facts, digest_size=16).digest(), str(where.path)
        )
        return "" if original == str(where.path) else original

    def _scan(self, source: Source, where: Where) -> bool:
        """Note the rows of a source; whether it has any of a known format."""
        survey, refused, likely = self.survey, Refusals(), None
        for row in source.scan():
            marked = survey.roles.mark(row.value)
            form, problem = self._format_of(row, marked, likely)
            step = form.step_of(marked, where)[0] if form else None
            if step is not None and not 0 <= step <= MAX_STEP:
                problem = f"its step is {str(step)[:20]}, but must lie in [0, {MAX_STEP}]"
            if form is None or problem:
                location = f", byte {row.place}" if row.size else f" {row.place}"
                refused.add(problem, f"{where.path}{location}")
                continue
            likely = form
            if row.is_unclean:
                survey.num_unclean += 1
            index = FORMATS.index(form)
            self._firsts.setdefault(index, str(where.path))
            digest = hashlib.blake2b(row.data + self._tag, digest_size=8).digest()
            number = int.from_bytes(digest, "little")
            stored_step = _NO_STEP if step is None else step
            noted = (stored_step, row.place, row.size, number, len(survey.files), index)
            self._rows += np.array(noted, dtype=_PLACE).tobytes()
        if likely is not None:
            for reason, times in refused.counts.items():
                survey.refused_rows.add(reason, refused.places[reason], times)
        elif refused.counts and _UNKNOWN not in refused.counts:
            raise SourceError(no_row(refused.counts.most_common(1)[0][0]))
        return likely is not None

    def _format_of(
        self, row: FoundRow, marked: Any, likely: Format | None
    ) -> tuple[Format | None, str]:
        """The format of a row, or why it has none."""
        if row.problem or not isinstance(row.value, dict):
            return None, row.problem or _UNKNOWN
        if self.survey.roles.given:
            self.survey.keys = self.survey.keys or tuple(map(str, row.value))
            self._seen |= marked.get(MAPPED, {}).keys()
        form = format_of(marked, likely)
        return form, "" if form else _UNKNOWN

    def surveyed(self) -> Survey:
        """The survey of what was noted."""
        survey = self.survey
        rows = np.frombuffer(self._rows, dtype=_PLACE).copy()
        survey.format, is_own, survey.others = _one_trainer(rows["format"], self._firsts)
        survey.rows_R = self._ordered(rows[is_own])
        survey.digests = {
            step: hashlib.blake2b(
                np.ascontiguousarray(survey.rows_R["digest"][rows.start : rows.stop]).tobytes(),
                digest_size=12,
            ).hexdigest()
            for step, rows in survey.steps()
        }
        # The key of the step may be one of metrics beside rollouts that say their steps themselves.
        needed = [role for role in survey.roles.given if role != "step" or survey.is_evaluation]
        survey.unseen = tuple(role for role in needed if role not in self._seen)
        return survey

    def _ordered(self, rows: Places) -> Places:
        """The rows in the order of their steps; without those that have no place there."""
        survey, has_step = self.survey, rows["step"] != _NO_STEP
        survey.is_evaluation = len(rows) > 0 and not has_step.any()
        if survey.is_evaluation:
            rows["step"] = 0
            reason = "no step is written, and one evaluation has at most"
            reason = f"{reason} {EVALUATION_BYTES >> 20} MB"
            is_kept = np.cumsum(rows["size"]) <= EVALUATION_BYTES
            rows = self._kept(rows, is_kept, reason, "the last rows")
        else:
            rows = self._kept(rows, has_step, "it has no step, and other rows have")
        rows = rows[np.argsort(rows["step"], kind="stable")]
        starts = np.searchsorted(rows["step"], rows["step"], side="left")
        reason = f"a step holds at most {MAX_INDEX + 1:,} episodes"
        return self._kept(rows, np.arange(len(rows)) - starts <= MAX_INDEX, reason)

    def _kept(
        self, rows: Places, is_kept: NDArray[np.bool_], reason: str, location: str = ""
    ) -> Places:
        """The rows that are kept; the others are refused, at the file of the first of them."""
        if not is_kept.all():
            first = self.survey.files[rows[~is_kept][0]["file"]].where.path
            self.survey.refused_rows.add(reason, location or str(first), int((~is_kept).sum()))
        return rows[is_kept]


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0


def _one_trainer(
    formats: NDArray[np.int8], firsts: Mapping[int, str]
) -> tuple[Format | None, NDArray[np.bool_], dict[str, tuple[int, str]]]:
    """The trainer with most rows, which rows are its, and what others there are."""
    counts = {int(index): int((formats == index).sum()) for index in np.unique(formats)}
    if not counts:
        return None, np.zeros(len(formats), dtype=np.bool_), {}
    by_trainer: Counter[str] = Counter()
    for index, times in counts.items():
        by_trainer[FORMATS[index].trainer] += times
    trainer = by_trainer.most_common(1)[0][0]
    of_trainer = [index for index in counts if FORMATS[index].trainer == trainer]
    others = {
        FORMATS[index].name: (times, firsts[index])
        for index, times in counts.items()
        if index not in of_trainer
    }
    chosen = FORMATS[max(of_trainer, key=lambda index: counts[index])]
    return chosen, np.isin(formats, of_trainer), others
