"""All runs of a root as a table: any setting, any metric, filtered, sorted, grouped; then a page.

table = root_runs().table(rows)
hits = table.filtered("lr > 1e-6 and success < 50 %")
ordered = table.sorted(hits, "-success")
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.store.errors import QueryError
from echoscope.store.query.listing import RunRow, row_status
from echoscope.store.query.patterns import matches
from echoscope.store.query.summary import RunSummary
from echoscope.store.status import Origin, after_step

from ...page.problems import Problem
from ...web.settings import settings
from ...words import setting_words
from ..comparing.groups import settings_of
from ..curves import success_keys, tasks_key
from .columns import EVALUATED, OF_EVERY_RUN, ColumnCatalogue, RunsColumn
from .condition import holds, is_condition, parsed_condition
from .facts import Facts, RunFacts, TableVerdict

MAX_VALUES = 60
"""A setting with more values than this among the runs is no setting that a sweep varies."""
_NOT_VARIED = ("recorded", "controls", "tags", "evaluation")
"""Parts of a configuration that say what a run is, not how it trains."""
Values = Sequence[Any]
OF_VERDICTS = frozenset({"verdict", "since", "problem"})
"""Columns that need a verdict."""
KEPT_S = 10.0
"""For so long ages and the word for how a live run stands are used again."""


@dataclass(slots=True, eq=False)
class RunsTable:
    """The runs of a root as they are known at one moment."""

    rows: Sequence[RunRow]
    facts: Sequence[RunFacts | None]
    """Of each row; None of one that has not been read yet."""
    standings: Sequence[TableVerdict | None]
    now: float
    catalogue: ColumnCatalogue
    _values: dict[str, tuple[RunsColumn, Values]] = field(default_factory=dict)

    @property
    def num_read(self) -> int:
        return sum(facts is not None for facts in self.facts)

    def judged(self, standings: Sequence[TableVerdict | None]) -> RunsTable:
        """The same runs with newer verdicts; columns of nothing else are read again."""
        unaffected = {name: of for name, of in self._values.items() if name not in OF_VERDICTS}
        return replace(self, standings=standings, _values=unaffected)

    def column(self, name: str) -> RunsColumn:
        """The column of a name, with the kind that its values have.

        Raises:
            Problem: there is none.
        """
        return self._of(self.catalogue.column(name))[0]

    def values(self, name: str) -> Values:
        """A value for each row; None where the run has none.

        Raises:
            Problem: there is no such column.
        """
        return self._of(self.catalogue.column(name))[1]

    def num_tasks(self, column: RunsColumn) -> Sequence[float]:
        """Fixed tasks behind a success rate, of each row, 0 where not known; empty for any other
        column."""
        if not tasks_key(column.key):
            return ()
        summaries = [facts and facts.metrics for facts in self.facts]
        curves = [of and of.of(tasks_key(_key_of(of, column.key))) for of in summaries]
        return [of.last if of else 0.0 for of in curves]

    def filtered(self, text: str) -> list[int]:
        """The rows for which a condition holds, or in whose texts a regular expression is found.

        Raises:
            Problem: what is wrong with the filter, in one sentence.
        """
        text = text.strip()
        if not text:
            return [*range(len(self.rows))]
        if is_condition(text):
            try:
                return self._held(text)
            except Problem:
                hits = self._named(text)  # a run may be called lr=1e-5
                if not hits:
                    raise
                return hits
        return self._found(text)

    def sorted(self, hits: Sequence[int], order: str) -> list[int]:
        """Rows by a column, `-name` for falling; pinned ones first, those without a value last.

        Raises:
            Problem: there is no such column.
        """
        is_falling = order.startswith("-")
        keys = sort_keys(self.values(order.removeprefix("-")), is_falling=is_falling)
        newest = [-row.created_at for row in self.rows]
        return sorted(hits, key=lambda n: (not self.rows[n].is_pinned, keys[n], newest[n]))

    def _of(self, column: RunsColumn) -> tuple[RunsColumn, Values]:
        answer = self._values.get(column.name)
        if answer is None:
            answer = self._values[column.name] = self._read(column)
        return answer

    def _read(self, column: RunsColumn) -> tuple[RunsColumn, Values]:
        if column.source == "setting":
            values, kind = typed([facts and facts.setting(column.name) for facts in self.facts])
            return replace(column, kind=kind), values
        if column.source == "metric":
            return column, [
                self._number(column, row, facts)
                for row, facts in zip(self.rows, self.facts, strict=True)
            ]
        of_run, is_of_folder = _OF_RUN[column.name], column.name in _OF_FOLDER
        return column, [
            of_run(row, facts or _NOT_READ, standing or _NOT_JUDGED, self.now)
            if row.is_read or is_of_folder
            else None
            for row, facts, standing in zip(self.rows, self.facts, self.standings, strict=True)
        ]

    def _number(self, column: RunsColumn, row: RunRow, facts: RunFacts | None) -> float | None:
        if column.name == "success" and row.success_rate is not None:
            return row.success_rate
        if facts is None or facts.metrics is None:
            return None
        summary = facts.metrics.of(_key_of(facts.metrics, column.key))
        if summary is None:
            success = facts.details.success  # counted from episodes
            is_last = column.name == "success" and bool(success)
            return success[-1] if is_last else None
        if column.stat == "best":
            falls = metric(_key_of(facts.metrics, column.key)).good == "down"
            return summary.low if falls else summary.high
        numbers = {"last": summary.last, "recent": summary.recent}
        return (numbers | {"max": summary.high, "min": summary.low})[column.stat]

    def _held(self, text: str) -> list[int]:
        condition, read = parsed_condition(text, self.column)
        if not self.rows:
            return []
        columns = {
            f"c{n}": _arrow(self.column(column.name), self.values(column.name))
            for n, column in enumerate(read)
        }
        table = pa.table(columns or {"c0": pa.nulls(len(self.rows))})
        return [n for n, is_held in enumerate(holds(condition, read, table)) if is_held]

    def _named(self, text: str) -> list[int]:
        lower = text.lower()
        return [n for n, row in enumerate(self.rows) if any(lower in t.lower() for t in row.texts)]

    def _found(self, pattern: str) -> list[int]:
        live = self.values("status")
        environments = self.values("env")
        texts = [
            (*row.texts, str(live[n] or ""), str(environments[n] or ""))
            for n, row in enumerate(self.rows)
        ]
        try:
            is_hit = iter(matches(pattern, [*chain.from_iterable(texts)]))
        except QueryError as error:
            raise Problem(str(error)) from error
        return [n for n, of_row in enumerate(texts) if any([*islice(is_hit, len(of_row))])]


def _key_of(summary: RunSummary, key: str) -> str:
    return evaluation_key(summary.keys) if key == EVALUATED else key


@functools.lru_cache(maxsize=256)
def evaluation_key(metrics: tuple[str, ...]) -> str:
    """The metric that is a run's success on its fixed tasks; empty where several may be meant."""
    keys = success_keys(metrics, ("eval/",))
    return keys[0] if len(keys) == 1 else ""


