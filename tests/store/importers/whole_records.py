"""Imported episodes as plain values, with nothing left out: what a test writes down by hand.

A field with its value of `UNKNOWN` or `UNKNOWN_TURN` is one that the file does not say: it is left
out. All others are there, so `==` fails for a value that was dropped and for one that was invented.
"""

from __future__ import annotations

import dataclasses
import json
import math
from enum import Enum
from typing import Any

import numpy as np

from echoscope.store.records import Trajectory, Turn, prompt_key

from .conftest import Imported

UNKNOWN_TURN: dict[str, Any] = {
    "observation": "",
    "reasoning": None,
    "answer": None,
    "prompt_tokens": None,
    "response_tokens": None,
    "logprobs": None,
    "entropies": None,
    "temperature": None,
    "support": None,
    "reasoning_span": None,
    "actions": [],
    "reward": None,
    "format_penalty": 0.0,
    "is_valid": None,
    "is_effective": None,
    "finish_reason": "unknown",
    "policy_version": None,
    "frame": None,
    "info": {},
    "shaping": {},
    "calls": [],
    "image": None,
}
UNKNOWN: dict[str, Any] = {
    "split": "import",
    "env_id": "",
    "tag": "",
    "env_seed": None,
    "noise_seed": None,
    "final_observation": "",
    "final_frame": None,
    "final_image": None,
    "stop_reason": "unknown",
    "is_success": None,
    "duration_s": None,
    "task_key": None,
    "reconstructed": [],
    "fields": {},
    "advantage": None,
    "kept": None,
    "drop_reason": None,
    "advantages": None,
    "trainer_logprobs": None,
    "ref_logprobs": None,
}


def whole_records(imported: Imported) -> list[dict[str, Any]]:
    """Every episode of a run in the order of its steps, training before evaluation."""
    return [_whole(imported, trajectory) for trajectory in imported.trajectories]


def _whole(imported: Imported, trajectory: Trajectory) -> dict[str, Any]:
    values = _fields(trajectory)
    extra = json.loads(values.pop("extra"))
    values |= {"format": extra.pop("format"), "reconstructed": [], "fields": {}} | extra
    values["turns"] = [_turn(turn) for turn in trajectory.turns]
    assert [turn.index for turn in trajectory.turns] == list(range(len(trajectory.turns)))
    outcome = imported.reader.outcome(trajectory.id)
    values["advantage"] = None if outcome is None else _plain(outcome.advantage)
    values["kept"] = None if outcome is None else outcome.kept
    values["drop_reason"] = None if outcome is None else outcome.drop_reason
    for name in ("advantages", "trainer_logprobs", "ref_logprobs"):
        held = None if outcome is None else getattr(outcome, name)
        values[name] = None if held is None else [_plain(part) for part in held]
    return _known(values, UNKNOWN)


def _turn(turn: Turn) -> dict[str, Any]:
    values = _fields(turn)
    del values["index"]
    for name, span in (("reasoning", "reasoning_chars"), ("answer", "answer_chars")):
        bounds = values.pop(span)
        values[name] = None if bounds is None else turn.response[slice(*bounds)]
    return _known(values, UNKNOWN_TURN)


def _fields(record: Any) -> dict[str, Any]:
    return {f.name: _plain(getattr(record, f.name)) for f in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    """The value as JSON would have it; numbers of 32 bits as the decimals that they came from."""
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.float32):
        return float(str(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and math.isnan(value):
        return None
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return dict(value) if hasattr(value, "keys") else value


def _known(values: dict[str, Any], unknown: dict[str, Any]) -> dict[str, Any]:
    assert unknown.keys() <= values.keys(), "a field of the record that this test does not know"
    return {k: v for k, v in values.items() if k not in unknown or v != unknown[k]}


def key_of(prompt: str) -> str:
    """The key that episodes of one prompt share."""
    return prompt_key(prompt)
