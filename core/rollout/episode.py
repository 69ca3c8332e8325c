"""One episode while it is played: what it samples from, what it takes in, how it is recorded.

What was sampled is recorded as it was sampled. Each random draw has a seed that names its place
(seed, split, step, episode, turn), so an episode does not depend on which others are still going.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from echoscope.envs.base import Observation
from echoscope.envs.pool import Slot
from echoscope.envs.streams import stream_word
from echoscope.envs.turns.turn import TurnResult
from echoscope.store.records import (
    Split,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from echoscope.text.replies import ParsedResponse

from ..config.context import ContextConfig
from ..config.settings import SamplingConfig
from ..engines.base import SamplingParams
from .chat import ChatFormat
from .context import Conversation, Prompt

SamplingSettings = SamplingConfig | SamplingParams
"""Both say temperature, top_p, top_k and min_p."""
TurnShaping = Callable[[Turn], Mapping[str, float]]
"""Named reward terms of a finished turn, see `shaping.resolve`."""


@dataclass(slots=True, kw_only=True, eq=False)
class LiveEpisode:
    """One episode while it goes on."""

    slot: Slot
    conversation: Conversation
    prompt: Prompt
    observation: Observation
    first_prompt: Prompt
    turns: list[Turn] = field(default_factory=list)
    num_sampled_tokens: int = 0
    success: bool | None = None
    stop_reason: StopReason | None = None


def sampling_seed(seed: int, split: Split, step: int, index: int, turn: int) -> int:
    """The 63-bit seed of one response; of a probe the same at every step, like its tasks."""
    stream = 0 if split is Split.PROBE else step
    return stream_word(seed, split.value, "sampling", stream, index, turn) >> 1


def begin(slot: Slot, chat: ChatFormat, context: ContextConfig) -> LiveEpisode:
    conversation = Conversation(
        chat, context, slot.instructions, slot.tools, is_one_action=slot.is_one_action
    )
    prompt = conversation.prompt(slot.observation)
    episode = LiveEpisode(
        slot=slot,
        conversation=conversation,
        prompt=prompt,
        observation=slot.observation,
        first_prompt=prompt,
    )
    if not prompt.fits:
        episode.success = False
        stop(episode, StopReason.PROMPT_TOO_LONG)
    return episode


def stop(episode: LiveEpisode, reason: StopReason) -> None:
    """End an episode, unless it has ended already."""
    if episode.stop_reason is None:
        episode.stop_reason = reason
        if reason is StopReason.ABORTED:
            episode.success = None  # nobody knows how it would have ended


def budget(episode: LiveEpisode, context: ContextConfig) -> int:
    """The most tokens that the next response of this episode may have."""
    if context.max_episode_tokens is None:
        return context.max_response_tokens
    left = context.max_episode_tokens - episode.num_sampled_tokens
    return min(context.max_response_tokens, left)


def turn_of(
    index: int,
    observation: Observation,
    text: str,
    parsed: ParsedResponse,
    result: TurnResult | None,
    **sampled: Any,
) -> Turn:
    """What a turn showed, what was replied, and what the world made of it.

    Args:
        result: None where the world was not asked.
        sampled: further fields of the record.
    """
    if result is not None:
        sampled |= {
            "actions": result.actions,
            "reward": result.reward,
            "format_penalty": result.format_penalty,
            "info": {**result.info, **sampled.get("info", {})},
            "calls": _calls(text, parsed, result),
        }
    return Turn(
        index=index,
        observation=observation.text,
        frame=observation.frame,
        image=observation.image,
        response=text,
        reasoning_chars=parsed.reasoning_chars,
        answer_chars=parsed.answer_chars,
        is_valid=result is not None and result.is_valid,
        is_effective=result is not None and result.is_effective,
        **sampled,
    )


def _calls(text: str, parsed: ParsedResponse, result: TurnResult) -> tuple[ToolCall, ...]:
    """The calls of a reply with what the world answered; "" for one that it was not asked."""
    answers = [*result.answers, *[""] * len(parsed.calls)]
    return tuple(
        ToolCall(
            name=call.name,
            arguments=call.arguments or text[slice(*call.chars)],
            result=answer,
            problem=call.problem,
        )
        for call, answer in zip(parsed.calls, answers, strict=False)
    )


def advance(episode: LiveEpisode, result: TurnResult, context: ContextConfig) -> None:
    """Take in what the environment answered, and end the episode if it cannot go on."""
    episode.observation = result.observation
    episode.success = result.success
    if result.stop_reason is not None:
        stop(episode, StopReason(result.stop_reason))
    elif budget(episode, context) < 1:
        stop(episode, StopReason.MAX_TOKENS)
    else:
        total = result.reward + result.format_penalty
        episode.prompt = episode.conversation.prompt(result.observation, last_reward=total)
        if not episode.prompt.fits:
            stop(episode, StopReason.PROMPT_TOO_LONG)


def trajectory_of(
    slot: Slot,
    turns: Sequence[Turn],
    final: Observation,
    *,
    key: str,
    step: int,
    split: Split,
    stop_reason: StopReason,
    is_success: bool | None,
    duration_s: float,
) -> Trajectory:
    """The record of an episode that has ended.

    Args:
        final: what would have been shown next.
        key: of its first prompt, see `prompt_key`.
    """
    return Trajectory(
        step=step,
        split=split,
        index=slot.episode_index,
        group_index=slot.group_index,
        sibling_index=slot.sibling_index,
        env_id=slot.env_id,
        tag=slot.tag,
        env_seed=slot.env_seed,
        noise_seed=slot.noise_seed,
        task_key=slot.task_key,
        prompt_key=key,
        turns=tuple(turns),
        final_observation=final.text,
        final_frame=final.frame,
        final_image=final.image,
        stop_reason=stop_reason,
        is_success=is_success,
        duration_s=duration_s,
    )
