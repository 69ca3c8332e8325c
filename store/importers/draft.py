"""What a format's reader makes of one episode, and how a draft becomes a stored trajectory.

A draft says only what the file says. Whatever was not written stays unknown (None, NaN), and what a
reader had to guess is named in `reconstructed`, so that it is stored and shown with the episode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from echoscope.text.replies import THINK_CLOSE, THINK_OPEN, parse_response
from echoscope.text.strict_json import json_value

from ..records import (
    FinishReason,
    FloatArray,
    IntArray,
    Span,
    Split,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
    prompt_key,
)
from . import read

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
    """One turn as far as a file tells. But for `parts` its fields are those of `Turn`."""

    observation: str
    response: str
    reward: float = math.nan
    format_penalty: float = 0.0
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
    frame: str | None = None
    parts: tuple[Span | None, Span | None] | None = None
    """Where reasoning and answer stand in the reply; None: they are read from its text."""

    def set_tokens(self, prompt: Any, response: Any, logprobs: Any = None) -> None:
        """The token ids of prompt and reply and the reply's log-probs, where the values are lists
        that fit together."""
        if isinstance(prompt, list) and isinstance(response, list) and response:
            self.prompt_tokens = np.array(prompt, dtype=np.int32)
            self.response_tokens = np.array(response, dtype=np.int32)
            if isinstance(logprobs, list) and len(logprobs) == len(response):
                self.logprobs = read.floats(logprobs)


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
    final_frame: str | None = None
    env_seed: int | None = None
    noise_seed: int | None = None
    task_key: str | None = None
    prompt_key: str = ""
    """Of its first prompt; empty: that of `prompt`."""
    is_whole: bool = False
    """The file says all of the episode: where it has no turn, none was played."""
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
        values = [read.number(reward) for reward in rewards]
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
        runs = read.sampled_runs([read.number(value) for value in mask])
        if len(runs) != len(self.turns):
            return False

        def by_turn(values: Any) -> tuple[FloatArray, ...] | None:
            if not isinstance(values, list) or len(values) != len(ids):
                return None
            return tuple(read.floats(values[first:last]) for first, last in runs)

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


_COPIED = (
    *("split", "env_seed", "noise_seed", "task_key", "final_observation", "final_frame"),
    *("stop_reason", "is_success", "duration_s"),
)
"""Fields of a trajectory that are those of its draft."""


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
            index=index,
            group_index=group_index,
            sibling_index=sibling_index,
            env_id=draft.env,
            tag=draft.tag or draft.env,
            prompt_key=draft.prompt_key or prompt_key(draft.prompt),
            turns=tuple(_turn(turn, index) for index, turn in enumerate(draft.turns)),
            source=source,
            extra=_extra(draft, format_name),
            **{name: getattr(draft, name) for name in _COPIED},
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RowError(f"the episode cannot be stored: {error}") from error


def _turn(turn: DraftTurn, index: int) -> Turn:
    written: dict[str, Any] = {field.name: getattr(turn, field.name) for field in fields(turn)}
    parts = written.pop("parts") or parts_of(turn.response)
    return Turn(index=index, reasoning_chars=parts[0], answer_chars=parts[1], **written)


def parts_of(text: str) -> tuple[Span | None, Span | None]:
    """Where reasoning and answer stand in a reply."""
    # Some chat templates open the reasoning in the prompt: the reply begins inside it.
    close = text.find(THINK_CLOSE)
    is_open = close >= 0 and THINK_OPEN not in text[:close]
    parsed = parse_response(text, reasoning=True, forced_think=is_open)
    return parsed.reasoning_chars, parsed.answer_chars


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
