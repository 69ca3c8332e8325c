"""The first pass: which rows a path holds, of which format, at which step; and what is refused.

Of each row 38 bytes are kept. Rows are then converted in the order of their steps, whatever the
order of the files.
"""

from __future__ import annotations

import array
import contextlib
import filecmp
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import MAX_INDEX, IntArray64
from .draft import Draft
from .format import MAPPED, NO_ROLES, Format, Roles, Row, Where
from .formats.rows import PAIRS
from .lines import BadJsonError, narrow_encoding
from .registry import FORMATS
from .sources import MAX_FILES, Source, SourceError, files_of, source_of

EVALUATION_BYTES = 256 << 20
"""Where nothing says a step, so many bytes of rows are read: all of them are one step."""
MAX_STEP = 99_999_999
_NO_STEP = -1
_EXAMPLES = 200
MAX_NAMED = 4
"""Places that are kept of each reason."""
_ROWS_LOOKED_AT = 20
_UNKNOWN = "a row of no known format"

_DIGITS = re.compile(r"\d+")

Facts = NDArray[np.uint64]
"""(rows, facts): a row each, equal where the rows are the same."""
Progress = Callable[[int, int], None]
"""Called with (done, of): bytes in the first pass, rows in the second."""


@dataclass(slots=True, kw_only=True)
class Refusals:
    """What was not taken: reason -> how often, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> the first places, `max_named` at most."""
    max_named: int = MAX_NAMED

    def add(self, reason: str, place: str, times: int = 1) -> None:
        if len(self.counts) >= _EXAMPLES and reason not in self.counts:
            reason = "another reason"
        self.counts[reason] += times
        self.places.setdefault(reason, place)
        named = self.names.setdefault(reason, [])
        if len(named) < self.max_named:
            named.append(place)

    def without(self, names: Collection[str]) -> Refusals:
        """What is left without some places. All places must be named."""
        left = Refusals(max_named=self.max_named)
        for reason, places in self.names.items():
            for place in places:
                if place not in names:
                    left.add(reason, place)
        return left

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

    format: Format | None
    """The format of the run: that of most rows; None where no row has a known one."""
    files: list[SurveyedFile]
    steps_R: IntArray64
    file_R: NDArray[np.int32]
    place_R: IntArray64
    size_R: IntArray64
    formats_R: NDArray[np.int8]
    """Index into FORMATS: variants of one trainer's format may be mixed."""
    digests: Mapping[int, str]
    """Step -> hash of the bytes of its rows."""
    refused_rows: Refusals
    refused_files: Refusals
    others: Mapping[str, tuple[int, str]]
    """Format that was left out -> its rows, and the first file."""
    is_evaluation: bool
    """Nothing says a step: all episodes are one evaluation, stored as step 0, and no course."""
    file_steps_R: NDArray[np.bool_]
    """Where the step is that of the file's name."""
    num_unclean: int = 0
    """Rows with bytes that are not UTF-8."""
    encoding: str = ""
    """What these bytes seem to be; "" where that is not known."""
    without_rows: frozenset[str] = frozenset()
    """Files that hold no row of a known format, and that were not refused."""
    roles: Roles = NO_ROLES
    """What a user says of the keys of rows."""
    unseen: tuple[str, ...] = ()
    """Of these roles, those whose key no row has."""
    keys: tuple[str, ...] = ()
    """Of the first row, where a role is unseen."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """File that was left out because its rows are the first rows of another file -> that file."""

    def steps(self) -> Iterator[tuple[int, range]]:
        """Each step with the rows it has."""
        if not len(self.steps_R):
            return
        bounds = np.flatnonzero(np.diff(self.steps_R)) + 1
        starts = [0, *bounds.tolist(), len(self.steps_R)]
        for first, last in itertools.pairwise(starts):
            yield int(self.steps_R[first]), range(first, last)

    def episodes(self, row: int) -> Iterator[Draft]:
        """The episodes of a row, which is read again.

        Raises:
            RowError: it has none; the reason.
            BadJsonError: the file changed.
            Errors of `TypeError`'s kind: its values are not what its keys promise.
        """
        file = self.files[int(self.file_R[row])]
        value = file.source.row(int(self.place_R[row]), int(self.size_R[row]))
        known = FORMATS[int(self.formats_R[row])]
        for draft in known.episodes(self.roles.mark(value), file.where):
            if self.file_steps_R[row]:
                draft.reconstructed.add("step")
            yield draft

    def close(self) -> None:
        for file in self.files:
            file.source.close()


@dataclass(slots=True)
class _Mapped:
    """What a user says of the keys of rows, and which of it is there."""

    roles: Roles
    seen: set[str] = field(default_factory=set)
    keys: tuple[str, ...] = ()
    """Of the first row that is a JSON object."""

    def mark(self, row: Any) -> Any:
        """The row with what is under the given keys; other values as they are."""
        marked = self.roles.mark(row)
        if isinstance(row, dict) and self.roles.given:
            self.keys = self.keys or tuple(map(str, row))
            self.seen |= marked.get(MAPPED, {}).keys()
        return marked


class _Rows:
    """Places of rows while they are met."""

    def __init__(self) -> None:
        self.step = array.array("q")
        self.file = array.array("i")
        self.place = array.array("q")
        self.size = array.array("q")
        self.format = array.array("b")
        self.is_file_step = array.array("b")
        self.digest = array.array("Q")

    def cut(self, length: int) -> None:
        """Forget all rows but the first ones."""
        for column in vars(self).values():
            del column[length:]

    def keep(self, is_kept: NDArray[np.bool_]) -> None:
        """Forget the other rows."""
        for name, column in vars(self).items():
            kept = np.frombuffer(column, dtype=column.typecode)[is_kept]
            setattr(self, name, array.array(column.typecode, kept.tobytes()))


def format_of(row: Row, likely: Format | None = None) -> Format | None:
    """The format of a row, by its keys, or by what a user says of them."""
    if "reply" in (row.get(MAPPED) or {}):
        return PAIRS if PAIRS.matches(row) else None
    if likely is not None and likely.is_of(row):
        return likely
    return next((known for known in FORMATS if known.matches(row)), None)


def is_rollouts(path: Path, spool: Path, run: str = "", roles: Roles = NO_ROLES) -> bool:
    """Whether a file or folder holds rollouts, by the first rows of its first files.

    Args:
        spool: A folder for unpacked copies.
        run: Whose, where a file holds those of several.
        roles: What a user says of the keys of rows.
    """
    for number, (file, problem) in enumerate(files_of(path)):
        if number >= 200:
            return False
        if not problem and holds_rollouts(file, spool, run, roles):
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the first rows of a file say."""

    is_rollouts: bool = False
    """One of them is of a known format."""
    problem: str = ""
    """Why no row can be read; "" where one can, or where the file is of another kind."""
    keys: tuple[str, ...] = ()
    """Of the first row, where no row is of a known format."""


