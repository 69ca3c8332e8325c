"""Models as a run's files know them: those that come with the package, and their tokens as text.

Light: imports no torch.
"""

from __future__ import annotations

import codecs
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType

import numpy as np
from tokenizers import Tokenizer, decoders

from .log.layout import MODEL_NAME
from .records import CheckpointRecord, IntArray, Span

_ASSETS = Path(__file__).parents[1] / "core" / "assets"
_MAX_HEADER = 100_000_000
_MAX_TOKENIZER = 64_000_000
"""Bytes of a `tokenizer.json`; a larger file is not the tokenizer of a run."""
_MAX_PENDING = 8
"""Tokens that may wait for the rest of a character; more are not one character."""

SHIPPED: Mapping[str, str] = MappingProxyType(
    {
        "tiny": "Qwen2 shape; plays bandit, frozen_lake and small sokoban boards by name of arm "
        "and relative observation",
        "tiny-puzzles": "Qwen2 shape; plays small tasks of countdown, sudoku, game_2048 (relative "
        "observations) and rubiks, and made word problems",
    }
)
"""Name -> one line on what it can do."""


def cache_folder() -> Path:
    """What can be fetched again lies here: `$ECHOSCOPE_CACHE`, or in the user's cache."""
    if own := os.environ.get("ECHOSCOPE_CACHE"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "echoscope"


def shipped_folder(name: str) -> Path:
    """Where a shipped model lies; KeyError for a name that is not shipped."""
    if name not in SHIPPED:
        raise KeyError(name)
    return _ASSETS / name


def weight_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor of a safetensors file, from its header alone.

    Raises:
        OSError, ValueError: it cannot be read, or is no such file.
    """
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > _MAX_HEADER:
            raise ValueError(f"{file.name} is not a safetensors file")
        header = json.loads(opened.read(size))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def tokenizer_folders(
    run: Path, base_model: str, checkpoints: Iterable[CheckpointRecord]
) -> list[Path]:
    """Where the tokenizer of a run may lie, the likeliest place first.

    Each checkpoint has a copy. A run without a checkpoint has the tokenizer of the shipped policy
    that the run began from. Other models are not looked up: the name comes from the run's files,
    which may be somebody else's.
    """
    folders = [run / checkpoint.path / MODEL_NAME for checkpoint in checkpoints]
    return folders + ([shipped_folder(base_model)] if base_model in SHIPPED else [])


def load_detokenizer(folders: Iterable[Path]) -> Detokenizer | None:
    """The tokenizer of the first folder that has one; None where no folder does.

    A damaged `tokenizer.json`, one of more than 64 MB, and a link (a link may lead out of the run)
    count as absent.
    """
    loaded = (_tokenizer(folder / "tokenizer.json") for folder in folders)
    return next((Detokenizer(tokenizer) for tokenizer in loaded if tokenizer is not None), None)


def _tokenizer(path: Path) -> Tokenizer | None:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_TOKENIZER:
        return None
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception:  # noqa: BLE001 -- the library raises nothing narrower for a damaged file
        return None


class Detokenizer:
    """Turns token ids into text, and says where in the text each token ends.

    A character belongs to the token that completes it. Byte-level tokenizers (GPT-2, Qwen, Llama 3,
    the shipped policy) are decoded byte by byte, exact for any ids. Others (SentencePiece) are
    decoded in short windows.

    Why not `tokenizers.decoders.DecodeStream`: a stream waits for as long as the text ends with an
    incomplete character and decodes everything that waits at every step. 2,048 tokens of which none
    completes a character, which is what a collapsed policy samples, took 0.8 s instead of 0.01 s.
    And it gives the text of all that waited to the last token, so that the reasoning's tokens would
    be others than those of recorded runs.
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
        ids = np.asarray(tokens).tolist()
        return self._decode_bytes(ids) if self._is_byte_level else self._decode_windows(ids)

    def pieces(self, tokens: Sequence[int] | IntArray) -> list[str]:
        """The text of each token; empty for the first tokens of a character of several."""
        text, ends = self.decode(tokens)
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _decode_bytes(self, ids: list[int]) -> tuple[str, list[int]]:
        table = self._bytes_of_token
        contents = [table[token] if token in table else self._token_bytes(token) for token in ids]
        whole = b"".join(contents)
        if whole.isascii():  # nearly always: a byte is a character
            return whole.decode("ascii"), list(accumulate(map(len, contents)))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        *before, last = contents
        pieces = [*map(decoder.decode, before), decoder.decode(last, final=True)]
        return "".join(pieces), list(accumulate(map(len, pieces)))

    def _token_bytes(self, token: int) -> bytes:
        spelled = self._tokenizer.id_to_token(token) or ""
        if all(char in self._byte_of for char in spelled):
            content = bytes(self._byte_of[char] for char in spelled)
        else:  # an added token, spelled as it reads
            content = spelled.encode("utf-8", errors="replace")
        self._bytes_of_token[token] = content
        return content

    def _decode_windows(self, ids: list[int]) -> tuple[str, list[int]]:
        """A window reaches back to the last token whose text was complete, because what a token
        reads like depends on the one before it."""
        text, ends = "", []
        start = done = 0
        for position in range(1, len(ids) + 1):
            before = self._raw(ids[start:done])
            window = self._raw(ids[start:position])
            is_pending = window.endswith("\ufffd") and position - done < _MAX_PENDING
            if not is_pending or position == len(ids):
                text += window[len(before) :]
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
    first = bisect_left(starts, chars[0])
    last = bisect_right(ends, chars[1])
    return (first, max(first, last))


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level tokenizers write for each byte (GPT-2)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + rank): byte for rank, byte in enumerate(moved)
    }
