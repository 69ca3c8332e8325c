"""The files of a path that another trainer writes, and what was new in them at the last look.

A look costs one `stat` a file that changed lately (`rota`). Only what was added to a file is read;
a file that is written at once (Parquet, a JSON document, TensorBoard's events) is read again when
it has changed.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.names import RowNamer
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.rollouts import ONE_EVALUATION, metrics_mapping, roles_of
from echoscope.diagnostics.read.run_meaning import RunMeaning
from echoscope.diagnostics.read.table import MetricTable
from echoscope.store.importers.format import Format
from echoscope.store.importers.lines import BadJsonError
from echoscope.store.importers.sources import FoundRow, JsonLines, SourceError, source_of
from echoscope.store.importers.survey import format_of

from .files.generations import Generations
from .files.kinds import FileKind, is_known_suffix, kind_of
from .files.listing import Listing, rotated, shown
from .files.rota import Rota
from .files.tail import Place, Tail, lines_in
from .numbers import YOUNG_BYTES, TextNumbers, lines_of_text
from .rollouts import Rollouts, rows_of_lines
from .window import News, Row, Window

ROLLOUTS = "rollouts"
"""All files of rollouts together, among the names of sources."""
LOOK_BYTES = 32 << 20
"""Read in one look at most."""
MAX_AT_ONCE_BYTES = 1 << 20
"""A larger file that must be read whole is read in a thread of its own."""
MAX_WHOLE_BYTES = 64 << 20
"""A larger file of metrics that must be read whole is refused."""
LOOK_S = 0.2
"""Between two looks."""
OPEN_S = 60.0
"""A file that did not change for so long is closed."""
REST = 20.0
"""A file that must be read whole is read again after so many times what reading it took."""
RECOGNISED = (
    "rollouts (JSON lines or Parquet, as verl, RAGEN, TRL and others write them), metrics (CSV, "
    "JSON lines, TensorBoard, W&B or trackio files) or a console log with lines such as "
    "'step:1 - actor/entropy:0.5'"
)
_WHY_UNREAD = {
    FileKind.UNKNOWN: "empty, or its first line is not written to the end",
    FileKind.NUMBERS: "no line with the metrics of a step",
    FileKind.EPISODES: "no rollout of a known format",
    FileKind.SAMPLES: "its first validation is not written to the end",
    FileKind.WHOLE: "neither metrics nor rollouts",
}


def _why_unread(path: Path, kind: FileKind) -> str:
    if kind is not FileKind.NOTHING:
        return _WHY_UNREAD[kind]
    is_named = is_known_suffix(path)
    return f"not read in a folder, because of its {'name' if is_named else f'ending {path.suffix}'}"


@dataclass(slots=True)
class Numbers:
    """A file of metrics."""

    window: Window
    text: TextNumbers | None = None
    """None where the file is read whole."""
    changed_at: float = 0.0
    safe: int = 0
    """Rows that are not in the run yet stand behind this place."""
    is_open: bool = False
    """Lines were read after which a block may go on."""
    was_read: bool = False
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Places in the file, each with the newest step that stands before it."""


@dataclass(slots=True)
class _File:
    tail: Tail
    name: str
    """Relative to what is watched."""
    kind: FileKind = FileKind.UNKNOWN
    form: Format | None = None
    """Of the row that was read last."""
    written_at: float = 0.0
    """When it was changed last, on the monotonic clock."""
    read_at: float = 0.0
    """When it was last read whole."""
    took_s: float = 0.0
    is_due: bool = False
    """It changed and was not read yet."""
    is_gone: bool = False
    problem: str = ""
    """Why it could not be read."""
    reading: Future[MetricTable] | None = None
    """It is being read whole."""


@dataclass(slots=True)
class Changes:
    """What one look has found."""

    at: float = field(default_factory=time.monotonic)
    """When the look began: what was written later may not have been seen."""
    is_new: bool = False
    is_behind: bool = False
    """More is there than was read."""
    is_unopened: bool = False
    """Nothing at all was read yet of one of the files."""
    is_reading: bool = False
    """A file is being read whole for the first time."""
    repeated: dict[str, int] = field(default_factory=dict)
    """Source -> the step at which it says that the trainer began again."""
    late: set[int] = field(default_factory=set)
    """Steps that got further numbers after a later step."""
    num_lost: int = 0

    def note(self, name: str, news: News) -> None:
        self.is_new = True
        if news.first_repeated is not None:
            self.repeated[name] = min(news.first_repeated, self.repeated.get(name, 1 << 60))
        self.late |= news.late
        self.num_lost += news.num_lost


