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
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from jinja2 import Environment, TemplateError, meta
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from echoscope.store.models import Detokenizer
from echoscope.store.records import IntArray
from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.replies import THINK_CLOSE, THINK_OPEN

_MARK = "\ue000{name}\ue001"
_MARK_PATTERN = re.compile("\ue000([a-z0-9]+)\ue001")
_EXTENSIONS = ("jinja2.ext.loopcontrols", "jinja2.ext.do")
_OWN_ARGUMENTS = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
        "raise_exception",
        "strftime_now",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
    }
)
"""What a template is given by the tokenizer and by us."""
_NUM_RECENT = 256
"""Texts whose ids are kept."""
_MESSAGE_END = "<|eom_id|>"
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
    reasons: list[str] = []
    for loader in (PreTrainedTokenizerFast, AutoTokenizer):
        try:
            # Never the code of a folder: without the word, transformers asks whether to run it.
            tokenizer = loader.from_pretrained(path, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            reasons += [reason] if reason not in reasons else []
            continue
        if not isinstance(tokenizer, PreTrainedTokenizerBase) or not tokenizer.is_fast:
            reasons.append(f"{type(tokenizer).__name__} is not a fast tokenizer")
        elif not tokenizer("up", add_special_tokens=False).input_ids:
            # transformers makes an empty one from a folder that has lost its vocabulary.
            reasons.append(f"the {type(tokenizer).__name__} has no vocabulary")
        else:
            return tokenizer
    if Path(path).is_dir() and not (Path(path) / "tokenizer.json").is_file():
        reasons = [
            "it has no tokenizer.json; copy the tokenizer's files from the model that it was made "
            f"from ({shorten('; '.join(reasons), 200, placeholder='...')})"
        ]
    raise ChatFormatError(f"cannot load a tokenizer from {str(path)!r}: {'; '.join(reasons)}")


def load_chat(path: str | Path, template_args: Mapping[str, Any] | None = None) -> ChatFormat:
    """The chat format of a model folder or id, with all stop tokens that its model names.

    Args:
        template_args: arguments of the chat template.

    Raises:
        ChatFormatError: its tokenizer cannot be loaded, or has no usable chat template.
    """
    return ChatFormat(
        load_tokenizer(path),
        stop_token_ids=_generation_stops(path),
        template_args=template_args or {},
    )


def check_vocabulary(chat: ChatFormat, rows: int) -> None:
    """Refuse a tokenizer whose ids the model has no embeddings for; spare embeddings are fine.

    Many models pad their vocabulary. An id beyond the tokenizer may be sampled: it decodes to no
    text, stays in the prompts that follow, and trains like any other.

    Raises:
        ChatFormatError: the tokenizer has an id of `rows` or more, or ids for less than half of
            them, which no padding explains.
    """
    largest = max(chat.tokenizer.get_vocab().values(), default=-1)
    is_far_smaller = 2 * (largest + 1) < rows
    if is_far_smaller or largest >= rows:
        raise ChatFormatError(
            f"the tokenizer has ids up to {largest}, but the model has embeddings for {rows} "
            f"tokens{', more than twice as many' * is_far_smaller}: the tokenizer belongs to "
            "another model; copy the model's own"
        )


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
        template_closes_think: it ends a prompt with `</think>`: there is no reasoning to sample.

    Raises:
        ChatFormatError: the tokenizer has no chat template, or one that this class cannot use.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_token_ids: Sequence[int] = (),
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._template_args = dict(template_args or {})
        self._check_template_args()
        self._with_control = _backend(tokenizer, split_special=False)
        self._plain = _backend(tokenizer, split_special=True)
        # Siblings begin with equal texts, and all episodes with an equal opening.
        self._content_ids = lru_cache(_NUM_RECENT)(partial(_ids, self._plain))
        self._template_ids = lru_cache(_NUM_RECENT)(partial(_ids, self._with_control))
        self._detokenizer = Detokenizer(self._with_control)
        first, to_shown_reply, after_response, to_assistant = self._dialogue_pieces()
        self.history_to_assistant = self.encode_template(to_shown_reply)
        """From a user turn to a reply that is shown, not sampled."""
        self.template_forces_think = to_assistant.rstrip().endswith(THINK_OPEN)
        self.template_closes_think = to_assistant.rstrip().endswith(THINK_CLOSE)
        self._to_assistant = {
            False: self.encode_template(to_assistant),
            True: self.encode_template(
                to_assistant + ("" if self.template_forces_think else THINK_OPEN)
            ),
        }
        closing = self.encode_template(after_response)
        self.turn_end_id = self._check_turn_end(closing, after_response)
        self._after_turn = closing[1:]
        self._first = first
        # Llama 3.1 ends a message that calls a tool with a control token of its own.
        self._message_end_id = self._control_ids.get(_MESSAGE_END)
        ends = (
            self.turn_end_id, tokenizer.eos_token_id, self._message_end_id, *stop_token_ids
        )  # fmt: skip
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys(i for i in ends if i is not None)
        )
        pad = tokenizer.pad_token_id
        self.pad_token_id: int = self.stop_token_ids[0] if pad is None else pad

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabulary: the same token ids mean the same text where it is equal."""
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        text = json.dumps(vocabulary, separators=(",", ":"))
        return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()

    def forces_think(self, force_think: bool) -> bool:
        """Whether a prompt really ends inside the reasoning."""
        return force_think or self.template_forces_think

    def opening(self, system: str) -> list[int]:
        """Everything before the contents of the first user turn."""
        if not system:
            return self.encode_template(self._first[0])
        before, between = self._first[1], self._first[2]
        return self.encode_template(before) + self.encode(system) + self.encode_template(between)

    def to_assistant(self, force_think: bool) -> list[int]:
        """From the contents of a user turn to the first token to sample."""
        return self._to_assistant[force_think]

    def to_user(self, response_tokens: Sequence[int] | IntArray) -> list[int]:
        """From a response to the contents of the next user turn.

        Supplies the turn's end if the response was cut off or ended with another stop token.
        """
        return self.closing(response_tokens) + self._after_turn

    def closing(self, response_tokens: Sequence[int] | IntArray) -> list[int]:
        """The turn's end where the response has none of its own; else nothing."""
        last = int(response_tokens[-1]) if len(response_tokens) else None
        is_closed = last is not None and last in (self.turn_end_id, self._message_end_id)
        return [] if is_closed else [self.turn_end_id]

    def encode(self, text: str) -> list[int]:
        """Contents to ids. Control tokens that the text spells stay text."""
        return list(self._content_ids(text))

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

    def control_word_in(self, text: str) -> str | None:
        """The first control token that a text spells; None if it spells none."""
        return next((word for word in self._control_ids if word in text), None)

    @cached_property
    def _control_ids(self) -> dict[str, int]:
        """Control tokens as text, with their ids."""
        return {
            token.content: index
            for index, token in self.tokenizer.added_tokens_decoder.items()
            if token.special
        }

    def encode_template(self, text: str) -> list[int]:
        """Text of the template itself to ids, control tokens recognised."""
        return list(self._template_ids(text))

    def _dialogue_pieces(self) -> tuple[tuple[str, str, str], str, str, str]:
        """Text between the contents of messages.

        That is (opening without system, opening, system to user), then from a user turn to a reply
        of the past, from a reply to the user, from a user turn to the reply to sample. The last two
        are read off a dialogue of three turns and must be the same every time.
        """
        roles = ["user", "assistant", "user", "assistant", "user"]
        bare = self.pieces(roles)
        to_assistant = bare[-1]
        if bare[2] != bare[4]:
            raise ChatFormatError(
                "the chat template renders a later turn differently from an earlier one "
                f"({bare[2]!r}, then {bare[4]!r}), so a prompt cannot extend the one before it"
            )
        try:
            opening, between = self.pieces(["system", *roles])[:2]
        except ChatFormatError:
            # A template without system messages: they open the first user turn instead.
            opening, between = bare[0], "\n\n"
        first = (bare[0], opening, between)
        if self.pieces(["user"])[1] != to_assistant:
            raise ChatFormatError(
                "the chat template opens the first reply differently from later ones, so a prompt "
                "cannot extend the one before it"
            )
        return first, bare[1], bare[2], to_assistant

    def pieces(
        self,
        roles: Sequence[str],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        extra: str = "",
    ) -> list[str]:
        """What the template puts before, between and after the contents of these messages.

        Args:
            tools: declared to the template, in OpenAI's form.
            extra: follows each mark in the contents, and so begins each piece but the first, as
                the template escapes it.

        Raises:
            ChatFormatError: there is no template, it refuses these messages or fails, or it does
                not print each content once.
        """
        contents = [_MARK.format(name=f"{role}{index}") + extra for index, role in enumerate(roles)]
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, contents, strict=True)
        ]
        template = _FIXED_DATE + self.template(with_tools=bool(tools))
        try:
            rendered: Any = self.tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                tools=list(tools) or None,
                **self._template_args,
            )
        except Exception as error:  # a template is a program of whoever made the model
            why = shorten(f"{type(error).__name__}: {error}", 200, placeholder="...")
            raise ChatFormatError(f"the model's chat template fails ({why})") from error
        pieces = _MARK_PATTERN.split(rendered)
        expected = [f"{role}{index}" for index, role in enumerate(roles)]
        if pieces[1::2] != expected:
            raise ChatFormatError(
                f"the chat template renders the messages {expected} as {pieces[1::2]}; each must "
                "appear once, in order"
            )
        return pieces[::2]

    def _check_template_args(self) -> None:
        """Every argument is one that the template reads, and none that it is given anyway.

        Raises:
            ChatFormatError: it is not.
        """
        if not self._template_args:
            return
        read = _variables(self.template(with_tools=False)) | _variables(
            self.template(with_tools=True)
        )
        for name in self._template_args:
            if name in _OWN_ARGUMENTS or name not in read:
                free = sorted(read - _OWN_ARGUMENTS)
                hint = f"; it reads {', '.join(free)}" if free else "; it reads none"
                raise ChatFormatError(
                    f"context.template_args has {name!r}, which is no argument of this model's "
                    f"chat template{did_you_mean(name, free) or hint}"
                )

    def template(self, *, with_tools: bool) -> str:
        """The template's text. A tokenizer may have a second one for tools.

        Raises:
            ChatFormatError: there is none.
        """
        if self.tokenizer.chat_template is None:
            raise ChatFormatError(
                "the tokenizer has no chat template, as base models have none; name the chat model "
                "of the same family, or set `chat_template` in tokenizer_config.json"
            )
        try:
            return str(self.tokenizer.get_chat_template(tools=[{}] if with_tools else None))
        except ValueError as error:  # several templates, none of them the default
            raise ChatFormatError(" ".join(str(error).split())[:300]) from None

    def _check_turn_end(self, closing: list[int], text: str) -> int:
        ends = {*self._control_ids.values(), self.tokenizer.eos_token_id}
        if not closing or closing[0] not in ends:
            raise ChatFormatError(
                f"the chat template closes a reply with {text[:40]!r}, which does not begin with "
                "a control token, so a reply could not end itself"
            )
        return closing[0]


def _variables(template: str) -> set[str]:
    """The names that a template reads from whoever renders it."""
    try:
        return meta.find_undeclared_variables(Environment(extensions=_EXTENSIONS).parse(template))
    except TemplateError:  # a tag of the library's own
        return set(re.findall(r"[A-Za-z_]\w*", template))


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


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
