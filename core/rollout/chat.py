r"""The chat format of a tokenizer as token ids: what stands around the contents of a conversation.

The chat template is rendered once, with marks in place of the contents, and cut at the marks. The
pieces become tokens with control tokens recognised; contents become tokens without, so text of a
world or a model that spells a control token stays text. Nothing sampled is ever tokenised again.

    opening            <|im_start|>system\n [system] <|im_end|>\n<|im_start|>user\n
    [first user turn]
    to_assistant       <|im_end|>\n<|im_start|>assistant\n, and <think> where it is forced
    [response]         sampled, up to and with its <|im_end|>
    to_user            \n<|im_start|>user\n
    [next user turn]
    to_assistant       as above
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from echoscope.store.models import Detokenizer
from echoscope.store.records import IntArray
from echoscope.text.replies import THINK_OPEN

_MARK = "\ue000{name}\ue001"
_MARK_PATTERN = re.compile("\ue000([a-z0-9]+)\ue001")
# Templates that print today's date print this one: a run must not depend on its first day.
_FIXED_DATE = "{%- macro strftime_now(format) -%}2024-07-26{%- endmacro -%}"


class ChatFormatError(ValueError):
    """A tokenizer cannot be loaded, or its chat template does not work for turns of dialogue."""


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer that `tokenizer.json` describes, to the letter.

    `AutoTokenizer` puts Qwen2's own pre-tokenizer into any folder of that model type and so gives
    other ids than the file; it is asked only where there is no such file.

    Raises:
        ChatFormatError: no fast tokenizer can be made of what is there.
    """
    reasons = []
    for loader in (PreTrainedTokenizerFast, AutoTokenizer):
        try:
            # Never the code of a folder: without the word, transformers asks whether to run it.
            tokenizer = loader.from_pretrained(path, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reasons.append(" ".join(str(error).split())[:200])
            continue
        if isinstance(tokenizer, PreTrainedTokenizerBase) and tokenizer.is_fast:
            return tokenizer
        reasons.append(f"{type(tokenizer).__name__} is not a fast tokenizer")
    raise ChatFormatError(f"cannot load a tokenizer from {str(path)!r}: {'; '.join(reasons)}")


def load_chat(path: str | Path) -> ChatFormat:
    """The chat format of a model folder or id, with all stop tokens that its model names.

    Raises:
        ChatFormatError: its tokenizer cannot be loaded, or has no usable chat template.
    """
    return ChatFormat(load_tokenizer(path), stop_token_ids=_generation_stops(path))


def _generation_stops(path: str | Path) -> tuple[int, ...]:
    """`eos_token_id` of `generation_config.json`, one id or several; none without the file."""
    try:
        stops = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        return ()
    if stops is None:
        return ()
    return tuple(int(i) for i in (stops if isinstance(stops, Sequence) else (stops,)))


class ChatFormat:
    """Token ids of the parts of a conversation. Holds no state of any one conversation.

    Attributes:
        turn_end_id: the control token that closes an assistant turn.
        stop_token_ids: where sampling stops: the turn's end, the tokenizer's end of text, and what
            the model's generation configuration names.
        pad_token_id: any valid id to fill rows with; never says what is padding.
        template_forces_think: the template itself ends a prompt with `<think>`.

    Raises:
        ChatFormatError: the tokenizer has no chat template, or one that this class cannot use.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, stop_token_ids: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._with_control = _backend(tokenizer, split_special=False)
        self._plain = _backend(tokenizer, split_special=True)
        self._detokenizer = Detokenizer(self._with_control)
        first, after_response, to_assistant = self._dialogue_pieces()
        self.template_forces_think = to_assistant.rstrip().endswith(THINK_OPEN)
        self._to_assistant = {
            False: self._encode_control(to_assistant),
            True: self._encode_control(
                to_assistant + ("" if self.template_forces_think else THINK_OPEN)
            ),
        }
        closing = self._encode_control(after_response)
        self.turn_end_id = self._check_turn_end(closing, after_response)
        self._after_turn = closing[1:]
        self._first = first
        ends = (self.turn_end_id, tokenizer.eos_token_id, *stop_token_ids)
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys(i for i in ends if i is not None)
        )
        pad = tokenizer.pad_token_id
        self.pad_token_id: int = self.stop_token_ids[0] if pad is None else pad

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabulary: the same token ids mean the same text where it is equal."""
        vocabulary = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        text = json.dumps(vocabulary, separators=(",", ":"))
        return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()

    def forces_think(self, force_think: bool) -> bool:
        """Whether a prompt really ends inside the reasoning."""
        return force_think or self.template_forces_think

    def opening(self, system: str) -> list[int]:
        """Everything before the contents of the first user turn."""
        if not system:
            return self._encode_control(self._first[0])
        before, between = self._first[1], self._first[2]
        return self._encode_control(before) + self.encode(system) + self._encode_control(between)

    def to_assistant(self, force_think: bool) -> list[int]:
        """From the contents of a user turn to the first token to sample."""
        return self._to_assistant[force_think]

    def to_user(self, response_tokens: Sequence[int] | IntArray) -> list[int]:
        """From a response to the contents of the next user turn.

        Supplies the turn's end if the response was cut off or ended with another stop token.
        """
        is_closed = len(response_tokens) > 0 and int(response_tokens[-1]) == self.turn_end_id
        return self._after_turn if is_closed else [self.turn_end_id, *self._after_turn]

    def encode(self, text: str) -> list[int]:
        """Contents to ids. Control tokens that the text spells stay text."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_response(self, text: str) -> IntArray:
        """A demonstrated response with the turn's end, as a policy should sample it."""
        return np.array([*self.encode(text), self.turn_end_id], np.int32)

    def decode(self, tokens: Sequence[int] | IntArray) -> str:
        """Every token as text, control tokens included, for people."""
        return self._detokenizer.decode(tokens)[0]

    def decode_response(self, tokens: IntArray) -> tuple[str, list[int]]:
        """A response without its stop token, and where each token's text ends.

        Returns:
            The text, and for each token but the stop token the number of characters after it.
        """
        has_stop = len(tokens) > 0 and int(tokens[-1]) in self.stop_token_ids
        return self._detokenizer.decode(tokens[:-1] if has_stop else tokens)

    def _encode_control(self, text: str) -> list[int]:
        return list(self._with_control.encode(text, add_special_tokens=False).ids)

    def _dialogue_pieces(self) -> tuple[tuple[str, str, str], str, str]:
        """((opening without system, opening, system to user), response to user, user to response).

        The last two are read off a dialogue of three turns and must be the same every time.
        """
        roles = ["user", "assistant", "user", "assistant", "user"]
        bare = self._pieces(roles)
        to_assistant = bare[-1]
        if bare[2] != bare[4]:
            raise ChatFormatError(
                "the chat template renders a later turn differently from an earlier one "
                f"({bare[2]!r}, then {bare[4]!r}), so a prompt cannot extend the one before it"
            )
        try:
            opening, between = self._pieces(["system", *roles])[:2]
        except (TemplateError, ChatFormatError):
            # A template without system messages: they open the first user turn instead.
            opening, between = bare[0], "\n\n"
        first = (bare[0], opening, between)
        if self._pieces(["user"])[1] != to_assistant:
            raise ChatFormatError(
                "the chat template opens the first reply differently from later ones, so a prompt "
                "cannot extend the one before it"
            )
        return first, bare[2], to_assistant

    def _pieces(self, roles: Sequence[str]) -> list[str]:
        """What the template puts before, between and after the contents of these messages."""
        messages = [
            {"role": role, "content": _MARK.format(name=f"{role}{index}")}
            for index, role in enumerate(roles)
        ]
        if self._tokenizer.chat_template is None:
            raise ChatFormatError(
                "the tokenizer has no chat template; set `chat_template` in tokenizer_config.json"
            )
        rendered: Any = self._tokenizer.apply_chat_template(
            messages,
            chat_template=_FIXED_DATE + self._tokenizer.get_chat_template(),
            tokenize=False,
            add_generation_prompt=True,
        )
        pieces = _MARK_PATTERN.split(rendered)
        wanted = [f"{role}{index}" for index, role in enumerate(roles)]
        if pieces[1::2] != wanted:
            raise ChatFormatError(
                f"the chat template renders the messages {wanted} as {pieces[1::2]}; each must "
                "appear once, in order"
            )
        return pieces[::2]

    def _check_turn_end(self, closing: list[int], text: str) -> int:
        control = {
            index for index, token in self._tokenizer.added_tokens_decoder.items() if token.special
        }
        if not closing or closing[0] not in control | {self._tokenizer.eos_token_id}:
            raise ChatFormatError(
                f"the chat template closes a reply with {text[:40]!r}, which does not begin with "
                "a control token, so a reply could not end itself"
            )
        return closing[0]


def _backend(tokenizer: PreTrainedTokenizerBase, *, split_special: bool) -> Tokenizer:
    """A copy of the fast tokenizer with a fixed treatment of control tokens.

    The library's own switch changes the tokenizer it is called on, for every later caller.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ChatFormatError(f"{type(tokenizer).__name__} is not a fast tokenizer")
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = split_special
    return copy
