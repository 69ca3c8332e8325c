"""Tokens as text, by the tokenizer that a run sampled with; without torch."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

MAX_BYTES = 64_000_000
MAX_TOKENIZERS = 4
_ASSETS = Path(__file__).parents[2] / "core" / "assets"
_ASSET_NAME = re.compile(r"[a-z0-9_-]+")


@dataclass(slots=True)
class TokenTexts:
    """Tokenizers of a few runs. May be used from several threads."""

    _known: dict[Path, Tokenizer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pieces(
        self, run: Path, folders: Sequence[Path], token_ids: Sequence[int]
    ) -> list[str] | None:
        """The text of each token; None where no folder has a tokenizer.

        A character of several tokens belongs to the last of them; the others are empty.
        """
        with self._lock:
            tokenizer = self._known.get(run)
            if tokenizer is None:
                tokenizer = next((t for t in map(_load, folders) if t is not None), None)
                if tokenizer is None:
                    return None
                while len(self._known) >= MAX_TOKENIZERS:
                    self._known.pop(next(iter(self._known)))
                self._known[run] = tokenizer
        return _pieces(tokenizer, [int(token) for token in token_ids])

    def clear(self) -> None:
        with self._lock:
            self._known.clear()


def asset_folder(model: str) -> Path | None:
    """The folder of a policy that comes with Echoscope; None for any other model."""
    return _ASSETS / model if _ASSET_NAME.fullmatch(model) else None


def _load(folder: Path) -> Tokenizer | None:
    path = folder / "tokenizer.json"
    # A link may lead out of the run, and a file that large is not one of ours.
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        return None
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception:  # noqa: BLE001 -- the library raises nothing narrower for a damaged file
        return None


def _pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    out: list[str] = []
    start, before = 0, ""
    for index in range(len(ids)):
        text = tokenizer.decode(ids[start : index + 1], skip_special_tokens=False)
        if text.endswith("\ufffd") and index + 1 < len(ids):
            out.append("")  # perhaps the first bytes of a character
            if index - start < 8:
                continue
        else:
            out.append(text[len(before) :])
        start, before = index, tokenizer.decode([ids[index]], skip_special_tokens=False)
    return out
