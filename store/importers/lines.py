"""Rows of JSON lines with bounded memory, whatever the file holds.

A line that is too long is passed over, a torn last line and bytes that are not UTF-8 are noted, and
each row keeps its place, so that it can be read again alone. Of text in another encoding it is said
which one that seems to be.
"""

from __future__ import annotations

import codecs
import json
import shutil
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAX_LINE_BYTES = 16 << 20
"""A longer line is passed over: a line is read at once, and its values take several times that."""
_BLOCK = 1 << 20
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""PowerShell writes what it redirects so."""
_MOST_SNIFFED = 4096
_FEWEST_SNIFFED = 16
_LEAST_PLAIN = 0.85
"""Of the characters of a text, so many are ASCII; hardly any where another encoding is tried."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: where it begins and its bytes; no bytes where it was too long."""

    offset: int
    size: int
    data: bytes | None
    is_last: bool
    """It ends with the file, not with a line break."""


def lines_of(file: BinaryIO, first: int = 0) -> Iterator[Line]:
    """The lines of a file that are not blank.

    Args:
        first: The offset of its first byte, where it is a part of another file.
    """
    offset = first
    while data := file.readline(MAX_LINE_BYTES + 1):
        start, size = offset, len(data)
        is_ended = data.endswith(b"\n")
        is_long = size > MAX_LINE_BYTES and not is_ended
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
    """The file itself, or a copy of it in UTF-8 where it begins as UTF-16."""
    with path.open("rb") as file:
        if file.read(2) not in UTF16:
            return path
    copy = folder / f"utf8-{len(list(folder.iterdir()))}"
    with (
        path.open(encoding="utf-16", errors="replace", newline="") as text,
        copy.open("w", encoding="utf-8", errors="replace", newline="") as out,
    ):
        shutil.copyfileobj(text, out)
    return copy


def wide_encoding(head: bytes) -> str:
    """The encoding of text that takes two or four bytes a character; "" where it seems to be none.

    UTF-16 with a byte-order mark is none: it is read.

    >>> wide_encoding("step,reward\\n1,0.5\\n".encode("utf-16-le"))
    'UTF-16LE'
    """
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith(UTF16):
        return ""
    head = head[: min(len(head), _MOST_SNIFFED) // 4 * 4]
    if len(head) < _FEWEST_SNIFFED:
        return ""
    for name in ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE"):
        text = head.decode(name, errors="replace")
        if sum(char in string.printable for char in text) >= _LEAST_PLAIN * len(text):
            return name
    return ""


def conversion(encoding: str) -> str:
    """How to convert a file, as the end of a sentence."""
    return f"save the file as UTF-8 (iconv -f {encoding} -t UTF-8 FILE > NEW)"
