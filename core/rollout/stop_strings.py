"""What ends a reply before its limit: stop tokens and stop strings.

Nothing here changes what is sampled, only where sampling ends: the tokens of a stop string were
sampled like any others, keep their log-probs, and train.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from echoscope.store.records import FinishReason

from ..config.loading import ConfigError
from ..config.settings import SamplingConfig
from .chat import ChatFormat

_SLACK = 8
"""Tokens that a window has more than its stop string has characters: some tokens have no text."""


class Stopping:
    """Where replies end, for one model.

    Raises:
        ConfigError: a stop token id that the tokenizer does not have.
    """

    def __init__(self, chat: ChatFormat, settings: SamplingConfig) -> None:
        size = len(chat.tokenizer)
        for index in settings.stop_token_ids:
            if index >= size:
                raise ConfigError(
                    f"sampling.stop_token_ids names {index}, but the tokenizer has {size} tokens"
                )
        self.token_ids = tuple(dict.fromkeys((*chat.stop_token_ids, *settings.stop_token_ids)))
        """A reply ends with any of these."""
        self.watch = partial(StopStringWatch, chat, tuple(settings.stop)) if settings.stop else None
        """Makes a fresh watch for one reply; None where none must be followed token by token."""


class StopStringWatch:
    """Follows one reply token by token."""

    def __init__(self, chat: ChatFormat, strings: tuple[str, ...]) -> None:
        self._chat = chat
        self._strings = strings
        self._recent: deque[int] = deque(maxlen=max(map(len, strings)) + _SLACK)

    def ends(self, token: int) -> FinishReason | None:
        """STOP if the token completes a stop string: one before it would have ended this."""
        self._recent.append(token)
        text = self._chat.decode(list(self._recent))
        return FinishReason.STOP if any(string in text for string in self._strings) else None
