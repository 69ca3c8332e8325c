"""From records, as a file holds them, to a `MetricTable`: which field counts the steps, which rows
belong together, and what is a number."""

from __future__ import annotations

import functools
import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from echoscope.text.amounts import counted, listed

from .foreign_names import (
    WORDS,
    Meaning,
    is_summary_column,
    meaning_among,
    meaning_of,
    spelled,
    step_columns,
    step_rank,
)
from .forms.answers import MAX_ANSWERS, AnswerColumn, are_answers, outcome_of, short
from .table import (
    MetricTable,
    TableBuilder,
    outcome_hints,
)

MAX_STEP = 2**53
LARGEST = 1e150
"""Greater magnitudes count as infinite: sums of them would be."""
MAX_DEPTH = 12
NUM_SAMPLED = 500
"""Records that the field of the steps is chosen by."""
MAX_COLUMNS = 5_000
MAX_RUNS = 512
FEW_ROWS = 64
"""A field that has another value in each of so many rows names no runs."""
MAX_LISTED = 200
MAX_NOISE = 1_000
"""Names in console text after which only those of the catalogue are taken in."""


class MetricsFileError(ValueError):
    """A file that no run's metrics can be read from."""


class ExportedFileError(MetricsFileError):
    """A file with numbers that are no metrics: an export that is not meant to be read back."""


class AnswersError(ExportedFileError):
    """The rows of a file are answers of one evaluation: they have no course."""

    def __init__(
        self, path: str, rows: Sequence[Mapping[str, Any]], outcome: AnswerColumn | None
    ) -> None:
        super().__init__(
            f"{path}: its {counted(len(rows), 'row')} are answers of one evaluation, not steps of "
            "a run: no column counts steps. `echoscope diagnose FILE` gives their success rate "
            "with an interval, and `echoscope diagnose FILE OTHER` compares two such files. If the "
            "rows are steps, name the column that counts them: --map NAME=step"
        )
        self.path, self.rows, self.outcome = path, rows, outcome


_EXPORTS = (
    frozenset({"prompt", "chosen", "rejected"}),
    frozenset({"run_id", "prompt_key", "sibling_index", "stop_reason"}),
    frozenset({"run_id", "trajectory_id", "turn", "observation"}),
)
"""Keys that rows of an export have which leaves out much of a run, or changes its texts."""


def refuse_export(path: Path, names: Iterable[str]) -> None:
    """Raises ExportedFileError where rows with these fields are of an export."""
    given = frozenset(names)
    if any(keys <= given for keys in _EXPORTS):
        raise ExportedFileError(
            f"{path}: is an export that leaves out much of a run. Write the run with `echoscope "
            "export RUN --to messages` (or inspect) and give that file"
        )


_WRAPPED = re.compile(
    r"(?:np\.|numpy\.|torch\.|jnp\.)?(?:float|int|bool|tensor|array)\w*\(\[?(?P<inner>[^()\[\],]*)"
    r"[^()]*\)",
    re.IGNORECASE,
)
GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+(?:[eE][-+]?\d+)?\s*")


def to_number(value: Any) -> float:
    """A finite number as it stands; a written NaN or infinity as infinity; else NaN (absent).

    Trainers write NaN where a loss broke, and leave out what was not computed: they differ.
    Percent signs, thousands separators, decimal commas and `np.float64(...)` are understood.
    """
    if isinstance(value, int | float):
        try:
            return _bounded(float(value))
        except OverflowError:
            return math.inf
    return _number_in(value) if isinstance(value, str) else math.nan


def _bounded(number: float) -> float:
    return number if abs(number) <= LARGEST else math.inf


def _number_in(text: str) -> float:
    if len(text) > 400 or "_" in text:
        return math.nan
    try:
        return _bounded(float(text))
    except ValueError:
        text = text.strip().lower()
    if text in ("true", "false"):
        return float(text == "true")
    if text.endswith("%"):
        return _number_in(text[:-1].rstrip()) / 100.0
    if GROUPED.fullmatch(text):
        return _bounded(float(text.replace(",", "")))
    if DECIMAL_COMMA.fullmatch(text):
        return _bounded(float(text.replace(",", ".")))
    wrapped = _WRAPPED.fullmatch(text)
    return _number_in(wrapped["inner"].strip()) if wrapped else math.nan


