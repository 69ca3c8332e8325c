"""What was added to a file since the last look, whatever happens to the file meanwhile.

Only whole lines are handed out: a torn last line waits for its end. A file that was replaced,
truncated, or truncated and written again is noticed, and its text is handed out from the start.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from echoscope.store.importers.lines import MAX_LINE_BYTES

BLOCK_BYTES = 4 << 20
"""Read at once: a look at a long log takes many blocks, and the view stays alive between them."""
MARK_BYTES = 64
"""Before the place that was read up to: other bytes there mean another text."""
_ENCODINGS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_BREAK = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Place:
    """How far a file was read; kept with the run, so that a restart goes on from there."""

    offset: int = 0
    inode: int = 0
    mark: str = ""
    """The last bytes before `offset`, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines that stood at one place of the file."""

    start: int
    data: bytes
    is_new_text: bool = False
    """The file was replaced or truncated: these bytes do not follow those before."""


class Tail:
    """The end of one file."""

    def __init__(self, path: Path, place: Place | None = None) -> None:
        self.path = path
        self._text = str(path)
        self.place = place or Place()
        self.size = -1
        """At the last look; -1 before the first, and where the file is gone."""
        self.encoding = "utf-8"
        self.num_long = 0
        """Lines that were too long to be read."""
        self.seen: tuple[int, int, int] = (-1, -1, -1)
        """Inode, size and time of change at the last look."""
        self._file: BinaryIO | None = None
        self._rest = b""
        """The beginning of a line whose end is not written yet; it stands at `place.offset`."""
        self._is_long = False
        self._is_new_text = False

    @property
    def is_behind(self) -> bool:
        """More has been seen than was read."""
        return self.size > self.place.offset + len(self._rest)

    def has_changed(self) -> bool:
        """Whether the file is another than at the last look. Costs one `stat`.

        Raises:
            FileNotFoundError: it is gone.
            OSError: it cannot be looked at.
        """
        try:
            status = os.stat(self._text)
        except FileNotFoundError:
            self.size, self.seen = -1, (-1, -1, -1)
            raise
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{self.path}: is no regular file any more")
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        is_other, self.seen = seen != self.seen, seen
        self.size = status.st_size
        return is_other

    def read(self) -> Piece | None:
        """The next whole lines, at most about `BLOCK_BYTES`; None where there are none.

        Raises:
            OSError: the file cannot be read.
        """
        if self._file is not None and self.seen[0] != self.place.inode:
            last = self._next()  # what was written to the old file before it was rotated away
            if last is not None:
                return last
            self._begin_again()
        if self._file is None:
            self._open()
        return self._next()

    def take_rest(self) -> Piece | None:
        """The last line although no line break ends it: nothing more will be written."""
        start, data = self.place.offset, self._rest
        if not data.strip():
            return None
        self._rest = b""
        mark = (bytes.fromhex(self.place.mark) + data)[-MARK_BYTES:].hex()
        self.place = Place(start + len(data), self.place.inode, mark)
        return Piece(start, data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._rest = b""

    def _begin_again(self) -> None:
        self.close()
        self.place = Place()
        self._is_long, self._is_new_text = False, True

    def _open(self) -> None:
        self._file = self.path.open("rb")
        found = os.fstat(self._file.fileno())
        before = self.place
        if before.offset and not self._is_same(before, found):
            self._is_new_text = True
            before = Place()
        head = self._file.read(2)
        self.encoding = next((name for mark, name in _ENCODINGS if head == mark), "utf-8")
        self.place = Place(before.offset, found.st_ino, before.mark)
        self._rest = b""

    def _is_same(self, place: Place, found: os.stat_result) -> bool:
        assert self._file is not None
        if found.st_size < place.offset:
            return False
        mark = bytes.fromhex(place.mark)
        self._file.seek(place.offset - len(mark))
        return self._file.read(len(mark)) == mark

    def _next(self) -> Piece | None:
        assert self._file is not None
        if self.place.offset and not self._is_same(self.place, os.fstat(self._file.fileno())):
            self._begin_again()
            self._open()
        start = self.place.offset
        if os.fstat(self._file.fileno()).st_size < start + len(self._rest):
            self._rest = b""
        self._file.seek(start + len(self._rest))
        data, end = self._rest, 0
        while end == 0:
            block = self._file.read(BLOCK_BYTES)
            if not block:
                self._rest = data
                return None
            data += block
            end = self._end_of_lines(data)
            if end == 0 and len(data) > MAX_LINE_BYTES:
                return self._without_end(data)
        whole, self._rest = data[:end], data[end:]
        mark = (bytes.fromhex(self.place.mark) + whole)[-MARK_BYTES:].hex()
        self.place = Place(start + end, self.place.inode, mark)
        if self._is_long:  # the end of a line that was too long
            cut = self._first_break(whole)
            whole, start, self._is_long = whole[cut:], start + cut, False
        is_new_text, self._is_new_text = self._is_new_text, False
        return Piece(start, whole, is_new_text)

    def _without_end(self, data: bytes) -> Piece:
        """A line that is too long is passed over, here its beginning."""
        self.num_long += not self._is_long
        self._is_long, self._rest = True, b""
        self.place = Place(
            self.place.offset + len(data), self.place.inode, data[-MARK_BYTES:].hex()
        )
        return Piece(self.place.offset, b"")

    def _end_of_lines(self, data: bytes) -> int:
        """Behind the last line break. Progress bars go back to the start of their line instead."""
        if self.encoding == "utf-8":
            return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        line_break = "\n".encode(self.encoding)
        end = data.rfind(line_break)
        while end > 0 and (self.place.offset + end) % 2:
            end = data.rfind(line_break, 0, end)
        return end + 2 if end >= 0 else 0

    def _first_break(self, data: bytes) -> int:
        found = re.search(rb"[\r\n]", data)
        return found.end() if found else len(data)


def lines_in(data: bytes, encoding: str) -> list[str]:
    """The lines of whole lines of bytes, without their breaks."""
    text = data.decode(encoding, errors="replace").removeprefix("\ufeff")
    return [line for line in _BREAK.split(text) if line]
