"""By which settings a stored run was judged, step by step: those it began with, and what was SET.

Whoever judges a stored run again (the dashboard, `echoscope diagnose`) says what the run's own
alarms said only if it judges by the same thresholds at the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..store.reader import CommandState, RunReader
from ..store.records import CommandAction, CommandOutcome
from .config import AlarmConfig

PREFIX = "diagnostics.alarms."


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSettings:
    """Settings of a run's alarms over its steps."""

    changes: tuple[tuple[int, AlarmConfig], ...] = ()
    """(first step, settings), by step; before the first of them, the defaults hold."""

    def at(self, step: int) -> AlarmConfig:
        """What held when this step was judged."""
        found = AlarmConfig()
        for since, config in self.changes:
            if since > step:
                break
            found = config
        return found


def alarm_settings(run: RunReader) -> AlarmSettings:
    """Of a stored run; the defaults for one that another program wrote."""
    return settings_over(run.info().config, run.commands())


def settings_over(config: Mapping[str, Any], states: Iterable[CommandState]) -> AlarmSettings:
    """From the configuration of a run and its commands.

    What this version does not know is left out, one change at a time: a run of a newer version is
    judged by what is understood of it.

    >>> settings_over({"diagnostics": {"alarms": {"warmup_steps": 5}}}, []).at(0).warmup_steps
    5
    >>> settings_over({"lr": 0.1}, []).at(0) == AlarmConfig()
    True
    """
    now = _understood(AlarmConfig(), _mapping(_mapping(config).get("diagnostics")).get("alarms"))
    changes = [(0, now)]
    for state in states:
        ack = state.ack
        is_set = state.command.action is CommandAction.SET
        if not is_set or ack is None or ack.outcome is not CommandOutcome.APPLIED:
            continue
        said = {
            key.removeprefix(PREFIX): value
            for key, value in state.command.settings.items()
            if key.startswith(PREFIX)
        }
        if said:
            now = _understood(now, said)
            changes.append((ack.step, now))
    return AlarmSettings(changes=tuple(sorted(changes, key=lambda change: change[0])))


def _understood(known: AlarmConfig, said: object) -> AlarmConfig:
    """`known` with each of the settings that are valid here; mappings are merged, as live ones."""
    for name, value in _mapping(said).items():
        values = known.model_dump()
        if name not in values:
            continue
        both = isinstance(values[name], dict) and isinstance(value, Mapping)
        changed = values | {name: {**values[name], **value} if both else value}
        try:
            known = AlarmConfig.model_validate(changed)
        except ValidationError:
            continue
    return known


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
