"""Remote: any environment that `echoscope envs serve`, or another server, plays over HTTP."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from echoscope.text.network import STATUSES_OF_A_PROXY
from echoscope.text.strict_json import parsed_json

from ...base import (
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    EnvValueError,
    Observation,
    StepResult,
    TextEnv,
    Tool,
    check_seed,
    checked_opening,
    checked_result,
    shorten,
)
from ...params import require
from .http_client import (
    HttpAnswer,
    HttpClient,
    HttpError,
    LateAnswerError,
    NoConnectionError,
    checked_url,
    retried,
)
from .protocol import (
    MAX_BODY_BYTES,
    TOKEN_VARIABLE,
    OpenedWorld,
    ProtocolError,
    R,
    StepAnswer,
    WorldHint,
    encoded,
    read_answer,
)

T = TypeVar("T")
RETRIES = 2
"""Further attempts after a connection failed; every request may be repeated."""
_CLOSE_S = 2.0
"""Seconds that taking leave of a server may take."""
_POLL_S = 0.25
"""Between two looks whether a server is back."""


class RemoteError(EnvUnavailableError):
    """A remote environment failed; one sentence says how."""


class UnreachableError(RemoteError):
    """Nobody answers at the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """Where a world is played.

    `url`: of the server. `env`: the id of the world there; null where the server has only one.
    `params`: of that world, where the server lets its clients set them. `timeout_s`: seconds that
    one answer may take. `wait_s`: seconds that new episodes wait for a server that has gone.
    `token_env`: environment variable that holds the server's token. The default may be unset if the
    server needs no token. If you name another variable, it must be set.
    """

    url: str | None = None
    env: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0
    wait_s: float = 60.0
    token_env: str = TOKEN_VARIABLE

    def __post_init__(self) -> None:
        if self.url is not None:
            checked_url("url", self.url, "http://127.0.0.1:8700")
        require(
            0 < self.timeout_s <= 86_400,
            f"timeout_s is {self.timeout_s:g}, but must lie above 0 and at most at 86400",
        )
        require(
            0 <= self.wait_s <= 86_400,
            f"wait_s is {self.wait_s:g}, but must lie between 0 and 86400",
        )


