"""Runs that share settings as one row: how many they are, what they have in common, their means.

The mean of a group is over its runs, which are usually seeds of one setting. Its 95 % interval is
over the runs too: Student's for a number, and for a share Wilson's of as many trials as would
spread like the runs do, which never leaves 0 to 100 %. On fixed tasks it is that of the page
Compare, never narrower than so many tasks allow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from echoscope.diagnostics.measure.outcomes import Estimate, mean_estimate
from echoscope.text.amounts import percent_in_digits

from ...escaping import digest_of
from ...words import number_words, setting_words
from ..comparing.groups import MISSING, short_name
from ..comparing.levels import Trials, evaluated_estimate, share_estimate
from .columns import RunsColumn
from .table import RunsTable, sort_keys

_NEED_NAMES = ("tags", "note", "trainer", "origin", "base_model", "branched")
"""Columns of texts that do not speak for themselves, as `ppo` and `frozen_lake` do."""
_WITHOUT = {"verdict": "not judged yet"}
_MAX_NAMED = 3
"""Values that differ within a group and are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """One row of the table on the page: a run, a group, or a run of an open group."""

    kind: Literal["run", "group", "member"]
    digest: str
    """Names its curve, and a group, in the address."""
    name: str
    """Of a group: the values that it shares, of the settings in which the groups differ."""
    rows: tuple[int, ...]
    """Of the table: one, or the members of a group in the order of the table."""
    colour: str = ""
    """Of its curve; empty for a run whose group has one."""
    is_open: bool = False


def grouped(table: RunsTable, hits: Sequence[int], names: Sequence[str]) -> list[TableLine]:
    """The groups of some rows, in the order in which they come.

    Args:
        names: Columns; runs with equal values in all of them are a group.

    Raises:
        Problem: there is no such column.
    """
    columns = [table.column(name) for name in names]
    values = [table.values(column.name) for column in columns]
    settings = [column.name for column in columns if column.source == "setting"]
    shorts = {name: short_name(name, settings) for name in settings}
    by_key: dict[tuple[str, ...], list[int]] = {}
    for row in hits:
        key = tuple(
            value_words(column, of[row]) for column, of in zip(columns, values, strict=True)
        )
        by_key.setdefault(key, []).append(row)
    varied = [len({key[n] for key in by_key}) > 1 for n in range(len(columns))]
    return [
        TableLine(
            kind="group",
            digest=digest_of(names, key),
            name=_name(columns, shorts, key, varied),
            rows=tuple(members),
        )
        for key, members in by_key.items()
    ]


def _name(
    columns: Sequence[RunsColumn],
    shorts: dict[str, str],
    key: Sequence[str],
    varied: Sequence[bool],
) -> str:
    """`ppo, lr 1e-05`: what is a word speaks for itself, a number needs its name."""
    parts = []
    for column, value, is_varied in zip(columns, key, varied, strict=True):
        if not is_varied and any(varied):
            continue
        is_plain = column.kind == "text" and value and column.name not in _NEED_NAMES
        name = shorts.get(column.name, column.label)
        parts.append(value if is_plain else f"{name} {value or MISSING}")
    return ", ".join(parts) or "all runs"


def value_words(column: RunsColumn, value: Any) -> str:
    """A value as a group's name and a table's cell have it; empty for none."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ""
    if column.is_share:
        return percent_in_digits(value)
    if column.kind == "number":
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return setting_words(value) if not isinstance(value, str) else value


def group_estimate(
    column: RunsColumn, values: Sequence[Any], num_tasks: Sequence[float] = ()
) -> tuple[Estimate, int]:
    """The mean of a group's numbers with its interval, and over how many runs.

    NaN ends where there is no interval: for one run, or where all are equal, which tells nothing of
    how runs differ. Of numbers of fixed tasks there is always one.

    Args:
        num_tasks: Of each value, as `RunsTable.num_tasks` has them; none where that is not known.
    """
    places = [n for n, v in enumerate(values) if isinstance(v, int | float) and math.isfinite(v)]
    numbers = [float(values[n]) for n in places]
    tasks = [num_tasks[n] for n in places] if num_tasks else []
    if tasks and all(tasks) and all(0 <= number <= 1 for number in numbers):
        return evaluated_estimate(numbers, tasks), len(numbers)
    if len(set(numbers)) < 2:
        mean = numbers[0] if numbers else math.nan
        return Estimate(value=mean, low=math.nan, high=math.nan), len(numbers)
    if column.is_share and all(0 <= number <= 1 for number in numbers):
        trials = Trials(num=len(numbers), is_known=False)
        return share_estimate(numbers, trials), len(numbers)
    return mean_estimate(numbers), len(numbers)


def estimate_words(
    column: RunsColumn, values: Sequence[Any], num_tasks: Sequence[float] = ()
) -> str:
    """`54.2 % (41 to 67)`, `0.021 (0.01 to 0.03)`; `0.3, all 5` where all runs are equal."""
    estimate, count = group_estimate(column, values, num_tasks)
    if not count:
        return ""
    scale, sign = (100.0, " %") if column.is_share else (1.0, "")
    head = f"{number_words(scale * estimate.value)}{sign}"
    if math.isnan(estimate.low):
        head += f", all {count}" if count > 1 else ""
    else:
        low, high = scale * estimate.low, scale * estimate.high
        head += f" ({_digits(low, high - low)} to {_digits(high, high - low)})"
    return head if count == len(values) else f"{head}, {count} of {len(values)} runs"


def _digits(value: float, width: float) -> str:
    """As many digits as the width of an interval bears."""
    if not value or not width:
        return number_words(value)
    places = max(0, 1 - math.floor(math.log10(abs(width))))
    return f"{value:,.{places}f}" if places < 5 else number_words(value)


def common_words(column: RunsColumn, values: Sequence[Any]) -> str:
    """What the runs of a group say: their value, or how many say what."""
    value_texts = [value_words(column, value) for value in values]
    counts = Counter(value_texts)
    if len(counts) == 1:
        return value_texts[0]
    ranked = sorted(counts.items(), key=lambda item: (not item[0], -item[1], item[0]))
    if len(ranked) == len(value_texts) > _MAX_NAMED:
        return f"{len(ranked)} values"
    without = _WITHOUT.get(column.name, "without")
    named = [f"{count} {word or without}" for word, count in ranked]
    if len(named) <= _MAX_NAMED:
        return ", ".join(named)
    num_others = sum(count for _, count in ranked[_MAX_NAMED - 1 :])
    return f"{', '.join(named[: _MAX_NAMED - 1])} and {num_others} others"


def ordered(table: RunsTable, groups: Sequence[TableLine], order: str) -> list[TableLine]:
    """Groups by the mean of a number, or the text that stands in their row.

    Raises:
        Problem: there is no such column.
    """
    name = order.removeprefix("-")
    is_falling = order.startswith("-")
    column, values = table.column(name), table.values(name)
    if column.name == "run":
        keyed: list[Any] = [group.name for group in groups]
    elif column.kind == "number":
        means = (group_estimate(column, [values[n] for n in group.rows])[0] for group in groups)
        keyed = [None if math.isnan(mean.value) else mean.value for mean in means]
    elif column.kind == "moment":
        keyed = [max((values[n] for n in g.rows if values[n]), default=None) for g in groups]
    else:
        keyed = [common_words(column, [values[n] for n in group.rows]) for group in groups]
    keys = sort_keys(keyed, is_falling=is_falling)
    return [groups[n] for n in sorted(range(len(groups)), key=lambda n: keys[n])]
