"""What does a file hold? Told by its name and its first bytes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from echoscope.store.importers.format import Roles
from echoscope.store.importers.lines import BadJsonError, json_of
from echoscope.store.importers.survey import format_of

_HEAD_BYTES = 1 << 16
_PLAIN = frozenset(
    {".log", ".txt", ".out", ".err", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ""}
)
"""In a folder, text with these endings is looked at."""
_TABLES = frozenset({".sqlite", ".sqlite3", ".db"})
_NO_METRICS = frozenset(
    {"config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    | {"generation_config.json", "adapter_config.json", "vocab.json", "merges.txt"}
)


_WHOLE = (b"PAR1", b"\x1f\x8b", b"PK", b"BZ", b"[prompt] ")
"""How files begin that are read whole: Parquet, packed files, EasyR1's log of generations."""


class FileKind(StrEnum):
    """How a file is read."""

    UNKNOWN = ""
    """It is too short to tell."""
    NUMBERS = "numbers"
    """Text that grows, with metrics: what is added is read."""
    EPISODES = "episodes"
    """JSON lines of rollouts: what is added is read."""
    WHOLE = "whole"
    """It is read again whenever it has changed: Parquet, TensorBoard, a JSON document."""
    NOTHING = "nothing"
    """Nothing in it can be read."""


def kind_of(path: Path, *, is_alone: bool, roles: Roles) -> FileKind:
    """What a file holds.

    Args:
        is_alone: It is watched by itself, so its name does not matter.
        roles: What a user says of the keys of rows.

    Raises:
        OSError: it cannot be read.
    """
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.strip():
        return FileKind.UNKNOWN
    if b"\x00" in head or head.startswith(_WHOLE):
        return FileKind.WHOLE
    if not is_alone and (suffix not in _PLAIN | _TABLES or path.name in _NO_METRICS):
        return FileKind.WHOLE if "tfevents" in path.name else FileKind.NOTHING
    return _kind_of_text(head.removeprefix(b"\xef\xbb\xbf").lstrip(), suffix, roles)


def _kind_of_text(head: bytes, suffix: str, roles: Roles) -> FileKind:
    if head[:1] not in (b"{", b"["):
        return FileKind.NUMBERS
    is_all = len(head) < _HEAD_BYTES
    line, ends, _ = head.partition(b"\n")
    if not ends and suffix in (".jsonl", ".ndjson") and is_all:
        return FileKind.UNKNOWN  # its first line is still being written
    try:
        value, _ = json_of(line)
    except BadJsonError:
        if ends and line.strip()[-1:] not in (b"{", b"[", b","):
            return FileKind.NUMBERS
        return FileKind.WHOLE if is_all or suffix == ".json" else FileKind.EPISODES
    if isinstance(value, dict) and format_of(roles.mark(value)) is not None:
        return FileKind.EPISODES
    return FileKind.NUMBERS if isinstance(value, dict) and suffix != ".json" else FileKind.WHOLE
