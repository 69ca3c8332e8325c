"""What people note about episodes: labels and a note. They lie in `episode_notes.ndjson`.

A note belongs to what was played: an episode is named by its id and by the attempt that played it.
Where a resumed run plays the same step again, the new episodes have no notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from ..errors import AnnotationError
from ..log.layout import Layout
from ..records import parse_trajectory_id
from .annotation_file import Label, NotedChange, NoteText, append_changes, read_changes

MAX_LABELS = 16
"""Of an episode."""
MAX_RUN_LABELS = 64
"""Different ones in a run: a person chooses from them."""

EpisodeKey = tuple[int, str]
"""Attempt and id."""


def _trajectory_id(text: str) -> str:
    parse_trajectory_id(text)
    return text


class _EpisodeChange(NotedChange):
    attempt: Annotated[int, Field(ge=0, lt=2**31)]
    episode: Annotated[str, AfterValidator(_trajectory_id)]
    """Id of the trajectory."""

    @property
    def key(self) -> EpisodeKey:
        return self.attempt, self.episode


class AddLabel(_EpisodeChange):
    """Put a label on an episode; one that it has already stays as it is."""

    kind: Literal["add_label"] = "add_label"
    label: Label


class RemoveLabel(_EpisodeChange):
    """Take a label off; one that the episode does not have is no error."""

    kind: Literal["remove_label"] = "remove_label"
    label: Label


class SetEpisodeNote(_EpisodeChange):
    """Replace the note of an episode; empty for none. It may have several lines."""

    kind: Literal["set_note"] = "set_note"
    note: NoteText


EpisodeChange = AddLabel | RemoveLabel | SetEpisodeNote
_CHANGE: TypeAdapter[EpisodeChange] = TypeAdapter(
    Annotated[EpisodeChange, Field(discriminator="kind")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeNote:
    """What was noted about one episode."""

    labels: tuple[str, ...] = ()
    """In the order they were given, each once."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeNotes:
    """All changes added up, in the order of the file."""

    by_episode: Mapping[EpisodeKey, EpisodeNote] = field(default_factory=dict)
    """Only episodes about which something is noted."""

    def of(self, attempt: int, episode: str) -> EpisodeNote:
        """What was noted about an episode; empty for nothing."""
        return self.by_episode.get((attempt, episode), EpisodeNote())

    @property
    def labels(self) -> Mapping[str, int]:
        """Label -> episodes that have it, the most used one first."""
        counts = Counter(name for note in self.by_episode.values() for name in note.labels)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def labelled(self, labels: Iterable[str]) -> list[EpisodeKey]:
        """The episodes that have at least one of some labels, in order."""
        asked = set(labels)
        return sorted(key for key, note in self.by_episode.items() if asked & set(note.labels))


def read_episode_notes(run_path: Path) -> EpisodeNotes:
    """What was noted about episodes of the run; nothing is no error. Raises as `read_changes`."""
    return _added_up(read_changes(Layout(Path(run_path)).episode_notes, _CHANGE))


def note_episodes(run_path: Path, *changes: EpisodeChange) -> None:
    """Note changes, as `append_changes` does; AnnotationError where there are too many labels."""
    layout = Layout(Path(run_path))
    append_changes(layout, layout.episode_notes, changes, _CHANGE, _check_numbers)


def _added_up(changes: Iterable[EpisodeChange]) -> EpisodeNotes:
    by_episode: dict[EpisodeKey, EpisodeNote] = {}
    for change in changes:
        note = _applied(by_episode.pop(change.key, EpisodeNote()), change)
        if note != EpisodeNote():
            by_episode[change.key] = note
    return EpisodeNotes(by_episode=by_episode)


def _applied(before: EpisodeNote, change: EpisodeChange) -> EpisodeNote:
    match change:
        case AddLabel(label=label) if label not in before.labels:
            return replace(before, labels=(*before.labels, label))
        case RemoveLabel(label=label):
            return replace(before, labels=tuple(name for name in before.labels if name != label))
        case SetEpisodeNote(note=note):
            return replace(before, note=note)
    return before


def _check_numbers(before: Sequence[EpisodeChange], changes: Sequence[EpisodeChange]) -> None:
    after = _added_up([*before, *changes])
    if any(len(after.of(*change.key).labels) > MAX_LABELS for change in changes):
        raise AnnotationError(f"an episode has at most {MAX_LABELS} labels; remove one first")
    if len(after.labels) > MAX_RUN_LABELS:
        raise AnnotationError(
            f"a run has at most {MAX_RUN_LABELS} different labels; use one that is there"
        )
