"""Commands from the page or the command line, applied where another trainer's loop can obey."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from echoscope.diagnostics.tools.setting_errors import SettingError, shown
from echoscope.store.records import Command, CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.steering import NO_CHANGE, SteeringError, check_settings

OnSet = Callable[[Mapping[str, Any]], str | None]
"""Gets checked new values. Returns what else is to be said of it, if anything; raises SteeringError
where the trainer does not allow it, and NotYetError."""
OnCheckpoint = Callable[[], None]


class NotYetError(Exception):
    """The trainer cannot change these settings before the next step: ask again after it."""


_TYPES = ("null", "boolean", "string", "integer", "number", "array", "object")
_EXAMPLE = '{"lr": {"type": "number", "exclusiveMinimum": 0, "value": 1e-5}}'


def _checked_live(live: Any) -> dict[str, dict[str, Any]]:
    """Copies of the schemas, each of which its own value fits."""
    if not isinstance(live, Mapping):
        raise SettingError(f"live is {shown(live)}, but must be a dict such as {_EXAMPLE}")
    for key, schema in live.items():
        if not isinstance(schema, Mapping) or "value" not in schema:
            raise SettingError(
                f"live[{key!r}] is {shown(schema)}, but must be a JSON Schema with the present "
                f"value, such as {_EXAMPLE}"
            )
        kinds = schema.get("type", [])
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind not in _TYPES:
                raise SettingError(
                    f"live[{key!r}] has the type {shown(kind)}, but must have one of "
                    f"{', '.join(_TYPES)}"
                )
        try:
            check_settings(live, {key: schema["value"]})
        except SteeringError as error:
            raise SettingError(f"live[{key!r}] does not allow its own value: {error}") from None
    return {str(key): dict(schema) for key, schema in live.items()}


class Orders:
    """What commands ask of the loop. All methods run in the caller's thread.

    Args:
        live: JSON Schema of each setting that may change, with its `value`.
        on_set: told of checked new values; None where the trainer cannot change settings.
        on_checkpoint: writes a checkpoint; None where the trainer cannot on demand.

    Raises:
        SettingError: `live` is no JSON Schema with a value, or stands without `on_set`.
    """

    def __init__(
        self,
        live: Mapping[str, Any],
        on_set: OnSet | None,
        on_checkpoint: OnCheckpoint | None,
    ) -> None:
        self.live = _checked_live(live)
        if bool(self.live) != (on_set is not None):
            given, lacks = ("live", "on_set") if self.live else ("on_set", "live")
            raise SettingError(f"{given}= needs {lacks}=, or nothing can be set from outside")
        self._on_set, self._on_checkpoint = on_set, on_checkpoint
        self.is_paused = False
        self.should_stop = False

    @property
    def actions(self) -> list[str]:
        """What the loop can obey, for the run's own record: pages offer nothing else."""
        actions = [CommandAction.PAUSE, CommandAction.RESUME]
        actions += [CommandAction.STOP, CommandAction.STOP_NOW]
        actions += [CommandAction.CHECKPOINT] if self._on_checkpoint is not None else []
        actions += [CommandAction.SET] if self._on_set is not None else []
        return [action.value for action in actions]

    def apply(self, command: Command, step: int) -> CommandAck | None:
        """Obey a command before step `step`, or say why not. Never raises.

        Returns None where it must wait for a later step.
        """
        try:
            outcome, detail = self._apply(command)
        except NotYetError:
            return None
        except Exception as error:  # noqa: BLE001 - the caller's function; the answer says it
            outcome = CommandOutcome.REJECTED
            detail = f"the trainer failed to obey: {type(error).__name__}: {error}"[:300]
        return command.answered(step, outcome, detail)

    def _apply(self, command: Command) -> tuple[CommandOutcome, str]:
        action = command.action
        if action is CommandAction.SET:
            return self._set(command.settings)
        if action is CommandAction.CHECKPOINT:
            if self._on_checkpoint is None:
                return CommandOutcome.REJECTED, "this trainer writes no checkpoint on demand"
            self._on_checkpoint()
            return CommandOutcome.APPLIED, "checkpoint"
        if action is CommandAction.EVALUATE:
            return CommandOutcome.REJECTED, "this trainer evaluates by a schedule of its own"
        if action is CommandAction.PAUSE:
            detail = f"{NO_CHANGE}already paused" if self.is_paused else "paused"
            self.is_paused = True
        elif action is CommandAction.RESUME:
            detail = "resumed" if self.is_paused else f"{NO_CHANGE}was not paused"
            self.is_paused = False
        else:
            self.should_stop, self.is_paused = True, False
            detail = "stopping at this step boundary"
        return CommandOutcome.APPLIED, detail

    def _set(self, settings: Mapping[str, Any]) -> tuple[CommandOutcome, str]:
        if self._on_set is None:
            return CommandOutcome.REJECTED, "this trainer changes no settings while it runs"
        try:
            settings = check_settings(self.live, settings)
            note = self._on_set(dict(settings))
        except SteeringError as error:
            return CommandOutcome.REJECTED, str(error)
        before = {key: self.live[key].get("value") for key in settings}
        for key, value in settings.items():
            self.live[key]["value"] = value
        changed = [f"{key} {before[key]} -> {settings[key]}" for key in settings]
        return CommandOutcome.APPLIED, "; ".join([", ".join(changed), *([note] if note else [])])


def values_of(live: Mapping[str, Any]) -> dict[str, Any]:
    """The values in the schemas of live settings."""
    return {key: schema["value"] for key, schema in live.items()}