class Remote(TextEnv):
    """Any world, played by a server over HTTP.

    Description:
        `echoscope envs serve frozen_lake` has the world; this class plays it from another process
        or machine. Episodes are those of the same world played here.
    Observation:
        The served world's.
    Actions:
        The served world's.
    Rewards:
        The served world's.
    Episode end:
        The served world's. An episode whose server has gone, or answers wrongly or late, ends with
        `env_error`, and the next one waits for the server.
    Success:
        The served world's.
    Seeds:
        Both go to the server.
    Requires:
        A server: `echoscope envs serve ENV`, and its address in `url`. The limits of an episode are
        set here: `max_turns` and `max_actions_per_turn` of the entry in `envs.train`.
    Example:
        >>> config = RemoteConfig(url="http://127.0.0.1:8700", env="frozen_lake")
        >>> config.timeout_s, config.wait_s
        (60.0, 60.0)
    """

    spec = EnvSpec(
        id="remote",
        config_type=RemoteConfig,
        max_turns=10,
        description="Any environment over HTTP, from `echoscope envs serve`.",
    )

    def __init__(self, config: RemoteConfig) -> None:
        super().__init__(config)
        if config.url is None:
            raise EnvUnavailableError(f"remote {self.lacks()}")
        self._config = config
        self._link = link_to(config.url, _token(config.token_env))
        self._name = secrets.token_hex(16)
        self._world: dict[str, Any] = {"params": dict(config.params)}
        if config.env is not None:
            self._world["env"] = config.env
        try:
            encoded(self._world)
        except (TypeError, ValueError, RecursionError) as error:
            raise EnvParamsError(f"params cannot be sent as JSON: {error}") from None
        self._number = 0
        self._latest: StepAnswer | None = None
        self._opened = self._begin("open", OpenedWorld)

    @classmethod
    def lacks(cls) -> str:
        return (
            "needs a server: start `echoscope envs serve ENV`, and give its address as the "
            "parameter url"
        )

    @property
    def reports_success(self) -> bool:
        return (self._opened if self._latest is None else self._latest.metadata).reports_success

    @property
    def num_tasks(self) -> int | None:
        return self._opened.num_tasks

    def reset(self, seed: int, noise_seed: int) -> Observation:
        seed, noise_seed = check_seed("seed", seed), check_seed("noise_seed", noise_seed)
        answer = self._begin("reset", StepAnswer, seed=seed, noise_seed=noise_seed)
        with self._reading("reset"):
            first = checked_opening(_observation(answer))
        self._latest = answer
        return first

    def step(self, action: str) -> StepResult:
        answer = self._ask("step", StepAnswer, action={"text": str(action)})
        facts = answer.metadata
        with self._reading("step"):
            if answer.reward is None:
                raise ProtocolError("there is no reward")
            result = checked_result(
                StepResult(
                    observation=_observation(answer),
                    reward=answer.reward,
                    terminated=answer.done,
                    success=facts.success,
                    is_valid=facts.is_valid,
                    is_effective=facts.is_effective,
                    info={
                        name: math.nan if number is None else number
                        for name, number in facts.info.items()
                    },
                )
            )
        self._latest = answer
        return result

    def instructions(self) -> str:
        return (self._opened if self._latest is None else self._latest.metadata).instructions

    def solve(self) -> list[str] | None:
        actions = self._ask("solve", WorldHint).actions
        return None if actions is None else list(actions)

    def legal_actions(self) -> tuple[str, ...]:
        return () if self._latest is None else self._latest.observation.legal_actions

    def guesses(self) -> tuple[str, ...]:
        return self._ask("guesses", WorldHint).actions or ()

    def tools(self) -> tuple[Tool, ...]:
        return self._opened.tools

    def invalid_notice(self, action: str) -> str:
        if not self._opened.has_own_notice:
            return super().invalid_notice(action)
        return self._ask("notice", WorldHint, action={"text": str(action)}).notice

    def task_key(self) -> str | None:
        return None if self._latest is None else self._latest.metadata.task_key

    def close(self) -> None:
        """Take leave of the server; one that is not there needs none."""
        if self._name:
            self._link.leave(self._name)
            self._name = ""

    def _begin(self, verb: str, kind: type[R], **content: Any) -> R:
        """The answer to a request that may begin in a world of its own, wherever that was."""
        ask = lambda: self._ask(verb, kind, **self._world, **content)  # noqa: E731
        return self._link.wait_for(ask, self._config.wait_s)

    def _ask(self, verb: str, kind: type[R], **content: Any) -> R:
        # A number of its own, so that a late or repeated request is not played twice.
        self._number += 1
        content |= {"episode_id": self._name, "number": self._number}
        data = self._link.post(f"/{verb}", content, self._config.timeout_s)
        with self._reading(verb):
            return read_answer(kind, data)

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """An answer that is none of the protocol's names the server in its error."""
        try:
            yield
        except (ProtocolError, EnvValueError) as error:
            raise RemoteError(
                f"{self._link.url} gave a wrong answer to {what!r}: {error}"
            ) from None


def _observation(answer: StepAnswer) -> Observation:
    seen, facts = answer.observation, answer.metadata
    return Observation(
        text=seen.text,
        frame=facts.frame,
        messages=seen.messages,
        image=seen.image,
    )