def typed(values: Values) -> tuple[Values, Any]:
    """Values of a setting as numbers, flags or texts: what all of them can be, and which that is.

    A number that a file holds as a text, as YAML takes `1e-5`, counts as a number.
    """
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, bool) for value in given):
        return values, "flag"
    numbers = [_as_number(value) for value in values]
    if given and all((n is None) == (v is None) for n, v in zip(numbers, values, strict=True)):
        return numbers, "number"
    return [None if value is None else setting_words(value)[:300] for value in values], "text"


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def sort_keys(values: Values, *, is_falling: bool) -> list[tuple[bool, Any]]:
    """What rows are sorted by: values that are missing, or no numbers, last both ways."""
    if any(isinstance(v, datetime) for v in values):
        values = [v and v.timestamp() for v in values]
    elif not any(isinstance(v, int | float) for v in values):
        order = {text: n for n, text in enumerate(sorted({str(v) for v in values if v}))}
        values = [order[str(v)] if v else None for v in values]
    sign = -1 if is_falling else 1
    return [
        (False, sign * v) if isinstance(v, int | float) and v == v else (True, 0.0) for v in values
    ]


def _arrow(column: RunsColumn, values: Values) -> pa.Array:
    kinds = {"number": pa.float64(), "flag": pa.bool_(), "moment": pa.timestamp("s")}
    if column.kind == "text":
        texts = [
            None if v in (None, "") else str(v).encode(errors="replace").decode() for v in values
        ]
        return pa.array(texts, pa.string())
    return pa.array(values, kinds[column.kind])


def _rule_words(rule: str) -> str:
    return rule.replace("_", " ").lower()


def _hours(row: RunRow, until: float) -> float | None:
    return (until - row.created_at) / 3600 if row.created_at else None


def _branched(row: RunRow) -> str:
    when = "" if row.branched_at is None else f" {after_step(row.branched_at)}"
    return f"{row.parent_run_id}{when}" if row.parent_run_id else ""


