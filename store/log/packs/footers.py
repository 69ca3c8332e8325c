"""The footer of a Parquet file with some of its row groups left out.

A footer is one structure of Thrift's compact protocol: the number of rows is its field 3, the list
of row groups its field 4. The rest is taken over byte by byte, so whoever reads the new footer sees
the same file with fewer row groups. Only a footer that was proven by its hash may be given here.

Source: https://github.com/apache/parquet-format, `parquet.thrift` and "File Format".
"""

from __future__ import annotations

from collections.abc import Collection

MAGIC = b"PAR1"
_NUM_ROWS, _ROW_GROUPS = 3, 4
_BOOLEANS, _BYTE, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, 7, 8, (9, 10), 12
_VARINTS = (4, 5, 6)
_LONG_LIST = 15
"""Sizes from here on stand in a number of their own behind the head of a list."""


def footer_without(footer: bytes, left_out: Collection[int], num_rows: int) -> bytes:
    """A footer, with its length and the magic bytes behind it, that leaves out some row groups.

    Args:
        footer: such bytes themselves.
        left_out: numbers of the row groups to leave out.
        num_rows: rows of the others.

    Raises:
        ValueError: the bytes are not those of a footer.
    """
    data = footer[: -len(MAGIC) - 4]
    out = bytearray()
    at = field = 0
    while data[at]:
        start = at
        field, kind, at = _field(data, at, field)
        if field == _NUM_ROWS:
            out += data[start:at] + _varint(num_rows << 1)  # zigzag
            at = _skip(data, at, kind)
        elif field == _ROW_GROUPS:
            size, element, first = _list_head(data, at)
            spans = []
            for _ in range(size):
                end = _skip(data, first, element)
                spans.append(data[first:end])
                first = end
            kept = [span for number, span in enumerate(spans) if number not in left_out]
            out += data[start:at] + _list_head_of(len(kept), element) + b"".join(kept)
            at = first
        else:
            at = _skip(data, at, kind)
            out += data[start:at]
    out += data[at:]
    return bytes(out) + len(out).to_bytes(4, "little") + MAGIC


def _field(data: bytes, at: int, before: int) -> tuple[int, int, int]:
    """Number and type of the field that begins at a byte, and where its value begins."""
    head = data[at]
    if head >> 4:
        return before + (head >> 4), head & 15, at + 1
    number, at = _read_varint(data, at + 1)
    return (number >> 1) ^ -(number & 1), head & 15, at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Size and type of a list, and where its first element begins."""
    size, element = data[at] >> 4, data[at] & 15
    if size == _LONG_LIST:
        size, at = _read_varint(data, at + 1)
        return size, element, at
    return size, element, at + 1


def _list_head_of(size: int, element: int) -> bytes:
    if size < _LONG_LIST:
        return bytes([size << 4 | element])
    return bytes([_LONG_LIST << 4 | element]) + _varint(size)


def _skip(data: bytes, at: int, kind: int, *, is_element: bool = False) -> int:
    """Where the value of a type that begins at a byte ends."""
    if kind in _BOOLEANS:
        return at + is_element  # of a field, the type is the value
    if kind == _BYTE:
        return at + 1
    if kind in _VARINTS:
        return _read_varint(data, at)[1]
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return at + size
    if kind in _LISTS:
        size, element, at = _list_head(data, at)
        for _ in range(size):
            at = _skip(data, at, element, is_element=True)
        return at
    if kind == _STRUCT:
        field = 0
        while data[at]:
            field, inner, at = _field(data, at, field)
            at = _skip(data, at, inner)
        return at + 1
    raise ValueError(f"a Parquet footer has no type {kind}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
