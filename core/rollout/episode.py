"""One episode while it is played: what it samples from, what it takes in, how it is recorded.

What was sampled is recorded as it was sampled. Each random draw has a seed that names its place
(seed, split, step, episode, turn), so an episode does not depend on which others are still going.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
class PlayedEpisode:
    """An episode while it goes on: what was shown, and what was replied to it."""

    slot: Slot
    context: ContextConfig
    observation: Observation
    """What is shown next, or would be."""
    turns: list[Turn] = field(default_factory=list)
    success: bool | None = None

    def next_turn(
        self, text: str, parsed: ParsedResponse, result: TurnResult | None, **sampled: Any
    ) -> Turn:
        """The record of a turn: what it showed, what was replied, what the world made of it.

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
            index=len(self.turns),
            observation=self.observation.text,
            frame=self.observation.frame,
            image=self.observation.image,
            response=text,
            reasoning_chars=parsed.reasoning_chars,
            answer_chars=parsed.answer_chars,
            is_valid=result is not None and result.is_valid,
            is_effective=result is not None and result.is_effective,
            **sampled,
        )

    def as_trajectory(self, stop_reason: StopReason, **of_run: Any) -> Trajectory:
        """The record of the whole episode.

        Args:
            of_run: the fields that a slot and its turns do not say, `is_success` among them.
        """
        slot = self.slot
        return Trajectory(
            index=slot.episode_index,
            group_index=slot.group_index,
            sibling_index=slot.sibling_index,
            env_id=slot.env_id,
            tag=slot.tag,
            env_seed=slot.env_seed,
            noise_seed=slot.noise_seed,
            task_key=slot.task_key,
            turns=tuple(self.turns),
            final_observation=self.observation.text,
            final_frame=self.observation.frame,
            final_image=self.observation.image,
            stop_reason=stop_reason,
            **of_run,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class LiveEpisode(PlayedEpisode):
    """One that is sampled from prompts of tokens."""

    conversation: Conversation
    prompt: Prompt
    first_prompt: Prompt
    num_sampled_tokens: int = 0
    stop_reason: StopReason | None = None

    @classmethod
    def begin(cls, slot: Slot, chat: ChatFormat, context: ContextConfig) -> LiveEpisode:
        conversation = Conversation(
            chat, context, slot.instructions, slot.tools, is_one_action=slot.is_one_action
        )
        prompt = conversation.prompt(slot.observation)
        episode = cls(
            slot=slot,
            context=context,
            observation=slot.observation,
            conversation=conversation,
            prompt=prompt,
            first_prompt=prompt,
        )
        if not prompt.fits:
            episode.success = False
            episode.stop(StopReason.PROMPT_TOO_LONG)
        return episode

    def stop(self, reason: StopReason) -> None:
        """End it."""
        self.stop_reason = reason
        if reason is StopReason.ABORTED:
            self.success = None  # nobody knows how it would have ended

    @property
    def budget(self) -> int:
        """The most tokens that the next response may have."""
        context = self.context
        if context.max_episode_tokens is None:
            return context.max_response_tokens
        left = context.max_episode_tokens - self.num_sampled_tokens
        return min(context.max_response_tokens, left)

    def advance(self, result: TurnResult) -> None:
        """Take in what the environment answered, and end the episode if it cannot go on."""
        self.observation, self.success = result.observation, result.success
        if result.stop_reason is not None:
            self.stop(StopReason(result.stop_reason))
        elif self.budget < 1:
            self.stop(StopReason.MAX_TOKENS)
        else:
            total = result.reward + result.format_penalty
            self.prompt = self.conversation.prompt(result.observation, last_reward=total)
            if not self.prompt.fits:
                self.stop(StopReason.PROMPT_TOO_LONG)


def sampling_seed(seed: int, split: Split, step: int, index: int, turn: int) -> int:
    """The 63-bit seed of one response; of a probe the same at every step, like its tasks."""
    stream = 0 if split is Split.PROBE else step
    return stream_word(seed, split.value, "sampling", stream, index, turn) >> 1


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
