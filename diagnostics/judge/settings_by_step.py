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
_DEFAULTS = AlarmConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSettings:
    """Settings of a run's alarms over its steps."""

    changes: tuple[tuple[int, AlarmConfig], ...] = ()
    """(first step, settings), by step; before the first of them, the defaults hold."""

    def at(self, step: int) -> AlarmConfig:
        """What held when this step was judged."""
        earlier = self.until(step)
        return earlier[-1][1] if earlier else _DEFAULTS

    def until(self, step: int) -> tuple[tuple[int, AlarmConfig], ...]:
        """The changes that hold at a step or before it."""
        return tuple(change for change in self.changes if change[0] <= step)


def alarm_settings(run: RunReader) -> AlarmSettings:
    """Of a stored run; the defaults for one that another program wrote."""
    return settings_over(run.info().config, live_settings(run))


def settings_over(config: Mapping[str, Any], live: LiveSettings) -> AlarmSettings:
    """From the configuration of a run and its live settings; what is not valid changes nothing.

    >>> unchanged = LiveSettings(initial={})
    >>> config = {"diagnostics": {"alarms": {"warmup_steps": 5}}}
    >>> settings_over(config, unchanged).at(0).warmup_steps
    5
    >>> settings_over({"lr": 0.1}, unchanged).at(0) == AlarmConfig()
    True
    """
    diagnostics = config.get("diagnostics")
    own = diagnostics.get("alarms") if isinstance(diagnostics, Mapping) else None
    first = _changed(AlarmConfig(), own)
    changes = [(step, _changed(first, values)) for step, values in live.below(PREFIX)]
    return AlarmSettings(changes=((0, first), *changes))


def _changed(before: AlarmConfig, values: object) -> AlarmConfig:
    if not isinstance(values, Mapping):
        return before
    try:
        return AlarmConfig.model_validate({**before.model_dump(), **values})
    except ValidationError:
        return before
