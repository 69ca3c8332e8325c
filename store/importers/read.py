"""What a value of a stranger's file says: a number, a text, a reason, or nothing; and its name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from echoscope.text.strict_json import json_value

from ..records import FinishReason, FloatArray, StopReason
from .lines import BadJsonError, json_of

R = TypeVar("R", bound=StrEnum)
_NUMBER = re.compile(r"(\d+)")


def number(value: Any) -> float:
    """A finite number; NaN for anything else, booleans as 0 and 1."""
    if not isinstance(value, bool | int | float | str):
        return math.nan
    try:
        result = float(value)
    except (OverflowError, ValueError):
        return math.nan
    return result if math.isfinite(result) else math.nan


def number_or_none(value: Any) -> float | None:
    """A finite number; None for anything else."""
    result = number(value)
    return None if math.isnan(result) else result


def first_number(row: Any, names: Iterable[str]) -> float:
    """The number under the first of these keys that an object has; NaN where it has none."""
    return next((number(row[name]) for name in names if name in row), math.nan)


def whole(value: Any) -> int | None:
    """A whole number of at most 18 digits; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value if isinstance(value, int) and abs(value) < 10**18 else None


def truth(value: Any) -> bool | None:
    """A boolean, or a number that is 0 or 1; None for anything else."""
    if isinstance(value, bool):
        return value
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def success(value: Any) -> bool | None:
    """Whether a field says success: a boolean, 0 or 1, -1 or 1, or a word; None for the rest."""
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    answer = number(value)
    return False if answer == -1 else truth(answer)


_STOPS = (
    (("error", "failed"), StopReason.ENV_ERROR),
    (("prompt_too_long", "max_prompt_length", "no_room"), StopReason.PROMPT_TOO_LONG),
    (("max_turns", "max_steps"), StopReason.MAX_TURNS),
    (("max_actions",), StopReason.MAX_ACTIONS),
    (("max_tokens", "max_response_length", "max_length", "truncated"), StopReason.MAX_TOKENS),
    (("timeout",), StopReason.TIMEOUT),
    (("abort",), StopReason.ABORTED),
    (("done", "finish", "completed", "terminated"), StopReason.TERMINATED),
)
"""Words of trainers -> why an episode ended; the first that a text holds counts."""
_FINISHES = (
    (("length", "max_tokens", "truncated"), FinishReason.LENGTH),
    (("abort",), FinishReason.ABORT),
    (("stop", "tool_calls", "completed"), FinishReason.STOP),
)


def stop(value: Any) -> StopReason:
    """Why an episode ended, in the words of any trainer."""
    return _first_word(value, _STOPS) or StopReason.UNKNOWN


def finish(value: Any) -> FinishReason:
    """Why a reply ended, in the words of any trainer."""
    return _first_word(value, _FINISHES) or FinishReason.UNKNOWN


def _first_word(value: Any, reasons: Iterable[tuple[Iterable[str], R]]) -> R | None:
    lowered = text(value).lower()
    return next((r for texts, r in reasons if any(word in lowered for word in texts)), None)


def json_in(value: Any) -> Any:
    """What a column holds as JSON text; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json_of(value.encode(errors="replace"))[0]
    except BadJsonError:
        return value


def text(value: Any) -> str:
    """A text as it is; any other JSON value as JSON; nothing for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(json_value(value), ensure_ascii=False)


def name(value: Any) -> str:
    """The text of a value that names something: an environment, a kind of task."""
    return text(value)[:200]


def text_or_none(value: Any) -> str | None:
    """The text of a value; None for null."""
    return None if value is None else text(value)


def inner(value: Any, *names: str) -> Any:
    """A value inside objects; None where one of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; none of anything else."""
    return (
        [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    )


def floats(values: Iterable[Any]) -> FloatArray:
    """One number for each value; NaN for what is none."""
    return np.array([number(value) for value in values], dtype=np.float32)


def numbers(value: Any) -> dict[str, float]:
    """The finite numbers of an object by name."""
    if not isinstance(value, Mapping):
        return {}
    numbers = {
        str(key): number(entry) for key, entry in value.items() if not isinstance(entry, str)
    }
    return {key: entry for key, entry in numbers.items() if not math.isnan(entry)}


def without(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields of a row that a reader did not use; nulls are left out."""
    used = frozenset(names)
    return {str(k): v for k, v in row.items() if k not in used and v is not None}


def sampled_runs(mask: Sequence[Any]) -> list[tuple[int, int]]:
    """First and last place (exclusive) of each run of ones: the replies of an episode's tokens.

    >>> sampled_runs([0, 1, 1, 0, 1])
    [(1, 3), (4, 5)]
    """
    runs, start = [], 0
    for is_sampled, values in groupby(mask, key=bool):
        size = len(list(values))
        if is_sampled:
            runs.append((start, start + size))
        start += size
    return runs


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts names with numbers in them by the numbers: 2.jsonl before 10.jsonl."""
    parts = _NUMBER.split(name)
    return [
        (1, int(part), "") if part.isascii() and part.isdigit() and len(part) < 19 else (0, 0, part)
        for part in parts
    ]
