"""Conversations as JSON lines: messages in OpenAI's form, rewards, groups, and our own entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..dialogue import Dialogue, dialogue_of
from ..format import ENTRY, Format, Options, Written
from ..source import Episode, RunSource


def row_of(episode: Episode, dialogue: Dialogue) -> dict[str, Any]:
    """One conversation as an object of JSON's own kinds."""
    row = episode.row
    return {
        "messages": dialogue.messages,
        "id": episode.id,
        "step": episode.step,
        "split": row["split"],
        "env": row["env_id"],
        "group_id": episode.group_id,
        "reward": episode.episode_return,
        "turn_rewards": [turn["reward"] for turn in episode.turns],
        "success": row["is_success"],
        "echoscope": dialogue.entry,
    }


def line_of(value: Any) -> bytes:
    """A value as one line of strict JSON in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A text of the store is UTF-8; JSON text inside it may spell half a character.
    return text.encode("utf-8", errors="replace") + b"\n"


def _write(source: RunSource, path: Path, options: Options) -> Written:
    written = Written()
    with path.open("xb") as file:
        for episode in source.episodes():
            file.write(line_of(row_of(episode, dialogue_of(episode))))
            written.num_rows += 1
    return written


MESSAGES = Format(
    name="messages",
    noun="conversation",
    holds=ENTRY,
    write=_write,
)
