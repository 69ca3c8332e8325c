"""Environments of OpenEnv servers as worlds: `openenv:http://HOST:PORT`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from echoscope.text.network import is_http_url
from echoscope.text.strict_json import parsed_json

from ...base import (
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    Observation,
    StepResult,
    hash_task,
    shorten,
)
from ...params import require
from ..task_env import TaskEnv
from .http_client import HttpClient, HttpError, LateAnswerError, NoConnectionError

_OWN_FIELDS = frozenset({"done", "reward", "metadata", "rubric_reward"})
"""Of an action or an observation: OpenEnv's own, the same in every environment."""
_SERVER_FAILED = "Server error: "
"""How OpenEnv's client begins what an environment raised."""
_MAX_SCHEMA_BYTES = 1 << 20
_MAX_ACTION_CHARS = 100_000


class _RefusedError(Exception):
    """The environment fails on an action: it does not allow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvConfig:
    """Which server, and how its objects are read and written as text.

    `name`: its address; the id `openenv:http://HOST:PORT` names it. `reset`: further arguments of
    its reset. `action_field`: the field of an action that a reply fills; null for the only text
    that the server asks for, or, where it asks for more, for a reply that is a JSON object.
    `observation_field`: the field that is shown; null for the only text, or else the whole object
    as JSON. `success_reward`: return from which on the task counts as solved; null if the server
    has no notion of success. `timeout_s`: seconds that one answer may take.
    """

    name: str
    reset: Mapping[str, Any] = field(default_factory=dict)
    action_field: str | None = None
    observation_field: str | None = None
    success_reward: float | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        require(
            is_http_url(self.name),
            f"name is {self.name!r}, but must be an address such as http://127.0.0.1:8000",
        )
        require(
            0 < self.timeout_s <= 86_400,
            f"timeout_s is {self.timeout_s:g}, but must lie above 0 and at most at 86400",
        )


class OpenEnv(TaskEnv[OpenEnvConfig]):
    """An environment of an OpenEnv server, by OpenEnv's own client.

    Description:
        The server's: `GET /metadata` of its address says what it is.
    Observation:
        The one text of the server's observation, or the whole observation as JSON.
    Actions:
        The text that the server asks for, or the action as a JSON object. One on which the
        environment fails is invalid.
    Rewards:
        The server's; none counts as 0.
    Episode end:
        The server says that it is done.
    Success:
        The return is at least `success_reward`. Without that setting there is no notion of success.
    Seeds:
        `seed` goes to the server's reset. A server that ignores it shows siblings of a group
        different tasks, which is refused. `noise_seed` is not used.
    Requires:
        openenv-core (`pip install -e '.[openenv]'`), and a server.
    Example:
        >>> OpenEnvConfig(name="http://127.0.0.1:8000").timeout_s
        60.0
    """

    spec = EnvSpec(
        id="openenv",
        config_type=OpenEnvConfig,
        max_turns=10,
        description="Play the environment of an OpenEnv server, such as openenv:http://HOST:8000.",
        one_action=True,
        requires=("openenv-core",),
        extra="openenv",
    )
    is_over = True

    def __init__(self, config: OpenEnvConfig) -> None:
        super().__init__(config)
        schemas = self._schemas()
        self._action_schema = _properties(schemas, "action")
        required = _inner(schemas, "action").get("required", [])
        self._required: list[str] = [name for name in self._action_schema if name in required]
        for name, fields, what in (
            (config.action_field, self._action_schema, "action"),
            (config.observation_field, _properties(schemas, "observation"), "observation"),
        ):
            if name is not None and name not in fields:
                raise EnvParamsError(
                    f"{what}_field is {name!r}, but an {what} of {config.name} has "
                    f"{', '.join(fields) or 'no field'}"
                )
        self._action_field = config.action_field or self._only_text()
        self._client: Any = None
        self._text, self._task_key, self._return = "", "", 0.0

    @staticmethod
    def names() -> tuple[str, ...]:
        """None: servers have addresses, and nobody keeps a list."""
        return ()

    @property
    def reports_success(self) -> bool:
        return self._config.success_reward is not None

    def begin(self, seed: int, noise_seed: int) -> None:
        arguments = {**self._config.reset, "seed": seed % 2**31}
        self._text = self._taken(self._call("reset", **arguments))
        self._return = 0.0
        self._task_key = hash_task(self.spec.id, self._config.name, self._text)

    def step(self, action: str) -> StepResult:
        sent = self._action(action)
        if self.is_over or sent is None:
            return self.refused(action)
        try:
            before, answer = self._text, self._call("step", sent)
        except _RefusedError:
            return self.refused(action)
        self._text = self._taken(answer)
        reward = float(answer.reward or 0.0)
        self._return += reward
        return self.result(reward, is_effective=self._text != before)

    def instructions(self) -> str:
        if self._action_field is not None:
            about = self._action_schema[self._action_field].get("description", "")
            return f"Action: {about or 'your text'}."
        schema = json.dumps(self._action_schema, ensure_ascii=False)
        return f"Action: a JSON object with these fields: {schema}"

    def task_key(self) -> str:
        return self._task_key

    @property
    def is_solved(self) -> bool | None:
        least = self._config.success_reward
        return None if least is None else self._return >= least

    def observe(self) -> Observation:
        return Observation(text=self._text)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _action(self, text: str) -> dict[str, Any] | None:
        """The action that a reply stands for; None for one that stands for none."""
        if not text.strip() or len(text) > _MAX_ACTION_CHARS:
            return None
        if self._action_field is not None:
            return {self._action_field: text}
        try:
            value = parsed_json(text)
        except ValueError:
            return None
        if not isinstance(value, dict) or not {*self._required} <= value.keys():
            return None
        return value

    def _only_text(self) -> str | None:
        """The field of an action where a reply belongs, if the server asks for one text alone."""
        names = self._required or list(self._action_schema)
        if len(names) != 1 or self._action_schema[names[0]].get("type") != "string":
            return None
        return names[0]

    def _taken(self, answer: Any) -> str:
        """Note whether the episode is over; the text of what the server shows."""
        self.is_over = bool(answer.done)
        seen = answer.observation
        if not isinstance(seen, dict):
            raise EnvUnavailableError(f"{self._config.name} has sent no observation")
        fields = {name: value for name, value in seen.items() if name not in _OWN_FIELDS}
        name = self._config.observation_field
        if name is not None:
            value = fields.get(name, "")
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        texts = [value for value in fields.values() if isinstance(value, str)]
        if len(texts) == 1 == len(fields):
            return texts[0]
        return json.dumps(fields, ensure_ascii=False)

    def _call(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """What the server answers, over a web socket: for each request of `/reset` and `/step` over
        HTTP, such a server makes another environment.

        Raises:
            _RefusedError: it fails on this action.
            EnvUnavailableError: it has gone, or answers late.
        """
        from openenv.core import GenericEnvClient

        try:
            if self._client is None:
                self._client = GenericEnvClient(
                    base_url=self._config.name, message_timeout_s=self._config.timeout_s
                ).sync()
            return getattr(self._client, verb)(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - the client's, its connection's, the server's
            if verb == "step" and str(error).startswith(_SERVER_FAILED):
                raise _RefusedError from None
            broken, self._client = self._client, None
            with contextlib.suppress(Exception):  # what is to be said is said by the first error
                if broken is not None:
                    broken.close()
            why = shorten(f"{type(error).__name__}: {error}", 300)
            raise EnvUnavailableError(f"{self._config.name}: {verb} failed ({why})") from None

    def _schemas(self) -> Mapping[str, Any]:
        client = HttpClient(self._config.name, max_bytes=_MAX_SCHEMA_BYTES)
        try:
            answer = client.ask("GET", "/schema", timeout_s=self._config.timeout_s)
            value = parsed_json(answer.body.decode())
        except (NoConnectionError, LateAnswerError, HttpError, ValueError) as error:
            raise EnvUnavailableError(
                f"{self._config.name}/schema cannot be read: {shorten(str(error), 300)}"
            ) from None
        if not isinstance(value, dict) or not _properties(value, "action"):
            raise EnvUnavailableError(f"{self._config.name}/schema does not say what an action is")
        return value


def _inner(schemas: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = schemas.get(name)
    return value if isinstance(value, dict) else {}


def _properties(schemas: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Field to schema of an action or observation, without those that all environments have."""
    fields = _inner(schemas, name).get("properties")
    return {
        str(key): value
        for key, value in (fields if isinstance(fields, dict) else {}).items()
        if key not in _OWN_FIELDS and isinstance(value, dict)
    }
