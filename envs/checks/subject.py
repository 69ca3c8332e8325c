"""What is checked, and how a check says what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import registry
from ..base import Observation, TextEnv, hash_task
from ..settings import EnvGroup


class CheckFailure(AssertionError):  # noqa: N818 - it is a finding about someone's code
    """An environment breaks the contract; the message says how."""


class Skip(Exception):  # noqa: N818 - control flow, not an error
    """A check does not apply; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked: an id with parameters, and the limits it is used with."""

    env_id: str
    params: Mapping[str, Any]
    max_turns: int
    max_actions_per_turn: int

    def make(self) -> TextEnv:
        """A fresh instance."""
        return registry.make(self.env_id, **self.params)

    def group(self, **settings: Any) -> EnvGroup:
        """Its groups in a run with these limits."""
        return EnvGroup(
            tag="check",
            env=self.env_id,
            params=dict(self.params),
            max_turns=self.max_turns,
            max_actions_per_turn=self.max_actions_per_turn,
            **settings,
        )


def expect(condition: bool, message: str) -> None:
    """Raises `CheckFailure` with `message` unless the condition holds."""
    if not condition:
        raise CheckFailure(message)


def key_of(env: TextEnv, first: Observation) -> str:
    """The key that a run gives the task which the last reset drew."""
    key = env.task_key()
    return hash_task(env.spec.id, first.text) if key is None else key
