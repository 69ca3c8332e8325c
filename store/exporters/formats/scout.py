"""Transcripts for Inspect Scout: Parquet with the columns of its transcript database."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..dialogue import Dialogue, dialogue_of
from ..format import ENTRY, Format, Options, Written
from ..source import Episode, RunSource
from .inspect_log import inspect_messages
from .parquet import ParquetRows

_TEXT = pa.large_string()
_SCHEMA = pa.schema(
    [
        ("transcript_id", _TEXT),
        ("source_type", _TEXT),
        ("source_id", _TEXT),
        ("source_uri", _TEXT),
        ("date", _TEXT),
        ("task_set", _TEXT),
        ("task_id", _TEXT),
        ("task_repeat", pa.int64()),
        ("agent", _TEXT),
        ("model", _TEXT),
        ("score", _TEXT),
        ("success", pa.bool_()),
        ("message_count", pa.int64()),
        ("total_time", pa.float64()),
        ("total_tokens", pa.int64()),
        ("error", _TEXT),
        ("limit", _TEXT),
        ("messages", _TEXT),
        # Columns that Scout does not know are metadata.
        ("step", pa.int64()),
        ("split", _TEXT),
        ("stop_reason", _TEXT),
        ("advantage", pa.float64()),
        ("kept", pa.bool_()),
        ("echoscope", _TEXT),
    ]
)
_LIMITS = {"max_turns": "turn", "max_actions": "turn", "max_tokens": "token", "timeout": "time"}
"""Reason of a stop -> the limit as Inspect names it."""


def _row(episode: Episode, dialogue: Dialogue, source: RunSource) -> dict[str, Any]:
    info, row = source.info, episode.row
    reason = str(row["stop_reason"])
    value = episode.episode_return
    return {
        "transcript_id": f"{info.run_id}/{episode.id}",
        "source_type": "echoscope",
        "source_id": info.run_id,
        "source_uri": None,
        "date": datetime.fromtimestamp(info.created_at, UTC).isoformat(timespec="seconds"),
        "task_set": row["tag"] or row["env_id"],
        "task_id": episode.group_id,
        "task_repeat": row["sibling_index"] + 1,
        "agent": "policy",
        "model": info.base_model or None,
        "score": None if value is None else json.dumps(value),
        "success": row["is_success"],
        "message_count": len(dialogue.messages),
        "total_time": row["duration_s"],
        "total_tokens": row["num_sampled_tokens"] or None,
        "error": f"the episode ended with {reason}" if episode.is_failure else None,
        "limit": _LIMITS.get(reason),
        "messages": json.dumps(inspect_messages(episode, dialogue), allow_nan=False),
        "step": episode.step,
        "split": row["split"],
        "stop_reason": reason,
        "advantage": row["advantage"],
        "kept": row["kept"],
        "echoscope": json.dumps(dialogue.entry, allow_nan=False),
    }


def _write(source: RunSource, path: Path, options: Options) -> Written:
    path.mkdir()
    with ParquetRows(path / "transcripts.parquet", _SCHEMA) as rows:
        for episode in source.episodes():
            rows.add(_row(episode, dialogue_of(episode), source))
    return Written(num_rows=rows.num_rows)


SCOUT = Format(
    name="scout",
    noun="transcript",
    holds=ENTRY,
    write=_write,
    is_folder=True,
)
