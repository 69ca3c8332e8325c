"""The record of a cure: which treatments of a run are compared, by whom, and which one went on.

One file beside the run, `.cures/RUN.json` under the root: the run itself is never touched. Whoever
cures a run holds the lock beside it, so that two people do not treat one run unknowingly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import RunBusyError, StoreError
from ..log.durable import FileLock, is_locked, read_json_object, replace_file

FOLDER = ".cures"
"""Under the root of the runs."""
_MAX_ARMS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One treatment and the branch that tries it."""

    reason: str
    """Of its branch: unique among all branches of the run, so that a branch is found again."""
    checkpoint: int
    settings: Mapping[str, Any]
    """Dotted key to the new value."""
    why: str
    rate: str = ""
    """How often it was measured to cure such runs, in words; empty where nobody measured it."""
    run_id: str = ""
    """Its branch; empty before that has begun."""
    ended: str = ""
    """Why it was stopped early, in words; empty while it is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A comparison of treatments."""

    run_id: str
    by: str
    """Who began it."""
    started_at: float
    """Seconds since the epoch."""
    steps: int
    """How many each branch trains at most before one is chosen."""
    arms: tuple[Arm, ...] = ()
    chosen: str = ""
    """The branch that went on as the run's successor; empty before that."""
    chosen_by: str = ""

    def with_arm(self, index: int, **values: Any) -> Cure:
        """The same with one arm changed."""
        arms = list(self.arms)
        arms[index] = replace(arms[index], **values)
        return replace(self, arms=tuple(arms))


def cure_file(run: Path) -> Path:
    """Where the record of a run's cure lies."""
    return run.parent / FOLDER / f"{run.name}.json"


def read_cure(run: Path) -> Cure | None:
    """The last cure of a run; None where there was none.

    Raises:
        StoreError: the record is no cure.
    """
    file = cure_file(run)
    if not file.is_file():
        return None
    value = read_json_object(file)
    try:
        arms = [Arm(**arm) for arm in value.pop("arms")]
        cure = Cure(**value, arms=tuple(arms[:_MAX_ARMS]))
        texts = [cure.run_id, cure.by, cure.chosen, *(a.run_id for a in arms)]
        if not all(isinstance(text, str) and "/" not in text for text in texts):
            raise TypeError("a name is no name")
    except (KeyError, TypeError) as error:
        raise StoreError(f"{file}: holds no cure ({error}); remove it to begin anew") from error
    return cure


def write_cure(run: Path, cure: Cure) -> None:
    """Keep a cure.

    Raises:
        StoreError: the disk refuses; the record is as it was.
    """
    file = cure_file(run)
    try:
        replace_file(file, json.dumps(asdict(cure), indent=1).encode())
    except OSError as error:
        raise StoreError(
            f"{file}: {error.strerror}; the cure stands as before, and the same command goes on"
        ) from error


def is_being_cured(run: Path) -> bool:
    """Whether somebody's `echoscope cure` of the run goes on."""
    return is_locked(cure_file(run).with_suffix(".lock"))


@contextmanager
def curing(run: Path) -> Iterator[None]:
    """While it lasts nobody else cures the run.

    Raises:
        RunBusyError: somebody does, and the message says who, since when, and what to do.
        OSError: the disk refuses.
    """
    file = cure_file(run)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    lock = FileLock(file.with_suffix(".lock"))
    try:
        lock.acquire()
    except RunBusyError:
        cure = read_cure(run)
        who = "somebody" if cure is None else cure.by or "somebody"
        raise RunBusyError(
            f"{who} is curing {run.name} now; watch the branches, or end that command first"
        ) from None
    try:
        yield
    finally:
        lock.release()
