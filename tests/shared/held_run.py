"""A run that the test writes and holds, so that it is live, and whose mailbox the test answers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from made_run import add_steps, open_writer

from echoscope.core.config.inert import inert_rules
from echoscope.store.reader import open_run
from echoscope.store.records import (
    Alarm,
    AlarmSeverity,
    AlarmState,
    CheckpointRecord,
    CommandAck,
    CommandAction,
    CommandOutcome,
    SettingsRecord,
)
from echoscope.store.steer.commands import Mailbox
from echoscope.store.writer import RunWriter

KNOBS: dict[str, Any] = {
    "steps": {"type": "integer", "minimum": 1, "value": 100},
    "optim.lr": {"type": "number", "exclusiveMinimum": 0, "value": 0.1},
    "selection.strategy": {"type": "string", "enum": ["none", "top_p"], "value": "none"},
    "selection.value": {
        "type": "number",
        "exclusiveMinimum": 0,
        "value": 0.9,
        "inert": inert_rules("selection.value"),
    },
    "selection.include_zero": {"type": "boolean", "value": False},
    "diagnostics.alarms.thresholds": {
        "type": "object",
        "propertyNames": {"enum": ["format", "entropy_up"]},
        "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        "defaults": {"format": 0.2, "entropy_up": 0.6931},
        "value": {},
    },
    "diagnostics.alarms.actions": {
        "type": "object",
        "propertyNames": {"enum": ["ECHO_TRAP", "KL_DRIFT"]},
        "additionalProperties": {"enum": ["notify", "pause", "stop"]},
        "value": {},
    },
}


class HeldRun:
    """The run; it begins with no step."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.writer: RunWriter = open_writer(path, live_knobs=KNOBS, **options)
        self.mailbox = Mailbox(path)
        self.live = {key: knob["value"] for key, knob in KNOBS.items()}
        self.step = -1

    def advance(self, count: int = 1, **values: float) -> None:
        first = self.step + 1
        self.step += count
        steps = range(first, self.step + 1)
        add_steps(self.writer, self.path.name, steps, lambda step: {"policy/entropy": 1.0} | values)

    def answer(
        self, outcome: CommandOutcome = CommandOutcome.APPLIED, detail: str = ""
    ) -> list[str]:
        """Answer what waits, as at the next step boundary; the actions that were asked for."""
        commands = self.mailbox.drain()
        acks = [
            CommandAck(command_id=c.command_id, step=self.step + 1, outcome=outcome, detail=detail)
            for c in commands
        ]
        settings = None
        if outcome is CommandOutcome.APPLIED:
            for command in commands:
                if command.action is CommandAction.SET:
                    self._set(command.settings)
                    settings = SettingsRecord(step=self.step + 1, values=dict(self.live))
        self.writer.record_acks(acks, commands, settings)
        self.writer.flush()
        return [command.action.value for command in commands]

    def _set(self, settings: Mapping[str, Any]) -> None:
        """Entries of a mapping are added to those that it has, as the trainer does."""
        for key, value in settings.items():
            old = self.live.get(key)
            self.live[key] = {**old, **value} if isinstance(old, dict) and value else value

    def waiting(self) -> list[Any]:
        return [s.command for s in open_run(self.path).commands() if s.ack is None]

    def checkpoint(self, reason: str = "schedule") -> None:
        """The record of one, after the newest step; there are no weights."""
        record = CheckpointRecord(
            step=self.step,
            path=f"checkpoints/step_{self.step:06d}",
            policy_version=self.step,
            num_bytes=1,
            wall_time=time.time(),
            reason=reason,
        )
        self.writer.record_checkpoint(record)
        self.writer.flush()

    def raise_alarm(self, **fields: Any) -> None:
        """A critical ECHO_TRAP after the newest step, with other fields as given."""
        alarm: dict[str, Any] = {
            "alarm_id": "echo-critical",
            "rule": "ECHO_TRAP",
            "severity": AlarmSeverity.CRITICAL,
            "state": AlarmState.RAISED,
            "step": self.step,
            "onset_step": 1,
            "metric": "reward/group_std_mean",
            "value": 0.0,
            "baseline": 1.0,
            "threshold": 0.5,
            "window": 5,
            "message": "reward std fell",
            "advice": "Keep groups with spread.",
            "suggested": None,
            "evidence": (),
        }
        self.writer.record_alarms([Alarm(**(alarm | fields))])
        self.writer.flush()

    def fall_silent(self, seconds: float) -> None:
        """Nothing is acknowledged for so long."""
        set_heard(self.path, seconds)

    def close(self) -> None:
        self.writer.close(status="finished")


def set_heard(run: Path, seconds_ago: float) -> None:
    """Let a run look as if it had acknowledged something last so long ago."""
    heard_at = time.time() - seconds_ago
    os.utime(run / "journal.ndjson", (heard_at, heard_at))