class Folder:
    """A file, or all files below a folder.

    Args:
        own: The run's folder, which may stand below; it is passed over.
        line_quiet_s: Lines that nothing follows for so long are at their end.
        state: What `state` gave before a restart.
        meaning: What an earlier watch decided that the numbers mean.
    """

    def __init__(
        self,
        path: Path,
        *,
        own: Path,
        mapping: Mapping[str, Meaning],
        say: Callable[[str], None],
        line_quiet_s: float,
        state: Mapping[str, Any],
        meaning: RunMeaning | None = None,
    ) -> None:
        self.path = path
        self.numbers: dict[str, Numbers] = {}
        self.rollouts = Rollouts(path, roles_of(mapping))
        self.is_ended = False
        """Nothing more will come."""
        self._mapping, self._say = metrics_mapping(mapping), say
        self.namer = RowNamer(mapping=self._mapping, meaning=meaning or RunMeaning())
        self._listing = Listing(path, own=own, say=self._say_once)
        self._line_quiet_s = line_quiet_s
        self._state: Mapping[str, Any] = state
        self._files: dict[Path, _File] = {}
        self._spool = tempfile.TemporaryDirectory(prefix="echoscope-watch-")
        self._problems: set[str] = set()
        self._rota = Rota(LOOK_S)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="whole files")
        self.stored: Mapping[int, Mapping[str, float]] = {}
        """Numbers of the steps that the run has, after a restart."""
        self.num_bytes_left = 0
        self._copies: dict[str, str] = {}
        """Files that were passed over at the last look -> the files that hold their rows."""
        self._said_copies: set[frozenset[str]] = set()
        self._generations: dict[str, Generations] = {}
        self._rotated: list[Path] | None = None
        """Logs that were rotated away before the watch began; None before the first listing. One
        that is rotated away later was read until then."""

    def close(self) -> None:
        for file in self._files.values():
            file.tail.close()
        self._readers.shutdown(cancel_futures=True)
        self._spool.cleanup()

    def abandon(self) -> None:
        """Give up what is being read, so that the program can end at once."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    @property
    def is_there(self) -> bool:
        """Whether there is something at the path."""
        return self._listing.is_there

    @property
    def awaited(self) -> str:
        """What must come before there is anything to follow."""
        return RECOGNISED

    @property
    def is_unanswered(self) -> bool:
        """A server was asked, and its last answer did not come."""
        return False

    @property
    def has_any(self) -> bool:
        """Whether a row of metrics or of rollouts was read."""
        return bool(self.rollouts.num_rows) or any(
            numbers.window.newest >= 0 for numbers in self.numbers.values()
        )

    def unread(self) -> list[tuple[str, str]]:
        """The names of the files of which nothing was read, each with the reason."""
        return [
            (file.name, file.problem or _why_unread(path, file.kind))
            for path, file in sorted(self._files.items())
            if not file.is_gone
        ]

    def unfinished(self) -> list[tuple[str, int]]:
        """Files of validations, each with its samples of one that is not written to its end."""
        return [(name, file.num_waiting) for name, file in self._generations.items()]

    def look(self, *, is_end: bool = False) -> Changes:
        """Read what is new.

        Args:
            is_end: Nothing more will be written: last lines without a line break count, too.
        """
        changes = Changes()
        self.num_bytes_left = 0
        now = time.monotonic()
        due = self._rota.files if is_end else self._rota.due(now, self._is_unread)
        # Logs are read before the folder is listed, so that the files that were written before the
        # last line of a log are seen with this line.
        logs = [path for path in due if self._is_log(path)]
        budget = self._read_files(logs, changes, LOOK_BYTES, is_end=is_end)
        new = self._list()
        others = itertools.chain((path for path in due if not self._is_log(path)), new)
        self._read_files(others, changes, budget, is_end=is_end)
        self.rollouts.settle()
        if self.rollouts.is_evaluation:
            self._say_once(ONE_EVALUATION)
        self._say_copies()
        for note in self.namer.notes:
            self._say_once(note)
        repeated = self.rollouts.trained_again()
        if repeated is not None:
            changes.note(ROLLOUTS, News(first_repeated=repeated))
        return changes

    def _list(self) -> list[Path]:
        """Files that were not there at the last look."""
        listed = self._listing.changed()
        if listed is None:
            return []
        kept = (path for path, file in self._files.items() if not file.is_gone)
        known = set(self._rota.files)
        if self._rotated is None:
            self._rotated = [p for p in rotated(listed) if is_known_suffix(p.with_suffix(""))]
            listed = list(dict.fromkeys([*self._rotated, *listed]))
        self._rota.enter([*listed, *kept], time.monotonic())
        return [path for path in listed if path not in known]

    def _read_files(
        self, paths: Iterable[Path], changes: Changes, budget: int, *, is_end: bool
    ) -> int:
        """Read what is new in files; what is left of the budget."""
        for path in paths:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = self._begun(path)
            try:
                budget -= self._look_at(path, file, changes, budget, is_end=is_end)
            except FileNotFoundError:
                self._gone(path, file)
            except (OSError, MetricsFileError) as error:
                reason = error.strerror if isinstance(error, OSError) else ""
                file.problem = reason or str(error)
                self._say_once(f"{shown(path, self.path)}: {file.problem}")
                file.kind = file.kind or FileKind.NOTHING
        return budget

    def _begun(self, path: Path) -> _File:
        """A file that was not looked at yet; an earlier watch may have read the beginning."""
        name = shown(path, self.path)
        entry = self._state.get(name)
        if isinstance(entry, Mapping):
            self.rollouts.resume(name, entry, lambda: self._past(path, entry))
        return _File(Tail(path, self._place(name)), name)

    def _past(self, path: Path, entry: Mapping[str, Any]) -> Iterator[FoundRow]:
        """The rows of rollouts that an earlier watch has read."""
        try:
            if entry.get("kind") == FileKind.WHOLE:
                source = source_of(path, Path(self._spool.name))
                yield from source.scan() if source is not None else ()
                return
            end = int(entry["offset"])
            rows = JsonLines(path).scan()
            yield from itertools.takewhile(lambda found: found.place < end, rows)
        except (SourceError, BadJsonError, OSError) as error:
            self._say_once(f"{shown(path, self.path)}: {error}")

    def _say_copies(self) -> None:
        """Name the files that are passed over, and those that are no more."""
        copies = dict(self.rollouts.copies)
        for copy, original in copies.items():
            if frozenset((copy, original)) not in self._said_copies:
                self._said_copies.add(frozenset((copy, original)))
                self._say(
                    f"passed over {copy}: a copy: all its rows are the first rows of {original}"
                )
        for copy in self._copies.keys() - copies.keys() - set(copies.values()):
            self._say(f"{copy} is no copy of {self._copies[copy]} any more: its rows count")
        self._copies = copies

    def _is_log(self, path: Path) -> bool:
        return path in self._files and self._files[path].kind is FileKind.NUMBERS

    def state(self) -> dict[str, Any]:
        """How far each file was read, as JSON values: everything before is in the run."""
        out: dict[str, Any] = {}
        for path, file in self._files.items():
            name, place = file.name, file.tail.place
            entry: dict[str, Any] = {"kind": file.kind, "inode": place.inode}
            offset = place.offset
            if file.kind is FileKind.NUMBERS and name in self.numbers:
                numbers = self.numbers[name]
                if numbers.text is None or numbers.text.is_young or numbers.text.counts_rows:
                    continue  # read again from its start
                offset, entry["grammar"] = min(numbers.safe, offset), numbers.text.grammar
            elif file.kind is FileKind.EPISODES:
                waiting = self.rollouts.first_waiting(name)
                offset = offset if waiting is None else min(offset, waiting.place)
                entry |= self.rollouts.state(name, waiting)
            elif file.kind is FileKind.WHOLE:
                if self.rollouts.first_waiting(name) is not None or name in self.numbers:
                    continue
                entry["seen"] = list(file.tail.seen)
                entry |= self.rollouts.state(name, None)
            else:
                continue
            entry["offset"] = offset
            entry["mark"] = place.mark if offset == place.offset else _mark(path, offset)
            out[name] = entry
        return out

    def settled(self, last: int) -> None:
        """The steps up to `last` are in the run."""
        for file in self._files.values():
            numbers = self.numbers.get(file.name)
            if numbers is None:
                continue
            numbers.window.trim(last)
            if numbers.window.newest <= last:
                numbers.marks = [(file.tail.place.offset, numbers.window.newest)]
            over = [mark for mark in numbers.marks if mark[1] <= last]
            if over:
                numbers.safe = over[-1][0]
                numbers.marks = numbers.marks[len(over) - 1 :]

    def forget(self, first: int, *, but: Collection[str]) -> None:
        """Steps from `first` on come again, in all sources but these, which say so."""
        if ROLLOUTS not in but:
            self.rollouts.forget(first)
        for name, numbers in self.numbers.items():
            if name not in but:
                numbers.window.forget(first)

    # --- files

    def _is_unread(self, path: Path) -> bool:
        file = self._files.get(path)
        return file is None or file.is_due

    def _place(self, name: str) -> Place | None:
        entry = self._state.get(name)
        if not isinstance(entry, Mapping):
            return None
        return Place(int(entry["offset"]), int(entry["inode"]), str(entry["mark"]))

    def _say_once(self, text: str) -> None:
        if text not in self._problems and len(self._problems) < 1000:
            self._problems.add(text)
            self._say(text)

    def _gone(self, path: Path, file: _File) -> None:
        if not file.is_gone and file.kind not in (FileKind.UNKNOWN, FileKind.NOTHING):
            self._say(f"{file.name} is gone; it is read on where it comes back")
        file.is_gone = True
        file.tail.close()

    def _look_at(
        self, path: Path, file: _File, changes: Changes, budget: int, *, is_end: bool
    ) -> int:
        """Read what is new in a file; how many bytes that was."""
        has_changed = file.tail.has_changed()
        now = time.monotonic()
        if has_changed:
            file.is_due, file.is_gone = True, False
            file.written_at = now - max(0.0, time.time() - file.tail.seen[2] / 1e9)
            self._rota.changed(path, file.written_at)
        name = file.name
        if not file.is_due and not is_end and file.reading is None:
            self._rest(name, file, changes, now)
            return 0
        if budget <= 0:
            changes.is_behind = True
            changes.is_unopened |= file.kind is FileKind.UNKNOWN
            self.num_bytes_left += max(0, file.tail.size - file.tail.place.offset)
            return 0
        if not file.kind or (file.kind is FileKind.NOTHING and has_changed):
            entry = self._state.get(name)
            if isinstance(entry, Mapping) and entry.get("kind") in set(FileKind):
                file.kind = FileKind(entry["kind"])
            file.kind = file.kind or kind_of(
                path,
                is_alone=path in (self.path, *(self._rotated or ())),
                roles=self.rollouts.roles,
            )
            if file.kind is FileKind.UNKNOWN:
                return 0
        if file.kind is FileKind.WHOLE:
            return self._read_whole(path, name, file, changes, now, is_end=is_end)
        if file.kind is FileKind.SAMPLES:
            return self._read_samples(path, name, file, changes, budget, now, is_end=is_end)
        if file.kind is FileKind.NOTHING:
            file.is_due = False
            return 0
        is_old = path in (self._rotated or ())
        num = self._read_lines(path, name, file, changes, budget, now, is_end=is_end or is_old)
        if self._rotated and is_old and not file.is_due:
            self._rotated.remove(path)  # read to its end; another log may take its name
            file.kind = FileKind.NOTHING
            file.tail.close()
        return num

    # --- reading

    def _read_lines(
        self,
        path: Path,
        name: str,
        file: _File,
        changes: Changes,
        budget: int,
        now: float,
        *,
        is_end: bool,
    ) -> int:
        num_bytes = 0
        before = self.numbers.get(name)
        if before is not None:
            before.marks.append((file.tail.place.offset, before.window.newest))
        while num_bytes < budget:
            piece = file.tail.read()
            if piece is None and is_end and now - file.written_at >= self._line_quiet_s:
                piece = file.tail.take_rest()
            if piece is None:
                break
            num_bytes += max(1, len(piece.data))
            if file.kind is FileKind.EPISODES:
                self._episodes(path, name, file, piece.start, piece.data, piece.is_new_text)
                self.rollouts.changed_at = max(self.rollouts.changed_at, file.written_at)
                changes.is_new = True
            else:
                if piece.is_new_text and name in self.numbers:
                    self._rows(name, self.numbers[name], changes, file.written_at, is_quiet=True)
                self._lines(name, file, lines_in(piece.data, file.tail.encoding), piece.is_new_text)
        if file.tail.num_long:
            self._say_once(f"{name}: a line of more than 16 MB was passed over")
        is_behind = file.tail.is_behind
        if is_behind:
            self.num_bytes_left += file.tail.size - file.tail.place.offset
        changes.is_behind |= is_behind and num_bytes >= budget
        file.is_due = is_behind and num_bytes >= budget
        if file.kind is FileKind.NUMBERS and name in self.numbers:
            self._rows(name, self.numbers[name], changes, file.written_at, is_quiet=is_end)
            text = self.numbers[name].text
            if text is not None and text.is_document:
                del self.numbers[name]
                file.kind, file.is_due = FileKind.WHOLE, True
        return num_bytes

    def _read_samples(
        self,
        path: Path,
        name: str,
        file: _File,
        changes: Changes,
        budget: int,
        now: float,
        *,
        is_end: bool,
    ) -> int:
        """Read EasyR1's log, where nothing is being written to it: a validation is written at
        once."""
        if not is_end and now - file.written_at < self._line_quiet_s:
            return 0  # it stays due
        generations = self._generations.get(name)
        if generations is None:
            generations = self._generations[name] = Generations(path)
        is_new_text, is_more = generations.read(budget)
        changes.is_behind |= is_more
        file.is_due = is_more
        if is_new_text:
            self.rollouts.replaced(name)
        if is_more:
            return budget
        is_again, rows = generations.validations()
        if is_again:
            self.rollouts.replaced(name)
        for found in rows:
            file.form = self.rollouts.take(name, generations, found, file.form)
            self.rollouts.changed_at = max(self.rollouts.changed_at, file.written_at)
            changes.is_new = True
        return 1

    def _episodes(
        self, path: Path, name: str, file: _File, start: int, data: bytes, is_new_text: bool
    ) -> None:
        if is_new_text:
            self.rollouts.replaced(name)
        self.rollouts.is_closed_kind = False
        source = JsonLines(path)
        for found in rows_of_lines(start, data):
            file.form = self.rollouts.take(name, source, found, file.form)

    def _lines(self, name: str, file: _File, lines: list[str], is_new_text: bool) -> None:
        numbers = self.numbers.get(name)
        if numbers is None:
            numbers = self.numbers[name] = self._new_numbers(name, file)
        assert numbers.text is not None
        if is_new_text:
            numbers.text.begin_again()
        numbers.text.feed(lines)
        numbers.is_open = True

    def _new_numbers(self, name: str, file: _File) -> Numbers:
        text = TextNumbers(name, self._mapping)
        window = Window(namer=self.namer)
        entry = self._state.get(name)
        if self.stored:
            window.know(self.stored)
        if isinstance(entry, Mapping) and file.tail.place.offset >= int(entry["offset"]) > 0:
            path, offset = file.tail.path, int(entry["offset"])
            encoding = file.tail.encoding
            head = lines_of_text(path, 0, min(offset, YOUNG_BYTES), encoding)
            start = max(0, offset - YOUNG_BYTES)
            context = lines_of_text(path, start, offset - start, encoding)
            text.resume(head, context, str(entry.get("grammar", "")))
        return Numbers(window=window, text=text, safe=file.tail.place.offset)

    def _rows(
        self,
        name: str,
        numbers: Numbers,
        changes: Changes,
        written_at: float,
        *,
        is_quiet: bool,
    ) -> None:
        assert numbers.text is not None
        rows, is_again = numbers.text.rows(is_quiet=is_quiet)
        if is_quiet:
            numbers.is_open = False
        if rows:
            numbers.changed_at = max(numbers.changed_at, written_at)
            self._take(name, numbers, rows, is_again, changes)

    def _take(
        self, name: str, numbers: Numbers, rows: list[Row], is_again: bool, changes: Changes
    ) -> None:
        """Rows that a restart reads once more are compared with what the run has."""
        is_compared = is_again or (bool(self.stored) and not numbers.was_read)
        numbers.was_read = True
        window = numbers.window
        changes.note(name, window.replace(rows) if is_compared else window.add(rows))

    def _rest(self, name: str, file: _File, changes: Changes, now: float) -> None:
        """Nothing new: what was begun is at its end after a while, and the file is closed."""
        quiet_s = now - file.written_at
        numbers = self.numbers.get(name)
        is_over = quiet_s >= self._line_quiet_s
        if numbers is not None and numbers.text is not None and numbers.is_open and is_over:
            self._rows(name, numbers, changes, file.written_at, is_quiet=True)
        if quiet_s > OPEN_S:
            file.tail.close()

    def _read_whole(
        self,
        path: Path,
        name: str,
        file: _File,
        changes: Changes,
        now: float,
        *,
        is_end: bool,
    ) -> int:
        entry = self._state.get(name)
        if isinstance(entry, Mapping) and entry.get("seen") == list(file.tail.seen):
            file.is_due = False
            return 0
        if file.reading is None:
            if not is_end and file.took_s and now - file.read_at < REST * file.took_s:
                return 0  # it stays due
            file.read_at = now
            try:
                if self._whole_episodes(path, name, file, changes):
                    file.is_due, file.took_s = False, time.monotonic() - now
                    return file.tail.size
            except (SourceError, BadJsonError) as error:
                # A Parquet file has its end last: it is still being written, or damaged.
                if now - file.written_at > OPEN_S or is_end:
                    self._say_once(f"{name}: {error}")
                    file.is_due = False
                return file.tail.size
            if file.tail.size > MAX_WHOLE_BYTES:
                self._say_once(
                    f"{name}: not followed, because this kind of file is read whole and has more "
                    "than 64 MB. `echoscope import` reads it once; to follow the training, log to "
                    "JSON lines or CSV as well"
                )
                file.is_due = False
                return 0
            file.is_due = False  # what is written from now on makes it due again
            file.reading = self._readers.submit(read_metrics, path, self._mapping)
        if file.tail.size > MAX_AT_ONCE_BYTES and not is_end and not file.reading.done():
            changes.is_reading |= file.took_s == 0
            return 0
        self._take_whole(path, name, file, changes)
        return file.tail.size

    def _take_whole(self, path: Path, name: str, file: _File, changes: Changes) -> None:
        """Take the metrics of a file that was read whole; waits where that is not done yet."""
        assert file.reading is not None
        reading, file.reading = file.reading, None
        try:
            table = reading.result()
        except MetricsFileError as error:
            file.problem = str(error).removeprefix(f"{path}: ")
            if path == self.path:
                self._say_once(str(error))
            return
        finally:
            file.took_s = time.monotonic() - file.read_at
        numbers = self.numbers.get(name)
        if numbers is None:
            numbers = self.numbers[name] = Numbers(window=Window(namer=self.namer))
            if self.stored:
                numbers.window.know(self.stored)
        numbers.changed_at = max(numbers.changed_at, file.written_at)
        self._take(name, numbers, [(s, v, 1.0) for s, v in table.rows()], True, changes)

    def _whole_episodes(self, path: Path, name: str, file: _File, changes: Changes) -> bool:
        source = source_of(path, Path(self._spool.name))
        if source is None:
            return False
        rows = iter(source.scan())
        first = list(itertools.islice(rows, 20))
        marked = (self.rollouts.roles.mark(found.value) for found in first)
        if not any(isinstance(value, dict) and format_of(value) for value in marked):
            source.close()
            return False
        self.rollouts.replaced(name)
        for found in itertools.chain(first, rows):
            file.form = self.rollouts.take(name, source, found, file.form)
        source.close()
        self.rollouts.changed_at = max(self.rollouts.changed_at, file.written_at)
        changes.is_new = True
        return True


def _mark(path: Path, offset: int) -> str:
    """The bytes before a place of a file; see `Place`."""
    from .files.tail import MARK_BYTES

    try:
        with path.open("rb") as file:
            start = max(0, offset - MARK_BYTES)
            file.seek(start)
            return file.read(offset - start).hex()
    except OSError:
        return ""