TRANSPARENT = frozenset({"data", "metrics", "values", "logs", "stats", "scalars"})
"""Groups whose name says nothing: verl's `{"step", "data": {...}}`."""


def finite_mean(numbers: Iterable[float]) -> float:
    """The mean of what is finite; NaN of nothing."""
    finite = [number for number in numbers if math.isfinite(number)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def leaves(
    group: Mapping[str, Any], transparent: Collection[str] = (), joint: str = "/"
) -> Iterator[tuple[str, Any]]:
    """Values inside nested groups, under the names of the groups, but for transparent ones."""
    waiting: list[tuple[str, Any, int]] = [(str(k), v, 0) for k, v in reversed(list(group.items()))]
    while waiting:
        name, value, depth = waiting.pop()
        if not isinstance(value, dict):
            yield name, value
        elif depth < MAX_DEPTH:
            outer, slash, last = name.rpartition(joint)
            start = outer + slash if last in transparent else f"{name}{joint}"
            waiting += [(f"{start}{k}", v, depth + 1) for k, v in reversed(value.items())]


def flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Nested groups joined by `/`, and lists of numbers as their means.

    >>> flat({"step": 1, "data": {"actor/entropy": 0.5}, "train": {"rewards": [0, 1]}})
    {'step': 1, 'actor/entropy': 0.5, 'train/rewards': 0.5}
    """
    out: dict[str, Any] = {}
    for name, value in leaves(entry, TRANSPARENT):
        if isinstance(value, list):
            numbers = [to_number(v) for v in value if isinstance(v, int | float)]
            if len(numbers) == len(value) and not math.isnan(mean := finite_mean(numbers)):
                out[name] = mean
        else:
            out[name] = value
    return out


_NAMES_OF_RUNS = frozenset({"run", "run_name", "run_id"})
"""Of the fields that tell runs apart, those whose value is the name of a run by itself."""
_SUMMARY = "train_runtime"
"""What transformers logs once, after the last step: such a row belongs to that step."""


@functools.lru_cache(maxsize=MAX_NOISE)
def _names_in(names: tuple[str, ...], role: str) -> tuple[str, ...]:
    """The names that are in one of the lists of `WORDS`."""
    return tuple(name for name in names if spelled(name) in WORDS[role])


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source is read for."""

    path: str
    mapping: Mapping[str, Meaning] = field(default_factory=dict)
    run: str = ""
    """Which of several runs becomes the table; "" for the one with most rows."""
    make_builder: Callable[[], TableBuilder] = TableBuilder
    """Takes the rows of a run; who follows a growing file gives one that hands them on."""

    def table(
        self,
        kind: str,
        rows: Callable[[Collector], Iterable[Mapping[str, Any]]],
        nothing: str,
    ) -> MetricTable:
        """The table of a source whose rows are read one by one.

        Args:
            rows: Gives the rows, and tells the collector what is left out of them.
            nothing: What is said where there is no row.
        """
        collector = Collector(self, kind)
        for row in rows(collector):
            collector.add(row)
        if not collector.num_records:
            raise MetricsFileError(f"{self.path}: {'; '.join([nothing, *collector.told()])}")
        return collector.finish()


@dataclass(slots=True)
class Collector:
    """Takes in records and makes the table.

    A record's fields are numbers or text. Rows of other runs, told by a field such as `seed`, are
    kept apart, and the run with most rows is the table; rows of an evaluation, told by a field such
    as `split`, are named so.
    """

    reading: Reading
    kind: str
    needs_known: bool = False
    """Leave out records without a metric of the catalogue: console text holds many numbers."""
    num_records: int = 0
    known_keys: set[str] = field(default_factory=set)
    names: dict[str, None] = field(default_factory=dict)
    _numeric: set[str] = field(default_factory=set)
    _waiting: list[dict[str, Any]] = field(default_factory=list)
    _steps: list[str] | None = None
    """The fields that count steps, the best first; empty: rows are counted."""
    _fractions: str = ""
    _runs: dict[tuple[str, ...], TableBuilder] = field(default_factory=dict)
    _run_fields: dict[str, None] = field(default_factory=dict)
    _is_chart: bool = False
    _answers: list[dict[str, Any]] | None = field(default_factory=list)
    """All rows, while they may be answers of one evaluation; None: they are not."""
    _num_taken: int = 0
    _last_step: float | None = None
    num_lost: int = 0
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What a reader has left out, and why -> how many."""
    notes: list[str] = field(default_factory=list)
    """What else it tells a user."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Raises MetricsFileError where the file cannot hold the metrics of a run."""
        names, fields = tuple(record), dict(record)
        if len(names) > 1 and sum(" - " not in name for name in names) <= 1:
            self._is_chart = True
            for row in _rows_of_chart(record):
                self.add(row)
            return
        if len(names) <= 8 and _names_in(names, "series"):
            fields = _of_series(fields)
        if _names_in(names, "phases"):
            fields = _of_phase(fields)
        if self.needs_known and len(self.names) > MAX_NOISE:
            fields = {n: v for n, v in fields.items() if n in self.names or meaning_of(n)}
        metrics = {
            meaning.key
            for name, value in fields.items()
            if (meaning := meaning_among(name, fields)) is not None
            and not math.isnan(to_number(value))
        }
        if self.needs_known and not metrics and not any(n in self.reading.mapping for n in fields):
            return
        self.known_keys |= metrics
        self.names.update(dict.fromkeys(fields))
        if len(self.names) > MAX_COLUMNS:
            raise self._error(
                f"holds more than {MAX_COLUMNS:,} different names; a table of metrics has fewer"
            )
        self.num_records += 1
        if self._answers is not None:
            self._answers.append(short(record))
            if self.needs_known or len(self._answers) > MAX_ANSWERS:
                self._answers = None
        if self._steps is None:
            self._waiting.append(fields)
            if len(self._waiting) >= NUM_SAMPLED:
                self._choose_steps()
            return
        self._take(fields)

    def settle(self) -> TableBuilder | None:
        """Choose the field of the steps by the records so far; the run with most rows, if any."""
        if self._steps is None and self._waiting:
            self._choose_steps()
        return max(self._runs.values(), key=lambda builder: builder.num_rows, default=None)

    def _error(self, problem: object) -> MetricsFileError:
        return MetricsFileError(f"{self.reading.path}: {problem}")

    def _choose_steps(self) -> None:
        mapped = [name for name, meaning in self.reading.mapping.items() if meaning.key == "step"]
        ranked: list[tuple[int, int, str]] = []
        for index, name in enumerate(step_columns(self.names)):
            # Rows of several kinds may follow each other, each kind with the same count.
            by_kind: dict[tuple[str, ...], list[float]] = {}
            for record in self._waiting:
                if math.isfinite(number := _step_number(record.get(name))):
                    run = (record["run"],) if self._is_chart else ()
                    by_kind.setdefault((*run, *record), []).append(number)
            if any(n != math.floor(n) for numbers in by_kind.values() for n in numbers):
                self._fractions = self._fractions or name
            elif by_kind:
                doubts = [_doubt(name, n) for n in by_kind.values() if len(n) > 1]
                ranked.append((max(doubts, default=0), index, name))
        best = min((doubt for doubt, _, _ in ranked), default=_NO_STEP)
        limit = min(max(best, 1), _NO_STEP - 1)
        self._steps = mapped or [name for doubt, _, name in sorted(ranked) if doubt <= limit]
        waiting, self._waiting = self._waiting, []
        for fields in waiting:
            self._take(fields)

    def _take(self, fields: dict[str, Any]) -> None:
        step = self._step_of(fields)
        if step is None:
            self.num_lost += 1
            return
        if self._steps and self._last_step not in (None, step):
            self._answers = None
        self._last_step = step
        names = tuple(fields)
        run_fields = _names_in(names, "runs")
        numbers = {
            name: number
            for name, value in fields.items()
            if name not in run_fields and not math.isnan(number := to_number(value))
        }
        self._numeric.update(numbers)
        for name in (*(self._steps or ()), *filter(is_summary_column, names)):
            numbers.pop(name, None)
        run = [
            _run_label(name, fields[name]) for name in run_fields if fields[name] not in (None, "")
        ]
        self._run_fields.update(dict.fromkeys(run_fields))
        counts = [numbers.get(name, 0.0) for name in _names_in(names, "sample_counts")]
        weight = next((count for count in counts if 0 < count < math.inf), 1.0)
        self._add(tuple(run), step, numbers, weight)

    def _add(
        self, key: tuple[str, ...], step: float, numbers: Mapping[str, float], weight: float
    ) -> None:
        """A row of one run."""
        builder = self._runs.get(key)
        if builder is None:
            num_runs = len(self._runs)
            num_rows = sum(other.num_rows for other in self._runs.values())
            is_of_a_row_each = num_runs >= FEW_ROWS and num_rows < 2 * num_runs
            if num_runs >= MAX_RUNS or (is_of_a_row_each and not self._is_chart):
                raise self._error(
                    f"the column {' and '.join(self._run_fields)} tells more than "
                    f"{num_runs} runs apart. Keep the rows of one run, or remove the column if it "
                    "names no runs"
                )
            builder = self._runs[key] = self.reading.make_builder()
        builder.add_row(step, numbers, weight)

    def _step_of(self, fields: Mapping[str, Any]) -> float | None:
        if not self._steps:
            is_summary = self._num_taken > 0 and _SUMMARY in fields
            self._num_taken += not is_summary
            return float(self._num_taken)
        for name in self._steps:
            step = _step_number(fields.get(name))
            if math.isfinite(step) and abs(step) < MAX_STEP and step == math.floor(step):
                return step
        return None

    def told(self) -> list[str]:
        """What a user must know of the source."""
        left_out = [f"{counted(n, what)} {why}".strip() for (what, why), n in self.left_out.items()]
        return [*(f"left out: {sentence}" for sentence in left_out), *self.notes]

    def finish(self) -> MetricTable:
        """The table.

        Raises:
            MetricsFileError: no rows, no numbers, or a mapped column that is not there.
        """
        if self._steps is None:
            self._choose_steps()
        for name in self.reading.mapping:
            if name not in self.names:
                columns = f"; columns: {listed(list(self.names), 10)}" if self.names else ""
                raise self._error(f"--map names the column {name!r}, which is not there{columns}")
        notes = self.told()
        self._refuse_answers()
        if not self._runs:
            raise self._error(f"no row with a step was found ({self.kind})")
        if not self._steps and not self.known_keys and not self.reading.mapping:
            first = next((name for name in self.names if name in self._numeric), "")
            ways = (
                f"; say what they are: --map NAME=step for the steps, and --map "
                f"'{first}=rollout/success_rate' or --map '{first}=reward/return_mean'"
            )
            raise self._error(
                f"neither steps nor a known metric among {', '.join(list(self.names)[:6])}"
                + (ways if first else ", and no column holds numbers")
            )
        if not self._steps:
            why = f"{self._fractions} holds fractions" if self._fractions else "no step is written"
            notes.append(f"{why}: rows are counted as steps, from 1 to {self._num_taken}")
        if self.num_lost:
            notes.append(f"left out: {counted(self.num_lost, 'row')} without a whole step")
        ranked = sorted(self._runs.items(), key=lambda entry: -entry[1].num_rows)
        runs = {", ".join(run): builder for run, builder in ranked}
        asked = self.reading.run
        chosen = next((name for name in runs if is_named(asked, name)), next(iter(runs)))
        if len(runs) > 1:
            kind = "chart" if self._is_chart else "file"
            notes.append(_which_run(kind, list(runs), chosen, asked))
        table = runs[chosen].build(self.reading.mapping, notes)
        if not table.keys():
            raise self._error(f"{table.num_rows} steps, but no column holds numbers")
        return replace(
            table,
            kind=self.kind,
            run=chosen,
            runs=tuple(runs if chosen else ()),
            is_counted=not self._steps,
            notes=(*table.notes, *outcome_hints(table, self.reading.mapping)),
        )

    def _refuse_answers(self) -> None:
        """Raises AnswersError where no field counts steps, and rows are answers to questions."""
        if not self._answers or self._fractions:
            return
        outcome = outcome_of(self._answers, to_number, self.reading.mapping)
        if outcome is None and not self.known_keys:
            return  # nothing is known of it at all, which is said below
        if are_answers(self._answers, outcome, has_one_step=bool(self._steps)):
            raise AnswersError(self.reading.path, self._answers, outcome)


def _run_label(field_name: str, value: Any) -> str:
    """How a field names a run.

    >>> _run_label("seed", 1), _run_label("run_name", "lake-1")
    ('seed=1', 'lake-1')
    """
    return str(value) if spelled(field_name) in _NAMES_OF_RUNS else f"{field_name}={value}"


def _which_run(kind: str, names: Sequence[str], chosen: str, asked: str) -> str:
    """The note about a file with several runs: which one is read, and how to choose another.

    >>> _which_run("file", ["a", "b"], "a", "")
    'the file holds 2 runs (a; b): a is read, which has most rows; --run NAME chooses another'
    """
    listed = "; ".join(name or "unnamed" for name in names[:4]) + (" ..." if len(names) > 4 else "")
    why = "" if asked else ", which has most rows; --run NAME chooses another"
    return f"the {kind} holds {len(names)} runs ({listed}): {chosen or 'unnamed'} is read{why}"


def run_names(names: Iterable[str]) -> str:
    """The names of runs as a sentence lists them, each as a shell reads it.

    >>> run_names(["lake-1", "lake 2"])
    "lake-1, 'lake 2'"
    """
    return listed([shlex.quote(name) for name in names], MAX_LISTED)


def no_such_run(asked: str, names: Sequence[str]) -> str:
    """What is said where `--run` names none of the runs there are.

    >>> no_such_run("c", ["a", "b"]), no_such_run("c", [])
    ("holds no run 'c'; its runs are: a, b", "holds no run 'c'; it names no runs: leave --run out")
    """
    rest = f"its runs are: {run_names(names)}" if names else "it names no runs: leave --run out"
    return f"holds no run {asked!r}; {rest}"


def is_named(asked: str, name: str) -> bool:
    """Whether a user who writes `asked` means the run of this name.

    >>> is_named("seed=1", "seed=1"), is_named("1", "seed=1"), is_named("2", "seed=1")
    (True, True, False)
    """
    return bool(asked) and asked in (name, name.partition("=")[2])


_NO_STEP = 3


def _doubt(name: str, numbers: list[float]) -> int:
    """How doubtful it is that a field counts the steps; from `_NO_STEP` on it does not.

    A `step` may repeat, as where each row is an episode, and may be the same throughout; `steps` or
    `epoch` that do not grow from row to row are of something else.
    """
    pairs = list(itertools.pairwise(numbers))
    rises = sum(b > a for a, b in pairs)
    falls = sum(b < a for a, b in pairs)
    is_named_step = spelled(name).endswith("step")
    is_growing = numbers[-1] - numbers[0] >= 0.5 * (max(numbers) - min(numbers))
    if (rises >= 0.9 * len(pairs) and is_growing) or (
        is_named_step and rises > 0 and falls <= 0.1 * len(pairs)
    ):
        return 0
    if not is_named_step:
        return _NO_STEP
    return 1 if rises + falls else 2


def _step_number(value: Any) -> float:
    """A step, also where it is written as `12/400`."""
    return to_number(value.partition("/")[0] if isinstance(value, str) else value)


_CHART_COLUMN = re.compile(r"^(?P<run>.*\S) - (?P<name>\S.*)$")


def _rows_of_chart(record: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """A row of a chart that W&B exports, `RUN - METRIC`, as one of each run with a number in it."""
    matches = {name: _CHART_COLUMN.match(name.strip()) for name in record}
    shared = {name: record[name] for name, match in matches.items() if match is None}
    rows: dict[str, dict[str, Any]] = {}
    for name, match in matches.items():
        if match is not None and not math.isnan(to_number(record[name])):
            row = rows.setdefault(match["run"], {"run": match["run"], **shared})
            row[match["name"]] = record[name]
    return rows.values()


def _of_series(record: dict[str, Any]) -> dict[str, Any]:
    """A row that holds one metric by its name, `{"step": 3, "metric": "reward", "value": 0.5}`."""
    by_word = {spelled(name): name for name in record}
    value = by_word.get("value", by_word.get("val"))
    series = next(by_word[word] for word in by_word if word in WORDS["series"])
    if value is None or not isinstance(record[series], str):
        return record
    kept = {name: v for name, v in record.items() if name not in (value, series)}
    return {**kept, record[series]: record[value]}


def _of_phase(record: dict[str, Any]) -> dict[str, Any]:
    """The fields, named as an evaluation's where one of them says so."""
    for name, value in record.items():
        is_phase = isinstance(value, str) and spelled(name) in WORDS["phases"]
        if is_phase and value.strip().lower() in WORDS["evaluations"]:
            return {
                n if step_rank(n) is not None or spelled(n) in WORDS["runs"] else f"eval/{n}": v
                for n, v in record.items()
                if n != name
            }
    return record
