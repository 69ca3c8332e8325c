"""Rows of JSON lines with bounded memory, whatever the file holds.

A line that is too long is passed over, a torn last line and bytes that are not UTF-8 are noted, and
each row keeps its place, so that it can be read again alone.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAX_LINE_BYTES = 16 << 20
"""A longer line is passed over: a line is read at once, and its values take several times that."""
_BLOCK = 1 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: where it begins and its bytes; no bytes where it was too long."""

    offset: int
    size: int
    data: bytes | None
    is_last: bool
    """It ends with the file, not with a line break."""


def lines_of(file: BinaryIO, max_bytes: int | None = None) -> Iterator[Line]:
    """The lines of a file that are not blank."""
    limit = MAX_LINE_BYTES if max_bytes is None else max_bytes
    offset = 0
    while data := file.readline(limit + 1):
        start, size = offset, len(data)
        is_ended = data.endswith(b"\n")
        is_long = size > limit and not is_ended
        while is_long and not is_ended:
            rest = file.readline(_BLOCK)
            size += len(rest)
            is_ended = rest.endswith(b"\n") or not rest
        offset += size
        if is_long:
            yield Line(start, size, None, False)
        elif data.strip():
            yield Line(start, size, data, not is_ended)


class BadJsonError(ValueError):
    """Text that is no JSON value, with the reason in words."""


def json_of(data: bytes) -> tuple[Any, bool]:
    """The value of a JSON text, and whether all of its bytes were UTF-8.

    NaN and Infinity are read as trainers in Python write them. Bytes that are not UTF-8 become
    U+FFFD.

    Raises:
        BadJsonError: it is no JSON value, or one nested too deeply.
    """
    try:
        text, is_clean = data.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        text, is_clean = data.decode("utf-8-sig", errors="replace"), False
    try:
        return json.loads(text), is_clean
    except RecursionError:
        raise BadJsonError("JSON nested too deeply") from None
    except json.JSONDecodeError:
        raise BadJsonError("not a JSON value") from None
    except ValueError:
        raise BadJsonError("a number with too many digits") from None


def as_utf8(path: Path, folder: Path) -> Path:
    """The file itself, or a copy of it in UTF-8 where it begins as UTF-16.

    PowerShell writes what it redirects as UTF-16.
    """
    with path.open("rb") as file:
        if file.read(2) not in _UTF16:
            return path
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        copy = folder / f"utf8-{len(list(folder.iterdir()))}"
        with copy.open("wb") as out:
            while block := file.read(_BLOCK):
                out.write(decoder.decode(block).encode("utf-8", errors="replace"))
            out.write(decoder.decode(b"", final=True).encode("utf-8", errors="replace"))
    return copy
