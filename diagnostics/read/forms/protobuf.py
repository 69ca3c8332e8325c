"""Fields of a protobuf message, without its schema: what a file of another program holds.

Field numbers are stable by protobuf's own rules, so a reader that needs four fields needs no
compiled schema and no package. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
_ROOM = 64


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an int of a varint, else the bytes as they stand.

    Numbers of 4 and 8 bytes are left as bytes, because only the schema knows whether they are
    floats.

    Raises:
        ValueError: it is no message.
    """
    offset, end = 0, len(message)
    while offset < end:
        tag, offset = varint(message, offset)
        kind = tag & 7
        if kind == VARINT:
            number, offset = varint(message, offset)
            yield tag >> 3, number
            continue
        if kind == BYTES:
            size, offset = varint(message, offset)
        elif kind in (FIXED_64, FIXED_32):
            size = 8 if kind == FIXED_64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if offset + size > end:
            raise ValueError("a field is longer than its message")
        yield tag >> 3, message[offset : offset + size]
        offset += size


def groups(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that are texts or messages. Raises ValueError where it is none."""
    return ((number, value) for number, value in fields(message) if isinstance(value, bytes))


def varint(message: bytes, offset: int) -> tuple[int, int]:
    """The number that begins at a place, and the place after it.

    Raises:
        ValueError: it does not end.
    """
    value = shift = 0
    while offset < len(message) and shift < _ROOM:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset += 1
        if byte < 0x80:
            return value, offset
        shift += 7
    raise ValueError("a number does not end")


def signed(number: int) -> int:
    """A varint of 64 bits as the signed number that an int64 field means."""
    return number - (1 << 64) if number >= 1 << 63 else number


def number_of(data: int | bytes) -> float:
    """A field as a number: a varint as it is, 4 bytes as a float, 8 as a double; else NaN."""
    if isinstance(data, int):
        return float(signed(data))
    if len(data) in (4, 8):
        return float(struct.unpack("<f" if len(data) == 4 else "<d", data)[0])
    return float("nan")
