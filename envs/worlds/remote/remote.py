"""Remote: any environment that `echoscope envs serve`, or another server, plays over HTTP."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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
)
from ...params import require
from .link import Link, RemoteError, SessionGoneError, checked_url, link_to
from .protocol import (
    TOKEN_VARIABLE,
    VERSION,
    Actions,
    Begun,
    Notice,
    Opened,
    ProtocolError,
    R,
    State,
    Stepped,
    answered,
    encoded,
    result_of,
    write_action,
)

_CLOSE_S = 2.0
"""Seconds that taking leave of a server may take."""


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
            checked_url(self.url)
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
        entry_point=f"{__name__}:Remote",
        config_type=RemoteConfig,
        max_turns=10,
        max_actions_per_turn=1,
        description="Any environment over HTTP, from `echoscope envs serve`.",
    )

    def __init__(self, config: RemoteConfig) -> None:
        super().__init__(config)
        if config.url is None:
            raise EnvUnavailableError(f"remote {self.lacks()}")
        self._config = config
        self._link: Link = link_to(config.url, _token(config.token_env))
        self._session = self._instructions = ""
        self._opened: Opened | None = None
        self._state: State | None = None
        self._task_key: str | None = None
        self._episode = self._num_steps = 0
        self._link.wait_for(self._open, config.wait_s)

    @classmethod
    def lacks(cls) -> str:
        return (
            "needs a server: start `echoscope envs serve ENV`, and give its address as the "
            "parameter url"
        )

    @property
    def reports_success(self) -> bool:
        return self._state is None or self._state.reports_success

    @property
    def num_tasks(self) -> int | None:
        return None if self._opened is None else self._opened.num_tasks

    def reset(self, seed: int, noise_seed: int) -> Observation:
        seeds = {
            "seed": check_seed("seed", seed),
            "noise_seed": check_seed("noise_seed", noise_seed),
        }

        def start() -> Begun:
            if not self._session:
                self._open()
            # A number of its own, so that a late or repeated request starts no other episode.
            self._episode += 1
            try:
                return self._ask("reset", Begun, **seeds)
            except SessionGoneError:
                self._open()
                self._episode = 1
                return self._ask("reset", Begun, **seeds)

        begun = self._link.wait_for(start, self._config.wait_s)
        with self._reading("reset"):
            first = checked_opening(begun.observation)
        self._instructions, self._task_key = begun.instructions, begun.task_key
        self._state, self._num_steps = begun, 0
        return first

    def step(self, action: str) -> StepResult:
        number = self._num_steps + 1
        stepped = self._ask("step", Stepped, number=number, **write_action(str(action)))
        with self._reading("step"):
            if stepped.number != number:
                raise ProtocolError(f"number is {stepped.number}, but step {number} was asked")
            result = result_of(stepped)
        self._state, self._num_steps = stepped, number
        return result

    def instructions(self) -> str:
        return self._instructions

    def solve(self) -> list[str] | None:
        actions = self._ask("solve", Actions).actions
        return None if actions is None else list(actions)

    def legal_actions(self) -> tuple[str, ...]:
        return () if self._state is None else self._state.legal_actions

    def guesses(self) -> tuple[str, ...]:
        return self._ask("guesses", Actions).actions or ()

    def tools(self) -> tuple[Tool, ...]:
        return () if self._opened is None else self._opened.tools

    def invalid_notice(self, action: str) -> str:
        if self._opened is None or not self._opened.has_own_notice:
            return super().invalid_notice(action)
        return self._ask("notice", Notice, **write_action(str(action))).notice

    def task_key(self) -> str | None:
        return self._task_key

    def close(self) -> None:
        """Take leave of the server; one that is not there needs none."""
        if self._session:
            self._link.leave(f"/v1/sessions/{self._session}", _CLOSE_S)
            self._session = ""

    def _open(self) -> None:
        self._session, self._episode = "", 0
        content = {"protocol": VERSION, "params": dict(self._config.params)}
        if self._config.env is not None:
            content["env"] = self._config.env
        data = self._link.post("/v1/sessions", _plain(content), self._config.timeout_s)
        with self._reading("session"):
            opened = answered(Opened, data)
            if opened.protocol != VERSION:
                raise ProtocolError(
                    f"protocol is {opened.protocol}, but must be {VERSION}: install the same "
                    "version of Echoscope on both sides"
                )
        self._opened = self._state = opened
        self._session, self._instructions = opened.session, opened.instructions

    def _ask(self, verb: str, kind: type[R], **content: Any) -> R:
        """The answer to a request about the running episode."""
        path = f"/v1/sessions/{self._session}/{verb}"
        content["episode"] = self._episode
        data = self._link.post(path, content, self._config.timeout_s)
        with self._reading(verb):
            return answered(kind, data)

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """An answer that is none of the protocol's names the server in its error."""
        try:
            yield
        except (ProtocolError, EnvValueError) as error:
            raise RemoteError(
                f"{self._link.url} gave a wrong answer to {what!r}: {error}"
            ) from None


def _token(variable: str) -> str:
    if variable != TOKEN_VARIABLE and variable not in os.environ:
        raise EnvParamsError(
            f"token_env is {variable}, but this variable is not set: set it to the server's token"
        )
    token = os.environ.get(variable, "").strip()
    if not token.isascii() or not token.isprintable():
        raise EnvParamsError(f"the token in {variable} must be printable ASCII")
    return token


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """Parameters that JSON can hold."""
    try:
        encoded(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvParamsError(f"params cannot be sent as JSON: {error}") from None
    return content
