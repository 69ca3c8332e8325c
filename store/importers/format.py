"""What the importer must know of a format: its keys, its steps, its episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from .draft import Draft, whole

Row = Mapping[str, Any]

_STEM = re.compile(r"(?:.*(?:step|iteration|iter)[_\-]?)?(\d{1,8})")
_FOLDER = re.compile(r"(?:\w+_)?(?:step|iteration|iter)[_\-]?(\d{1,8})(?:_\w+)?")
_EVAL = re.compile(r"(?:^|[_\-.])(?:val|valid|validation|eval|evals|test)(?:$|[_\-.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The file that a row came from."""

    path: PurePath
    """Relative to what was imported."""

    @property
    def step(self) -> int | None:
        """The step that the name of the file or one of its folders says; None where none does."""
        found = _STEM.fullmatch(self.path.stem)
        if found:
            return int(found[1])
        for part in reversed(self.path.parts[:-1]):
            named = _FOLDER.fullmatch(part)
            if named:
                return int(named[1])
        return None

    @property
    def is_evaluation(self) -> bool:
        """Whether a folder, or the file, is named after an evaluation."""
        return any(_EVAL.search(part.lower()) for part in (*self.path.parts[:-1], self.path.stem))


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one trainer's rows are recognised and read."""

    name: str
    trainer: str
    matches: Callable[[Row], bool]
    """By keys alone."""
    drafts: Callable[[Row, Where], Iterable[Draft]]
    """The episodes of a row. Raises RowError with a reason where it has none."""
    step: Callable[[Row], int | None] = lambda row: None
    """The step that the row says."""
    file_step: Callable[[Where], int | None] = lambda where: where.step
    """The step that the names of files say, for rows that do not."""


def step_key(name: str) -> Callable[[Row], int | None]:
    """The step of rows that have it under a key."""
    return lambda row: whole(row.get(name))
