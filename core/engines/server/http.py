"""Requests to one sampling server: JSON there and back, each with a deadline and new attempts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from echoscope.envs.worlds.remote.http_client import (
    HttpClient,
    HttpError,
    LateAnswerError,
    NoConnectionError,
    retried,
)
from echoscope.text.network import is_http_url

from ...config.loading import ConfigError
from ..base import EngineError

MAX_ANSWER_BYTES = 256 << 20
ANSWER_S = 600.0
"""Longest wait for one answer, connection and all; then it is asked again."""
RETRIES = 2
"""Further attempts of a request that failed or took too long."""
_PAUSE_S = 0.25
"""Before the second attempt; each further one waits twice as long."""
_KEY_WAY_OUT = (
    "; set engine.api_key_env to the name of an environment variable, and put the server's key "
    "into that variable"
)


class ServerRefusedError(EngineError):
    """The server answered, but with another status than 200."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class HttpServer:
    """One server, for many threads.

    Args:
        url: `http://host:port`, or with https and a path before the server's own.
        retries: further attempts after a failed one; None for `RETRIES`.
        api_key: goes along as a bearer token, if there is one.
    """

    def __init__(self, url: str, *, retries: int | None = None, api_key: str | None = None) -> None:
        if not is_http_url(url):
            raise ConfigError(f"engine.url is {url!r}, but must look like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._retries = RETRIES if retries is None else retries
        self._client = HttpClient(self.url, max_bytes=MAX_ANSWER_BYTES, token=api_key or "")
        self._num_aborts = 0
        self.num_retries = 0
        """Attempts that were made again, since somebody set this to 0."""

    def without_retries(self) -> HttpServer:
        """The same server, for what must not be asked twice."""
        return HttpServer(self.url, retries=0, api_key=self._api_key)

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        is_text: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """The server's answer to a POST, parsed from JSON; None for an empty one.

        Args:
            is_text: the answer is no JSON, and is not read.
            timeout_s: None for `ANSWER_S`.

        Raises:
            ServerRefusedError: the server answered with an error, in every attempt.
            EngineError: no answer within the deadline, or no JSON, in every attempt.
        """
        payload = None if body is None else json.dumps(body).encode("ascii")
        text = self._asked("POST", path, payload, ANSWER_S if timeout_s is None else timeout_s)
        return None if is_text else self._parsed(path, text)

    def get(self, path: str, *, timeout_s: float = ANSWER_S) -> Any:
        """The server's answer to a GET, as `post`."""
        text = self._asked("GET", path, None, timeout_s)
        return self._parsed(path, text)

    def abort(self) -> None:
        """Cut off what is under way in other threads: their calls fail at once."""
        self._num_aborts += 1
        self._client.cancel()

    def _asked(self, method: str, path: str, payload: bytes | None, timeout_s: float) -> str:
        num_aborts = self._num_aborts
        attempt = partial(self._tried, method, path, payload, timeout_s)

        def may_go_on() -> bool:
            if self._num_aborts != num_aborts:
                return False
            self.num_retries += 1
            return True

        try:
            return retried(attempt, retries=self._retries, pause_s=_PAUSE_S, may_go_on=may_go_on)
        except HttpError as error:
            tries = f" ({error.num_attempts} attempts)" if error.num_attempts > 1 else ""
            sentence = f"{self.url}{path} {error}{tries}"
            if error.status:
                raise ServerRefusedError(sentence, error.status) from None
            raise EngineError(sentence) from None

    def _tried(self, method: str, path: str, payload: bytes | None, timeout_s: float) -> str:
        try:
            answer = self._client.ask(method, path, payload, timeout_s=timeout_s)
        except LateAnswerError as error:
            raise HttpError(
                f"{error}: look at the server, or lower context.max_response_tokens",
                is_worth_a_retry=True,
            ) from None
        except NoConnectionError as error:
            raise HttpError(f"cannot be reached: {error}", is_worth_a_retry=True) from None
        text = answer.body.decode("utf-8", errors="replace")
        if answer.status != 200:
            way_out = _KEY_WAY_OUT if answer.status in (401, 403) else ""
            clause = f"answered {answer.status}: {_in_one_line(text)}{way_out}"
            raise HttpError(clause, status=answer.status)
        return text

    def _parsed(self, path: str, text: str) -> Any:
        try:
            return json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            raise EngineError(
                f"{self.url}{path} answered what is no JSON: {_in_one_line(text)}"
            ) from None


def _in_one_line(text: str) -> str:
    """The server's words without control characters."""
    line = "".join(char if char.isprintable() else " " for char in text[:800])
    line = " ".join(line.split())
    return line if len(line) <= 200 else line[:200] + "..."
