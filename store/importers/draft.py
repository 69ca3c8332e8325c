"""What a format's reader makes of one episode, and how a draft becomes a stored trajectory.

A draft says only what the file says. Whatever was not written stays unknown (None, NaN), and what a
reader had to guess is named in `reconstructed`, so that it is stored and shown with the episode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any

import numpy as np

from echoscope.text.replies import THINK_CLOSE, THINK_OPEN, parse_response
from echoscope.text.strict_json import json_value

from ..records import (
    FinishReason,
    FloatArray,
    IntArray,
    Split,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
    prompt_key,
)
from .lines import BadJsonError, json_of

RECONSTRUCTIONS: Mapping[str, str] = {
    "turns": "turns were split at role names in plain text; a reply may contain such a name itself",
    "turn_rewards": "only the reward of the episode is known; it stands at the last turn",
    "groups": "episodes with an equal prompt in a step were taken as one group",
    "step": "the step was taken from the name of the file or its folder",
    "binary_success": "every reward is 0 or 1 (or -1 or 1), so it is read as success "
    "(`--map success=KEY` or `--map reward=KEY` changes that)",
    "split": "training or evaluation was told from the name of the folder",
    "actions": "actions were read from the answer of the reply; what was executed is not known",
    "reward_terms": "the rewards of several functions were added up; their weights are not known",
    "branches": "the trace has several branches; each is an episode with the reward of the trace",
    "score": "success was told from the first score",
    "validations": "no step is written: where the same prompts come again, a validation begins",
    "turn_is_episode": "the file has one row per turn; each turn is stored as an episode",
}
"""What a reader may have to guess, and how it guesses, in words for people."""


class RowError(ValueError):
    """A row that cannot be taken, with the reason in words."""


@dataclass(slots=True, kw_only=True)
class DraftTurn:
    """One turn as far as a file tells. Its fields are those of `Turn`."""

    observation: str
    response: str
    reward: float = math.nan
    actions: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = FinishReason.UNKNOWN
    is_valid: bool | None = None
    is_effective: bool | None = None
    policy_version: int | None = None
    prompt_tokens: IntArray | None = None
    response_tokens: IntArray | None = None
    logprobs: FloatArray | None = None
    entropies: FloatArray | None = None
    temperature: float | None = None
    info: Mapping[str, float] = field(default_factory=dict)

    def set_tokens(self, prompt: Any, response: Any, logprobs: Any = None) -> None:
        """The token ids of prompt and reply and the reply's log-probs, where the values are lists
        that fit together."""
        if isinstance(prompt, list) and isinstance(response, list) and response:
            self.prompt_tokens = np.array(prompt, dtype=np.int32)
            self.response_tokens = np.array(response, dtype=np.int32)
            if isinstance(logprobs, list) and len(logprobs) == len(response):
                self.logprobs = floats(logprobs)


@dataclass(slots=True, kw_only=True)
class Draft:
    """One episode as far as a file tells."""

    turns: Sequence[DraftTurn]
    prompt: str = ""
    """What the policy was given before its first reply, system message included."""
    group: str | None = None
    """Episodes of a step with the same name are siblings; None where the file does not say."""
    split: Split = Split.IMPORT
    env: str = ""
    tag: str = ""
    final_observation: str = ""
    stop_reason: StopReason = StopReason.UNKNOWN
    is_success: bool | None = None
    duration_s: float | None = None
    advantage: float | None = None
    """None: the mean of `advantages`, if there are any."""
    advantages: tuple[FloatArray, ...] | None = None
    trainer_logprobs: tuple[FloatArray, ...] | None = None
    reference_logprobs: tuple[FloatArray, ...] | None = None
    is_kept: bool | None = None
    """Whether the update used it; None where the file does not say."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What has no column of ours, under the names of the file."""
    reconstructed: set[str] = field(default_factory=set)
    """Keys of `RECONSTRUCTIONS`."""

    def set_episode_reward(self, reward: float) -> None:
        """The reward of the whole episode, where turns have none of their own."""
        if not self.turns or math.isnan(reward):
            return
        for turn in self.turns:
            turn.reward = 0.0
        self.turns[-1].reward = reward
        if len(self.turns) > 1:
            self.reconstructed.add("turn_rewards")

    def set_turn_rewards(self, rewards: Any, total: float = math.nan) -> bool:
        """Set the rewards of the turns, where a value is a list with one for each that add up to
        the reward of the episode, if that is known; whether it is."""
        if not isinstance(rewards, list) or len(rewards) != len(self.turns):
            return False
        values = [number(reward) for reward in rewards]
        if total == total and not math.isclose(sum(values), total, abs_tol=1e-6):
            return False
        for turn, value in zip(self.turns, values, strict=True):
            turn.reward = value
        self.reconstructed.discard("turn_rewards")
        return True

    def set_sampled(
        self,
        ids: Any,
        mask: Any,
        logprobs: Any = None,
        advantages: Any = None,
        trainer_logprobs: Any = None,
    ) -> bool:
        """Set tokens that a file holds in one list, with values for each; `mask` marks the sampled
        ones. Whether each reply is one run of sampled tokens: if not, nothing is set."""
        if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
            return False
        runs = sampled_runs([number(value) for value in mask])
        if len(runs) != len(self.turns):
            return False

        def by_turn(values: Any) -> tuple[FloatArray, ...] | None:
            if not isinstance(values, list) or len(values) != len(ids):
                return None
            return tuple(floats(values[first:last]) for first, last in runs)

        by_reply = by_turn(logprobs)
        for index, (turn, (first, last)) in enumerate(zip(self.turns, runs, strict=True)):
            turn.set_tokens(ids[:first], ids[first:last])
            turn.logprobs = None if by_reply is None else by_reply[index]
        self.advantages, self.trainer_logprobs = by_turn(advantages), by_turn(trainer_logprobs)
        return True

    def add_info(self, numbers: Mapping[str, float]) -> None:
        """Numbers of the whole episode: they stand at its last turn."""
        if self.turns:
            self.turns[-1].info = {**self.turns[-1].info, **numbers}


