"""Which live settings held at which step: one answer, for the trainer and for everybody else.

The trainer journals all live settings whenever they change and when an attempt begins; a rewind
hides those of steps that it undid, as it hides the steps themselves. `live_settings` looks them up.
What a resumed run has to apply again is decided here too (`replayed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..reader import CommandState, RunReader
from ..records import Command, CommandAction, CommandOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """The live settings of a run over its steps."""

    initial: Mapping[str, Any]
    """Those that the run began with, by dotted key; empty for a run of another program."""
    changes: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """(first step that trains with them, all live settings), by step."""

    def at(self, step: int) -> Mapping[str, Any]:
        """What held when this step was trained and judged."""
        held = [values for first, values in self.changes if first <= step]
        return held[-1] if held else self.initial

    @property
    def now(self) -> Mapping[str, Any]:
        """What holds for the next step."""
        return self.changes[-1][1] if self.changes else self.initial

    def below(self, prefix: str) -> tuple[tuple[int, Mapping[str, Any]], ...]:
        """The changes of the settings whose key begins with `prefix`, which is cut off.

        >>> found = LiveSettings(initial={}, changes=((1, {"a.b": 1, "c": 2}), (9, {"a.b": 3})))
        >>> found.below("a.")
        ((1, {'b': 1}), (9, {'b': 3}))
        """
        return tuple(
            (step, {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)})
            for step, values in self.changes
        )


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """A nested configuration by dotted key: `envs.train.0.env`. Lists without mappings are values.

    >>> flat({"optim": {"lr": 0.1, "betas": [0.9, 0.99]}, "envs": [{"env": "lake"}]})
    {'optim.lr': 0.1, 'optim.betas': [0.9, 0.99], 'envs.0.env': 'lake'}
    """
    if isinstance(config, list) and any(isinstance(entry, Mapping) for entry in config):
        config = dict(enumerate(config))
    if not isinstance(config, Mapping) or not config:
        return {prefix: config}
    out: dict[str, Any] = {}
    for key, below in config.items():
        out |= flat(below, f"{prefix}.{key}" if prefix else str(key))
    return out


def live_settings(run: RunReader) -> LiveSettings:
    """The live settings of a stored run, as its trainer had them."""
    initial = {
        key: schema.get("value")
        for key, schema in run.info().live_knobs.items()
        if isinstance(schema, Mapping)
    }
    changes = {record.step: record.values for record in run.settings()}  # the last one counts
    return LiveSettings(initial=initial, changes=tuple(changes.items()))


def applied(states: Iterable[CommandState]) -> list[tuple[int, Command]]:
    """Every command that took effect, in the order of the journal, with the step it took effect at.

    Args:
        states: `RunReader.commands`, of all attempts: commands are never hidden.
    """
    return [
        (state.ack.step, state.command)
        for state in states
        if state.ack is not None and state.ack.outcome is CommandOutcome.APPLIED
    ]


def replayed(applied: Iterable[tuple[int, Command]], *, after: int) -> list[tuple[int, Command]]:
    """What a run that resumes after step `after` has to apply again, with the step it applies at.

    Settings and evaluations come back, a pause or a stop does not. What an earlier attempt was told
    holds for the next one too, unless a later command replaced it at its step or before.

    Args:
        applied: every command that took effect, in the order of the journal, with its step.
    """
    out: list[tuple[int, Command]] = []
    for step, command in applied:
        out = overridden(out, step, command)
        if command.action in (CommandAction.SET, CommandAction.EVALUATE) and step > after:
            out.append((step, command))
    return sorted(out, key=lambda item: item[0])


def overridden(
    replay: Sequence[tuple[int, Command]], step: int, newer: Command
) -> list[tuple[int, Command]]:
    """The replay without what a newer command set at `step`: nobody expects that to turn back."""
    out = []
    for step_applied, command in replay:
        settings = (
            command.settings if step_applied < step else _without(command.settings, newer.settings)
        )
        if settings or not command.settings:
            out.append((step_applied, replace(command, settings=settings)))
    return out


def _without(older: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    """What newer settings leave of older ones; of a mapping, the entries that they do not name."""
    out: dict[str, Any] = {}
    for key, value in older.items():
        new = newer.get(key)
        if key not in newer:
            out[key] = value
        elif isinstance(value, Mapping) and isinstance(new, Mapping) and new:
            left = {name: entry for name, entry in value.items() if name not in new}
            if left:
                out[key] = left
    return out
