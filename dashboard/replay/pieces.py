"""Tokens as text, by the tokenizer that a run sampled with."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echoscope.store.models import Detokenizer, load_detokenizer

MAX_TOKENIZERS = 4


@dataclass(slots=True)
class TokenTexts:
    """Tokenizers of the runs that were shown last. May be used from several threads."""

    _loaded: dict[Path, Detokenizer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pieces(
        self, run: Path, folders: Iterable[Path], token_ids: Sequence[int]
    ) -> list[str] | None:
        """The text of each token; None where no folder has a tokenizer.

        A character of several tokens belongs to the last of them; the others are empty.
        """
        with self._lock:
            detokenizer = self._loaded.get(run) or load_detokenizer(folders)
            if detokenizer is None:
                return None
            while len(self._loaded) >= MAX_TOKENIZERS and run not in self._loaded:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[run] = detokenizer
        return detokenizer.pieces(token_ids)

    def clear(self) -> None:
        with self._lock:
            self._loaded.clear()
