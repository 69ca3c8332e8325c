"""What a prompt showed, read from its tokens: the messages between a template's control tokens.

Turns store what the environment said. What the policy read has more around it: a system message,
the environment's rules, a hint on the form of a reply, an opened `<think>`. Only the tokens hold
that. Control tokens are told from text that spells them, because text is never tokenised as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..models import Detokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """How a family of chat templates opens and closes a message."""

    opens: Mapping[str, str]
    """Control token -> the role that it names; "" where the role is text after it."""
    closes: tuple[str, ...]
    header_ends: str = ""
    """What ends the name of the role: text, or a control token of its own."""
    after_header: str = ""
    """Text after the header that belongs to the template."""


_FAMILIES = (
    _Marks(opens={"<|im_start|>": ""}, header_ends="\n", closes=("<|im_end|>",)),
    _Marks(
        opens={"<|start_header_id|>": ""},
        header_ends="<|end_header_id|>",
        closes=("<|eot_id|>", "<|eom_id|>"),
        after_header="\n\n",
    ),
    _Marks(opens={"<start_of_turn>": ""}, header_ends="\n", closes=("<end_of_turn>",)),
    # Phi, Zephyr, and the shipped policies.
    _Marks(
        opens={f"<|{role}|>": role for role in ("system", "user", "assistant", "tool")},
        closes=("<|end|>", "</s>"),
        after_header="\n",
    ),
)
_MAX_FIRSTS = 256
_ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "ipython": "tool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """What a turn's prompt added to the prompt of the turn before."""

    messages: tuple[tuple[str, str], ...]
    """(role, content) of each message after the last reply that the prompt repeats."""
    opening: str
    """What the prompt already wrote of the reply, for example `<think>`."""


class ShownPrompts:
    """Reads the prompts of one run."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._firsts: dict[tuple[int, ...], ShownTurn | None] = {}
        """First prompts that were read: siblings share theirs."""

    def read(self, tokens: Sequence[int], *, is_first: bool) -> ShownTurn | None:
        """The messages in prompt tokens; None where no known chat template wrote them.

        Args:
            tokens: The whole prompt of the first turn; of a later one, what it has beyond the
                prompt and reply before.
        """
        if not is_first:
            return self._messages(tokens, is_first=False)
        key = tuple(tokens)
        if key not in self._firsts:
            if len(self._firsts) >= _MAX_FIRSTS:
                self._firsts.clear()
            self._firsts[key] = self._messages(key, is_first=True)
        return self._firsts[key]

    def _messages(self, tokens: Sequence[int], *, is_first: bool) -> ShownTurn | None:
        pieces = self._detokenizer.pieces(tokens)
        marks = next((family for family in _FAMILIES if family.opens.keys() & set(pieces)), None)
        if marks is None:
            return None
        messages_with_end = list(_split(pieces, marks))
        if any(role not in _ROLES for role, _, _ in messages_with_end):
            return None
        *before, (role, opening, is_closed) = messages_with_end
        if _ROLES[role] != "assistant" or is_closed:
            return None
        replies = [i for i, (name, _, _) in enumerate(before) if _ROLES[name] == "assistant"]
        start = replies[-1] + 1 if replies and not is_first else 0
        messages = tuple((_ROLES[name], text) for name, text, _ in before[start:])
        return ShownTurn(messages=messages, opening=opening) if messages else None


def _split(pieces: Sequence[str], marks: _Marks) -> Iterator[tuple[str, str, bool]]:
    """(role, content, whether it was closed) of each message."""
    role = ""
    text: list[str] | None = None
    for piece in pieces:
        if piece in marks.opens:
            if text is not None:
                yield (*_headed(role, "".join(text), marks), False)
            role, text = marks.opens[piece], []
        elif piece in marks.closes and text is not None:
            yield (*_headed(role, "".join(text), marks), True)
            text = None
        elif text is not None:
            text.append(piece)
    if text is not None:
        yield (*_headed(role, "".join(text), marks), False)


def _headed(role: str, text: str, marks: _Marks) -> tuple[str, str]:
    if not role:
        header, _, text = text.partition(marks.header_ends)
        role = header.strip()
    return role, text.removeprefix(marks.after_header)
