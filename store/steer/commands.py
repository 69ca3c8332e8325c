"""The mailbox of a run: whoever steers posts a file, the trainer drains and acknowledges.

One file per command, written under another name and renamed, so that the trainer never sees half
of one. Commands are told apart by id: one that has an acknowledgement in the journal never runs
again, whatever happened to the trainer in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..log.durable import open_regular, replace_file, with_checksum, without_checksum
from ..log.index import RunIndex, read_run_json
from ..log.layout import Layout
from ..log.remote.pulling import RemoteRun
from ..query.rows import ack_from_row, command_from_row, event_row, plain
from ..records import Command, CommandAck, CommandAction, CommandOutcome

_MAX_BYTES = 65_536
_MAX_ID = 200
_MAX_DETAIL = 300
_MAX_FILES_AT_ONCE = 256
"""Files that one look into the mailbox reads: a flood of them must not hold up a training step."""
_MARK_SETTLES_NS = 1_000_000_000
_POLL_S = 0.05


def new_command(
    run_id: str,
    action: CommandAction | str,
    *,
    settings: Mapping[str, Any] | None = None,
    issued_by: str = "",
    reason: str = "",
    ttl_s: float | None = 3600.0,
) -> Command:
    """A command with a fresh id, which expires in `ttl_s` seconds (None: never).

    Raises:
        ValueError: no such action, or settings that it cannot have.
    """
    action = CommandAction(action)
    is_with_settings = action in (CommandAction.SET, CommandAction.REWIND)
    is_question = action is CommandAction.PAUSE  # whether to rewind, where it has settings
    if bool(settings) != is_with_settings and not is_question:
        raise ValueError(
            f"settings belong to 'set', 'rewind' and a 'pause' that asks, not to {action.value!r}"
        )
    now = time.time()
    return Command(
        command_id=uuid.uuid4().hex,
        run_id=run_id,
        issued_at=now,
        issued_by=issued_by,
        action=action,
        settings=dict(settings or {}),
        reason=reason,
        expires_at=None if ttl_s is None else now + ttl_s,
    )


def post(run_path: Path, command: Command) -> None:
    """Put a command into the run's mailbox.

    Raises:
        NotARunError: no run there.
        StoreError: the command is too large, or the disk refuses.
    """
    layout = Layout(Path(run_path))
    layout.require_run()
    data = json.dumps(with_checksum(_row(command))).encode()
    if len(data) > _MAX_BYTES:
        raise StoreError(f"the command has {len(data)} bytes, more than {_MAX_BYTES}")
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:6]}.json"
    if (remote := RemoteRun.of(layout.root)) is not None:
        remote.post(name, data)
    try:
        layout.commands.mkdir(exist_ok=True)
        replace_file(layout.commands / name, data)
    except OSError as error:
        raise StoreError(f"{layout.commands}: {error.strerror}") from error


def _row(command: Command) -> dict[str, Any]:
    return {**plain(event_row(command)), "run_id": command.run_id}


def _load(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ValueError, TypeError, RecursionError or OSError."""
    with open_regular(path, follows_links=False) as file:  # a link may lead anywhere
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    value = json.loads(data)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _read(path: Path, run_id: str) -> Command:
    """Raises what `_load` raises, or KeyError, where the file is not a command for this run."""
    value = without_checksum(_load(path))
    if value is None:
        raise ValueError(
            "its content changed after it was written, or `echoscope` did not write it"
        )
    if value["run_id"] != run_id:
        raise ValueError(f"meant for run {str(value['run_id'])[:80]!r}")
    command = command_from_row(value, run_id)
    if not (0 < len(command.command_id) <= _MAX_ID and command.command_id.isprintable()):
        raise ValueError(f"command_id must be 1 to {_MAX_ID} printable characters")
    return command


