"""What was added to a growing file of text since the last look, whatever happens to it meanwhile.

Only whole lines are handed out: a torn last line waits for its end. A file that was renamed is read
to its end before the new one under its name is begun. One that was truncated, or written again, is
noticed by the bytes before the place that was read up to, and is read from its start.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from echoscope.store.importers.lines import MAX_LINE_BYTES

BLOCK_BYTES = 4 << 20
"""Read at once: a look at a long log takes many blocks, and the view stays alive between them."""
_MARK_BYTES = 64
_BREAK = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines that stood at one place of the file."""

    start: int
    data: bytes
    is_new_text: bool = False
    """The file was replaced or truncated: these bytes do not follow those before."""


class Tail:
    """The end of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Behind the last whole line that was handed out."""
        self.num_long = 0
        """Lines that were too long to be read."""
        self._file: BinaryIO | None = None
        self._inode = 0
        self._mark = b""
        """The last bytes before `offset`."""
        self._rest = b""
        """The beginning of a line whose end is not written yet; it stands at `offset`."""
        self._is_long = self._is_new_text = False

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def num_left(self, size: int) -> int:
        """Bytes of a file of this size that were not read yet."""
        return max(0, size - self.offset - len(self._rest))

    def read(self, inode: int | None) -> Piece | None:
        """The next whole lines, at most about `BLOCK_BYTES`; None where there are none.

        Args:
            inode: of the file that has the name now; None: no file has it.

        Raises:
            OSError: the file cannot be read.
        """
        if self._file is not None and inode != self._inode:
            last = self._next()
            if last is not None or inode is None:
                return last
            self._begin_again()
        if self._file is None and inode is not None:
            self._open()
        return None if self._file is None else self._next()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._rest = b""

    def _begin_again(self) -> None:
        self.close()
        self.offset, self._mark = 0, b""
        self._is_long, self._is_new_text = False, True

    def _open(self) -> None:
        self._file = self.path.open("rb")
        self._inode = os.fstat(self._file.fileno()).st_ino

    def _advance(self, data: bytes) -> None:
        self.offset += len(data)
        self._mark, self._rest = (self._mark + data)[-_MARK_BYTES:], b""

    def _is_same_text(self, file: BinaryIO) -> bool:
        if os.fstat(file.fileno()).st_size < self.offset:
            return False
        file.seek(self.offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def _next(self) -> Piece | None:
        assert self._file is not None
        if self.offset and not self._is_same_text(self._file):
            self._begin_again()
            self._open()
        file = self._file
        if os.fstat(file.fileno()).st_size < self.offset + len(self._rest):
            self._rest = b""
        file.seek(self.offset + len(self._rest))
        while block := file.read(BLOCK_BYTES):
            data = self._rest + block
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # a progress bar goes back by \r
            if end:
                return self._piece(data[:end], data[end:])
            self._rest = data
            if len(data) > MAX_LINE_BYTES:  # its beginning is passed over, and so will its end be
                self.num_long += not self._is_long
                self._is_long = True
                self._advance(data)
        return None

    def _piece(self, whole: bytes, rest: bytes) -> Piece:
        start = self.offset
        self._advance(whole)
        self._rest = rest
        if self._is_long:
            ends = (whole.find(mark) for mark in (b"\n", b"\r"))
            cut = min(end for end in ends if end >= 0) + 1
            whole, start, self._is_long = whole[cut:], start + cut, False
        is_new_text, self._is_new_text = self._is_new_text, False
        return Piece(start, whole, is_new_text)


def lines_in(data: bytes) -> list[str]:
    """The lines of whole lines of bytes, without their breaks.

    >>> lines_in(b"step:1\\r\\n\\nstep:2\\n")
    ['step:1', 'step:2']
    """
    text = data.decode(errors="replace").removeprefix("\ufeff")
    return [line for line in _BREAK.split(text) if line]
