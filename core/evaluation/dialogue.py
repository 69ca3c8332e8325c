"""An episode played in messages: what a model is shown, what it replies, and what is recorded.

Models behind somebody's interface take messages and return text; their tokens are not known here.
Messages, calls and outputs are Inspect's (`inspect-ai`), whose model layer reaches every provider.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentReasoning,
    ModelOutput,
)
from inspect_ai.tool import ToolInfo, ToolParams

from echoscope.diagnostics.measure.outcomes import COST, INPUT_TOKENS, OUTPUT_TOKENS
from echoscope.envs.base import Observation
from echoscope.envs.turns.turn import TurnResult
from echoscope.store.records import (
    FinishReason,
    Split,
    StopReason,
    Trajectory,
    prompt_key,
)
from echoscope.text.replies import THINK_CLOSE, THINK_OPEN, parse_response
from echoscope.text.tool_calls import CALL_CLOSE, CALL_OPEN, spell_call

from ..rollout.context import opening_of, turn_messages
from ..rollout.episode import PlayedEpisode

Generate = Callable[[list[ChatMessage], list[ToolInfo], int], Awaitable[ModelOutput]]
"""Asks the model with the messages and the tools, for the turn of this number."""
StepWorld = Callable[[Sequence[str], bool], Awaitable[TurnResult]]
"""Sends the actions of a reply to the world, and says whether the reply was well formed."""

_NOT_PLAYED = "This call was not carried out."
_FINISH: Mapping[str, FinishReason] = {
    "max_tokens": FinishReason.LENGTH,
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "content_filter": FinishReason.STOP,
}


@dataclass(kw_only=True, eq=False)
class PlayedDialogue(PlayedEpisode):
    """One that is played in messages."""

    messages: list[ChatMessage] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    first_text: str = ""

    def __post_init__(self) -> None:
        self._shown = partial(
            turn_messages,
            self.context,
            has_tools=bool(self.slot.tools),
            is_one_action=self.slot.is_one_action,
        )
        self._open()

    @property
    def tools(self) -> list[ToolInfo]:
        empty: dict[str, Any] = {"properties": {}, "required": []}
        return [
            ToolInfo(
                name=tool.name,
                description=tool.description,
                parameters=ToolParams.model_validate({**empty, **tool.parameters}),
            )
            for tool in self.slot.tools
        ]

    async def play(
        self, generate: Generate, step_world: StepWorld, *, step: int, split: Split
    ) -> Trajectory:
        """Play to the end.

        Raises:
            Exception: whatever `generate` raises, such as a provider that cannot be reached.
        """
        reason: StopReason | None = None
        if self.slot.task_key is None:  # the world could not start
            reason = StopReason.ENV_ERROR
        while reason is None:
            output = await generate(self.messages, self.tools, len(self.turns))
            if output.stop_reason == "model_length" and not output.completion:
                reason = StopReason.PROMPT_TOO_LONG
                break
            reason = await self._turn(output, step_world)
        return self.ended(reason, step=step, split=split)

    def ended(self, reason: StopReason, *, step: int, split: Split) -> Trajectory:
        """The record of what has been played, as an episode that ended for this reason."""
        return self.as_trajectory(
            reason,
            prompt_key=prompt_key(self.first_text),
            step=step,
            split=split,
            is_success=None if reason.is_failure else bool(self.success),
            duration_s=time.perf_counter() - self.began,
        )

    def _open(self) -> None:
        """The first messages: the system's, those that the world opens with, and the question."""
        system, earlier, question = opening_of(self.context, self.observation)
        if system:
            self.messages.append(ChatMessageSystem(content=system))
        head = ""
        if self.context.instructions and self.slot.instructions:
            head = f"{self.slot.instructions}\n\n"
        for message in earlier:
            kind = ChatMessageUser if message.role == "user" else ChatMessageAssistant
            self.messages.append(kind(content=head + message.content))
            head = ""
        self.messages.append(ChatMessageUser(content=head + self._user_text(question, None)))
        self.first_text = "\n".join(message.text for message in self.messages)

    def _user_text(self, content: str, last_reward: float | None) -> str:
        [message] = self._shown(Observation(text=content), last_reward)
        return message.content

    async def _turn(self, output: ModelOutput, step_world: StepWorld) -> StopReason | None:
        """Record a reply and what the world made of it; why the episode ended, if it did."""
        context, text = self.context, reply_text(output)
        parsed = parse_response(
            text,
            reasoning=context.reasoning,
            forced_think=False,
            action_separator=None if self.slot.is_one_action else context.action_separator,
            tool_format="hermes" if self.slot.tools else None,
        )
        result = await step_world(parsed.actions, parsed.is_well_formed)
        self.turns.append(
            self.next_turn(
                text,
                parsed,
                result,
                finish_reason=_FINISH.get(str(output.stop_reason), FinishReason.UNKNOWN),
                policy_version=None,
                info=usage(output),
            )
        )
        self.observation, self.success = result.observation, result.success
        if result.stop_reason is not None:
            return StopReason(result.stop_reason)
        most = context.max_episode_tokens
        if most is not None and sum(t.info.get(OUTPUT_TOKENS, 0.0) for t in self.turns) >= most:
            return StopReason.MAX_TOKENS
        self._go_on(output, text, result)
        return None

    def _go_on(self, output: ModelOutput, text: str, result: TurnResult) -> None:
        """The reply and the world's answer as messages."""
        last_reward = result.reward + result.format_penalty
        calls = output.message.tool_calls or [] if self.slot.tools else []
        self.messages.append(_as_history(output.message, text, has_tools=bool(self.slot.tools)))
        answers = list(result.observation.messages)
        results = [each.content for each in answers if each.role == "tool"]
        user_texts = [each.content for each in answers if each.role != "tool"]
        for number, call in enumerate(calls):
            content = results[number] if number < len(results) else _NOT_PLAYED
            self.messages.append(
                ChatMessageTool(content=content, tool_call_id=call.id, function=call.function)
            )
        if not calls and results:
            user_texts = results + user_texts
        if not answers:
            user_texts = [result.observation.text]
        if user_texts or not calls:
            text = self._user_text("\n".join(user_texts), last_reward)
            self.messages.append(ChatMessageUser(content=text))


