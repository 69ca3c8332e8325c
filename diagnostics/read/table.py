"""The numbers of a run, step by step: what the rules read, wherever it came from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from echoscope.store.query.metric_keys import RETURN_MEAN, SUCCESS_RATE
from echoscope.store.records import FloatArray64, IntArray64
from echoscope.text.amounts import counted

from .foreign_names import WORDS, Meaning, meaning_of, spelled
from .names import Decision, is_ours
from .run_meaning import KIND, RunMeaning

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader


def steps_with_groups(reader: RunReader, *, with_tokens: bool = False) -> list[int]:
    """Finished steps that have training (or imported) trajectories, in order.

    While a step goes on, the episodes that ended first can be read already: the short ones, and
    groups in part. They say nothing of the step.

    Args:
        with_tokens: only steps with recorded tokens.
    """
    rows = reader.sql(
        "SELECT DISTINCT step FROM trajectories WHERE split IN ('train', 'import') "
        "AND step <= $1 AND (num_sampled_tokens > 0 OR NOT $2) ORDER BY step",
        [reader.info().last_step, with_tokens],
    )
    return [int(step) for step in rows.column("step").to_pylist()]


MAX_ROWS = 20_000
"""A longer source is averaged in blocks while it is read: between this many rows and twice that."""
MAX_CELLS = 10_000_000
"""Wide sources are averaged in blocks earlier: half of the cells that are kept at most."""
CHUNK_ROWS = 4096
CHUNK_CELLS = 1_000_000
"""Rows that wait to be stored, and cells that they will fill."""
NUM_FIXED = 2
"""A stored row begins with its step and its weight."""
Row = tuple[float, Mapping[str, float], float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricTable:
    """Metrics by key over strictly increasing steps; NaN where a step has no value.

    Legend: **R** rows.
    """

    steps: IntArray64  # (R,)
    columns: Mapping[str, FloatArray64]  # each (R,)
    sources: Mapping[str, str]
    """Key -> the column or columns it came from."""
    kind: str = ""
    """Of a file: csv, json, notebook, log, tensorboard, trackio or wandb."""
    notes: tuple[str, ...] = ()
    raw: Mapping[str, FloatArray64] = field(default_factory=dict, repr=False)
    """Columns under the names that the source gave them, in its units; each (R,)."""
    run: str = ""
    """What the source calls the run that was read; "" where it names none."""
    runs: tuple[str, ...] = ()
    """The runs that the source holds, the one with most rows first; empty where it names none."""
    is_counted: bool = False
    """The source has no steps: its rows were counted."""
    meaning: RunMeaning = field(default_factory=RunMeaning, repr=False)
    """What the columns are, on what scale, and from which evidence."""
    caveats: Mapping[str, str] = field(default_factory=dict)
    """Beginning of a key -> why a verdict that rests on such metrics is weak."""

    @property
    def num_rows(self) -> int:
        return len(self.steps)

    def keys(self) -> list[str]:
        """Keys with at least one finite value, sorted."""
        return sorted(key for key, values in self.columns.items() if np.isfinite(values).any())

    def measured(self, key: str) -> tuple[IntArray64, FloatArray64]:
        """The steps at which a metric was measured, and its finite values there."""
        values = self._column(key)
        is_there = np.isfinite(values)
        return self.steps[is_there], values[is_there]

    def _column(self, key: str) -> FloatArray64:
        return self.columns.get(key, np.full(self.num_rows, np.nan))

    def begins_with(self, shorter: MetricTable) -> bool:
        """Every row of a shorter table is one of this table's first rows, value by value."""
        n = shorter.num_rows
        return np.array_equal(self.steps[:n], shorter.steps) and all(
            np.array_equal(self._column(name)[:n], shorter._column(name), equal_nan=True)
            for name in self.columns.keys() | shorter.columns
        )

    def rows(self, first: int = 0) -> Iterator[tuple[int, dict[str, float]]]:
        """Step by step: the step and the values it has. Infinite values are kept, NaN is not.

        Args:
            first: rows to leave out at the beginning.
        """
        names = list(self.columns)
        if not names:
            yield from ((int(step), {}) for step in self.steps[first:])
            return
        matrix_RC = np.column_stack([self.columns[name][first:] for name in names])
        for step, row in zip(self.steps[first:].tolist(), matrix_RC, strict=True):
            present = np.flatnonzero(~np.isnan(row))
            yield step, {names[c]: float(row[c]) for c in present}