class Link:
    """Requests to one server, from any number of threads.

    Args:
        url: `http://host:port`, or with https and a path before the server's own.
        token: goes along as a bearer token, if there is one.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._client = HttpClient(url, max_bytes=MAX_BODY_BYTES, token=token)
        self._was_seen = False
        self._down_since: float | None = None

    def post(self, path: str, content: Mapping[str, Any], timeout_s: float) -> bytes:
        """The body of the server's answer to an object.

        Args:
            timeout_s: of one attempt, from the connection to the last byte.

        Raises:
            UnreachableError: no attempt got an answer.
            RemoteError: an answer that is late, an error or too long.
        """
        try:
            answer = retried(
                lambda: self._tried(path, content, timeout_s),
                retries=RETRIES,
                may_go_on=lambda: self._down_since is None,
            )
        except NoConnectionError as error:
            self._down_since = self._down_since or time.monotonic()
            raise UnreachableError(f"cannot reach {self.url}: {error}") from None
        except LateAnswerError as error:
            raise RemoteError(
                f"{self.url} {error}: raise timeout_s if the world takes longer, or look at the "
                "server"
            ) from None
        except HttpError as error:
            raise RemoteError(f"{self.url} {error}") from None
        if answer.status != 200:
            raise RemoteError(f"{self.url} answered {answer.status}{_reason(answer)}")
        self._was_seen, self._down_since = True, None
        return answer.body

    def leave(self, name: str) -> None:
        """Ask once for a session to be removed, unless the server is known to be away.

        Of many sessions at a server that hangs, only the first one waits for it.
        """
        if self._down_since is None:
            try:
                self._tried("/close", {"episode_id": name}, _CLOSE_S)
            except HttpError:
                self._down_since = time.monotonic()

    def wait_for(self, ask: Callable[[], T], wait_s: float) -> T:
        """What `ask` returns, after waiting for a server that was there before and has gone.

        All who wait for one server give up together, `wait_s` after it was first missed.

        Raises:
            UnreachableError: it did not come back, or was never there.
        """
        while True:
            try:
                return ask()
            except UnreachableError as error:
                missed = time.monotonic() - (self._down_since or time.monotonic())
                if not self._was_seen:
                    raise UnreachableError(
                        f"{error}; start the server on that machine with `echoscope envs serve "
                        "ENV`, and check url (docs/remote.md)"
                    ) from None
                if missed >= wait_s:
                    raise UnreachableError(
                        f"{error}; it has been away for {missed:.0f} s (wait_s is {wait_s:g})"
                    ) from None
            time.sleep(_POLL_S)

    def _tried(self, path: str, content: Mapping[str, Any], timeout_s: float) -> HttpAnswer:
        answer = self._client.ask("POST", path, encoded(content), timeout_s=timeout_s)
        if answer.status in STATUSES_OF_A_PROXY and b'"error"' not in answer.body[:20]:
            raise NoConnectionError(
                f"something before it said {answer.status}", is_worth_a_retry=True
            )
        return answer


def _reason(answer: HttpAnswer) -> str:
    """What an answer of another status than 200 says, after that status."""
    if 300 <= answer.status < 400:
        return ", which redirects, and that is not followed: set url to the server's own address"
    try:
        return f": {shorten(parsed_json(answer.body)['error']['message'], 300)}"
    except (ValueError, TypeError, KeyError, AttributeError):
        return " with something else than this protocol: url must be that of `echoscope envs serve`"


_links: dict[tuple[int, str, str], Link] = {}
_links_lock = threading.Lock()


def link_to(url: str, token: str) -> Link:
    """The link of this process to a server: all worlds that play there share it."""
    key = (os.getpid(), url.rstrip("/"), token)
    with _links_lock:
        if key not in _links:
            _links[key] = Link(key[1], token)
        return _links[key]


def _token(variable: str) -> str:
    if variable != TOKEN_VARIABLE and variable not in os.environ:
        raise EnvParamsError(
            f"token_env is {variable}, but this variable is not set: set it to the server's token"
        )
    token = os.environ.get(variable, "").strip()
    if not token.isascii() or not token.isprintable():
        raise EnvParamsError(f"the token in {variable} must be printable ASCII")
    return token
