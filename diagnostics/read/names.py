"""What the columns of a run are: from their names, from `--map`, and from their values."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from echoscope.store.query.metric_keys import ENTROPY, REF_KL, SAMPLED_TOKENS
from echoscope.store.records import FloatArray64
from echoscope.text.did_you_mean import did_you_mean

from ..judge.courses.channels import known_keys
from .foreign_names import (
    WORDS,
    How,
    Meaning,
    is_of_a_set,
    is_share,
    is_summary_column,
    meaning_among,
    meaning_of,
)
from .run_meaning import LARGEST_SHARE, ColumnMeaning, RunMeaning, Scale

MAX_ENTROPY_PER_TOKEN = 13.0
"""Nats. No vocabulary in use has more (ln 256,000 is 12.5): what is larger is per sequence."""
ROLES = ("prompt", "reply", "reward", "group", "step", "success")
"""What a key of rollouts may hold, as `--map ROLE=KEY` says: the fields of `importers.Roles`."""
NUM_DECIDING = 20
"""Rows of a column by which a run decides what it is; then that stays."""
_LENGTH = SAMPLED_TOKENS
_EPISODES = "rollout/num_episodes"
_COUNTS = (_EPISODES, "rollout/num_groups")
_SMALLEST_PERCENT = 1.5
"""Rates in percent exceed it somewhere; a column whose largest value is below may be anything."""
_PERCENT = re.compile(r"percent|pct|%|rate|acc", re.IGNORECASE)


_LEAST_SHARES = 3
_TIMES_MIXED = (40.0, 250.0)
"""Between a share and the percent of nearly the same lies a factor of 100."""


class MetricNameError(ValueError):
    """A `--map` that cannot be followed."""


@functools.lru_cache(maxsize=65_536)
def is_ours(name: str) -> bool:
    """Is this one of our own keys, which another trainer's name must not replace?"""
    if name.split("/")[0] not in WORDS["our_groups"]:
        return False
    meaning = meaning_of(name)
    return meaning is None or meaning.key == name or is_read(name)


def is_read(key: str) -> bool:
    """Is this a key that a rule reads?"""
    return _is_known(key, known_keys())


def _is_known(key: str, patterns: Iterable[str]) -> bool:
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), key) for pattern in patterns
    )


def parse_map(
    entries: Iterable[str],
    known_keys: Iterable[str],
    given_by: str = "--map",
    *,
    has_rollouts: bool = False,
) -> dict[str, Meaning]:
    """`["my_entropy=policy/entropy", "bad=1-rollout/action_valid_frac"]` by source name.

    Args:
        has_rollouts: Roles of rollouts are taken as well: `prompt=question` and `question=prompt`
            say the same, with the role on the left where both are. Our keys on the right are no
            names of keys of rollouts: `reward=rollout/success_rate` is of metrics.

    Raises:
        MetricNameError: no `=`, an empty side, or a key that no rule knows, with a suggestion.
    """
    keys = [*known_keys, "step"]
    roles = ROLES if has_rollouts else ()
    out: dict[str, Meaning] = {}
    for entry in entries:
        name, equals, target = (part.strip() for part in entry.rpartition("="))
        if not (name and equals and target):
            ways = f", or ROLE=KEY with a role of {', '.join(ROLES)}" if has_rollouts else ""
            raise MetricNameError(
                f"{given_by} {entry!r}: write NAME=KEY, such as ent=policy/entropy{ways}"
            )
        key = target.removeprefix("1-").strip()
        role, column = (name, target) if name in roles else (target, name)
        if role in roles and not (_is_known(target, keys) and target != "step"):
            out[column] = Meaning(key=role)
            continue
        if not _is_known(key, keys):
            way = f". For a key of rollouts write ROLE={name}: {', '.join(roles)}"
            raise MetricNameError(
                f"{given_by} {entry!r}: no rule reads {key!r}{did_you_mean(key, keys)}"
                + way * (bool(roles) and "/" not in key)
            )
        is_complement = target.startswith("1-")
        out[name] = Meaning(key=key, how=How.COMPLEMENT if is_complement else How.COLUMN)
    return out