def _as_history(
    message: ChatMessageAssistant, text: str, *, has_tools: bool
) -> ChatMessageAssistant:
    """A reply as the next prompt shows it: as it was written, or as its provider signed it."""
    if message.tool_calls and not has_tools:
        return ChatMessageAssistant(content=text)  # calls that nobody asked for, nobody answers
    parts = [] if isinstance(message.content, str) else message.content
    reasoning = [part for part in parts if isinstance(part, ContentReasoning)]
    if not reasoning or any(part.signature or part.redacted for part in reasoning):
        return message
    return message.model_copy(update={"content": text.partition(CALL_OPEN)[0].rstrip("\n")})


def reply_text(output: ModelOutput) -> str:
    """A reply as one text: its reasoning between tags, its words, and its calls as Hermes has them.

    A model that keeps its reasoning apart has reasoned as if it had written the tags.
    """
    message = output.message
    text = message.text
    if not isinstance(message.content, str) and THINK_OPEN not in text:
        reasoning = "\n".join(
            part.summary or part.reasoning
            for part in message.content
            if isinstance(part, ContentReasoning) and (part.summary or not part.redacted)
        )
        if reasoning:
            text = f"{THINK_OPEN}{reasoning}{THINK_CLOSE}{text}"
    spelled = [
        f"{CALL_OPEN}\n{call.function}: {call.parse_error}\n{CALL_CLOSE}"
        if call.parse_error
        else spell_call(call.function, call.arguments, "hermes")
        for call in message.tool_calls or []
    ]
    return "\n".join([text, *spelled] if text else spelled)


def usage(output: ModelOutput) -> dict[str, float]:
    """What the provider says that a reply cost; nothing where it says nothing that can be."""
    used = output.usage
    if used is None or used.input_tokens < 0 or used.output_tokens < 0:
        return {}
    cached = (used.input_tokens_cache_read or 0) + (used.input_tokens_cache_write or 0)
    out = {
        INPUT_TOKENS: float(used.input_tokens + max(0, cached)),
        OUTPUT_TOKENS: float(used.output_tokens),
    }
    return out if used.total_cost is None else {**out, COST: used.total_cost}
