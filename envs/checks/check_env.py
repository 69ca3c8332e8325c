"""check_env: does an environment keep its contract?

The conformance test runs it over every registered id, `echoscope envs check` over anyone's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import registry
from ..base import EnvUnavailableError, shorten
from ..settings import EnvGroup
from .contract import CHECKS
from .players import PlayerScore
from .subject import CheckFailure, Skip, Subject

ALL = "all"
"""What is skipped if an environment cannot be built."""
DETERMINISM = frozenset({"seeds", "steps", "processes"})
"""The checks that compare one episode with another of the same seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `check_env` found: names of passed checks, failures and skips with their sentences.

    `scores` holds what the expert, a random player and those who cheat earned; it is empty where
    the world cannot be played.
    """

    env_id: str
    passed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, PlayerScore] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Nothing failed (skips are not failures)."""
        return not self.failed

    @property
    def is_installed(self) -> bool:
        """Whether the environment could be built here; if not, `skipped["all"]` says why."""
        return ALL not in self.skipped

    @property
    def is_deterministic(self) -> bool | None:
        """Whether the same seeds gave the same episode, here and in another process.

        None if the environment could not be built.
        """
        return not DETERMINISM & self.failed.keys() if self.is_installed else None


def check_env(
    env_id: str,
    params: Mapping[str, Any] | None = None,
    *,
    max_turns: int | None = None,
    max_actions_per_turn: int | None = None,
) -> CheckReport:
    """Run every check on an environment.

    The limits are the spec's where None. An environment that lacks its data, server or package is
    skipped as a whole, with the reason. Raises `UnknownEnvError` and `EnvParamsError`.
    """
    group = EnvGroup(
        tag="check",
        env=env_id,
        params=dict(params or {}),
        max_turns=max_turns,
        max_actions_per_turn=max_actions_per_turn,
    )
    try:
        registry.make(env_id, **group.params).close()
    except EnvUnavailableError as error:
        return CheckReport(env_id=env_id, skipped={ALL: str(error)})
    subject = Subject(group=group)
    passed: list[str] = []
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            check(subject)
            passed.append(name)
        except Skip as reason:
            skipped[name] = str(reason)
        except CheckFailure as failure:
            failed[name] = str(failure)
        except Exception as error:  # noqa: BLE001 - an environment that raises has failed
            failed[name] = f"raised {type(error).__name__}: {shorten(str(error), 300)}"
    return CheckReport(
        env_id=env_id, passed=tuple(passed), failed=failed, skipped=skipped, scores=subject.scores
    )