@dataclass(slots=True)
class Decision:
    """What columns mean, and notes for the user.

    A key that the source has itself wins over an alias. Rates of several environments are averaged
    into the key without a tag; mutual information over its ceiling becomes `dependence`; an entropy
    too large to be per token is divided by the length. A reward is a return, whatever its range.

    Raises:
        MetricNameError: `mapping` calls something a share that is none.
    """

    columns: Mapping[str, FloatArray64]
    """The values that decide, each of a length of its own."""
    mapping: Mapping[str, Meaning]
    kept: RunMeaning = field(default_factory=RunMeaning)
    """What was decided earlier."""
    final: Collection[str] = ()
    """Columns of which that stays."""
    given_by: str = "--map"
    """Who gave the mapping, for the evidence."""
    is_strict: bool = True
    """Raise where `mapping` is wrong; else the column is not read, and a note says so."""
    entries: list[ColumnMeaning] = field(default_factory=list)
    values: dict[str, FloatArray64] = field(default_factory=dict)
    """By key, also of columns that keep their name."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read_columns()
        self._average_tags()
        self._derive()

    @property
    def meaning(self) -> RunMeaning:
        return RunMeaning(tuple(self.entries))

    def _read_columns(self) -> None:
        """Mapped columns, then final ones, then our own names, then the table's by rank."""
        ranked: list[tuple[int, int, str, Meaning | None]] = []
        for name in self.columns:
            if name in self.mapping:
                ranked.append((0, 0, name, self.mapping[name]))
            elif name in self.final:
                ranked.append((1, 0, name, None))
            elif is_ours(name) and not is_of_a_set(name, self.columns):
                ranked.append((2, 0, name, None))
            else:
                meaning = meaning_among(name, self.columns)
                ranked.append((3, meaning.rank if meaning else 0, name, meaning))
        for _, _, name, meaning in sorted(ranked, key=lambda entry: entry[:2]):
            if is_summary_column(name):
                self._take(_unread(name, "a summary of another column"))
            elif name in self.final and name not in self.mapping:
                self._take(self.kept.of_column.get(name) or _as_named(name))
            else:
                self._take(self._meant(name, meaning))

    def _take(self, entry: ColumnMeaning) -> None:
        """Add a column's meaning; a key has one column."""
        (name,) = entry.of
        if not entry.key:
            self.entries.append(entry)
        elif entry.key in self.values:
            self.entries.append(_unread(name, f"{entry.key} is read from another column"))
        else:
            self.values[entry.key] = entry.values(self.columns[name])
            if entry.key != name or entry.evidence:
                self.entries.append(entry)

    def _meant(self, name: str, meaning: Meaning | None) -> ColumnMeaning:
        """What one column is by its name, by the mapping and by its values."""
        values = self.columns[name]
        key = meaning.key if meaning else name
        is_mapped = name in self.mapping
        scale = Scale.ANY
        if is_share(key) and (meaning is not None or is_ours(name)):
            problem, scale = self._scale(name, key, meaning)
            if problem and (meaning is None or is_mapped):
                return _unread(name, problem)
            if problem:
                return _as_named(name, problem)
        elif key in _COUNTS and meaning is not None and not is_mapped and _grows(values):
            return _as_named(name, "it counts since the start of the run")
        evidence = self.given_by if is_mapped else "its name"
        if meaning is None:
            return ColumnMeaning(
                key=name, of=(name,), scale=scale, evidence=evidence * (scale is not Scale.ANY)
            )
        how = meaning.how
        if how is How.NEGATIVE and ((values > 0).any() or not (values < 0).any()):
            how = How.COLUMN
        return ColumnMeaning(key=key, of=(name,), how=how, scale=scale, evidence=evidence)

    def _scale(self, name: str, key: str, meaning: Meaning | None) -> tuple[str, Scale]:
        """Why values are no share ("" if they may be), and in which unit they are written.

        Values up to 100 are percent where it is sure that they are a rate, or where the name says
        so. What is only called a share by its name may be a number of successes.

        Raises:
            MetricNameError: `--map` says so, and the values are neither shares nor percent.
        """
        present = self.columns[name][np.isfinite(self.columns[name])]
        is_mapped = name in self.mapping
        mixed = _mixed(present)
        if mixed:
            self.notes.append(f"{name} {mixed}: it is not judged; write it in one unit")
            return mixed, Scale.ANY
        low, high = (float(present.min()), float(present.max())) if len(present) else (0.0, 0.0)
        span = f"lies between {low:.4g} and {high:.4g}"
        is_within = low >= 0 and (high <= LARGEST_SHARE or _SMALLEST_PERCENT < high <= 100)
        if key.endswith("success_rate") and not is_mapped and not is_within:
            self.notes.append(f"{name} {span}: it is no success rate, and is not judged as one")
            return span, Scale.ANY
        is_sure = is_mapped or meaning is None or not meaning.only_share
        if low >= 0 and high <= (LARGEST_SHARE if is_sure else 1.0):
            return "", Scale.SHARE
        is_percent = is_sure or (high > _SMALLEST_PERCENT and bool(_PERCENT.search(name)))
        if low >= 0 and high <= 100 and is_percent:
            self.notes.append(f"{name} lies between 0 and 100: it is read as percent")
            return "", Scale.PERCENT
        if is_mapped:
            self._refuse(name, span)
            return "is no share", Scale.ANY
        if meaning is None:
            return "", Scale.ANY
        if key.endswith("success_rate") and low >= 0 and _SMALLEST_PERCENT < high <= 100:
            self.notes.append(
                f"{name} lies between {low:.3g} and {high:.3g}: if it is a rate in percent, give "
                f"--map '{name}={key}'"
            )
        return f"{name} {'is no share' if is_within else span}", Scale.ANY

    def _refuse(self, name: str, span: str) -> None:
        sentence = (
            f"{self.given_by} {name}={self.mapping[name].key}: {name} {span}, and a share lies "
            "between 0 and 1, or in percent between 0 and 100"
        )
        if self.is_strict:
            raise MetricNameError(sentence)
        self.notes.append(sentence)

    def _average_tags(self) -> None:
        for rate in ("success_rate", "action_valid_frac", "action_effective_frac"):
            pattern = re.compile(rf"rollout/[^/]+/{rate}")
            members = tuple(sorted(key for key in self.values if pattern.fullmatch(key)))
            self._make(f"rollout/{rate}", members, How.MEAN, "the mean over environments")

    def _make(self, key: str, of: tuple[str, ...], how: How, evidence: str) -> None:
        """A key from others, where they are there and it is not."""
        if of and key not in self.values and self.values.keys() >= set(of):
            self.entries.append(ColumnMeaning(key=key, of=of, how=how, evidence=evidence))
            self.values[key] = np.empty(0)

    def _derive(self) -> None:
        """Keys that follow from others."""
        information = "info/first_turn/mutual_information"
        pair = information, f"{information}_ceiling"
        dependence = "info/first_turn/dependence"
        self._make(dependence, pair, How.SHARE_OF, "information over its ceiling")
        trajectories = ("rollout/num_trajectories",)
        self._make(_EPISODES, trajectories, How.MEAN, "every trajectory is an episode")
        self._entropy_per_token()
        self._kl_per_token()

    def _entropy_per_token(self) -> None:
        key, whole = ENTROPY, "policy/entropy_per_sequence"
        if _is_too_large(self.values.get(key)):
            self._rename(key, whole)
        name = self._column_of(whole)
        if key in self.values or not name:
            return
        if _LENGTH not in self.values:
            self.notes.append(
                f"{name} is per sequence and no length is logged: entropy rules are blind"
            )
            return
        self._make(key, (whole, _LENGTH), How.RATIO, "per sequence, divided by the length")
        self.notes.append(f"{name} is per sequence: divided by {self._column_of(_LENGTH)}")

    def _kl_per_token(self) -> None:
        """A KL that no token can have is a sum over sequences, and set aside."""
        key = REF_KL
        name = self._column_of(key)
        if name != key and _is_too_large(self.values.get(key)):
            self._rename(key, f"{key}_per_sequence")
            self.notes.append(f"{name} is too large to be per token: the KL rule does not read it")

    def _rename(self, key: str, name: str) -> None:
        entry = next((e for e in self.entries if e.key == key), _as_named(key))
        self.entries = [e for e in self.entries if e.key != key]
        self.entries.append(replace(entry, key=name, evidence="too large to be per token"))
        self.values[name] = self.values.pop(key)

    def _column_of(self, key: str) -> str:
        """The column that a key is read from; "" where there is none."""
        entry = next((entry for entry in self.entries if entry.key == key), None)
        return entry.of[0] if entry is not None else key if key in self.values else ""


