"""An Inspect log: a `.eval` archive with a sample for each episode.

A group is a sample of the data set and a sibling one of its epochs, so Inspect's own pages compare
siblings. Scores are `return` and `success`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from echoscope.text.amounts import counted
from echoscope.text.strict_json import json_value

from ...importers.formats.inspect_metadata import outcome_metadata, task_metadata
from ...reader import RunInfo
from ..dialogue import EpisodeMessages, Message, dialogue_of
from ..format import BESIDE_EPISODES, ExportFormat, Written
from ..source import EpisodeRows, RunSource
from .messages import line_of

_LOG_VERSION = 2
_SPOOL_BYTES = 8 << 20


def _messages(episode: EpisodeRows, dialogue: EpisodeMessages) -> list[Message]:
    """Messages as Inspect's ChatMessage: calls have their arguments as objects."""
    return [
        {
            **{key: value for key, value in message.items() if key not in ("tool_calls", "name")},
            **({"tool_calls": calls} if (calls := list(_calls(message))) else {}),
            **({"function": message["name"]} if "name" in message else {}),
            "id": f"{episode.id}-{index}",
        }
        for index, message in enumerate(dialogue.messages)
    ]


def _calls(message: Message) -> Iterator[dict[str, Any]]:
    for call in message.get("tool_calls", ()):
        text = call["function"]["arguments"]
        try:
            arguments = json.loads(text)
        except ValueError:
            arguments = text
        yield {
            "id": call["id"],
            "function": call["function"]["name"],
            "arguments": arguments if isinstance(arguments, dict) else {"arguments": text},
            "type": "function",
        }


def _sample(episode: EpisodeRows, dialogue: EpisodeMessages, model: str) -> dict[str, Any]:
    row = episode.row
    messages = _messages(episode, dialogue)
    reply = messages[dialogue.last_reply] if dialogue.last_reply >= 0 else None
    is_cut = bool(episode.turns) and episode.turns[-1]["finish_reason"] == "length"
    stop = "max_tokens" if is_cut else "stop"
    sample: dict[str, Any] = {
        "id": f"{episode.step:08d}-{row['split']}-{row['group_index']:05d}",
        "epoch": row["sibling_index"] + 1,
        "input": [m for m in messages[: dialogue.first_reply] if m["role"] != "assistant"],
        "target": "",
        "messages": messages,
        "output": {
            "model": model,
            "choices": [] if reply is None else [{"message": reply, "stop_reason": stop}],
        },
        "scores": _scores(episode),
        "metadata": {
            **task_metadata(step=episode.step, split=row["split"], env=row["env_id"]),
            **outcome_metadata(row["stop_reason"], [turn["reward"] for turn in episode.turns]),
            "id": episode.id,
        },
        "uuid": f"{model}/{episode.id}",
    }
    if row["duration_s"] is not None:
        sample["total_time"] = row["duration_s"]
    if episode.is_failure:
        sample["error"] = {
            "message": f"the episode ended with {row['stop_reason']}",
            "traceback": "",
            "traceback_ansi": "",
        }
    value: dict[str, Any] = json_value(sample)
    return value


def _scores(episode: EpisodeRows) -> dict[str, dict[str, Any]]:
    scores: dict[str, dict[str, Any]] = {}
    if episode.episode_return is not None:
        scores["return"] = {"value": episode.episode_return}
    if episode.row["is_success"] is not None:
        scores["success"] = {"value": float(episode.row["is_success"])}
    return scores


def _header(
    info: RunInfo, source: RunSource, totals: Mapping[str, list[float]], epochs: Mapping[str, int]
) -> dict[str, Any]:
    created = datetime.fromtimestamp(info.created_at, UTC).isoformat(timespec="seconds")
    count = sum(epochs.values())
    model = _model(info)
    scores = [
        {
            "name": name,
            "scorer": name,
            "metrics": {"mean": {"name": "mean", "value": total / number}},
        }
        for name, (number, total) in totals.items()
        if number
    ]
    return {
        "version": _LOG_VERSION,
        "status": "success",
        "eval": {
            "eval_id": hashlib.blake2b(info.run_id.encode(), digest_size=11).hexdigest(),
            "run_id": info.run_id,
            "created": created,
            "task": info.name or info.run_id,
            "task_id": info.run_id,
            "dataset": {"name": info.run_id, "samples": len(epochs)},
            "model": model,
            "config": {"epochs": max(epochs.values(), default=1)},
            "metadata": {"run": info.run_id, "run_status": info.status, "last_step": source.cut},
        },
        "results": {"total_samples": count, "completed_samples": count, "scores": scores},
    }


def _model(info: RunInfo) -> str:
    return f"echoscope/{info.base_model or 'unknown'}"


def _write(source: RunSource, path: Path) -> Written:
    written = Written()
    model = _model(source.info)
    epochs: Counter[str] = Counter()
    totals = {"return": [0.0, 0.0], "success": [0.0, 0.0]}
    with (
        zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive,
        tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as summaries,
    ):
        for episode in source.episodes():
            sample = _sample(episode, dialogue_of(episode), model)
            name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
            archive.writestr(name, line_of(sample))
            for score, entry in sample["scores"].items():
                totals[score][0] += 1
                totals[score][1] += entry["value"]
            summaries.write(b"[" if not written.num_rows else b",")
            summaries.write(line_of(_summary(sample)))
            written.num_rows += 1
            epochs[sample["id"]] += 1
        summaries.write(b"]")
        summaries.seek(0)
        with archive.open("summaries.json", "w", force_zip64=True) as member:
            shutil.copyfileobj(summaries, member)
        header = json_value(_header(source.info, source, totals, epochs))
        archive.writestr("header.json", line_of(header))
    written.notes.append(
        f"A group is a sample, and a sibling an epoch: {counted(len(epochs), 'sample')}."
    )
    return written


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What Inspect lists of a sample without opening it."""
    names = ("id", "epoch", "target", "scores", "uuid", "total_time")
    summary = {key: sample[key] for key in names if key in sample}
    texts = [str(message["content"])[:1000] for message in sample["input"][-1:]]
    error = sample["error"]["message"] if "error" in sample else None
    return {
        **summary,
        "input": "".join(texts),
        "metadata": {key: sample["metadata"][key] for key in ("step", "split", "env")},
        "completed": True,
        "message_count": len(sample["messages"]),
        **({"error": error} if error else {}),
    }


INSPECT = ExportFormat(
    name="inspect",
    noun="episode",
    write=_write,
    leaves_out=f"advantages, actions, seeds, numbers of the environment, fields of imported rows, "
    f"{BESIDE_EPISODES}",
    suffix=".eval",
)
