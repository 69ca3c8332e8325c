"""A conversation as tokens: what the policy is shown at each turn (the papers' Context Manager).

A prompt is put together from recorded ids only: the opening, the contents of each user turn, and
each response exactly as it was sampled. With the whole history the prompt of turn k+1 is the prompt
of turn k, response k and the feedback, token for token. A window that forgets old turns keeps the
system message and the instructions and starts at a later user turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from echoscope.envs.base import Message, Observation, Tool
from echoscope.store.models import token_span
from echoscope.store.records import IntArray, Span
from echoscope.text.replies import ParsedResponse, parse_response
from echoscope.text.tool_calls import ToolFormat

from ..config.context import ContextConfig
from .chat import ChatFormat, ChatFormatError
from .tool_chat import ToolChat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """What is sampled from at one turn."""

    tokens: IntArray  # (Lp,)
    fits: bool
    """False if it is longer than `max_prompt_tokens`: the episode cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseReading:
    """What a response says, in characters of its text and in tokens."""

    text: str
    parsed: ParsedResponse
    reasoning_span: Span | None
    """Half-open slice of the response's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _UserTurn:
    """What a turn shows: as a user turn, and as messages where tools have answered."""

    text: str
    content: list[int]
    messages: Sequence[Message] = ()


class Conversation:
    """One episode: alternately `prompt` for a user turn and `respond` with what was sampled.

    Args:
        is_one_action: an answer is one action, in which `context.action_separator` means nothing.

    Raises:
        ChatFormatError: the chat template opens the reasoning itself and `reasoning` is off.
    """

    def __init__(
        self,
        chat: ChatFormat,
        config: ContextConfig,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        *,
        is_one_action: bool = False,
    ) -> None:
        check_reasoning(chat, config)
        self._chat = chat
        self._config = config
        self._is_one_action = is_one_action
        self._to_assistant = chat.to_assistant(config.force_think)
        self._shown = partial(
            turn_messages, config, has_tools=bool(tools), is_one_action=is_one_action
        )
        self._tools = ToolChat(chat, tools, config.tool_format) if tools else None
        self._instructions = f"{instructions}\n\n" if config.instructions and instructions else ""
        self._head: list[int] = []
        """What opens every prompt, encoded apart: a window keeps it for a later observation."""
        self._users: list[_UserTurn] = []
        self._responses: list[IntArray] = []
        self._first_kept = 0
        """The oldest turn that no prompt has dropped for its length."""

    def prompt(self, observation: str | Observation, *, last_reward: float | None = None) -> Prompt:
        """The prompt of the next turn.

        Args:
            observation: one user message as text, or what may hold several messages.
            last_reward: reward of the turn before, None at the first.
        """
        seen = Observation(text=observation) if isinstance(observation, str) else observation
        turn = len(self._responses)
        self._users.append(self._first(seen) if turn == 0 else self._later(seen, last_reward))
        window = self._config.history_turns
        first = self._first_kept if window is None else max(self._first_kept, turn + 1 - window)
        tokens = self._assemble(first)
        limit = self._config.max_prompt_tokens
        if self._config.on_long_prompt == "drop_oldest" and len(tokens) > limit:
            while len(tokens) > limit and first < turn:
                first += 1
                tokens = self._assemble(first)
            self._first_kept = first
        ids = np.array(tokens, np.int32)
        return Prompt(tokens=ids, fits=len(ids) <= limit)

    @property
    def tool_format(self) -> ToolFormat:
        """How this model spells tool calls; Hermes's way where there are no tools."""
        return "hermes" if self._tools is None else self._tools.format

    def respond(self, tokens: IntArray) -> ResponseReading:
        """Record the response to the last prompt and read it.

        Args:
            tokens: (Lr,) with its stop token, if it has one.
        """
        self._responses.append(tokens)
        text, ends = self._chat.decode_response(tokens)
        parsed = parse_response(
            text,
            reasoning=self._config.reasoning,
            forced_think=self._chat.forces_think(self._config.force_think),
            action_separator=None if self._is_one_action else self._config.action_separator,
            tool_format=None if self._tools is None else self._tools.format,
        )
        span = token_span(parsed.reasoning_chars, ends)
        return ResponseReading(text=text, parsed=parsed, reasoning_span=span)

    def _first(self, observation: Observation) -> _UserTurn:
        """The first user turn. Messages before it join the head, which every window keeps."""
        system, earlier, question = opening_of(self._config, observation)
        self._head = (self._tools or self._chat).opening(system)
        self._head += self._chat.encode(self._instructions)
        for asked, reply in zip(earlier[::2], earlier[1::2], strict=True):
            response = self._chat.encode_response(reply.content).tolist()
            self._head += self._chat.encode(asked.content) + self._chat.history_to_assistant
            self._head += [*response, *self._chat.to_user(response)]
        return self._plain(question, None)

    def _plain(self, observation: str, last_reward: float | None) -> _UserTurn:
        [message] = self._shown(Observation(text=observation), last_reward)
        return _UserTurn(text=message.content, content=self._chat.encode(message.content))

    def _later(self, observation: Observation, last_reward: float | None) -> _UserTurn:
        """A later user turn, or the results of the calls of the turn before."""
        tools = self._tools
        if tools is None or not observation.messages:
            return self._plain(observation.text, last_reward)
        messages = self._shown(observation, last_reward)
        # A window that begins here has lost the question: it is asked again.
        again = f"{self._users[0].text}\n{tools.as_text(messages)}"
        return _UserTurn(text=again, content=self._chat.encode(again), messages=messages)

    def _assemble(self, first: int) -> list[int]:
        """The prompt of the present turn with the history from turn `first` on."""
        user = self._users[first]
        out = [*self._head, *user.content, *self._to_assistant]
        for turn in range(first + 1, len(self._users)):
            response, user = self._responses[turn - 1], self._users[turn]
            out += response.tolist()
            if self._tools is not None and user.messages:
                out += self._tools.feedback(user.messages, response)
                out += self._tools.to_assistant(user.messages, self._config.force_think)
            else:
                out += self._chat.to_user(response)
                out += [*user.content, *self._to_assistant]
        return out