def _as_named(name: str, evidence: str = "") -> ColumnMeaning:
    """A column that keeps its name."""
    return ColumnMeaning(key=name, of=(name,), evidence=evidence)


def _unread(name: str, evidence: str) -> ColumnMeaning:
    return ColumnMeaning(key="", of=(name,), how=How.UNREAD, evidence=evidence)


def _mixed(present: FloatArray64) -> str:
    """How finite values (n,) change between shares and percent; "" where they do not."""
    present = present[present > 0]
    if len(present) < 2 or present.max() > 100 or (present <= 1).sum() < _LEAST_SHARES:
        return ""
    low = np.minimum(present[1:], present[:-1])
    high = np.maximum(present[1:], present[:-1])
    least, most = _TIMES_MIXED
    is_jump = (low <= 1) & (high > _SMALLEST_PERCENT) & (high > least * low) & (high < most * low)
    if not is_jump.any():
        return ""
    before, after = present[int(np.argmax(is_jump)) :][:2]
    return f"changes between shares and percent ({before:.3g}, then {after:.3g})"


def _grows(values: FloatArray64) -> bool:
    """Whether every value is larger than the one before: a count since the start."""
    present = values[np.isfinite(values)]
    return len(present) > 2 and bool((np.diff(present) > 0).all())


