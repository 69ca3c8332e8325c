"""Conversations as JSON lines: messages in OpenAI's form, rewards, groups, and what is known of
each turn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from echoscope.text.strict_json import json_value

from ..dialogue import dialogue_of
from ..format import ExportFormat, Written
from ..source import EpisodeRows, Row

_EPISODE_FIELDS = (
    *("tag", "env_seed", "noise_seed", "task_key", "stop_reason", "duration_s", "final_frame"),
    *("advantage", "kept", "drop_reason", "source", "extra"),
)
_TURN_FIELDS = (
    *("format_penalty", "is_valid", "is_effective", "finish_reason", "policy_version", "actions"),
    *("info", "shaping", "frame"),
)


def row_of(episode: EpisodeRows) -> dict[str, Any]:
    """One conversation as an object of JSON's own kinds."""
    row = episode.row
    return {
        "messages": dialogue_of(episode).messages,
        "id": episode.id,
        "step": episode.step,
        "split": row["split"],
        "env": row["env_id"],
        "group_id": episode.group_id,
        "reward": episode.episode_return,
        "turn_rewards": [turn["reward"] for turn in episode.turns],
        "success": row["is_success"],
        **({"labels": list(episode.noted.labels)} if episode.noted.labels else {}),
        **({"note": episode.noted.note} if episode.noted.note else {}),
        **_fields(row, _EPISODE_FIELDS),
        "turns": [_fields(turn, _TURN_FIELDS) for turn in episode.turns],
    }


def _fields(row: Row, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a row that say something: what is absent here is unknown or an empty list."""
    values: dict[str, Any] = json_value({name: row[name] for name in names})
    return {n: v for n, v in values.items() if v is not None and v != [] and v != {}}


def line_of(value: Any) -> bytes:
    """A value as one line of strict JSON in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A text of the store is UTF-8; JSON text inside it may spell half a character.
    return text.encode("utf-8", errors="replace") + b"\n"


def write_lines(path: Path, values: Iterable[Any]) -> Written:
    """Write values as JSON lines."""
    written = Written()
    with path.open("xb") as file:
        for value in values:
            file.write(line_of(value))
            written.num_rows += 1
    return written


MESSAGES = ExportFormat(
    name="messages",
    noun="conversation",
    write=lambda source, path: write_lines(path, map(row_of, source.episodes())),
)
