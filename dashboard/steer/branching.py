"""Branches started from a page: each is `echoscope ctl RUN branch` as a process of its own.

A branch outlives the dashboard: it leads its own session, reads nothing from us and writes to a
log in `.branches/` under the root. What it is to do goes as a list of words, never through a shell.

What a browser sends is not what a person types in a terminal: a setting's value must be words or
numbers. So nothing that a page sends names code to load or a file to open, and no part of it is
read as an option.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from echoscope.store.checkpoints import STATE_NAME, checkpoint_path
from echoscope.store.log.durable import read_json_object
from echoscope.store.log.layout import Layout
from echoscope.store.steer.rewinds import MAX_SETTINGS, WORD, why_no_key
from echoscope.store.steer.settings import flat
from echoscope.store.steer.steering import SteeringError, check_settings, check_texts
from echoscope.text.did_you_mean import did_you_mean

from ..web.gate import PASSWORD_VARIABLE
from .knobs import typed_value

FOLDER = ".branches"
"""Under the root: the logs."""
MAX_LIVE = 4
"""Branches of one dashboard that train at once."""
_MAX_STATE_BYTES = 64_000_000
_NUMBER = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_FREE = (["params"], ["thresholds"], ["actions"])
"""Sections that may get keys which the run did not set."""
_READ_BYTES = 65_536
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchOrder:
    """What somebody asks for."""

    parent: Path
    """Folder of the run."""
    checkpoint: int
    """Step of one of its checkpoints."""
    settings: tuple[str, ...] = ()
    """KEY=VALUE words."""
    name: str = ""
    """Of the new run; its parent's if empty."""
    reason: str = ""
    author: str = ""


def check_setting(word: str) -> None:
    """Raises SteeringError unless a word sets a setting to a word, a number or a list of those."""
    key, equals, value = word.partition("=")
    key, value = key.strip(), value.strip()
    if not equals:
        raise SteeringError(f"{word[:80]!r} is not KEY=VALUE; write for example optim.lr=1e-4")
    if key == "name":
        raise SteeringError("the name has a field of its own")
    if why := why_no_key(key):
        raise SteeringError(why)
    entries = [value]
    if value.startswith("[") and value.endswith("]"):
        inner = value[1:-1].strip()
        entries = [entry.strip() for entry in inner.split(",")] if inner else []
    if not all(WORD.fullmatch(entry) for entry in entries):
        raise SteeringError(
            f"the value of {key} is {value[:80]!r}, but a page may send only a word, a number, or "
            "a list of those in [brackets]; use `echoscope ctl RUN branch` in a terminal"
        )


def command(order: BranchOrder, root: Path) -> list[str]:
    """The words of the command to start.

    Raises:
        SteeringError: something in the order is not fit to become one.
    """
    if order.name and not _NAME.fullmatch(order.name):
        raise SteeringError(
            f"the name is {order.name[:80]!r}, but must begin with a letter or digit and have only "
            "letters, digits, dots, dashes and underscores, at most 100"
        )
    if len(order.settings) > MAX_SETTINGS:
        raise SteeringError(f"{len(order.settings)} settings, at most {MAX_SETTINGS} can change")
    keys: set[str] = set()
    for word in order.settings:
        check_setting(word)
        key = word.partition("=")[0].strip()
        if key in keys:
            raise SteeringError(f"{key} is given twice; leave out one")
        keys.add(key)
    check_lines(order.reason, order.author)
    if order.checkpoint < 0:
        raise SteeringError(f"{order.checkpoint} is not the step of a checkpoint")
    return [
        *("ctl", str(order.parent.absolute()), "branch", "--json", f"--root={root.absolute()}"),
        f"--checkpoint={order.checkpoint}",
        *([f"--name={order.name}"] if order.name else []),
        *([f"--reason={order.reason}"] if order.reason else []),
        *([f"--by={order.author}"] if order.author else []),
        *("--", *order.settings),
    ]


def check_lines(reason: str, author: str) -> None:
    """Raises SteeringError where why, or who asks, is not one line that can be kept."""
    check_texts(reason, author)
    for what, text in (("reason", reason), ("author", author)):
        if not text.isprintable():
            raise SteeringError(f"the {what} must be one line")


def settings_at(run: Path, checkpoint: int) -> Mapping[str, Any]:
    """The whole configuration, nested, as a checkpoint of a run has it: live changes included.

    Raises:
        SteeringError: the checkpoint is gone or damaged.
    """
    file = checkpoint_path(run, checkpoint) / STATE_NAME
    try:
        if file.stat().st_size > _MAX_STATE_BYTES:
            raise SteeringError(f"{file} has more than {_MAX_STATE_BYTES} bytes")
        config = read_json_object(file).get("config")
    except OSError as error:
        raise SteeringError(
            f"the checkpoint of step {checkpoint} cannot be read: {error}"
        ) from error
    if not isinstance(config, Mapping):
        raise SteeringError(f"the checkpoint of step {checkpoint} has no settings: {file}")
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchReport:
    """How a launch stands; with neither of both it is starting. Texts come from files: hostile."""

    run_id: str = ""
    """The run that there is: its own page tells the rest."""
    problem: str = ""
    """Why it was refused, one line."""

    @property
    def is_starting(self) -> bool:
        return not self.run_id and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launch:
    """A process that was started."""

    order: BranchOrder
    root: Path
    log: Path
    started: float
    """When, in seconds since the epoch."""
    process: subprocess.Popen[bytes]

    def report(self) -> BranchReport:
        """How it stands now: reads the beginning and the end of its log."""
        has_ended = self.process.poll() is not None  # first: what it wrote last is then read
        run_id, last = _read(self.log)
        if run_id and Layout(self.root / run_id).is_run:
            return BranchReport(run_id=run_id)
        return BranchReport(problem=(last or "it ended silently") if has_ended else "")


