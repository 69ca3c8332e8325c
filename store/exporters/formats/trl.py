"""Completions as TRL's GRPO logs them: a Parquet file a step, a column per part of the return.

Prompts and completions are lists of messages, TRL's conversational form, so that turns stay exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..dialogue import Dialogue, dialogue_of
from ..format import Format, Options, Reason, Written
from ..source import Episode, RunSource
from .parquet import ParquetRows, messages_type

_NO_REPLY = Reason(why="there is no reply")
_OWN = ("step", "prompt", "completion", "advantage", "timestamp")


def _terms(source: RunSource) -> dict[str, str]:
    """Part of the return -> its column."""
    rows = source.reader.sql(
        "SELECT DISTINCT unnest(map_keys(reward_terms)) AS name FROM trajectories ORDER BY name"
    )
    names = [str(name) for name in rows.column("name").to_pylist()]
    columns: dict[str, str] = {}
    for name in names:
        column = f"{name}_reward"
        while column in _OWN or column in columns.values():
            column += "_"
        columns[name] = column
    return columns


def _texts(dialogue: Dialogue) -> Iterator[dict[str, str]]:
    """Role and content of each message; tool calls as the model spelled them."""
    spelled: dict[int, str] = {
        turn["reply"]: turn["response"] for turn in dialogue.entry["turns"] if "response" in turn
    }
    for index, message in enumerate(dialogue.messages):
        yield {"role": message["role"], "content": spelled.get(index, str(message["content"]))}


def _row(episode: Episode, terms: dict[str, str]) -> dict[str, Any]:
    dialogue = dialogue_of(episode)
    messages = list(_texts(dialogue))
    values = episode.row["reward_terms"] or {}
    advantage = episode.row["advantage"]
    return {
        "step": episode.step,
        "prompt": messages[: dialogue.first_reply],
        "completion": messages[dialogue.first_reply :],
        **{column: values.get(name) for name, column in terms.items()},
        # TRL writes a number in each row.
        "advantage": math.nan if advantage is None else advantage,
    }


def _write(source: RunSource, path: Path, options: Options) -> Written:
    folder = path / "completions"
    folder.mkdir(parents=True)
    terms = _terms(source)
    conversation = messages_type(has_calls=False)
    schema = pa.schema(
        [
            ("step", pa.int64()),
            ("prompt", conversation),
            ("completion", conversation),
            *((column, pa.float64()) for column in terms.values()),
            ("advantage", pa.float64()),
        ]
    )
    written = Written()
    for step, episodes in itertools.groupby(source.episodes(), key=lambda episode: episode.step):
        with ParquetRows(folder / f"completions_{step:05d}.parquet", schema) as rows:
            for episode in episodes:
                if episode.turns:
                    rows.add(_row(episode, terms))
                else:
                    source.leave_out(_NO_REPLY, episode.row)
        written.num_rows += rows.num_rows
    return written


TRL = Format(
    name="trl",
    noun="completion",
    holds=frozenset({"steps", "text", "final", "advantages", "terms"}),
    write=_write,
    is_folder=True,
    split="train",
    loses=("whether the update left an episode out, and why",),
)
