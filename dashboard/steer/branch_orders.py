"""What a page may ask of a new branch, and the words of the command that does it.

What a browser sends is not what a person types in a terminal: a setting's value must be words or
numbers. So nothing that a page sends names code to load or a file to open, and no part of it is
read as an option or by a shell.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.store.checkpoints import STATE_NAME, checkpoint_path
from echoscope.store.log.durable import read_json_object
from echoscope.store.steer.steering import MAX_AUTHOR, MAX_REASON

MAX_SETTINGS = 64
MAX_STATE_BYTES = 64_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEY = re.compile(r"[a-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+){0,9}")
_VALUE = re.compile(r"[A-Za-z0-9_.+-]{1,200}")
_NOT_HERE = frozenset(
    {"branched_from", "data", "file", "from_run", "function", "observers", "path", "url"}
)
"""Parts of keys that name files, code or addresses."""


class BranchError(ValueError):
    """A branch that must not or cannot be started: names the value, the rule and the way out."""


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


def override_words(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings as KEY=VALUE words; those of a mapping one by one.

    >>> override_words({"optim.lr": 1e-05, "rules": {"KL_DRIFT": "stop"}, "enabled": True})
    ('optim.lr=1e-05', 'rules.KL_DRIFT=stop', 'enabled=true')
    """
    out: list[str] = []
    for key, value in changes.items():
        if isinstance(value, Mapping):
            out += override_words({f"{key}.{name}": entry for name, entry in value.items()})
        else:
            out.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    return tuple(out)


def parse_lines(text: str) -> tuple[str, ...]:
    """KEY=VALUE, one a line; blank lines are skipped.

    Raises:
        BranchError: a line is not fit to come from a page.
    """
    words = tuple(line.strip() for line in text.splitlines() if line.strip())
    for word in words:
        check_setting(word)
    return words


def check_setting(word: str) -> None:
    """Raises BranchError unless a word sets one setting to a word, a number or a list of those."""
    key, equals, value = word.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not _KEY.fullmatch(key):
        raise BranchError(f"{word[:80]!r} is not KEY=VALUE; write for example optim.lr=1e-4")
    parts = key.split(".")
    if key == "name":
        raise BranchError("the name has a field of its own")
    if _NOT_HERE.intersection(parts):
        raise BranchError(
            f"{key} names a file, code or an address, which a page may not; "
            "use `echoscope ctl RUN branch` in a terminal"
        )
    entries = [value]
    if value.startswith("[") and value.endswith("]"):
        inner = value[1:-1].strip()
        entries = [entry.strip() for entry in inner.split(",")] if inner else []
    if not all(_VALUE.fullmatch(entry) for entry in entries):
        raise BranchError(
            f"the value of {key} is {value[:80]!r}, but a page may send only a word, a number, or "
            "a list of those in [brackets]; use `echoscope ctl RUN branch` in a terminal"
        )


def command(order: BranchOrder, root: Path, *, is_dry_run: bool = False) -> list[str]:
    """The words of the process to start; with `is_dry_run` it only says what it would do.

    Raises:
        BranchError: something in the order is not fit to become one.
    """
    if order.name and not _NAME.fullmatch(order.name):
        raise BranchError(
            f"the name is {order.name[:80]!r}, but must begin with a letter or digit and have only "
            "letters, digits, dots, dashes and underscores, at most 100"
        )
    if len(order.settings) > MAX_SETTINGS:
        raise BranchError(f"{len(order.settings)} settings, at most {MAX_SETTINGS} can change")
    for word in order.settings:
        check_setting(word)
    texts = (("reason", order.reason, MAX_REASON), ("author", order.author, MAX_AUTHOR))
    for what, text, limit in texts:
        if len(text) > limit or not text.isprintable():
            raise BranchError(f"the {what} must be one line of at most {limit} characters")
    if order.checkpoint < 0:
        raise BranchError(f"{order.checkpoint} is not the step of a checkpoint")
    return [
        *(sys.executable, "-P", "-m", "echoscope"),
        *("ctl", str(order.parent.absolute()), "branch", "--json", f"--root={root.absolute()}"),
        f"--checkpoint={order.checkpoint}",
        *([f"--name={order.name}"] if order.name else []),
        *([f"--reason={order.reason}"] if order.reason else []),
        *([f"--by={order.author}"] if order.author else []),
        *(["--dry-run"] if is_dry_run else []),
        *("--", *order.settings),
    ]


def settings_at(run: Path, checkpoint: int) -> Mapping[str, Any]:
    """The whole configuration, nested, as a checkpoint of a run has it: live changes included.

    Raises:
        BranchError: the checkpoint is gone or damaged.
    """
    file = checkpoint_path(run, checkpoint) / STATE_NAME
    try:
        if file.stat().st_size > MAX_STATE_BYTES:
            raise BranchError(f"{file} has more than {MAX_STATE_BYTES} bytes")
        config = read_json_object(file).get("config")
    except OSError as error:
        raise BranchError(f"the checkpoint of step {checkpoint} cannot be read: {error}") from error
    if not isinstance(config, Mapping):
        raise BranchError(f"the checkpoint of step {checkpoint} has no settings: {file}")
    return config


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, None where there is none; numbers count entries of lists.

    >>> value_at({"envs": {"train": [{"groups": 8}]}}, "envs.train.0.groups")
    8
    """
    value: Any = config
    for part in key.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping):
            value = value.get(part)
        else:
            return None
    return value
