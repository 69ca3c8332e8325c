"""What another trainer hands over, as stored trajectories of one step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from echoscope.diagnostics.tools.setting_errors import shown
from echoscope.store.importers.dialogue import read_messages
from echoscope.store.importers.draft import Draft, DraftTurn, RowError
from echoscope.store.importers.steps.episodes import StepEpisodes
from echoscope.store.records import (
    Split,
    StopReason,
)
from echoscope.text.sentences import in_one_line

FORMAT = "recorder"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """What the policy was given and sampled at one turn, as token ids."""

    prompt: Sequence[int]
    """(Lp,) Everything before the first sampled token."""
    reply: Sequence[int]
    """(Lr,) Its stop token included, where one was sampled."""
    logprobs: Sequence[float] | None = None
    """(Lr,) At the sampling temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEpisode:
    """One episode as the caller gave it. Nothing is copied or checked yet: that takes time."""

    messages: Sequence[Mapping[str, Any]]
    reward: float
    turn_rewards: Sequence[float] | None
    group: str | None
    success: bool | None
    env: str
    is_eval: bool
    fields: Mapping[str, Any]
    tokens: Sequence[TurnTokens] | None = None


def draft_of(episode: GivenEpisode) -> Draft:
    """The episode's turns with their rewards.

    Raises:
        RowError: it has no reply of the policy, another number of rewards than turns, or something
            that is not what the argument takes.
    """
    messages = episode.messages
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        kind = type(messages).__name__
        raise RowError(f"messages is a {kind}, but must be a list of messages")
    dialogue = read_messages(messages)
    turns: Sequence[DraftTurn] = dialogue.turns
    if not turns:
        raise RowError("it has no message of the assistant")
    reward, rewards = _number("reward", episode.reward), _rewards(episode, len(turns))
    if episode.success not in (None, True, False):
        raise RowError(f"success is {shown(episode.success)}, but must be True, False or None")
    if episode.tokens is not None:
        _set_tokens(turns, episode.tokens)
    draft = Draft(
        turns=turns,
        prompt=dialogue.prompt,
        group=episode.group,
        split=Split.EVAL if episode.is_eval else Split.IMPORT,
        env="" if episode.env is None else str(episode.env),
        final_observation=dialogue.final_observation,
        stop_reason=StopReason.UNKNOWN,
        is_success=None if episode.success is None else bool(episode.success),
        fields=dict(episode.fields),
    )
    if rewards is None:
        draft.set_episode_reward(reward)
        return draft
    total = sum(rewards)
    if abs(reward - total) > 1e-6 * max(1.0, abs(total)):  # an unknown reward is not different
        raise RowError(f"its reward is {reward:g}, but its turn_rewards add up to {total:g}")
    for turn, earned in zip(turns, rewards, strict=True):
        turn.reward = earned
    return draft


def _number(name: str, value: Any) -> float:
    """A number of Python, NumPy or torch; NaN for None.

    Raises:
        RowError: it is none.
    """
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise RowError(f"{name} is {shown(value)}, but must be one number") from None


def _rewards(episode: GivenEpisode, num_turns: int) -> list[float] | None:
    """The rewards of the turns; None where only that of the episode is known."""
    given = episode.turn_rewards
    if given is None:
        return None
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise RowError(f"turn_rewards is {shown(given)}, but must be a list of numbers")
    rewards = [_number(f"turn_rewards[{turn}]", value) for turn, value in enumerate(given)]
    if len(rewards) != num_turns:
        raise RowError(f"it has {num_turns} replies, but {len(rewards)} turn_rewards")
    return rewards


def _set_tokens(turns: Sequence[DraftTurn], tokens: Sequence[TurnTokens]) -> None:
    if not isinstance(tokens, Sequence) or any(not isinstance(t, TurnTokens) for t in tokens):
        raise RowError("tokens must be a list of TurnTokens, one entry a turn")
    if len(tokens) != len(turns):
        raise RowError(f"it has {len(turns)} replies, but {len(tokens)} tokens")
    for turn, given in zip(turns, tokens, strict=True):
        try:
            turn.prompt_tokens = np.asarray(given.prompt, dtype=np.int32)
            turn.response_tokens = np.asarray(given.reply, dtype=np.int32)
            if given.logprobs is not None:
                turn.logprobs = np.asarray(given.logprobs, dtype=np.float32)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise RowError(f"its tokens cannot be read: {error}") from error


def take(content: StepEpisodes, episode: GivenEpisode | Draft) -> None:
    """Add an episode to those of its step, or count why it cannot be taken."""
    try:
        draft = episode if isinstance(episode, Draft) else draft_of(episode)
    except RowError as error:
        content.refused[str(error)] += 1
    except Exception as error:  # noqa: BLE001 - one odd episode must not cost its step
        content.refused[in_one_line(error)] += 1
    else:
        content.add(draft, source=FORMAT, format_name=FORMAT)
