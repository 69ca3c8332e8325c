"""A run that went on as another one: the order in its journal, and the run that carries it out.

A rewind never turns a run back. The run ends, with everything it observed, and a branch goes on
from one of its checkpoints. So the steps of a run only ever go forward, and no reader can take the
curve of the treated weights for that of the untreated ones. The order is a command like any other:
once it is acknowledged, whoever resumes the run carries it out, however often the process dies.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints import checkpoint_folders, checkpoint_step
from ..errors import StoreError
from ..log.durable import is_locked
from ..log.layout import Layout
from ..query.listing import RunList
from ..reader import RunReader, open_run
from ..records import Command, CommandAction, CommandOutcome
from ..status import RUNNING, halts_of

CHECKPOINT = "checkpoint.step"
"""Key of a rewind's settings that names the checkpoint; no setting of a run has this name."""
GUARD = "guard"
"""Who issues a rewind that nobody asked for."""
_NOT_BY_COMMAND = frozenset(
    {"branched_from", "data", "file", "from_run", "function", "observers", "path", "url"}
)
"""Parts of keys that name files, code or addresses: nobody changes those from outside."""
_KEY = re.compile(r"[a-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+){0,9}")
WORD = re.compile(r"[A-Za-z0-9_.+-]{1,200}")
"""What a value from outside may be, if it is a text."""
MAX_SETTINGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """An order to go on from a checkpoint, with other settings."""

    command: Command
    checkpoint: int
    settings: Mapping[str, Any]
    """Dotted key to the new value; empty for a rewind alone."""
    is_acknowledged: bool = True

    @classmethod
    def of(cls, command: Command, *, is_acknowledged: bool = True) -> Rewind:
        """What a command orders.

        Raises:
            ValueError: it names no checkpoint, or a setting that must not change from outside.
        """
        why = why_no_order(command.settings)
        if why:
            raise ValueError(why)
        settings = dict(command.settings)
        return cls(
            command=command,
            checkpoint=settings.pop(CHECKPOINT),
            settings=settings,
            is_acknowledged=is_acknowledged,
        )


def rewind_settings(checkpoint: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a command that orders a rewind."""
    return {CHECKPOINT: checkpoint, **settings}


def why_no_order(settings: Mapping[str, Any]) -> str:
    """Why a mailbox may not order a rewind with these settings, in a sentence; empty where it may.

    >>> why_no_order({"checkpoint.step": 20, "optim.lr": 1e-4, "reward.shaping": []})
    ''
    >>> why_no_order({"checkpoint.step": 20, "loss.function": "evil:run"})
    'loss.function names a file, code or an address: use `echoscope ctl RUN branch`'
    """
    step = settings.get(CHECKPOINT)
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        return f"{CHECKPOINT} is {step!r}, but must be the step of a checkpoint"
    if len(settings) > MAX_SETTINGS:
        return f"{len(settings)} settings, at most {MAX_SETTINGS} can change"
    for key, value in settings.items():
        if why := why_no_key(key):
            return why
        for entry in value if isinstance(value, list) else [value]:
            is_word = isinstance(entry, str) and WORD.fullmatch(entry) is not None
            if not is_word and not (entry is None or isinstance(entry, bool | int | float)):
                return f"the value of {key} must be a word, a number, or a list of those"
    return ""


def why_no_key(key: str) -> str:
    """Why nobody may change such a setting from outside, in a sentence; empty where one may."""
    if not _KEY.fullmatch(key):
        return f"{key[:80]!r} is not a dotted key such as optim.lr"
    if _NOT_BY_COMMAND.intersection(key.split(".")):
        return f"{key} names a file, code or an address: use `echoscope ctl RUN branch`"
    return ""


def rewind_of(run: RunReader) -> Rewind | None:
    """The rewind that ended a run, or that waits for it; None for a run that may train on.

    A run that somebody resumed from one of its checkpoints after a rewind goes on by itself. Of
    several orders that wait, the first is carried out.
    """
    info, waiting = run.info(), None
    for state in reversed(run.commands()):
        command, ack = state.command, state.ack
        if command.action is not CommandAction.REWIND:
            continue
        try:
            order = Rewind.of(command, is_acknowledged=ack is not None)
        except ValueError:
            continue  # the trainer refuses it, with the reason
        if ack is None:
            is_late = command.expires_at is not None and command.expires_at <= time.time()
            waiting = waiting if is_late else order
            continue
        has_trained = state.attempt != info.attempt and not info.is_starting
        is_last = ack.step == info.last_step + 1 and not has_trained
        if is_last and ack.outcome is CommandOutcome.APPLIED:
            return order
    return waiting


def asked_rewind(run: RunReader) -> dict[str, Any] | None:
    """The settings of the rewind that a paused run asks for; None where it asks for none."""
    info = run.info()
    pause = halts_of(run.commands(), info.attempt).pause
    if info.status != RUNNING or pause is None or why_no_order(pause.command.settings):
        return None
    return dict(pause.command.settings)


def successor_of(run: RunReader, rewind: Rewind) -> Path | None:
    """The run that carries out a rewind; None where it was not begun."""
    for row in RunList(run.path.parent).rows():
        is_from_there = row.branched_at == rewind.checkpoint and not row.problem
        if is_from_there and _order_of(row.path) == rewind.command.command_id:
            return row.path
    return None


def _order_of(path: Path) -> str:
    """The id of the rewind that a run carries out; empty for any other run."""
    origin = open_run(path).info().config.get("branched_from")
    return str(origin.get("command_id", "")) if isinstance(origin, Mapping) else ""


def checkpoints_before(path: Path) -> list[Path]:
    """The checkpoints from before a run, of those that rewinds made it go on from; by step.

    A branch of a person's is no such run: its settings are not to be lost.

    Raises:
        StoreError: a run cannot be read.
    """
    rows = {row.run_id: row for row in RunList(path.parent).rows() if not row.problem}
    row, before, folders = rows.get(path.name), math.inf, list[Path]()
    # Each is from before the last one: no run is its own ancestor, whatever its settings say.
    while row and row.branched_at is not None and row.branched_at < before and _order_of(row.path):
        before, row = row.branched_at, rows.get(row.parent_run_id or "")
        older = checkpoint_folders(Layout(row.path).checkpoints) if row else []
        folders = [folder for folder in older if checkpoint_step(folder) < before] + folders
    return folders


def last_of_line(path: Path) -> Path:
    """The run that a run has become: itself, or its last successor.

    Raises:
        StoreError: a run cannot be read.
    """
    seen = set()
    while path not in seen:
        seen.add(path)
        run = open_run(path)
        rewind = rewind_of(run)
        after = None if rewind is None else successor_of(run, rewind)
        if after is None or not is_begun(after):
            return path
        path = after
    raise StoreError(f"{path}: it is recorded as its own successor")


def is_begun(path: Path) -> bool:
    """Whether a run has the checkpoint that it starts from: a kill may have come before."""
    layout = Layout(path)
    return bool(checkpoint_folders(layout.checkpoints)) or is_locked(layout.writer_lock)
