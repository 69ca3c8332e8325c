"""What is checked, and how a check says what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .. import registry
from ..base import TextEnv
from ..settings import EnvGroup


class CheckFailure(AssertionError):  # noqa: N818 - it is a finding about someone's code
    """An environment breaks the contract; the message says how."""


class Skip(Exception):  # noqa: N818 - control flow, not an error
    """A check does not apply; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked: an id with parameters, and the limits it is used with."""

    group: EnvGroup
    scores: dict[str, Any] = field(default_factory=dict)
    """What the players earn, by name; empty until they have played."""

    def make(self) -> TextEnv:
        return registry.make(self.group.env, **self.group.params)


def expect(condition: bool, message: str) -> None:
    """Raises `CheckFailure` with `message` unless the condition holds."""
    if not condition:
        raise CheckFailure(message)
