"""What the importer must know of a format: its keys, its steps, its episodes; and what a user says
of the keys of rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

from ..records import Split
from . import read
from .draft import Draft, RowError

Row = Mapping[str, Any]

_BAD_VALUES = (
    *(TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError),
    OverflowError,
)
"""What a reader raises where values are of other kinds than it expects."""
MAPPED = "echoscope_mapped"
"""Key that `Roles.mark` adds to a row: role -> the value that the user says is there."""
_STEM = re.compile(r"(?:.*(?:step|iteration|iter)[_\-]?)?(\d{1,8})")
_IN_STEM = re.compile(r"(?:^|[_\-.])(?:step|iteration|iter)[_\-]?(\d{1,8})(?=[_\-.]|$)")
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
        stem = self.path.stem
        match = _STEM.fullmatch(stem) or _IN_STEM.search(stem)
        if match:
            return int(match[1])
        folders = map(_FOLDER.fullmatch, reversed(self.path.parts[:-1]))
        return next((int(named[1]) for named in folders if named), None)

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
    is_split_by_name: bool = False
    """Files whose names say so hold evaluations."""
    goes_on: Callable[[Row], bool] | None = None
    """Whether a row behind one of this format is of it, too; None: where it matches."""

    def step_of(self, row: Row, where: Where) -> tuple[int | None, bool]:
        """The step of a row, None where nothing says it, and whether the file's name does."""
        mapped = row.get(MAPPED)
        if mapped and "step" in mapped:
            return read.whole(read.number(mapped["step"])), False
        step = self.step(row)
        if step is not None:
            return step, False
        step = self.file_step(where)
        return step, step is not None

    def episodes(self, row: Row, where: Where) -> Iterator[Draft]:
        """The episodes of a row, with what a user says of its keys.

        Raises:
            RowError: it has none, or its values are not of the kinds that its keys promise.
        """
        try:
            _, is_file_step = self.step_of(row, where)
            for draft in self.drafts(row, where):
                self._set_mapped(draft, row.get(MAPPED) or {})
                if is_file_step:
                    draft.reconstructed.add("step")
                if self.is_split_by_name and where.is_evaluation:
                    draft.split = Split.EVAL
                    draft.reconstructed.add("split")
                yield draft
        except RowError:
            raise
        except _BAD_VALUES as error:
            raise RowError("its values are not of the kinds that its keys promise") from error

    @staticmethod
    def _set_mapped(draft: Draft, mapped: Mapping[str, Any]) -> None:
        draft.fields = {key: value for key, value in draft.fields.items() if key != MAPPED}
        if "reward" in mapped:
            draft.set_episode_reward(read.number(mapped["reward"]))
            draft.reconstructed.discard("reward_terms")
        if "success" in mapped:
            draft.is_success = read.success(mapped["success"])
        if "group" in mapped:
            draft.group = read.text(mapped["group"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Under which keys rows hold what, as a user says with `--map`; "" where nothing is said.

    A dot leads into an object or a list: `score.total`, `messages.0.content`.
    """

    prompt: str = ""
    reply: str = ""
    reward: str = ""
    group: str = ""
    step: str = ""
    success: str = ""

    @property
    def given(self) -> dict[str, str]:
        """Role -> key, of those that are given."""
        return {role: key for role, key in asdict(self).items() if key}

    def mark(self, row: Any) -> Any:
        """A row with the values of the roles that it has, under `MAPPED`; any other value as is."""
        if not isinstance(row, Mapping):
            return row
        values = {role: _at(row, key) for role, key in self.given.items()}
        values = {role: value for role, value in values.items() if value is not None}
        return {**row, MAPPED: values} if values else row


NO_ROLES = Roles()


def _at(row: Row, key: str) -> Any:
    """The value under a key, or under a path of keys; None where there is none."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


LEAST_EPISODES = 50
"""So many rewards must be known before their values say what they mean."""


@dataclass(slots=True)
class RewardValues:
    """Which values the rewards of episodes have: 0 and 1 alone, or -1 and 1, say success."""

    is_other: bool = False
    """They do not say success, whatever comes."""
    _counts: Counter[float] = field(default_factory=Counter)

    def add(self, draft: Draft) -> None:
        """Note the reward of an episode; one that is not known counts for nothing.

        Where a file says success itself, or the reward is a sum that its trainer has not made,
        the rewards say nothing.
        """
        is_said = draft.is_success is not None
        if is_said or "reward_terms" in draft.reconstructed:
            self.is_other = True
        rewards = [turn.reward for turn in draft.turns]
        total = sum(rewards)
        if self.is_other or total != total or not rewards:
            return
        self._counts[total] += 1
        self.is_other = not any(self._counts.keys() <= pair for pair in ({0.0, 1.0}, {-1.0, 1.0}))

    @property
    def say_success(self) -> bool:
        """Whether success is read from them: enough of them, and not every one is 1."""
        is_enough = self._counts.total() >= LEAST_EPISODES
        return not self.is_other and is_enough and self._counts.keys() != {1.0}

    @staticmethod
    def read_success(draft: Draft) -> None:
        """Set the success of an episode from its reward."""
        total = sum(turn.reward for turn in draft.turns)
        if total == total:
            draft.is_success = total > 0
            draft.reconstructed.add("binary_success")


def has_keys(*names: str, **kinds: type) -> Callable[[Row], bool]:
    """Whether a row has all these keys, and under those of `kinds` a value of that kind."""
    return lambda row: (
        all(name in row for name in names)
        and all(isinstance(row.get(name), kind) for name, kind in kinds.items())
    )


def step_key(name: str) -> Callable[[Row], int | None]:
    """The step of rows that have it under a key."""
    return lambda row: read.whole(row.get(name))


def no_file_step(where: Where) -> None:
    """Of formats in whose files' names a number is no step."""