def _names(folder: Path) -> list[str]:
    """Files that may hold commands, in order."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []  # nobody has steered this run, or somebody put something else there


class MailFolder:
    """The files of a mailbox, each read once: a file does not change once it has its name."""

    def __init__(self, run_path: Path, run_id: str) -> None:
        self._folder = Layout(Path(run_path)).commands
        self._run_id = run_id
        self._seen: set[str] = set()
        self._commands: dict[str, Command] = {}
        """Those that `commands` has found."""
        self.is_read = False
        """Whether the last look read everything that was there."""

    def new(self, most: int | None = None) -> tuple[dict[str, Command], dict[str, str]]:
        """What came since the last call: commands by file name in order, and what is wrong with
        each other file.

        Args:
            most: Read at most so many files; the others are for the next call.
        """
        names = _names(self._folder)
        self._seen &= set(names)
        commands: dict[str, Command] = {}
        refused: dict[str, str] = {}
        unread = [name for name in names if name not in self._seen]
        self.is_read = most is None or len(unread) <= most
        for name in unread[:most]:
            self._seen.add(name)
            try:
                commands[name] = _read(self._folder / name, self._run_id)
            except FileNotFoundError:
                continue
            except KeyError as error:
                refused[name] = f"it has no {error.args[0]!r}"
            except OSError as error:
                refused[name] = error.strerror or str(error)
            except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
                refused[name] = " ".join(str(error).split())[:_MAX_DETAIL]
        return commands, refused

    def commands(self) -> list[Command]:
        """What lies there now, in order."""
        self._commands |= self.new()[0]
        there = sorted(self._commands.keys() & self._seen)
        self._commands = {name: self._commands[name] for name in there}
        return [*self._commands.values()]

    def rows(self) -> list[dict[str, Any]]:
        """The same as rows of the view `commands`."""
        return [_row(command) for command in self.commands()]


def folder_mark(folder: Path) -> int | None:
    """Changes when a name in the folder does; None where that is too recent to tell."""
    try:
        changed = folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
    return changed if time.time_ns() - changed > _MARK_SETTLES_NS else None


def remove_commands(run_path: Path, command_ids: Set[str]) -> None:
    """Delete the files of commands whose body and acknowledgement are in the journal."""
    folder = Layout(run_path).commands
    for name in _names(folder):
        with contextlib.suppress(ValueError, TypeError, OSError, RecursionError):
            if str(_load(folder / name).get("command_id")) in command_ids:
                (folder / name).unlink()


class Mailbox:
    """The trainer's side: each command is handed out once, in order."""

    def __init__(self, run_path: Path, seen_ids: Iterable[str] = ()) -> None:
        """`seen_ids`: commands with an acknowledgement (`RunWriter.seen_command_ids`)."""
        layout = Layout(Path(run_path))
        self._folder = layout.commands
        self._mail = MailFolder(layout.root, read_run_json(layout)["run_id"])
        self._mark: int | None = None
        self._seen = set(seen_ids)
        self._refusals: list[tuple[str, CommandOutcome, str]] = []

    def drain(self) -> list[Command]:
        """Commands that arrived since the last call and may run.

        A file that is no command for this run is refused, an expired command expires: both wait
        in `take_refusals` to be acknowledged.
        """
        mark = folder_mark(self._folder)
        if mark is not None and mark == self._mark:
            return []
        commands, malformed = self._mail.new(_MAX_FILES_AT_ONCE)
        self._mark = mark if self._mail.is_read else None
        for name, why in malformed.items():
            # Nobody looks at it again: not the next attempt, and no reader. A folder may stay.
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
            detail = f"commands/{name} is not a command: {why}"
            self._refusals.append((f"file:{name}", CommandOutcome.REJECTED, detail))
        fresh = []
        for command in commands.values():
            if command.command_id in self._seen:
                continue
            self._seen.add(command.command_id)
            if command.expires_at is not None and command.expires_at <= time.time():
                detail = "it expired before the run could apply it"
                self._refusals.append((command.command_id, CommandOutcome.EXPIRED, detail))
            else:
                fresh.append(command)
        return fresh

    def take_refusals(self, step: int) -> list[CommandAck]:
        """Acknowledgements, dated `step`, of what `drain` would not hand out."""
        taken, self._refusals = self._refusals, []
        return [
            CommandAck(command_id=identity, step=step, outcome=outcome, detail=detail)
            for identity, outcome, detail in taken
        ]


def wait_for_ack(run_path: Path, command_id: str, timeout_s: float) -> CommandAck | None:
    """The acknowledgement of a command, or None where none came in time."""
    index = RunIndex(Path(run_path))
    deadline = time.monotonic() + timeout_s
    while True:
        for row in index.event_rows("command_events"):
            if row["command_id"] == command_id:
                return ack_from_row(row)
        while not index.refresh():
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