def check_reasoning(chat: ChatFormat, config: ContextConfig) -> None:
    """Raises ChatFormatError where the template and `context.reasoning` contradict each other."""
    if chat.template_forces_think and not config.reasoning:
        raise ChatFormatError(
            "the chat template ends every prompt with <think>, so context.reasoning must be "
            "true for this model"
        )
    if chat.template_closes_think and config.reasoning:
        raise ChatFormatError(
            "the chat template ends every prompt with </think>, so a reply holds no reasoning: set "
            "context.reasoning=false, or change context.template_args"
        )


def opening_of(
    config: ContextConfig, observation: Observation
) -> tuple[str, Sequence[Message], str]:
    """How an episode begins: the system's words, what was said before, and the question."""
    messages, system = list(observation.messages), config.system
    if messages and messages[0].role == "system":
        system = messages.pop(0).content
    return system, messages[:-1], messages[-1].content if messages else observation.text


def turn_messages(
    config: ContextConfig,
    observation: Observation,
    last_reward: float | None,
    *,
    has_tools: bool,
    is_one_action: bool,
) -> list[Message]:
    """What a turn shows, without the instructions that open the first one.

    The last reward stands before the first message, and the hint behind a user's, which is last.
    """
    messages = list(observation.messages) or [Message(role="user", content=observation.text)]
    if config.show_reward and last_reward is not None:
        text = f"Reward: {last_reward:g}\n{messages[0].content}"
        messages[0] = replace(messages[0], content=text)
    if config.format_hint and messages[-1].role == "user":
        hint = format_hint(config, has_tools=has_tools, is_one_action=is_one_action)
        messages[-1] = replace(messages[-1], content=f"{messages[-1].content}\n{hint}")
    return messages


def format_hint(
    config: ContextConfig, *, has_tools: bool = False, is_one_action: bool = False
) -> str:
    """One line that says how a reply must look."""
    reasoning = "<think>your reasoning</think>" if config.reasoning else ""
    if has_tools:
        before = f"{reasoning} and then either" if reasoning else "either"
        return f"Reply with {before} a tool call, or <answer>your answer</answer> to end the task"
    hint = f"Reply with {reasoning}<answer>your action</answer> and nothing else"
    if is_one_action:
        return hint
    return (
        f"{hint}; where several actions are allowed, separate them with {config.action_separator}"
    )