@dataclass(slots=True)
class TableBuilder:
    """Collects rows in arrival order in bounded memory.

    Rows of one step that follow each other are averaged, each metric over the rows that have it and
    by the rows' weights. Where the steps go back, as in a resumed run, the later values are kept.
    Beyond twice `MAX_ROWS` rows, neighbours are averaged and so are those that follow.
    """

    num_averaged: int = 0
    width: int = 1
    """Source rows per stored row."""
    num_rows: int = 0
    _names: dict[str, int] = field(default_factory=dict)
    """Name -> its column of a stored row."""
    _blocks: list[NDArray[np.float64]] = field(default_factory=list)
    _pending: list[Row] = field(default_factory=list)
    _pending_names: set[str] = field(default_factory=set)

    def add_row(self, step: float, values: Mapping[str, float], weight: float = 1.0) -> None:
        """`weight`: how many samples the values are means of, where that is known."""
        num, num_cells = len(self._pending), len(self._pending) * len(self._pending_names)
        is_full = num >= CHUNK_ROWS or num_cells >= CHUNK_CELLS
        # The rows of a step are joined, so they are stored together.
        if is_full and (self._pending[-1][0] != step or num >= 4 * CHUNK_ROWS):
            self._flush()
        self._pending.append((step, values, weight))
        self._pending_names.update(values)
        self.num_rows += 1

    def _flush(self) -> None:
        """Store the rows that wait."""
        rows, self._pending, self._pending_names = self._pending, [], set()
        if not rows:
            return
        for _, values, _ in rows:
            for name in values:
                self._names.setdefault(name, NUM_FIXED + len(self._names))
        size = NUM_FIXED + len(self._names)
        block = np.full((len(rows), size), np.nan)
        for index, (step, values, weight) in enumerate(rows):
            block[index, :NUM_FIXED] = step, weight
            for name, value in values.items():
                block[index, self._names[name]] = value
        self._blocks.append(_averaged(self._merged(block), self.width))
        max_rows = max(min(MAX_ROWS, MAX_CELLS // size), 1)
        while sum(map(len, self._blocks)) > 2 * max_rows:
            self._blocks = [_averaged(self._joined(), 2)]
            self.width *= 2

    def _merged(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        """Neighbours with the same step become one row, their weighted mean."""
        is_first = np.concatenate([[True], block[1:, 0] != block[:-1, 0]])
        if is_first.all():
            return block
        starts = np.flatnonzero(is_first)
        values, weights = block[:, NUM_FIXED:], block[:, 1:2]
        present = ~np.isnan(values)
        # Rows that say different things, or the same, are joined; only others are averaged.
        times = np.add.reduceat(present, starts, axis=0, dtype=np.int64)
        highest = np.maximum.reduceat(np.where(present, values, -np.inf), starts, axis=0)
        lowest = np.minimum.reduceat(np.where(present, values, np.inf), starts, axis=0)
        with np.errstate(invalid="ignore"):
            differs = highest - lowest > 1e-9 * np.abs(highest)
        shared = np.where(differs, times, 0).max(axis=1, initial=0)
        self.num_averaged += int((shared[shared > 1] - 1).sum())
        total = np.add.reduceat(np.where(present, weights, 0.0), starts, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Shares first: values near the largest double must not overflow in a sum.
            shares = np.where(present, weights, 0.0) / np.repeat(
                total, np.diff(np.append(starts, len(block))), axis=0
            )
            means = np.add.reduceat(np.where(present, values * shares, 0.0), starts, axis=0)
        out = block[is_first].copy()
        out[:, 1] = np.add.reduceat(weights[:, 0], starts)
        out[:, NUM_FIXED:] = np.where(total > 0, means, np.nan)
        return np.asarray(out)

    def _joined(self) -> NDArray[np.float64]:
        size = NUM_FIXED + len(self._names)
        missing = ((block, size - block.shape[1]) for block in self._blocks)
        whole = [np.pad(block, ((0, 0), (0, n)), constant_values=np.nan) for block, n in missing]
        return np.concatenate([np.empty((0, size)), *whole])

    def build(
        self, mapping: Mapping[str, Meaning] | None = None, notes: Sequence[str] = ()
    ) -> MetricTable:
        """The table under our keys, steps sorted, repeated steps merged."""
        self._flush()
        rows = self._joined()
        sentences = list(notes)
        if self.width > 1:
            sentences.append(f"{self.num_rows} rows were averaged in blocks of {self.width}")
        if start := _last_run(rows):
            sentences.append(
                f"the steps begin again at their beginning: the last run is read, and "
                f"{counted(start, 'row')} before it left out"
            )
        rows = rows[start:]
        num_repeated = len(rows)
        if len(rows) > 1 and not (np.diff(rows[:, 0]) > 0).all():
            rows = _later_wins(rows[np.argsort(rows[:, 0], kind="stable")])
        num_repeated -= len(rows)
        if self.num_averaged:
            have = "has" if self.num_averaged == 1 else "have"
            sentences.append(
                f"{counted(self.num_averaged, 'row')} {have} the step of the row before: the rows "
                "of a step were averaged"
            )
        if num_repeated:
            repeat = "repeats" if num_repeated == 1 else "repeat"
            sentences.append(
                f"{counted(num_repeated, 'row')} {repeat} an earlier step: the later values were "
                "kept"
            )
        columns = {name: rows[:, column].copy() for name, column in self._names.items()}
        filled = {name: v for name, v in columns.items() if not np.isnan(v).all()}
        return named_table(rows[:, 0].astype(np.int64), filled, mapping or {}, sentences)


def named_table(
    steps: IntArray64,
    raw: Mapping[str, FloatArray64],
    mapping: Mapping[str, Meaning],
    notes: Sequence[str] = (),
) -> MetricTable:
    """Columns (R,) under our keys. Infinite values are absent, but for losses and optimizer's.

    Raises:
        MetricNameError: `mapping` calls something a share that is none.
    """
    decision = Decision(raw, mapping)
    meaning = decision.meaning
    columns, sources = meaning.apply(raw)
    for key, is_gap_R in _gaps(columns).items() if columns else ():
        is_absent_R = is_gap_R if key.startswith(_UPDATE) else np.isinf(columns[key])
        if is_absent_R.any():
            columns[key] = np.where(is_absent_R, np.nan, columns[key])
    return MetricTable(
        steps=steps,
        columns=columns,
        sources=sources,
        meaning=meaning,
        raw=raw,
        notes=(*notes, *decision.notes),
    )


LEAST_OF_A_RUN = 3
"""Rows with growing steps after which steps that began again are of another run."""
MAX_RUNS_IN_A_ROW = 16
"""Steps that begin again more often count something within a run, such as an episode."""


_UPDATE = ("loss/", "optim/")
WRITES_GAPS = 0.2
"""Share of a column's rows with a written NaN from which a file writes NaN for what is absent."""


def _gaps(columns: Mapping[str, FloatArray64]) -> dict[str, NDArray[np.bool_]]:
    """(R,) by column: where a written NaN or infinity says that nothing is there.

    In a row that holds no number at all, and in a file that writes NaN for what is absent; but only
    where a number follows: a loss that broke stays broken.
    """
    is_empty_R = ~np.any([np.isfinite(values) for values in columns.values()], axis=0)
    is_between = {}
    for key, values in columns.items():
        is_finite_R = np.isfinite(values)
        follows_R = np.logical_or.accumulate(is_finite_R[::-1])[::-1]
        is_between[key] = np.isinf(values) & follows_R
    writes_gaps = any(
        is_between_R.mean() >= WRITES_GAPS
        for key, is_between_R in is_between.items()
        if not key.startswith(_UPDATE)
    )
    return {
        key: is_between_R & (is_empty_R | writes_gaps) for key, is_between_R in is_between.items()
    }


def _last_run(rows: NDArray[np.float64]) -> int:
    """The row with which the last of several runs begins that were written one behind the other.

    A run that was resumed goes back to a checkpoint, which lies behind its beginning: it stays one.
    """
    steps, starts, num_back = rows[:, 0], [0], 0
    for fall in np.flatnonzero(steps[1:] < steps[:-1]) + 1:
        start, follow = starts[-1], steps[fall : fall + LEAST_OF_A_RUN]
        is_run = fall - start >= LEAST_OF_A_RUN and 10 * num_back <= fall - start
        is_back = steps[fall] <= steps[start] and follow[-1] <= steps[start:fall].max()
        is_new = len(follow) == LEAST_OF_A_RUN and bool((np.diff(follow) > 0).all())
        here = ~np.isnan(rows[fall, NUM_FIXED:])
        shared = here & ~np.isnan(rows[start:fall, NUM_FIXED:]).all(axis=0)
        if is_run and is_back and is_new and 2 * shared.sum() > here.sum():
            starts.append(int(fall))
            num_back = 0
        else:
            num_back += 1
    return starts[-1] if len(starts) <= MAX_RUNS_IN_A_ROW else 0


def _later_wins(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Neighbours with the same step become one row; later values win."""
    is_first = np.concatenate([[True], block[1:, 0] != block[:-1, 0]])
    groups = np.cumsum(is_first) - 1
    out = block[is_first].copy()
    for row in np.flatnonzero(~is_first):
        present = ~np.isnan(block[row])
        out[groups[row], present] = block[row, present]
    return np.asarray(out)


def _averaged(block: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Means over `width` rows, at the step of the last; a shorter block at the end is one row."""
    if width == 1 or not len(block):
        return block
    starts = np.arange(0, len(block), width)
    present = ~np.isnan(block)
    totals = np.add.reduceat(np.where(present, block, 0.0), starts, axis=0)
    counts = np.add.reduceat(present.astype(np.float64), starts, axis=0)
    out = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    out[:, 0] = block[np.minimum(starts + width, len(block)) - 1, 0]
    return np.asarray(out)


def table_of_run(reader: RunReader, mapping: Mapping[str, Meaning] | None = None) -> MetricTable:
    """The stored metrics of a run, training and evaluation together.

    What the numbers of a run mean is stored with it. So of a trainer's own names only those are
    read again that `mapping` names, for all steps of the run.

    Raises:
        MetricNameError: `mapping` calls something a share that is none.
    """
    mapping = mapping or {}
    meaning = stored_meaning(reader)
    imported = reader.info().config.get("imported")
    is_decided = bool(meaning.columns) or (isinstance(imported, Mapping) and "metrics" in imported)
    builder = TableBuilder()
    for step, values in stored_rows(reader):
        whole = {**values, **meaning.row(values)}
        if is_decided:
            # What a second reading would take for something else is left out.
            whole = {
                k: v
                for k, v in whole.items()
                if k in mapping or is_ours(k) or meaning_of(k) is None
            }
        builder.add_row(step, whole)
    return builder.build(mapping)


def stored_rows(
    reader: RunReader, before: int | None = None
) -> Iterator[tuple[int, dict[str, float]]]:
    """Step by step the stored metrics of a run, NaN where a step stored none.

    Args:
        before: The first step that is left out; None: all are read.
    """
    stored = reader.points()
    order = [("step", "ascending"), ("phase", "descending"), ("key", "ascending")]
    rows = (
        row
        for batch in stored.sort_by(order).select(["step", "key", "value"]).to_batches()
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for step, same in itertools.groupby(rows, key=itemgetter(0)):
        if before is not None and step >= before:
            return
        yield step, {key: np.nan if value is None else float(value) for _, key, value in same}


def stored_meaning(reader: RunReader) -> RunMeaning:
    """What a run's numbers mean, as it was decided while it was recorded or watched.

    Empty for other runs: ours need none, and an import decides on whole files.
    """
    payload = newest_payload(reader, KIND)
    return RunMeaning() if payload is None else RunMeaning.from_payload(payload)


def newest_payload(reader: RunReader, kind: str, upto: int | None = None) -> str | None:
    """The payload of a run's newest diagnostic record of a kind, up to a step; None without one."""
    rows = reader.sql(
        "SELECT payload FROM diagnostics WHERE kind = $1 AND ($2 IS NULL OR step <= $2) "
        "ORDER BY step DESC LIMIT 1",
        [kind, upto],
    ).to_pylist()
    return rows[0]["payload"] if rows else None


NO_OUTCOME = "no success rate and no reward was recognised"


def outcome_hints(table: MetricTable, mapping: Mapping[str, Meaning]) -> list[str]:
    """Which columns look like the success that was not found, and the `--map` to give."""
    keys = table.keys()
    if any(key.endswith("success_rate") for key in keys):
        return []
    of_columns = (entry for entry in table.meaning.columns if entry.key and entry.is_of_a_column)
    taken = {*mapping, *(entry.of[0] for entry in of_columns)}
    likely = [
        (name, target)
        for name, values in table.raw.items()
        if name not in taken and _is_likely(name)
        if (target := _outcome_for(name, values))
    ]
    if RETURN_MEAN in keys:
        # A return within 0..1 may be a success rate: only its owner knows.
        entry = table.meaning.of_key.get(RETURN_MEAN)
        if entry is not None and entry.is_of_a_column:
            likely.insert(0, (entry.of[0], _outcome_for(entry.of[0], table.columns[RETURN_MEAN])))
        likely = [pair for pair in likely if pair[1].endswith("success_rate")]
    if likely:
        maps = " or ".join(f"--map '{name}={key}'" for name, key in likely[:3])
        return [f"no success rate was recognised; if one of these is it, give {maps}"]
    return [] if RETURN_MEAN in keys else [NO_OUTCOME]


def _is_likely(name: str) -> bool:
    name_words = set(spelled(name).split("_"))
    is_failure = bool(name_words & WORDS["failures"] and name_words & WORDS["rates"])
    return (bool(name_words & WORDS["outcomes"]) or is_failure) and not name_words & WORDS[
        "not_outcomes"
    ]


def _outcome_for(name: str, values: FloatArray64) -> str:
    """Which key numbers may be: a success rate where they lie in 0..1, or one less a failure's."""
    finite = values[abs(values) < math.inf]
    if not len(finite):
        return ""
    is_share = finite.min() >= 0 and finite.max() <= 1
    if set(spelled(name).split("_")) & WORDS["failures"]:
        return f"1-{SUCCESS_RATE}" if is_share else ""
    return SUCCESS_RATE if is_share else RETURN_MEAN
