"""What ends a reply before its limit: stop tokens, stop strings, and a piece that repeats itself.

Nothing here changes what is sampled, only where sampling ends: the tokens of a stop string or of a
repetition were sampled like any others, keep their log-probs, and train.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from echoscope.store.records import FinishReason

from ..config.loading import ConfigError
from .chat import ChatFormat

MAX_PERIOD = 32
"""Tokens of the longest piece whose repetition is noticed."""
_SLACK = 8
"""Tokens that a window has more than its stop string has characters: some tokens have no text."""


class StopSettings(Protocol):
    """What `SamplingConfig` says."""

    @property
    def stop(self) -> list[str]: ...
    @property
    def stop_token_ids(self) -> list[int]: ...
    @property
    def max_repeats(self) -> int | None: ...


class Stopping:
    """Where replies end, for one model.

    Raises:
        ConfigError: a stop token id that the tokenizer does not have.
    """

    def __init__(self, chat: ChatFormat, settings: StopSettings) -> None:
        size = len(chat.tokenizer)
        for index in settings.stop_token_ids:
            if index >= size:
                raise ConfigError(
                    f"sampling.stop_token_ids names {index}, but the tokenizer has {size} tokens"
                )
        self.token_ids = tuple(dict.fromkeys((*chat.stop_token_ids, *settings.stop_token_ids)))
        """A reply ends with any of these."""
        self._chat = chat
        self._strings = tuple(settings.stop)
        self._max_repeats = settings.max_repeats

    @property
    def watches(self) -> bool:
        """Whether replies must be watched token by token."""
        return bool(self._strings) or self._max_repeats is not None

    def watch(self) -> ReplyWatch:
        """A fresh watch for one reply."""
        return ReplyWatch(self._chat, self._strings, self._max_repeats)


class ReplyWatch:
    """Follows one reply token by token."""

    def __init__(self, chat: ChatFormat, strings: tuple[str, ...], max_repeats: int | None) -> None:
        self._chat = chat
        self._strings = strings
        self._max_repeats = max_repeats
        window = max([*map(len, strings), 0]) + _SLACK
        self._recent: deque[int] = deque(maxlen=max(window, MAX_PERIOD))
        self._window = window
        self._matches = [0] * (MAX_PERIOD + 1)
        """Per period: how many of the last tokens equal the one a period before them."""

    def ends(self, token: int) -> FinishReason | None:
        """Why the reply ends with this token; None if it goes on."""
        repeats = self._max_repeats is not None and self._repeats(token, self._max_repeats)
        self._recent.append(token)
        if self._strings and self._has_stop_string():
            return FinishReason.STOP
        return FinishReason.REPETITION if repeats else None

    def _repeats(self, token: int, most: int) -> bool:
        """Whether some piece now stands `most` times in a row at the end."""
        has_ended = False
        for period, earlier in enumerate(reversed(self._recent), start=1):
            if period > MAX_PERIOD:
                break
            self._matches[period] = self._matches[period] + 1 if earlier == token else 0
            has_ended = has_ended or self._matches[period] >= period * (most - 1)
        return has_ended

    def _has_stop_string(self) -> bool:
        """Whether the last token completes a stop string: one before it would have ended this."""
        text = self._chat.decode(list(self._recent)[-self._window :])
        return any(string in text for string in self._strings)
