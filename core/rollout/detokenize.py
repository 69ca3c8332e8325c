"""Token ids to text, with the place in the text where each token ends."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders

from echoscope.store.records import IntArray, Span

_MAX_PENDING = 8
"""Tokens that may wait for the rest of a character; more are not one character."""


class Detokenizer:
    """Decodes with offsets. A character belongs to the token that completes it.

    Byte-level tokenizers (GPT-2, Qwen, Llama 3, the shipped policy) are decoded byte by byte, exact
    for any ids. Others (SentencePiece) are decoded in short windows.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_of = _byte_alphabet()
        self._is_byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._bytes_of_token: dict[int, bytes] = {}

    def decode(self, tokens: Sequence[int] | IntArray) -> tuple[str, list[int]]:
        """The text and, per token, the number of characters after it.

        Incomplete characters become U+FFFD. Ids outside the vocabulary decode to nothing.
        """
        ids = [int(token) for token in tokens]
        return self._decode_bytes(ids) if self._is_byte_level else self._decode_windows(ids)

    def _decode_bytes(self, ids: list[int]) -> tuple[str, list[int]]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces: list[str] = []
        ends: list[int] = []
        size = 0
        for position, token in enumerate(ids):
            piece = decoder.decode(self._token_bytes(token), final=position == len(ids) - 1)
            size += len(piece)
            pieces.append(piece)
            ends.append(size)
        return "".join(pieces), ends

    def _token_bytes(self, token: int) -> bytes:
        known = self._bytes_of_token.get(token)
        if known is None:
            spelled = self._tokenizer.id_to_token(token) or ""
            if all(char in self._byte_of for char in spelled):
                known = bytes(self._byte_of[char] for char in spelled)
            else:  # an added token, spelled as it reads
                known = spelled.encode("utf-8", errors="replace")
            self._bytes_of_token[token] = known
        return known

    def _decode_windows(self, ids: list[int]) -> tuple[str, list[int]]:
        """A window reaches back to the last token whose text was complete, because what a token
        reads like depends on the one before it."""
        text, ends = "", []
        start = done = 0
        for position in range(1, len(ids) + 1):
            known = self._raw(ids[start:done])
            window = self._raw(ids[start:position])
            is_pending = window.endswith("\ufffd") and position - done < _MAX_PENDING
            if not is_pending or position == len(ids):
                text += window[len(known) :]
                start, done = done, position
            ends.append(len(text))
        return text, ends

    def _raw(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def token_span(chars: Span | None, ends: Sequence[int] | IntArray) -> Span | None:
    """The tokens whose text lies wholly inside `chars`.

    A token that straddles an edge stays outside: it belongs to the tag. `ends` as returned by
    `Detokenizer.decode`, for the tokens that may count.
    """
    if chars is None:
        return None
    starts = [0, *ends[:-1]] if len(ends) else []
    first = sum(start < chars[0] for start in starts)
    last = sum(end <= chars[1] for end in ends)
    return (first, max(first, last))


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level tokenizers write for each byte (GPT-2)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + rank): byte for rank, byte in enumerate(moved)
    }
