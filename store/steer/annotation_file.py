"""How people's notes are kept: one line of JSON per change, appended under a lock and fsynced.

The trainer never reads such a file: nothing here can change or hurt a run, live or finished.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..errors import AnnotationError, StoreError
from ..log.durable import open_regular, sync_path, take_lock, write_all
from ..log.layout import Layout
from ..log.remote.pulling import refuse_copy

MAX_LABEL_CHARS = 64
MAX_NOTE_CHARS = 4_000
MAX_AUTHOR_CHARS = 100
MAX_LINE_BYTES = 65_536
MAX_FILE_BYTES = 4_194_304
_MAX_TIME_S = 1e12
_PATIENCE_S = 5.0


def one_line(text: str) -> str:
    """No control characters, no marks that turn text around."""
    if not text.isprintable():
        raise ValueError("must be printable and of one line")
    return text


def _trimmed(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError("must not be empty or begin or end with a space")
    return text


_Author = Annotated[str, Field(max_length=MAX_AUTHOR_CHARS), AfterValidator(one_line)]
Label = Annotated[
    str, Field(max_length=MAX_LABEL_CHARS), AfterValidator(one_line), AfterValidator(_trimmed)
]
"""A word or a few on one line: a tag of a run, a label of an episode."""
NoteText = Annotated[str, Field(max_length=MAX_NOTE_CHARS)]
_Time = Annotated[float, Field(gt=-_MAX_TIME_S, lt=_MAX_TIME_S, allow_inf_nan=False)]
"""Seconds since the epoch."""


class NotedChange(BaseModel):
    """What one line of the file says. A value that is not allowed raises AnnotationError."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    author: _Author
    at: _Time
    """When, in seconds since the epoch."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise AnnotationError(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    name, value, rule = ".".join(map(str, first["loc"])), first["input"], first["msg"]
    if first["type"] == "string_too_long":
        return f"{name} has {len(value)} characters, but may have {first['ctx']['max_length']}"
    if first["type"] == "string_unicode":
        return f"{name} holds half of a character (a lone surrogate)"
    rule = rule.removeprefix("Value error, ")
    return f"{name} is {value!r}, but {rule[:1].lower()}{rule[1:]}"


T = TypeVar("T", bound=NotedChange)


def read_changes(path: Path, kinds: TypeAdapter[T]) -> list[T]:
    """The changes of a file in its order, none where there is no file.

    Lines that are no change are skipped: torn by a crash, or written by something else.

    Raises:
        StoreError: the file cannot be read, is no regular file or is larger than 4 MiB.
    """
    try:
        file = open_regular(path, follows_links=False)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    with file:
        return _parsed(_read_all(path, file.fileno()), kinds)


def append_changes(
    layout: Layout,
    path: Path,
    changes: Sequence[T],
    kinds: TypeAdapter[T],
    check: Callable[[Sequence[T], Sequence[T]], None],
) -> None:
    """Append changes to a file of a run, all of them or none; on the disk when this returns.

    Several processes may do so at once, also while the run trains.

    Args:
        check: Given the changes before and these; raises where both together are too many.

    Raises:
        NotARunError: no run there.
        StoreError: the file is full or not ours, or the disk refuses; nothing was noted.
    """
    layout.require_run()
    refuse_copy(layout)
    lines = b"".join(_line(change) for change in changes)
    with _locked(path) as descriptor:
        before = _read_all(path, descriptor)
        check(_parsed(before, kinds), changes)
        torn = b"\n" if before and not before.endswith(b"\n") else b""
        size = len(before) + len(torn) + len(lines)
        if size > MAX_FILE_BYTES:
            raise StoreError(
                f"{path} would have {size} bytes, more than {MAX_FILE_BYTES}; shorten or remove it"
            )
        try:
            write_all(descriptor, torn + lines)
            os.fsync(descriptor)
            sync_path(path.parent)
        except OSError as error:
            os.ftruncate(descriptor, len(before))
            raise StoreError(f"{path}: {error.strerror}; nothing was noted") from error


# Not through a link, and never waiting for a pipe: those may lead anywhere.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file, made where there is none, with no other process in the middle of an append."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _SAFE, 0o644)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; nothing was noted") from error
    try:
        if not take_lock(descriptor, _PATIENCE_S):
            raise StoreError(
                f"{path}: another process has been writing it for {_PATIENCE_S:.0f} s; "
                "nothing was noted"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _read_all(path: Path, descriptor: int) -> bytes:
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise StoreError(f"{path}: not a regular file")
    if state.st_size > MAX_FILE_BYTES:
        raise StoreError(
            f"{path} has {state.st_size} bytes, more than {MAX_FILE_BYTES}; shorten or remove it"
        )
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read(MAX_FILE_BYTES)


def _line(change: NotedChange) -> bytes:
    fields = change.model_dump()
    return json.dumps({"kind": fields.pop("kind")} | fields).encode() + b"\n"


def _parsed(data: bytes, kinds: TypeAdapter[T]) -> list[T]:
    changes = []
    for line in data.split(b"\n"):
        with suppress(ValueError):
            if len(line) <= MAX_LINE_BYTES:
                changes.append(kinds.validate_json(line))
    return changes
