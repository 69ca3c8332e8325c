"""A conversation as tokens: what the policy is shown at each turn (the papers' Context Manager).

A prompt is put together from recorded ids only: the opening, the contents of each user turn, and
each response exactly as it was sampled. With the whole history the prompt of turn k+1 is the prompt
of turn k, response k and the feedback, token for token. A window that forgets old turns keeps the
system message and the instructions and starts at a later user turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from echoscope.store.models import token_span
from echoscope.store.records import IntArray, Span
from echoscope.text.replies import ParsedResponse, parse_response

from ..config.settings import ContextConfig
from .chat import ChatFormat, ChatFormatError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """What is sampled from at one turn."""

    tokens: IntArray  # (Lp,)
    first_turn: int
    """The oldest turn it shows."""
    fits: bool
    """False if it is longer than `max_prompt_tokens`: the episode cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What a response says, in characters of its text and in tokens."""

    text: str
    parsed: ParsedResponse
    reasoning_span: Span | None
    """Half-open slice of the response's tokens."""


class Conversation:
    """One episode: alternately `prompt` for a user turn and `respond` with what was sampled.

    Raises:
        ChatFormatError: the chat template opens the reasoning itself and `reasoning` is off.
    """

    def __init__(self, chat: ChatFormat, config: ContextConfig, instructions: str = "") -> None:
        if chat.template_forces_think and not config.reasoning:
            raise ChatFormatError(
                "the chat template ends every prompt with <think>, so context.reasoning must be "
                "true for this model"
            )
        self._chat = chat
        self._config = config
        # Encoded apart from the first observation, so that a window can keep it for a later one.
        head = f"{instructions}\n\n" if config.instructions and instructions else ""
        self._head = chat.opening(config.system) + chat.encode(head)
        self._users: list[list[int]] = []
        self._responses: list[IntArray] = []

    def prompt(self, observation: str, *, last_reward: float | None = None) -> Prompt:
        """The prompt of the next turn.

        Args:
            last_reward: reward of the turn before, None at the first.

        Raises:
            ValueError: the turn before has no response yet.
        """
        if len(self._users) != len(self._responses):
            raise ValueError(f"turn {len(self._responses)} has no response yet")
        self._users.append(self._chat.encode(user_text(self._config, observation, last_reward)))
        turn = len(self._responses)
        window = self._config.history_turns
        first = 0 if window is None else max(0, turn + 1 - window)
        tokens = self._assemble(first)
        limit = self._config.max_prompt_tokens
        if self._config.on_long_prompt == "drop_oldest":
            while len(tokens) > limit and first < turn:
                first += 1
                tokens = self._assemble(first)
        return Prompt(
            tokens=np.array(tokens, np.int32), first_turn=first, fits=len(tokens) <= limit
        )

    def respond(self, tokens: IntArray) -> Reading:
        """Record the response to the last prompt and read it.

        Raises:
            ValueError: there is no prompt that waits for a response.
        """
        if len(self._users) != len(self._responses) + 1:
            raise ValueError("there is no prompt that waits for a response")
        self._responses.append(tokens)
        return read_response(self._chat, self._config, tokens)

    def _assemble(self, first: int) -> list[int]:
        """The prompt of the present turn with the history from turn `first` on."""
        out = list(self._head)
        to_assistant = self._chat.to_assistant(self._config.force_think)
        for turn in range(first, len(self._users)):
            if turn > first:
                response = self._responses[turn - 1]
                out += response.tolist()
                out += self._chat.to_user(response)
            out += self._users[turn]
            out += to_assistant
        return out


def user_text(config: ContextConfig, observation: str, last_reward: float | None) -> str:
    """Contents of a user turn, without the instructions that open the first one."""
    parts = []
    if config.show_reward and last_reward is not None:
        parts.append(f"Reward: {last_reward:g}")
    parts.append(observation)
    if config.format_hint:
        parts.append(format_hint(config))
    return "\n".join(parts)


def format_hint(config: ContextConfig) -> str:
    """One line that says how a reply must look."""
    reasoning = "<think>your reasoning</think>" if config.reasoning else ""
    return (
        f"Reply with {reasoning}<answer>your action</answer> and nothing else; where several "
        f"actions are allowed, separate them with {config.action_separator}"
    )


def read_response(chat: ChatFormat, config: ContextConfig, tokens: IntArray) -> Reading:
    """Decode and parse a response; `tokens` (Lr,) with its stop token, if it has one."""
    text, ends = chat.decode_response(tokens)
    parsed = parse_response(
        text,
        reasoning=config.reasoning,
        forced_think=chat.forces_think(config.force_think),
        action_separator=config.action_separator,
    )
    return Reading(
        text=text, parsed=parsed, reasoning_span=token_span(parsed.reasoning_chars, ends)
    )