def trajectory_of(
    draft: Draft,
    format_name: str,
    *,
    step: int,
    index: int,
    group_index: int,
    sibling_index: int,
    source: str,
) -> Trajectory:
    """The stored form of a draft.

    Args:
        source: File, and the row or line in it.

    Raises:
        RowError: the record refuses it.
    """
    try:
        return Trajectory(
            step=step,
            split=draft.split,
            index=index,
            group_index=group_index,
            sibling_index=sibling_index,
            env_id=draft.env,
            tag=draft.tag or draft.env,
            env_seed=None,
            noise_seed=None,
            prompt_key=prompt_key(draft.prompt),
            turns=tuple(_turn(turn, index) for index, turn in enumerate(draft.turns)),
            final_observation=draft.final_observation,
            stop_reason=draft.stop_reason,
            is_success=draft.is_success,
            duration_s=draft.duration_s,
            source=source,
            extra=_extra(draft, format_name),
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RowError(f"the episode cannot be stored: {error}") from error


def _turn(turn: DraftTurn, index: int) -> Turn:
    text = turn.response
    # Some chat templates open the reasoning in the prompt: the reply begins inside it.
    close = text.find(THINK_CLOSE)
    is_open = close >= 0 and THINK_OPEN not in text[:close]
    parsed = parse_response(text, reasoning=True, forced_think=is_open)
    written: dict[str, Any] = {field.name: getattr(turn, field.name) for field in fields(turn)}
    return Turn(
        index=index,
        reasoning_chars=parsed.reasoning_chars,
        answer_chars=parsed.answer_chars,
        **written,
    )


def _extra(draft: Draft, format_name: str) -> str:
    value: dict[str, Any] = {"format": format_name}
    if draft.reconstructed:
        value["reconstructed"] = sorted(draft.reconstructed)
    if draft.fields:
        value["fields"] = json_value(dict(draft.fields))
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def reconstructions(extra: str | None) -> dict[str, str]:
    """What was guessed when a trajectory was imported, and how; empty for a run of ours.

    Args:
        extra: The trajectory's column of that name.
    """
    try:
        value = json.loads(extra or "{}")
    except (ValueError, RecursionError):
        return {}
    names = value.get("reconstructed") if isinstance(value, dict) else None
    names = names if isinstance(names, list) else []
    return {n: RECONSTRUCTIONS[n] for n in names if isinstance(n, str) and n in RECONSTRUCTIONS}


SUMMED_REWARDS = r'"reconstructed": \[[^]]*"reward_terms"'
"""What the column `extra` of an episode holds whose return was added up without weights."""


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


def success_of(value: Any) -> bool | None:
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


def stop_of(value: Any) -> StopReason:
    """Why an episode ended, in the words of any trainer."""
    text = text_of(value).lower()
    named = (reason for texts, reason in _STOPS if any(word in text for word in texts))
    return next(named, StopReason.UNKNOWN)


def finish_of(value: Any) -> FinishReason:
    """Why a reply ended, in the words of any trainer."""
    text = text_of(value).lower()
    named = (reason for texts, reason in _FINISHES if any(word in text for word in texts))
    return next(named, FinishReason.UNKNOWN)


def json_in(value: Any) -> Any:
    """What a column holds as JSON text; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json_of(value.encode(errors="replace"))[0]
    except BadJsonError:
        return value


def text_of(value: Any) -> str:
    """A text as it is; any other JSON value as JSON; nothing for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(json_value(value), ensure_ascii=False)


def name_of(value: Any) -> str:
    """The text of a value that names something: an environment, a kind of task."""
    return text_of(value)[:200]


def optional_text(value: Any) -> str | None:
    """The text of a value; None for null."""
    return None if value is None else text_of(value)


def inner(value: Any, *names: str) -> Any:
    """A value inside objects; None where one of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def objects_of(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; none of anything else."""
    return (
        [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    )


def floats(values: Iterable[Any]) -> FloatArray:
    """One number for each value; NaN for what is none."""
    return np.array([number(value) for value in values], dtype=np.float32)


def numbers_of(value: Any) -> dict[str, float]:
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
