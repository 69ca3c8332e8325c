"""The mailbox of a run: whoever steers posts a file, the trainer drains and acknowledges.

One file per command, written under another name and renamed, so that the trainer never sees half
of one. Commands are told apart by id: one that has an acknowledgement in the journal never runs
again, whatever happened to the trainer in between.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import time
import uuid
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from .durable import sync_folder, write_new_file
from .errors import StoreError
from .events import ack_from_row, command_from_row, command_row, plain
from .index import RunIndex, read_run_json
from .layout import Layout
from .records import Command, CommandAck, CommandAction, CommandOutcome

_MAX_BYTES = 65_536
_MAX_ID = 200
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
        ValueError: no such action, or settings without `set`.
    """
    action = CommandAction(action)
    if bool(settings) != (action is CommandAction.SET):
        raise ValueError(f"settings belong to 'set' and to nothing else, not to {action.value!r}")
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
    data = json.dumps(plain(command_row(command)) | {"run_id": command.run_id}).encode()
    if len(data) > _MAX_BYTES:
        raise StoreError(f"the command has {len(data)} bytes, more than {_MAX_BYTES}")
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:6]}"
    try:
        layout.commands.mkdir(exist_ok=True)
        temporary = layout.commands / f"{name}.tmp"
        write_new_file(temporary, data)
        os.replace(temporary, layout.commands / f"{name}.json")
        sync_folder(layout.commands)
    except OSError as error:
        raise StoreError(f"{layout.commands}: {error.strerror}") from error


def _load(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ValueError, TypeError, RecursionError or OSError."""
    # Not a link, a pipe or a device: those may lead anywhere or never end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    value = json.loads(data)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _read(path: Path, run_id: str) -> Command:
    """Raises what `_load` raises, or KeyError, where the file is not a command for this run."""
    value = _load(path)
    if value["run_id"] != run_id:
        raise ValueError(f"meant for run {value['run_id']!r}")
    command = command_from_row(value, run_id)
    times = [command.issued_at, 0.0 if command.expires_at is None else command.expires_at]
    if not all(math.isfinite(moment) for moment in times):
        raise ValueError("a time is not a finite number")
    if not 0 < len(command.command_id) <= _MAX_ID:
        raise ValueError(f"command_id is {command.command_id!r}")
    return command


def _files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return []
    return [folder / name for name in names]


def read_commands(run_path: Path, run_id: str) -> tuple[list[Command], dict[str, str]]:
    """All readable commands in the mailbox, in order, and what is wrong with each other file."""
    commands: list[Command] = []
    refused: dict[str, str] = {}
    for path in _files(Layout(Path(run_path)).commands):
        try:
            commands.append(_read(path, run_id))
        except KeyError as error:
            refused[path.name] = f"it has no {error.args[0]!r}"
        except (ValueError, TypeError, OSError, RecursionError) as error:
            refused[path.name] = str(error)
    return commands, refused


def pending_rows(run_path: Path, run_id: str) -> list[dict[str, Any]]:
    """Rows of the `commands` view for what lies in the mailbox."""
    commands, _ = read_commands(run_path, run_id)
    return [plain(command_row(command)) | {"run_id": run_id} for command in commands]


def remove_commands(run_path: Path, command_ids: Set[str]) -> None:
    """Delete the files of commands whose body and acknowledgement are in the journal."""
    for path in _files(Layout(run_path).commands):
        try:
            identity = str(_load(path).get("command_id"))
        except (ValueError, TypeError, OSError, RecursionError):
            identity = ""
        if command_ids & {identity, f"file:{path.name}"}:
            # Somebody may have put a folder there: it is refused for good, and may stay.
            with contextlib.suppress(OSError):
                path.unlink()


class Mailbox:
    """The trainer's side: each command is handed out once, in order."""

    def __init__(self, run_path: Path, seen_ids: Iterable[str] = ()) -> None:
        """`seen_ids`: commands with an acknowledgement (`RunWriter.seen_command_ids`)."""
        self._path = Path(run_path)
        self._run_id: str = read_run_json(Layout(self._path))["run_id"]
        self._seen = set(seen_ids)
        self._refusals: list[tuple[str, CommandOutcome, str]] = []

    def drain(self) -> list[Command]:
        """Commands that arrived since the last call and may run.

        A file that is no command for this run is refused, an expired command expires: both wait
        in `take_refusals` to be acknowledged.
        """
        commands, malformed = read_commands(self._path, self._run_id)
        for name, why in malformed.items():
            identity = f"file:{name}"
            if identity not in self._seen:
                self._seen.add(identity)
                detail = f"commands/{name} is not a command: {why}"
                self._refusals.append((identity, CommandOutcome.REJECTED, detail))
        fresh = []
        for command in commands:
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
    rows = index.packed_rows("command_events")
    while True:
        rows += index.events.table("command_events").to_pylist()
        for row in rows:
            if row["command_id"] == command_id:
                return ack_from_row(row)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S)
        index.events.clear()
        rows = index.packed_rows("command_events") if index.refresh() == "reset" else []