def _is_too_large(values: FloatArray64 | None) -> bool:
    """Whether no token can have such numbers."""
    present = np.empty(0) if values is None else values[np.isfinite(values)]
    return bool(len(present)) and float(np.median(present)) > MAX_ENTROPY_PER_TOKEN


@dataclass(slots=True, kw_only=True)
class RowNamer:
    """Names the numbers of a run that arrive row by row.

    What a column is, and on what scale, is decided by the first `NUM_DECIDING` rows that have it,
    and stays so for the whole run.

    Args:
        mapping: What somebody said that columns are.
        meaning: What was decided by earlier rows, of a run that goes on.
    """

    mapping: Mapping[str, Meaning] = field(default_factory=dict)
    meaning: RunMeaning = field(default_factory=RunMeaning)
    notes: tuple[str, ...] = ()
    given_by: str = "--map"
    _samples: dict[str, dict[int, float]] = field(default_factory=dict)
    _final: set[str] = field(init=False)
    _left: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._final = {
            name
            for name, earlier in self.meaning.of_column.items()
            # else somebody says something else now
            if name not in self.mapping or self.mapping[name].key == earlier.key
        }

    def learn(self, step: int, values: Mapping[str, float]) -> None:
        """Take in a row, and decide again where it says more of what is open."""
        news = {n: v for n, v in values.items() if n not in self._final and math.isfinite(v)}
        for name, value in news.items():
            self._samples.setdefault(name, {})[step] = value
        if not news:
            return
        columns = {
            name: np.array(list(samples.values())) for name, samples in self._samples.items()
        }
        columns |= {name: np.empty(0) for name in self._final}
        decision = Decision(
            columns, self.mapping, self.meaning, self._final, self.given_by, is_strict=False
        )
        self.meaning, self.notes = self._without_left(decision.meaning), tuple(decision.notes)
        for name in [n for n, sample in self._samples.items() if len(sample) >= NUM_DECIDING]:
            self._final.add(name)
            del self._samples[name]

    def leave(self, keys: Iterable[str]) -> None:
        """Keys that the episodes gave first: no column is read as these in this run."""
        self._left |= set(keys) - self.meaning.of_key.keys()
        self.meaning = self._without_left(self.meaning)

    def _without_left(self, meaning: RunMeaning) -> RunMeaning:
        return RunMeaning(
            tuple(
                _unread(entry.of[0], "counted from the episodes")
                if entry.key in self._left and entry.key not in entry.of
                else entry
                for entry in meaning.columns
            )
        )

    def named(self, values: Mapping[str, float]) -> dict[str, float]:
        """A row's numbers under the trainer's names, and under ours where they are understood."""
        decided = self.meaning.of_column
        kept = {n: v for n, v in values.items() if n not in decided or not is_ours(n)}
        return kept | self.meaning.row(values)