def look(file: Path, spool: Path, run: str = "", roles: Roles = NO_ROLES) -> Look:
    """Look at the first rows of a file.

    Args:
        spool: A folder for unpacked copies.
        run: Whose, where the file holds those of several.
        roles: What a user says of the keys of rows.
    """
    keys: tuple[str, ...] = ()
    problem = ""
    try:
        source = source_of(file, spool, run)
        if source is None:
            return Look()
        with contextlib.closing(source):
            for row in itertools.islice(source.scan(), _ROWS_LOOKED_AT):
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


def no_row(problem: str) -> str:
    """What is said of a file whose rows have nothing but problems, by the commonest."""
    return f"no row can be read: {problem}"


def holds_rollouts(file: Path, spool: Path, run: str = "", roles: Roles = NO_ROLES) -> bool:
    """Whether one of the first rows of a file is of a known format; False where none can be read.

    Args:
        spool: A folder for unpacked copies.
        run: Whose, where the file holds those of several.
        roles: What a user says of the keys of rows.
    """
    return look(file, spool, run, roles).is_rollouts


def survey(
    path: Path,
    spool: Path,
    progress: Progress | None = None,
    skipped: Collection[str] = (),
    run: str = "",
    roles: Roles = NO_ROLES,
) -> Survey:
    """Read all rows of a path once.

    Args:
        path: A file or a folder.
        spool: A folder for unpacked copies; it must exist until the rows were converted.
        skipped: Files of the folder that are something else, relative to it.
        run: Whose rollouts, where a file holds those of several.
        roles: What a user says of the keys of rows.

    Raises:
        OSError: the path cannot be read.
    """
    rows, mapped = _Rows(), _Mapped(roles)
    files: list[SurveyedFile] = []
    refused_rows, refused_files = Refusals(), Refusals(max_named=MAX_FILES)
    unclean: list[tuple[int, str]] = []
    found_files = list(files_of(path))
    done = 0
    total = sum(_size(file) for file, problem in found_files if not problem)
    firsts: dict[int, str] = {}
    without_rows: set[str] = set()
    for file, problem in found_files:
        shown = str(file.relative_to(path)) if path.is_dir() else file.name
        where = Where(path=PurePath(shown))
        if shown in skipped:
            done += _size(file)
            continue
        if problem:
            refused_files.add(problem, shown)
            continue
        length = len(rows.step)
        try:
            source = source_of(file, spool, run)
            is_kept = False
            if source is not None:
                is_kept, num_unclean, encoding = _scan(
                    source, where, len(files), rows, refused_rows, firsts, mapped
                )
                if is_kept:
                    unclean.append((num_unclean, encoding))
                    files.append(SurveyedFile(where=where, source=source))
                source.close()
            if not is_kept:
                without_rows.add(shown)
        except (SourceError, BadJsonError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            refused_files.add(reason or str(error), shown)
            rows.cut(length)  # those that were read before the damage
        done += _size(file)
        if progress:
            progress(done, total)
    copies = _without_copies(path, rows, files)
    taken = [found for number, found in enumerate(unclean) if number not in copies]
    num_unclean = sum(num for num, _ in taken)
    planned = _planned(rows, files, refused_rows, refused_files, num_unclean, firsts)
    planned.encoding = next((encoding for num, encoding in taken if num), "")
    planned.without_rows = frozenset(without_rows)
    planned.roles, planned.keys = roles, mapped.keys
    # The key of the step may be one of metrics beside rollouts that say their steps themselves.
    needed = [role for role in roles.given if role != "step" or planned.is_evaluation]
    planned.unseen = tuple(role for role in needed if role not in mapped.seen)
    planned.copies = {
        str(files[copy].where.path): str(files[original].where.path)
        for copy, original in copies.items()
    }
    return planned


def _without_copies(path: Path, rows: _Rows, files: Sequence[SurveyedFile]) -> dict[int, int]:
    """Forget the rows of files that are copies of others; those files -> the files they copy."""
    if len(files) < 2:
        return {}
    number_R = np.frombuffer(rows.file, dtype=np.int32)
    is_evaluation = np.array([file.where.is_evaluation for file in files])
    facts = np.stack(
        [
            np.frombuffer(rows.digest, dtype=np.uint64),
            np.frombuffer(rows.step, dtype=np.int64).astype(np.uint64),
            np.frombuffer(rows.format, dtype=np.int8).astype(np.uint64),
            is_evaluation[number_R].astype(np.uint64),
        ],
        axis=1,
    )
    bounds = np.searchsorted(number_R, np.arange(len(files) + 1))
    copies = copies_among(
        [
            (path / file.where.path, facts[first:last])
            for file, first, last in zip(files, bounds[:-1], bounds[1:], strict=True)
        ]
    )
    if copies:
        rows.keep(~np.isin(number_R, list(copies)))
    return copies


def copies_among(files: Sequence[tuple[Path, Facts]]) -> dict[int, int]:
    """Files whose rows are all the first rows of another file -> that file, by their numbers.

    A file of rows that are all the same, such as one episode, is a copy only of a file of the same
    folder with the same bytes and another kind of name: attempts with equal text are written as
    `episode_0` and `episode_1`, a backup as `episodes.bak`.

    Args:
        files: Path and rows of each file, in the order in which they are read.
    """
    longest_first = sorted(range(len(files)), key=lambda n: (-len(files[n][1]), n))
    alike: dict[bytes, list[int]] = {}
    for number in longest_first:
        rows = files[number][1]
        if len(rows):
            alike.setdefault(rows[0].tobytes(), []).append(number)
    out: dict[int, int] = {}
    for numbers in alike.values():
        if len(numbers) > 1:
            out |= _copies_of_one_beginning(files, numbers)
    return out


def _copies_of_one_beginning(
    files: Sequence[tuple[Path, Facts]], numbers: Sequence[int]
) -> dict[int, int]:
    """Of files with the same first row, the longest first."""
    lengths = sorted({len(files[number][1]) for number in numbers})
    holder: dict[tuple[int, bytes], int] = {}
    uniform: dict[tuple[bytes, Path], dict[str, int]] = {}
    """By kind of name, the first such file."""
    out: dict[int, int] = {}
    for number in numbers:
        path, rows = files[number]
        if (rows == rows[0]).all():
            kept = uniform.setdefault((rows.tobytes(), path.parent), {})
            kind = _DIGITS.sub("#", path.name)
            others = (n for other, n in kept.items() if other != kind)
            same = next((n for n in others if _is_same(files[n][0], path)), None)
            if same is None:
                kept.setdefault(kind, number)
            else:
                out[number] = same
            continue
        beginnings = _beginnings(rows, lengths)
        whole = (len(rows), beginnings[len(rows)])
        if whole in holder:
            out[number] = holder[whole]
            continue
        for beginning in beginnings.items():
            holder.setdefault(beginning, number)
    return out


def _is_same(path: Path, other: Path) -> bool:
    """Whether two files hold the same bytes; not where one of them is gone."""
    try:
        return filecmp.cmp(path, other, shallow=False)
    except OSError:
        return False


def _beginnings(rows: Facts, lengths: Sequence[int]) -> dict[int, bytes]:
    """Length -> hash of so many first rows."""
    out, done, state = {}, 0, hashlib.blake2b(digest_size=16)
    for length in lengths:
        if length > len(rows):
            break
        state.update(rows[done:length].tobytes())
        done, out[length] = length, state.copy().digest()
    return out


def nothing_surveyed() -> Survey:
    """What a path without rollouts holds."""
    return _planned(_Rows(), [], Refusals(), Refusals(), 0, {})


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0


def _scan(
    source: Source,
    where: Where,
    number: int,
    rows: _Rows,
    refused: Refusals,
    firsts: dict[int, str],
    mapped: _Mapped,
) -> tuple[bool, int, str]:
    """Note the rows of a file: whether it has any, how many had bytes that are not UTF-8, and what
    those of the first seem to be.
    """
    own = Refusals()
    likely: Format | None = None
    is_kept, unclean, encoding = False, 0, ""
    for found in source.scan():
        place = f"{where.path}, byte {found.place}" if found.size else f"{where.path} {found.place}"
        if found.problem:
            own.add(found.problem, place)
            continue
        value = mapped.mark(found.value)
        known = format_of(value, likely) if isinstance(value, dict) else None
        if known is None:
            own.add(_UNKNOWN, place)
            continue
        step, is_file_step = known.step_of(value, where)
        if step is not None and not 0 <= step <= MAX_STEP:
            own.add(f"its step is {str(step)[:20]}, but must lie in [0, {MAX_STEP}]", place)
            continue
        likely, is_kept = known, True
        if found.is_unclean:
            encoding = encoding if unclean else found.encoding or narrow_encoding(found.data)
            unclean += 1
        index = FORMATS.index(known)
        firsts.setdefault(index, str(where.path))
        rows.step.append(_NO_STEP if step is None else step)
        rows.file.append(number)
        rows.place.append(found.place)
        rows.size.append(found.size)
        rows.format.append(index)
        rows.is_file_step.append(is_file_step)
        said = repr(mapped.roles.given).encode() if mapped.roles.given else b""
        digest = hashlib.blake2b(found.data + said, digest_size=8).digest()
        rows.digest.append(int.from_bytes(digest, "little"))
    if is_kept:
        for reason, times in own.counts.items():
            refused.add(reason, own.places[reason], times)
    elif own.counts and _UNKNOWN not in own.counts:
        raise SourceError(no_row(own.counts.most_common(1)[0][0]))
    return is_kept, unclean, encoding


def _planned(
    rows: _Rows,
    files: list[SurveyedFile],
    refused_rows: Refusals,
    refused_files: Refusals,
    num_unclean: int,
    firsts: Mapping[int, str],
) -> Survey:
    steps = np.array(rows.step, dtype=np.int64)
    file = np.array(rows.file, dtype=np.int32)
    place = np.array(rows.place, dtype=np.int64)
    size = np.array(rows.size, dtype=np.int64)
    formats = np.array(rows.format, dtype=np.int8)
    is_file_step = np.array(rows.is_file_step, dtype=np.bool_)
    digest = np.array(rows.digest, dtype=np.uint64)
    chosen, keep, others = _one_trainer(formats, firsts)
    has_step = steps != _NO_STEP
    is_evaluation = bool(keep.any()) and not has_step[keep].any()
    if is_evaluation:
        steps[keep] = 0
        keep = _within_bytes(keep, size, refused_rows)
    elif keep.any() and not has_step[keep].all():
        lost = keep & ~has_step
        first = files[int(file[np.flatnonzero(lost)[0]])].where.path
        refused_rows.add("it has no step, and other rows have", str(first), int(lost.sum()))
        keep &= has_step
    rows_kept = np.flatnonzero(keep)
    order = rows_kept[np.argsort(steps[rows_kept], kind="stable")]
    order = _within_a_step(steps, order, files, file, refused_rows)
    return Survey(
        format=chosen,
        files=files,
        steps_R=steps[order],
        file_R=file[order],
        place_R=place[order],
        size_R=size[order],
        formats_R=formats[order],
        digests=_digests(steps[order], digest[order]),
        refused_rows=refused_rows,
        refused_files=refused_files,
        others=others,
        is_evaluation=is_evaluation,
        file_steps_R=is_file_step[order],
        num_unclean=num_unclean,
    )


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
    own = [index for index in counts if FORMATS[index].trainer == trainer]
    others = {
        FORMATS[index].name: (times, firsts[index])
        for index, times in counts.items()
        if index not in own
    }
    chosen = FORMATS[max(own, key=lambda index: counts[index])]
    return chosen, np.isin(formats, own), others


def _within_bytes(
    keep: NDArray[np.bool_], size: IntArray64, refused: Refusals
) -> NDArray[np.bool_]:
    """Of the rows of one evaluation, those that fit into memory."""
    fits = np.cumsum(np.where(keep, size, 0)) <= EVALUATION_BYTES
    if not fits[keep].all():
        reason = f"no step is written, and one evaluation has at most {EVALUATION_BYTES >> 20} MB"
        refused.add(reason, "the last rows", int((keep & ~fits).sum()))
    return keep & fits


def _within_a_step(
    steps: IntArray64,
    order: NDArray[np.intp],
    files: list[SurveyedFile],
    file: NDArray[np.int32],
    refused: Refusals,
) -> NDArray[np.intp]:
    """At most as many rows of a step as trajectories can be numbered."""
    if not len(order):
        return order
    ordered = steps[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    fits = np.arange(len(order)) - starts <= MAX_INDEX
    if not fits.all():
        first = files[int(file[order[~fits][0]])].where.path
        reason = f"a step holds at most {MAX_INDEX + 1:,} episodes"
        refused.add(reason, str(first), int((~fits).sum()))
    return order[fits]


def _digests(steps: IntArray64, digest: NDArray[np.uint64]) -> dict[int, str]:
    out = {}
    bounds = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for first, last in itertools.pairwise(bounds):
        if last > first:
            data = digest[first:last].tobytes()
            out[int(steps[first])] = hashlib.blake2b(data, digest_size=12).hexdigest()
    return out
