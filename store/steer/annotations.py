"""What people note about a run: tags, a note, a pin.

One line of JSON per change in `annotations.ndjson` beside the run, appended under a lock and
fsynced. The trainer never reads it: nothing here can change or hurt a run, live or finished.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..errors import AnnotationError, StoreError
from ..log.durable import sync_folder, take_lock, write_all
from ..log.layout import Layout
from ..log.remote.pulling import refuse_copy

MAX_TAGS = 32
MAX_TAG_CHARS = 64
MAX_NOTE_CHARS = 4_000
MAX_AUTHOR_CHARS = 100
MAX_LINE_BYTES = 65_536
MAX_FILE_BYTES = 4_194_304
_MAX_TIME_S = 1e12
_PATIENCE_S = 5.0


def _one_line(text: str) -> str:
    """No control characters, no marks that turn text around."""
    if not text.isprintable():
        raise ValueError("must be printable and of one line")
    return text


def _trimmed(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError("must not be empty or begin or end with a space")
    return text


_Author = Annotated[str, Field(max_length=MAX_AUTHOR_CHARS), AfterValidator(_one_line)]
_Tag = Annotated[
    str, Field(max_length=MAX_TAG_CHARS), AfterValidator(_one_line), AfterValidator(_trimmed)
]
_Time = Annotated[float, Field(gt=-_MAX_TIME_S, lt=_MAX_TIME_S, allow_inf_nan=False)]
"""Seconds since the epoch."""


class _Change(BaseModel):
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


class AddTag(_Change):
    """Put a label on the run; one that it has already stays as it is."""

    kind: Literal["add_tag"] = "add_tag"
    tag: _Tag


class RemoveTag(_Change):
    """Take a label off; one that the run does not have is no error."""

    kind: Literal["remove_tag"] = "remove_tag"
    tag: _Tag


class SetNote(_Change):
    """Replace the run's note; empty for none. It may have several lines."""

    kind: Literal["set_note"] = "set_note"
    note: Annotated[str, Field(max_length=MAX_NOTE_CHARS)]


class Pin(_Change):
    """Keep the run at the head of the list, or let it go again."""

    kind: Literal["pin"] = "pin"
    is_pinned: bool = True


Change = AddTag | RemoveTag | SetNote | Pin
_CHANGE: TypeAdapter[Change] = TypeAdapter(Annotated[Change, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """All changes added up, in the order of the file."""

    tags: tuple[str, ...] = ()
    """In the order they were given, each once."""
    note: str = ""
    is_pinned: bool = False
    num_unreadable: int = 0
    """Lines that are no change: torn by a crash, or written by something else. They are skipped."""


def read_annotations(run_path: Path) -> Annotations:
    """What was noted about the run; nothing noted is not an error.

    Raises:
        StoreError: the file cannot be read, is no regular file or is larger than 4 MiB.
    """
    path = Layout(Path(run_path)).annotations
    try:
        descriptor = os.open(path, os.O_RDONLY | _SAFE)
    except FileNotFoundError:
        return Annotations()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        return _added_up(_read_all(path, descriptor))
    finally:
        os.close(descriptor)


def annotate(run_path: Path, *changes: Change) -> None:
    """Note changes, all of them or none; they are on the disk when this returns.

    Several processes may do so at once, also while the run trains.

    Raises:
        NotARunError: no run there.
        AnnotationError: the run would have more tags than it may.
        StoreError: the file is full or not ours, or the disk refuses; nothing was noted.
    """
    layout = Layout(Path(run_path))
    layout.require_run()
    refuse_copy(layout)
    path = layout.annotations
    lines = b"".join(_line(change) for change in changes)
    with _locked(path) as descriptor:
        before = _read_all(path, descriptor)
        _check_number_of_tags(before, changes)
        torn = b"\n" if before and not before.endswith(b"\n") else b""
        size = len(before) + len(torn) + len(lines)
        if size > MAX_FILE_BYTES:
            raise StoreError(
                f"{path} would have {size} bytes, more than {MAX_FILE_BYTES}; shorten or remove it"
            )
        try:
            write_all(descriptor, torn + lines)
            os.fsync(descriptor)
            sync_folder(path.parent)
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


def _line(change: Change) -> bytes:
    fields = change.model_dump()
    return json.dumps({"kind": fields.pop("kind")} | fields).encode() + b"\n"


def _parse(line: bytes) -> Change:
    """Raises ValueError where the line is no change."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"more than {MAX_LINE_BYTES} bytes")
    return _CHANGE.validate_json(line)


def _added_up(data: bytes) -> Annotations:
    out, num_unreadable = Annotations(), 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            out = _apply(out, _parse(line))
        except ValueError:
            num_unreadable += 1
    return replace(out, num_unreadable=num_unreadable)


def _apply(before: Annotations, change: Change) -> Annotations:
    match change:
        case AddTag(tag=tag) if tag not in before.tags and len(before.tags) < MAX_TAGS:
            return replace(before, tags=(*before.tags, tag))
        case RemoveTag(tag=tag):
            return replace(before, tags=tuple(t for t in before.tags if t != tag))
        case SetNote(note=note):
            return replace(before, note=note)
        case Pin(is_pinned=is_pinned):
            return replace(before, is_pinned=is_pinned)
    return before


def _check_number_of_tags(data: bytes, changes: tuple[Change, ...]) -> None:
    tags = set(_added_up(data).tags)
    for change in changes:
        if isinstance(change, AddTag):
            tags.add(change.tag)
        elif isinstance(change, RemoveTag):
            tags.discard(change.tag)
        if len(tags) > MAX_TAGS:
            raise AnnotationError(f"a run has at most {MAX_TAGS} tags; remove one first")
