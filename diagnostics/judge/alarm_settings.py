"""By which settings a stored run was judged, step by step: those it began with, and what was SET.

Whoever judges a stored run again (the dashboard, `echoscope diagnose`) says what the run's own
alarms said only if it judges by the same thresholds at the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from echoscope.store.reader import RunReader
from echoscope.store.steer.settings import LiveSettings, live_settings

from ..config import AlarmConfig

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
    return settings_over(run.info().config, live_settings(run))


def settings_over(config: Mapping[str, Any], live: LiveSettings) -> AlarmSettings:
    """From the configuration of a run and its live settings.

    What this version does not know is left out, one change at a time: a run of a newer version is
    judged by what is understood of it.

    >>> unchanged = LiveSettings(initial={})
    >>> config = {"diagnostics": {"alarms": {"warmup_steps": 5}}}
    >>> settings_over(config, unchanged).at(0).warmup_steps
    5
    >>> settings_over({"lr": 0.1}, unchanged).at(0) == AlarmConfig()
    True
    """
    first = _understood(AlarmConfig(), _mapping(_mapping(config).get("diagnostics")).get("alarms"))
    changes = [(0, first)]
    changes += [(step, _understood(first, values)) for step, values in live.below(PREFIX)]
    return AlarmSettings(changes=tuple(changes))


def _understood(known: AlarmConfig, said: object) -> AlarmConfig:
    """`known` with each of the settings that are valid here."""
    for name, value in _mapping(said).items():
        values = known.model_dump()
        if name not in values:
            continue
        try:
            known = AlarmConfig.model_validate(values | {name: value})
        except ValidationError:
            continue
    return known


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
