"""The files of a path that another trainer writes, and what was new in them at the last look.

What a file holds is told by its name and its first bytes. Only what was added to a file is read. A
file that is written at once (Parquet, a JSON document, TensorBoard's events) is read again when it
has changed. How far each file was read is known only while the watch goes on: after a restart all
files are read again, and compared with the run.
"""

from __future__ import annotations

import io
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath

from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.rollouts import ONE_EVALUATION, metrics_mapping
from echoscope.store.importers.format import Format, Roles, Where
from echoscope.store.importers.lines import BadJsonError, json_of, lines_of
from echoscope.store.importers.sources import (
    FoundRow,
    JsonLines,
    RowSource,
    SourceError,
    files_of,
    row_of_line,
    source_of,
)
from echoscope.store.importers.survey import SurveyedFile, format_of
from echoscope.store.log.layout import Layout

from .growing_text import GrowingText
from .ledger import Ledger, Look, Metrics, Told
from .tail import Piece, Tail, lines_in

_HEAD_BYTES = 1 << 16
_PLAIN = frozenset(
    {".log", ".txt", ".out", ".err", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ""}
)
"""In a folder, text with these endings is looked at."""
_NO_METRICS = frozenset(
    {"config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    | {"generation_config.json", "adapter_config.json", "vocab.json", "merges.txt"}
)
_WHOLE = (b"PAR1", b"\x1f\x8b", b"PK", b"BZ", b"[prompt] ")
"""How files begin that are read whole: Parquet, packed files, EasyR1's log of generations."""
_OPENING = (b"{", b"[", b",", b":")
"""How a line ends after which a JSON value goes on."""


class FileKind(StrEnum):
    """How a file is read."""

    NOTHING = ""
    """So far nothing in it can be read; what changed is looked at again."""
    NUMBERS = "numbers"
    """Text that grows, with metrics: what is added is read."""
    EPISODES = "episodes"
    """JSON lines of rollouts: what is added is read."""
    WHOLE = "whole"
    """It is read again whenever it has changed: Parquet, TensorBoard, a JSON document."""


def kind_of(path: Path, *, is_alone: bool, roles: Roles) -> FileKind:
    """What a file holds.

    Args:
        is_alone: It is watched by itself, so its name does not matter.
        roles: What a user says of the keys of rows.

    Raises:
        OSError: it cannot be read.
    """
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.strip():
        return FileKind.NOTHING
    if b"\x00" in head or head.startswith(_WHOLE):  # zeros: TensorBoard, SQLite, W&B
        return FileKind.WHOLE
    if not is_alone and (suffix not in _PLAIN or path.name in _NO_METRICS):
        return FileKind.NOTHING
    return _kind_of_text(head.removeprefix(b"\xef\xbb\xbf").lstrip(), suffix, roles)


def _kind_of_text(head: bytes, suffix: str, roles: Roles) -> FileKind:
    if head[:1] not in (b"{", b"["):
        return FileKind.NUMBERS
    is_all = len(head) < _HEAD_BYTES
    line, ends, _ = head.partition(b"\n")
    if not ends and suffix in (".jsonl", ".ndjson") and is_all:
        return FileKind.NOTHING  # its first line is still being written
    try:
        value, _ = json_of(line)
    except BadJsonError:
        if ends and not line.strip().endswith(_OPENING):
            return FileKind.NUMBERS
        return FileKind.WHOLE if is_all or suffix == ".json" else FileKind.EPISODES
    if isinstance(value, dict) and format_of(roles.mark(value)) is not None:
        return FileKind.EPISODES
    return FileKind.NUMBERS if isinstance(value, dict) and suffix != ".json" else FileKind.WHOLE


LOOK_BYTES = 32 << 20
"""Read in one look at most."""
MAX_WHOLE_BYTES = 64 << 20
"""A larger file of metrics that must be read whole is refused."""
LOOK_S = 0.2
"""Between two looks."""
MAX_LIST_S = 5.0
"""Between two listings of the folder at most ..."""
SHARE = 0.02
"""... and of a core that they may take, where one costs more than `CHEAP_S`."""
CHEAP_S = 0.01
OPEN_S = 60.0
"""A file that did not change for so long is closed."""
REST = 20.0
"""A file that must be read whole is read again after so many times what reading it took."""
RECOGNISED = (
    "rollouts (JSON lines or Parquet, as verl, RAGEN, TRL and others write them), metrics (CSV, "
    "JSON lines, TensorBoard, W&B or trackio files) or a console log with lines such as "
    "'step:1 - actor/entropy:0.5'"
)
_TOO_LARGE = (
    "not followed, because this kind of file is read whole and has more than 64 MB. `echoscope "
    "import` reads it once; to follow the training, log to JSON lines or CSV as well"
)


@dataclass(slots=True)
class _File:
    path: Path
    name: str
    """Relative to what is watched."""
    kind: FileKind = FileKind.NOTHING
    status: tuple[int, int, int] = (0, 0, 0)
    """Inode, size and time of change when it was seen last."""
    written_at: float = 0.0
    """When it was changed last, on the monotonic clock."""
    is_due: bool = True
    """It changed and was not read yet."""
    is_gone: bool = False
    rollouts: SurveyedFile | None = None
    """Where its rows of rollouts are read from; None where it has none."""
    form: Format | None = None
    """Of the row that was read last."""
    text: GrowingText | None = None
    read_at: float = 0.0
    """When it was last read whole."""
    took_s: float = 0.0
    tail: Tail = field(init=False)

    def __post_init__(self) -> None:
        self.tail = Tail(self.path)

    @property
    def num_left(self) -> int:
        return self.tail.num_left(self.status[1])

    def see(self) -> None:
        """Note whether it has changed. Raises OSError where it cannot be looked at."""
        now = os.stat(self.path)
        status = (now.st_ino, now.st_size, now.st_mtime_ns)
        if status != self.status or self.is_gone:
            self.status, self.is_due, self.is_gone = status, True, False
            self.written_at = time.monotonic() - max(0.0, time.time() - now.st_mtime)


class Folder:
    """A file, or all files below a folder.

    Args:
        own: The run's folder, which may stand below; it is passed over.
        ledger: Takes what is read.
        mapping: What the user says of names of metrics and keys of rollouts.
        line_quiet_s: Lines that nothing follows for so long are at their end.
    """

    def __init__(
        self,
        path: Path,
        *,
        own: Path,
        ledger: Ledger,
        mapping: Mapping[str, Meaning],
        say: Callable[[str], None],
        line_quiet_s: float,
    ) -> None:
        self.path, self.ledger = path, ledger
        self.is_there = False
        """Whether there is something at the path."""
        self.is_ended = False
        """Nothing more will come: standard input has ended, or the run at a server."""
        self.is_unanswered = False
        """A server was asked, and its last answer did not come: it is asked again."""
        self.awaited = RECOGNISED
        """What must come before there is anything to follow."""
        self.num_bytes_left = 0
        """What is left to read of what is there."""
        self._own, self._mapping, self._say = own.resolve(), metrics_mapping(mapping), say
        self._line_quiet_s = line_quiet_s
        self._files: dict[Path, _File] = {}
        self._spool = tempfile.TemporaryDirectory(prefix="echoscope-watch-")
        self._said: set[str] = set()
        self._list_at = 0.0

    def close(self) -> None:
        for file in self._files.values():
            file.tail.close()
        self._spool.cleanup()

    def names(self) -> list[str]:
        """The files that are there."""
        return [file.name for _, file in sorted(self._files.items()) if not file.is_gone]

    def look(self) -> Look:
        """Read what is new."""
        look, budget = Look(), LOOK_BYTES
        self.num_bytes_left = 0
        # Logs are read before the folder is listed, so that the files that were written before the
        # last line of a log are seen with this line.
        logs = [file for file in self._files.values() if file.kind is FileKind.NUMBERS]
        for file in logs:
            budget -= self._look_at(file, look, budget)
        is_listed = look.at >= self._list_at
        if is_listed:
            self._list()
        for file in self._files.values():
            is_busy = is_listed or file.is_due or file.tail.is_open
            if is_busy and file not in logs:
                budget -= self._look_at(file, look, budget)
        if self.ledger.rollouts.is_evaluation:
            self._say_once(ONE_EVALUATION)
        return look

    # --- which files are there?

    def _list(self) -> None:
        started = time.thread_time()
        try:
            self.is_there = self.path.exists()
            paths = list(self._listed()) if self.is_there else []
        except OSError as error:  # a folder vanished while it was listed
            self._say_once(f"{self.path}: {error.strerror or error}")
            return
        for path in paths:
            if path not in self._files:
                self._files[path] = _File(path, self._name(path))
        took = time.thread_time() - started
        wait_s = took / SHARE if took > CHEAP_S else 0.0
        self._list_at = time.monotonic() + min(MAX_LIST_S, wait_s)

    def _listed(self) -> Iterator[Path]:
        for path, problem in files_of(self.path):
            if problem:
                self._say_once(f"{self._name(path)}: {problem}")
            elif path in self._files or path == self.path or self._is_foreign(path):
                yield path

    def _is_foreign(self, path: Path) -> bool:
        """Whether a file is of no run of ours."""
        if path.resolve().is_relative_to(self._own):
            return False
        below = itertools.takewhile(lambda folder: folder != self.path, path.parents)
        return not any(Layout(folder).is_run for folder in below)

    def _name(self, path: Path) -> str:
        return path.name if path == self.path else str(path.relative_to(self.path))

    # --- what is new in them?

    def _look_at(self, file: _File, look: Look, budget: int) -> int:
        """Read what is new in a file; how many bytes that was."""
        try:
            try:
                file.see()
            except FileNotFoundError:
                self._gone(file, look)
            return self._read(file, look, budget)
        except FileNotFoundError:
            self._gone(file, look)
        except (OSError, MetricsFileError) as error:
            file.is_due |= isinstance(error, OSError)
            reason = error.strerror if isinstance(error, OSError) else None
            self._say_once(f"{file.name}: {reason or error}")
        return 0

    def _read(self, file: _File, look: Look, budget: int) -> int:
        if file.is_gone:  # what was written before it was renamed or removed is read to its end
            return self._read_lines(file, look, budget) if file.tail.is_open else 0
        if not file.is_due:
            self._rest(file, look)
            return 0
        if budget <= 0:
            look.is_behind = True
            self.num_bytes_left += file.num_left
            return 0
        if not file.kind:
            roles = self.ledger.rollouts.roles
            file.kind = kind_of(file.path, is_alone=file.path == self.path, roles=roles)
        if file.kind is FileKind.WHOLE:
            return self._read_whole(file, look)
        file.is_due = False
        return self._read_lines(file, look, budget) if file.kind else 0

    def _gone(self, file: _File, look: Look) -> None:
        if not file.is_gone and file.kind:
            self._say(f"{file.name} is gone; it is read on where it comes back")
        file.is_gone, file.is_due = True, False
        if look.at - file.written_at > OPEN_S:
            file.tail.close()

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < 1000:
            self._said.add(text)
            self._say(text)

    def _rest(self, file: _File, look: Look) -> None:
        """Nothing new: what was begun is at its end after a while, and the file is closed."""
        quiet_s = look.at - file.written_at
        if file.text is not None and quiet_s >= self._line_quiet_s:
            file.text.take(look, file.written_at, is_quiet=True)
        if quiet_s > OPEN_S:
            file.tail.close()

    # --- files that grow

    def _read_lines(self, file: _File, look: Look, budget: int) -> int:
        num_bytes, inode = 0, None if file.is_gone else file.status[0]
        while num_bytes < budget and (piece := file.tail.read(inode)) is not None:
            num_bytes += max(1, len(piece.data))
            if file.kind is FileKind.EPISODES:
                self._take_episodes(file, piece, look)
            else:
                self._take_lines(file, piece)
        if file.tail.num_long:
            self._say_once(f"{file.name}: a line of more than 16 MB was passed over")
        if num_bytes >= budget and file.num_left:
            file.is_due = look.is_behind = True
            self.num_bytes_left += file.num_left
        if file.text is not None:
            file.text.take(look, file.written_at, is_quiet=False)
        return num_bytes

    def _take_episodes(self, file: _File, piece: Piece, look: Look) -> None:
        self.ledger.rollouts.is_closed_kind = False
        rows = map(row_of_line, lines_of(io.BytesIO(piece.data), piece.start))
        source = JsonLines(file.path) if piece.is_new_text or file.rollouts is None else None
        self._take_rows(file, source, rows, look)

    def _take_rows(
        self, file: _File, source: RowSource | None, rows: Iterable[FoundRow], look: Look
    ) -> None:
        """Take rows of rollouts: those of a new source replace all that the file had, else they
        follow them."""
        rollouts = self.ledger.rollouts
        if source is not None:
            if file.rollouts is not None:
                rollouts.replaced(file.rollouts)
            file.rollouts = SurveyedFile(where=Where(path=PurePath(file.name)), source=source)
        assert file.rollouts is not None
        for row in rows:
            file.form = rollouts.take(file.rollouts, row, file.form)
        rollouts.changed_at = max(rollouts.changed_at, file.written_at)
        look.is_new = True

    def _take_lines(self, file: _File, piece: Piece) -> None:
        if file.text is None:
            file.text = GrowingText(file.name, self._mapping)
            self.ledger.told[file.name] = file.text.told
        file.text.feed(lines_in(piece.data))

    # --- files that are written at once

    def _read_whole(self, file: _File, look: Look) -> int:
        size, now = file.status[1], time.monotonic()
        if now - file.read_at < REST * file.took_s:
            return 0  # it stays due
        file.is_due = False  # what is written from now on makes it due again
        try:
            if not self._take_whole_episodes(file, look):
                if size > MAX_WHOLE_BYTES:
                    raise MetricsFileError(_TOO_LARGE)
                self._take_whole_metrics(file, look)
            file.read_at = time.monotonic()
            file.took_s = file.read_at - now
        except (SourceError, BadJsonError) as error:
            # A Parquet file has its end last: it is still being written, or damaged.
            file.is_due = now - file.written_at <= OPEN_S
            if not file.is_due:
                self._say_once(f"{file.name}: {error}")
        return size

    def _take_whole_metrics(self, file: _File, look: Look) -> None:
        try:
            table = read_metrics(file.path, self._mapping)
        except MetricsFileError:
            if file.path == self.path:
                raise
            return
        metrics = Metrics()
        for step, values in table.rows():
            metrics.add_row(step, values)
        told = self.ledger.told.setdefault(file.name, Told())
        look.is_new |= told.take(metrics, file.written_at)

    def _take_whole_episodes(self, file: _File, look: Look) -> bool:
        source, roles = source_of(file.path, Path(self._spool.name)), self.ledger.rollouts.roles
        if source is None:
            return False
        rows = source.scan()
        first = list(itertools.islice(rows, 20))
        marked = (roles.mark(row.value) for row in first)
        is_of_rollouts = any(isinstance(value, dict) and format_of(value) for value in marked)
        if is_of_rollouts:
            self._take_rows(file, source, itertools.chain(first, rows), look)
        source.close()
        return is_of_rollouts
