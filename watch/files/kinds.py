"""What does a file hold? Told by its name and its first bytes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from echoscope.store.importers.format import NO_ROLES, Roles
from echoscope.store.importers.lines import BadJsonError, json_of
from echoscope.store.importers.spooled.easyr1_log import is_generations
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


class FileKind(StrEnum):
    """How a file is read."""

    UNKNOWN = ""
    """It is too short to tell."""
    NUMBERS = "numbers"
    """Text that grows, with metrics: what is added is read."""
    EPISODES = "episodes"
    """JSON lines of rollouts: what is added is read."""
    SAMPLES = "samples"
    """EasyR1's log of generations: a validation that is added is read when it is whole."""
    WHOLE = "whole"
    """It is read again whenever it has changed: Parquet, TensorBoard, a JSON document."""
    NOTHING = "nothing"
    """Nothing in it can be read."""


def is_known_suffix(path: Path) -> bool:
    """Whether files with this ending are read in a folder."""
    return path.suffix.lower() in _PLAIN | _TABLES


def kind_of(path: Path, *, is_alone: bool, roles: Roles = NO_ROLES) -> FileKind:
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
    if head.startswith(b"PAR1"):
        return FileKind.WHOLE
    is_utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not is_utf16 and (b"\x00" in head or head[:2] in (b"\x1f\x8b", b"PK", b"BZ")):
        return FileKind.WHOLE
    if not is_alone and (suffix not in _PLAIN | _TABLES or path.name in _NO_METRICS):
        return FileKind.WHOLE if "tfevents" in path.name else FileKind.NOTHING
    if is_generations(path, head):
        return FileKind.SAMPLES
    if head.startswith(b"[prompt] ") and len(head) < _HEAD_BYTES:
        return FileKind.UNKNOWN  # its first sample may still be written
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] in (b"{", b"[") and not is_utf16:
        line, ends, _ = start.partition(b"\n")
        if not ends and suffix in (".jsonl", ".ndjson") and len(head) < _HEAD_BYTES:
            return FileKind.UNKNOWN  # its first line is still being written
        try:
            value, _ = json_of(line)
        except BadJsonError:
            if ends and line.strip()[-1:] not in (b"{", b"[", b","):
                return FileKind.NUMBERS
            return (
                FileKind.WHOLE
                if len(head) < _HEAD_BYTES or suffix == ".json"
                else FileKind.EPISODES
            )
        if isinstance(value, dict) and format_of(roles.mark(value)) is not None:
            return FileKind.EPISODES
        return FileKind.NUMBERS if isinstance(value, dict) and suffix != ".json" else FileKind.WHOLE
    return FileKind.NUMBERS
