"""What came before a branch, which settings changed when, and by which a stored run was judged.

A branch without its parent's history has no best to fall from and no lost success to win back. So
it is judged after the rows of its parent, the monitor of a live branch included. What the branch
changed about the tasks makes older numbers of those tasks another quantity: such channels begin
anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from echoscope.store.log.layout import Layout
from echoscope.store.steer.settings import LiveSettings, live_settings
from echoscope.text.strict_json import value_at

from ..config import AlarmConfig
from ..read.table import table_of_run
from .advice.situation import SettingsChange

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

_RESTARTED = (
    (
        ("envs.train", "envs.group_size", "reward."),
        ("success_train", "reward", "spread", "zero_spread"),
    ),
    (("envs.probe", "probe.", "envs.train"), ("success_probe",)),
    (("envs.eval", "eval.temp", "eval.top"), ("success_eval", "eval_action")),
)
"""How settings begin, and the channels whose tasks or rewards they change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """One ancestor's part of the history."""

    rows: tuple[tuple[int, Mapping[str, float]], ...]
    """Of the ancestor, up to the step at which the next one took over."""
    restarted: tuple[str, ...]
    """Channels that begin anew after these rows."""


def restarted_channels(changed: Collection[str]) -> tuple[str, ...]:
    """The channels whose tasks or rewards a branch changed, from the dotted keys it changed.

    >>> restarted_channels(["optim.lr"])
    ()
    >>> "success_train" in restarted_channels(["envs.train.0.params.slip"])
    True
    """
    return tuple(
        name
        for starts, names in _RESTARTED
        if any(key.startswith(starts) for key in changed)
        for name in names
    )


def history_of(run: RunReader) -> tuple[list[Before], str]:
    """What came before a run, the eldest first, and a note where a parent is gone."""
    from echoscope.store.errors import StoreError

    try:
        parent, step, note = _parent(run)
        if parent is None:
            return [], note
        rows = tuple(
            (row_step, values)
            for row_step, values in table_of_run(parent).rows()
            if row_step <= step
        )
        elder, note = history_of(parent)
    except StoreError as error:
        return [], f"the parent of this run cannot be read, judged without its history: {error}"
    changed = _changes(parent.info().config, run.info().config)
    own = {row_step for row_step, _ in table_of_run(run).rows()}
    kept = tuple(row for row in rows if row[0] not in own)
    return [*elder, Before(rows=kept, restarted=restarted_channels(changed))], note


def changes_of(run: RunReader) -> tuple[SettingsChange, ...]:
    """Every change of settings that this run or an ancestor trained with, in the order of steps.

    Live commands that were applied, and what a branch changed against its parent.

    Raises:
        StoreError: the run cannot be read.
    """
    parent, step, _ = _parent(run)
    inherited: tuple[SettingsChange, ...] = ()
    if parent is not None:
        inherited = tuple(change for change in changes_of(parent) if change.step <= step)
        before = _overlaid(parent.info().config, live_settings(parent).at(step))
        changed = _changes(before, run.info().config)
        if changed:
            inherited += (SettingsChange(step=step + 1, values=changed, is_branch=True),)
    return (*inherited, *live_changes(live_settings(run)))


def live_changes(settings: LiveSettings) -> tuple[SettingsChange, ...]:
    """The changes of a run's own live settings, in the order of steps."""
    before, own = dict(settings.initial), []
    for first, values in settings.changes:
        changed = {
            key: (before.get(key), value)
            for key, value in values.items()
            if before.get(key) != value
        }
        if changed:
            own.append(SettingsChange(step=first, values=changed))
        before = dict(values)
    return tuple(own)


def _parent(run: RunReader) -> tuple[RunReader | None, int, str]:
    """The run that this one branched from, the step, and a note where it is gone.

    Raises:
        StoreError: it cannot be read.
    """
    from echoscope.store.reader import open_run

    info = run.info()
    origin = info.config.get("branched_from")
    if not isinstance(origin, Mapping) or not isinstance(origin.get("step"), int):
        return None, -1, ""
    name = str(origin.get("run_id", ""))
    folder = info.path.parent / name
    if not name or folder.parent != info.path.parent or not Layout(folder).is_run:
        note = f"the parent run {name} is not beside this one: judged without its history"
        return None, -1, note
    return open_run(folder), origin["step"], ""


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key to the value before and after, of what is not the same; None for absent."""
    parts = [key for key in dict.fromkeys([*before, *after]) if key not in _OWN]
    return {
        key: values
        for part in parts
        for key, values in _differences(before.get(part), after.get(part), part)
    }


_OWN = ("name", "branched_from", "recipe")
"""What every run has for itself."""


def _differences(old: Any, new: Any, prefix: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key), new.get(key), f"{prefix}.{key}")
    elif old != new:
        yield prefix, (old, new)


def _overlaid(config: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with settings by dotted key on top."""
    out = dict(config)
    for key, value in live.items():
        first, _, rest = key.partition(".")
        below = out.get(first)
        nested = below if isinstance(below, Mapping) else {}
        out[first] = _overlaid(nested, {rest: value}) if rest else value
    return out


PREFIX = "diagnostics.alarms."
_DEFAULTS = AlarmConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSettings:
    """By which settings a stored run was judged: those it began with, and what was SET, by step.

    Whoever judges a stored run again (the dashboard, `echoscope diagnose`) says what the run's own
    alarms said only if it judges by the same thresholds at the same steps.
    """

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
    first = _with_settings(_DEFAULTS, value_at(config, dict, "diagnostics", "alarms"))
    changes = [(step, _with_settings(first, values)) for step, values in live.below(PREFIX)]
    return AlarmSettings(changes=((0, first), *changes))


def _with_settings(before: AlarmConfig, values: object) -> AlarmConfig:
    if not isinstance(values, Mapping):
        return before
    try:
        return AlarmConfig.model_validate({**before.model_dump(), **values})
    except ValidationError:
        return before