_NOT_READ = RunFacts(mark=(0.0, 0.0, 0), environments=())
_NOT_JUDGED = TableVerdict(mark=_NOT_READ.mark)
_OF_RUN: Mapping[str, Callable[[RunRow, RunFacts, TableVerdict, float], Any]] = {
    "run": lambda row, *_: row.run_id,
    "status": lambda row, facts, _, now: row_status(row, facts.details, now).status.value,
    "verdict": lambda row, facts, standing, now: (
        RunState.EVALUATION.value if row.origin is Origin.EVALUATED else standing.state or None
    ),
    "since": lambda row, facts, standing, now: standing.since,
    "problem": lambda row, facts, standing, now: _rule_words(standing.kind),
    "step": lambda row, *_: None if row.origin is Origin.EVALUATED else max(row.last_step, 0),
    "steps": lambda row, *_: row.num_steps,
    "history": lambda row, facts, *_: list(facts.details.success),
    "alarm": lambda row, facts, *_: _rule_words(facts.details.alarm_rule),
    "env": lambda row, facts, *_: ", ".join(row.environments or facts.environments),
    "algo": lambda row, *_: row.algorithm,
    "origin": lambda row, *_: row.origin.value,
    "trainer": lambda row, *_: row.trainer,
    "branched": lambda row, *_: _branched(row),
    "base_model": lambda row, *_: row.base_model,
    "started": lambda row, *_: (
        datetime.fromtimestamp(int(row.created_at)) if row.created_at else None
    ),
    "age_h": lambda row, facts, standing, now: _hours(row, now),
    "duration_h": lambda row, *_: _hours(row, max(row.created_at, row.updated_at)),
    "tags": lambda row, *_: ", ".join(row.tags),
    "note": lambda row, *_: row.note,
    "pinned": lambda row, *_: row.is_pinned,
}
"""Column -> its value, of a row, what was read of the run, its verdict, and the time."""
assert {n for n, c in OF_EVERY_RUN.items() if c.source == "run"} == set(_OF_RUN)
_OF_FOLDER = ("run", "started", "age_h", "history")
"""Columns of a run of which only the folder is known; its other columns are empty."""


def catalogue_of(facts: Sequence[RunFacts | None]) -> ColumnCatalogue:
    """The columns that some runs can have."""
    settings: dict[str, set[Any]] = {}
    metrics: set[str] = set()
    num_runs: dict[str, int] = {}
    for layout in {f.setting_names for f in facts if f is not None}:
        of_layout = [f.setting_values for f in facts if f is not None and f.setting_names is layout]
        for name, values in zip(layout, zip(*of_layout, strict=True), strict=True):
            num_runs[name] = num_runs.get(name, 0) + len(values)
            settings.setdefault(name, set()).update(map(_hashable, values))
    for keys in {id(f.metrics.keys): f.metrics.keys for f in facts if f and f.metrics}.values():
        metrics.update(keys)
    num_all = sum(f is not None for f in facts)
    trained = settings_of(dict.fromkeys(settings))
    varied = {
        name: len(values) + (num_runs[name] < num_all)
        for name, values in settings.items()
        if name in trained and name.split(".")[0] not in _NOT_VARIED
    }
    differing = sorted(
        (n for n, c in varied.items() if 1 < c <= MAX_VALUES), key=lambda n: (varied[n], n)
    )
    return ColumnCatalogue(
        settings=tuple(sorted(settings)),
        metrics=tuple(sorted(metrics)),
        differing=tuple(differing),
    )


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else setting_words(value)


@dataclass(slots=True, kw_only=True)
class RootRuns:
    """What this process keeps of the runs of a root, for all who look at the page Runs."""

    facts: Facts = field(default_factory=Facts)
    _made: tuple[Any, int, RunsTable] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def table(self, rows: Sequence[RunRow]) -> RunsTable:
        """The runs as they are known now; made anew where one has moved or was read."""
        now = time.time()
        mark = (self.facts.version, hash(tuple(rows)), int(now / KEPT_S))
        num_judged = self.facts.num_judged
        with self._lock:
            made = self._made if self._made and self._made[0] == mark else None
            if made is not None and made[1] == num_judged:
                return made[2]
            standings = [self.facts.standing(row) for row in rows]
            if made is not None:
                table = made[2].judged(standings)
            else:
                facts = [self.facts.of(row) for row in rows]
                table = RunsTable(
                    rows=rows,
                    facts=facts,
                    standings=standings,
                    now=now,
                    catalogue=catalogue_of(facts),
                )
            self._made = mark, num_judged, table
            return table


_roots: dict[Path, RootRuns] = {}


def root_runs() -> RootRuns:
    """Of the root that this process serves."""
    return _roots.setdefault(settings().root, RootRuns())
