"""Inspect's `.eval`: a zip with one JSON document a sample. Each becomes a log with one sample.

Inspect packs its members with Zstandard, which Python's own `zipfile` reads from 3.14 on.
"""

from __future__ import annotations

import copy
import json
import zipfile
import zlib
from pathlib import Path

from .. import read
from ..lines import BadJsonError, json_of
from ..packed_file import ERRORS, MAX_BYTES

MAX_SAMPLE_BYTES = 32 << 20
_MAX_MEMBERS = 1_000_000
_ZSTD = 93
_REPEATED = ("events", "events_data")
"""They hold the messages once more, and are most of a sample."""


def is_inspect(archive: zipfile.ZipFile) -> bool:
    """Whether an archive is a log of Inspect, by the names of its members."""
    names = archive.namelist()
    is_named = "header.json" in names or "_journal/start.json" in names
    return is_named and any(name.startswith("samples/") for name in names)


def write_logs(path: Path, target: Path) -> None:
    """Write each sample as a log of its own, a log a line; one that cannot be read as its problem.

    Raises:
        BadJsonError: the archive is damaged, or it unpacks to too much.
    """
    num_chars = 0
    try:
        with zipfile.ZipFile(path) as archive, target.open("w") as file:
            members = {info.filename: info for info in archive.infolist()[:_MAX_MEMBERS]}
            task = _task(archive, members)
            samples = [name for name in members if name.startswith("samples/")]
            for name in sorted(samples, key=read.natural):  # they were written as they ended
                row = _row(archive, members[name], task)
                num_chars += file.write(json.dumps(row) + "\n")
                if num_chars > MAX_BYTES:
                    raise BadJsonError(f"its samples take more than {MAX_BYTES >> 30} GB")
    except ERRORS as error:
        raise BadJsonError(f"the archive is damaged: {error}") from None


def _task(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> object:
    """The name of the task, in the header or, of a log that is being written, in the journal."""
    for name in ("header.json", "_journal/start.json"):
        if name in members:
            try:
                return read.inner(json_of(_member(archive, members[name]))[0], "eval", "task")
            except BadJsonError:
                continue
    return None


def _row(archive: zipfile.ZipFile, info: zipfile.ZipInfo, task: object) -> object:
    """A log with one sample; the reason where it cannot be read."""
    try:
        value = json_of(_member(archive, info))[0]
    except BadJsonError as error:
        return str(error)
    sample = read.without(value, _REPEATED) if isinstance(value, dict) else value
    return {"eval": {"task": task}, "samples": [sample]}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member.

    Raises:
        BadJsonError: it is damaged or encrypted, or has too many bytes.
    """
    too_large = f"a sample of more than {MAX_SAMPLE_BYTES >> 20} MB"
    if max(info.file_size, info.compress_size) > MAX_SAMPLE_BYTES:
        raise BadJsonError(too_large)
    try:
        if info.compress_type == _ZSTD:
            data = _zstd_member(archive, info)
        else:
            with archive.open(info) as member:
                data = member.read(MAX_SAMPLE_BYTES + 1)
    except ERRORS as error:
        raise BadJsonError(f"the archive is damaged: {error}") from None
    if len(data) > MAX_SAMPLE_BYTES:
        raise BadJsonError(too_large)
    return data


def _zstd_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    import pyarrow as pa  # not at the start: other files do without

    packed = copy.copy(info)  # the same bytes, as if they were stored as they are
    packed.compress_type, packed.file_size = zipfile.ZIP_STORED, info.compress_size
    del packed.CRC
    with archive.open(packed) as member:
        buffer = pa.py_buffer(member.read())
    with pa.input_stream(buffer, compression="zstd") as stream:
        data = bytes(stream.read(MAX_SAMPLE_BYTES + 1))
    if len(data) <= MAX_SAMPLE_BYTES and zlib.crc32(data) != info.CRC:
        raise zipfile.BadZipFile(f"{info.filename} has another checksum")
    return data