_launches: list[Launch] = []
_lock = threading.Lock()


def launches(parent: Path) -> list[Launch]:
    """Branches of a run that this dashboard started, the newest first."""
    with _lock:
        return [started for started in reversed(_launches) if started.order.parent == parent]


def launch(order: BranchOrder, root: Path) -> Launch:
    """Start a branch under `root`; it goes on when this process ends.

    Raises:
        SteeringError: the order is not fit, too many train already, or the system refuses.
    """
    arguments = command(order, root)
    with _lock:
        busy = sum(begun.process.poll() is None for begun in _launches)
        if busy >= MAX_LIVE:
            raise SteeringError(
                f"{busy} branches of this dashboard are training, at most {MAX_LIVE} may; "
                "stop one, or use `echoscope ctl RUN branch` in a terminal"
            )
        try:
            log, descriptor = _open_log(root)
            with os.fdopen(descriptor, "wb") as output:
                process = start_apart(arguments, output)
        except (OSError, ValueError) as error:
            raise SteeringError(f"the branch was not started: {error}") from error
        started = Launch(order=order, root=root, log=log, started=time.time(), process=process)
        _launches.append(started)
    return started


def start_apart(
    words: Sequence[str],
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """`echoscope` with some words, in a session of its own, which lives on when the dashboard ends.

    What it runs need not know how to get in here.

    Args:
        errors: None to write them to the output as well.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    inherited = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "echoscope", *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if errors is None else errors,
        env={**inherited, **(variables or {})},
        start_new_session=True,
    )


def last_lines(file: IO[bytes]) -> list[str]:
    """The last lines of a file, which a process writes on; without blank ones."""
    start = max(0, os.fstat(file.fileno()).st_size - _READ_BYTES)
    text = os.pread(file.fileno(), _READ_BYTES, start).decode("utf-8", "replace")
    return [line for line in text.split("\n") if line.strip()]


def check(
    order: BranchOrder, root: Path, config: Mapping[str, Any], live_knobs: Mapping[str, Any]
) -> None:
    """Check an order by what the run wrote down; no process is started, so it takes no time.

    The rest is refused by the command when the branch starts, in its own words:
    `BranchReport.problem`.

    Args:
        config: `settings_at` the checkpoint.
        live_knobs: `RunInfo.live_knobs`, the schemas of the live settings.

    Raises:
        SteeringError: the command would refuse, with the reason.
    """
    command(order, root)
    before = flat(config)
    for word in order.settings:
        key, _, text = (part.strip() for part in word.partition("="))
        schema, value = live_knobs.get(key), before.get(key)
        if isinstance(schema, Mapping):
            check_settings({key: schema}, {key: typed_value(text, schema)})
        elif key in before:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and isinstance(typed_value(text, _NUMBER), str):
                raise SteeringError(f"{key} is {text!r}, but must be a number, as {value} is")
        elif any(setting.startswith(f"{key}.") for setting in before):
            continue  # a whole list, such as reward.shaping=[], that the run has by its entries
        elif key.split(".")[-2:-1] not in _FREE:
            section = key.rpartition(".")[0]
            hint = did_you_mean(key, [setting for setting in before if setting.startswith(section)])
            if hint:
                raise SteeringError(f"{key} is not a setting of this run{hint}")


def _open_log(root: Path) -> tuple[Path, int]:
    """A new file in a folder that is ours and no link."""
    folder = root / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise OSError(f"{folder} is a link; remove it")
    log = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND
    return log, os.open(log, flags, 0o600)


def _read(log: Path) -> tuple[str, str]:
    """The name of the new run, empty while the log does not say it, and the last line."""
    try:
        with log.open("rb") as file:
            head = file.read(_READ_BYTES)
            last = last_lines(file)[-1:]
    except OSError as error:
        return "", f"{log}: {error.strerror}"
    lines = head.decode("utf-8", "replace").split("\n")[:-1]
    text = "".join(last).removeprefix("error: ")[:2_000]
    return next(filter(None, map(_run_id, lines)), ""), text


def _run_id(line: str) -> str:
    """The name of the new run in the command's first line; empty for any other line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    is_start = isinstance(value, dict) and value.get("outcome") == "starting"
    run_id = value.get("run_id") if is_start else None
    return run_id if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id) else ""
