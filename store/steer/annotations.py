"""What people note about a run: tags, a note, a pin. They lie in `annotations.ndjson`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from ..errors import AnnotationError
from ..log.layout import Layout
from .annotation_file import Label, NotedChange, NoteText, append_changes, read_changes

MAX_TAGS = 32


class AddTag(NotedChange):
    """Put a label on the run; one that it has already stays as it is."""

    kind: Literal["add_tag"] = "add_tag"
    tag: Label


class RemoveTag(NotedChange):
    """Take a label off; one that the run does not have is no error."""

    kind: Literal["remove_tag"] = "remove_tag"
    tag: Label


class SetNote(NotedChange):
    """Replace the run's note; empty for none. It may have several lines."""

    kind: Literal["set_note"] = "set_note"
    note: NoteText


class Pin(NotedChange):
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


def read_annotations(run_path: Path) -> Annotations:
    """What was noted about the run; nothing noted is not an error. Raises as `read_changes`."""
    return _added_up(read_changes(Layout(Path(run_path)).annotations, _CHANGE))


def annotate(run_path: Path, *changes: Change) -> None:
    """Note changes, as `append_changes` does; AnnotationError where the run has too many tags."""
    layout = Layout(Path(run_path))
    append_changes(layout, layout.annotations, changes, _CHANGE, _check_number_of_tags)


def _added_up(changes: Iterable[Change]) -> Annotations:
    return reduce(_apply, changes, Annotations())


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


def _check_number_of_tags(before: Sequence[Change], changes: Sequence[Change]) -> None:
    noted = _added_up(before)
    for change in changes:
        noted = _apply(noted, change)
        if isinstance(change, AddTag) and change.tag not in noted.tags:
            raise AnnotationError(f"a run has at most {MAX_TAGS} tags; remove one first")
