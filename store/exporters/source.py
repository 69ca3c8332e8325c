"""The episodes of a run that are exported, one after the other, in bounded memory.

A run may be live: what is exported ends at the last step that was acknowledged when the export
began. One step is in memory at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import QueryError
from ..importers.draft import SUMMED_REWARDS
from ..models import load_detokenizer, tokenizer_folders
from ..query.condition import FLAG, checked_condition, flags_without_prefix
from ..reader import MissingFile, RunInfo, RunReader
from ..records import StopReason, parse_trajectory_id
from ..schema import TABLES
from .format import SPLITS, ExportError, Options, Reason, SplitChoice
from .prompts import ShownPrompts, ShownTurn

Row = Mapping[str, Any]
Progress = Callable[[int, int], None]
"""Called with (episodes, of episodes)."""

_DAMAGED = Reason(why="a damaged file of the run holds their turns")
_SLICE = 128
"""Episodes that are Python objects at a time."""
_FLAGS = flags_without_prefix(TABLES["trajectories"].column_names)
_COLUMNS = (*TABLES["trajectories"].column_names, *_FLAGS)
"""What a condition may name."""
_EPISODES = (
    f"(SELECT *, {', '.join(f'{FLAG}{name} AS {name}' for name in _FLAGS)} FROM trajectories) "
    "trajectories"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One episode as rows of the store; `shown` is what its prompts showed, where it is known."""

    row: Row
    turns: Sequence[Row]
    shown: Sequence[ShownTurn | None]
    """One per turn."""
    system: str = ""
    """The system message, where the prompts are not known."""

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def step(self) -> int:
        return int(self.row["step"])

    @property
    def is_evaluation(self) -> bool:
        return self.row["split"] in SPLITS["eval"]

    @property
    def is_failure(self) -> bool:
        """Its reward says nothing: the environment failed, or a command dropped the step."""
        return StopReason(self.row["stop_reason"]).is_failure

    @property
    def episode_return(self) -> float | None:
        value = self.row["episode_return"]
        return None if value is None else float(value)

    @property
    def group_id(self) -> str:
        """Equal for siblings, and for nobody else in the run."""
        return f"{self.row['split']}-{self.step}-{self.row['group_index']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How many episodes are asked for, and what leaves out the others.

    An episode that several options leave out is counted under the first of them, in the order of
    the fields.
    """

    num_all: int
    """Episodes up to the last acknowledged step, `num_missing` included."""
    num_missing: int
    """Episodes whose rows stand in a damaged file."""
    by_steps: int
    by_split: Mapping[str, int]
    """Split of the store -> episodes."""
    by_where: int
    by_best: int


@dataclass(kw_only=True)
class RunSource:
    """What of a run is exported."""

    reader: RunReader
    options: Options
    split: SplitChoice
    progress: Progress | None = None
    info: RunInfo = field(init=False)
    cut: int = field(init=False)
    """The last step that is exported: the last acknowledged one when the export began."""
    chosen: pa.Table = field(init=False)
    """Of each episode that is asked for (step, attempt, id, split), in order."""
    num_other_split: int = field(init=False)
    """Episodes that only the split leaves out."""
    choice: Choice = field(init=False)
    skipped: Counter[Reason] = field(default_factory=Counter)
    """Why episodes that were asked for were left out -> how many."""
    _left_out: Counter[tuple[int, str]] = field(default_factory=Counter)
    """(step, split) -> how many of the episodes that were asked for were left out."""
    _num_done: int = 0

    def __post_init__(self) -> None:
        self.info = self.reader.info()
        self.cut = self.info.last_step
        wanted = self._select(SPLITS[self.split])
        self.num_other_split = 0
        if self.split != "all":
            other: SplitChoice = "eval" if self.split == "train" else "train"
            self.num_other_split = self._select(SPLITS[other]).num_rows
        self.chosen = wanted
        self.choice = self._choice()

    def leave_out(self, reason: Reason, *rows: Row) -> None:
        """Count episodes, given as rows with step and split, as left out for a reason."""
        self.skipped[reason] += len(rows)
        self._left_out.update((row["step"], row["split"]) for row in rows)

    def written(self) -> Counter[tuple[int, str]]:
        """(step, split) -> episodes that were asked for and not left out."""
        pairs = zip(
            *(self.chosen.column(name).to_pylist() for name in ("step", "split")), strict=True
        )
        return Counter(pairs) - self._left_out

    @property
    def steps(self) -> tuple[int, int]:
        """First and last step that may be exported, inclusive."""
        first, last = self.options.first_step, self.options.last_step
        return (0 if first is None else first), (self.cut if last is None else min(last, self.cut))

    @property
    def _condition(self) -> str:
        """What `--where` says, as it can stand in a query."""
        if not self.options.where.strip():
            return "true"
        try:
            return checked_condition(self.options.where, _COLUMNS, "trajectories")
        except QueryError as error:
            raise ExportError(f"--where: {error}") from error

    def _rows(self, query: str, parameters: Sequence[Any]) -> pa.Table:
        try:
            return self.reader.sql(query, parameters)
        except QueryError as error:
            if not self.options.where.strip():
                raise
            raise ExportError(f"--where {self.options.where!r}: {error}") from error

    def _select(self, splits: Sequence[str]) -> pa.Table:
        first, last = self.steps
        best = ""
        if self.options.best is not None:
            best = (
                "QUALIFY row_number() OVER (PARTITION BY step, split, group_index ORDER BY "
                f"episode_return DESC NULLS LAST, sibling_index, id) <= {int(self.options.best)}"
            )
        query = (
            f"SELECT step, attempt, id, split FROM {_EPISODES} WHERE step BETWEEN $1 AND $2 "
            f"AND list_contains($3, split) AND {self._condition} {best} "
            "ORDER BY step, split <> 'train', id"
        )
        return self._rows(query, [first, last, list(splits)])

    def num_summed(self) -> int:
        """Episodes of the run whose return was added up from rewards without their weights."""
        query = f"SELECT count(*) AS num FROM {_EPISODES} WHERE regexp_matches(extra, $1)"
        return int(self._rows(query, [SUMMED_REWARDS]).column("num")[0].as_py())

    def missing_files(self) -> list[MissingFile]:
        """Files that were left out so far and hold rows of the steps that were asked for."""
        first, last = self.steps
        return [
            file
            for file in self.reader.missing_files()
            if file.first_step <= last and first <= file.last_step
        ]

    def _num_missing(self) -> int:
        files = self.missing_files()
        return sum(file.num_rows for file in files if file.table == "trajectories")

    def _choice(self) -> Choice:
        first, last = self.steps
        counts = self._rows(
            "SELECT split, step BETWEEN $1 AND $2 AS is_in_steps, "
            f"coalesce({self._condition}, false) AS matches, count(*) AS num "
            f"FROM {_EPISODES} WHERE step <= $3 GROUP BY ALL",
            [first, last, self.cut],
        ).to_pylist()
        in_steps = [row for row in counts if row["is_in_steps"]]
        own = SPLITS[self.split]
        by_split: Counter[str] = Counter()
        for row in in_steps:
            if row["split"] not in own:
                by_split[row["split"]] += row["num"]
        num_matching = sum(row["num"] for row in in_steps if row["split"] in own and row["matches"])
        num_readable = sum(row["num"] for row in counts)
        num_in_steps = sum(row["num"] for row in in_steps)
        num_missing = self._num_missing()
        return Choice(
            num_all=num_readable + num_missing,
            num_missing=num_missing,
            by_steps=num_readable - num_in_steps,
            by_split={split: by_split[split] for split in SPLITS["all"] if split in by_split},
            by_where=num_in_steps - by_split.total() - num_matching,
            by_best=num_matching - self.chosen.num_rows,
        )

    def by_step(self) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Each step with the (attempt, id) of its episodes."""
        steps = self.chosen.column("step")
        for step in pc.unique(steps).to_pylist():
            rows = self.chosen.filter(pc.equal(steps, step))
            yield (
                step,
                list(
                    zip(
                        rows.column("attempt").to_pylist(),
                        rows.column("id").to_pylist(),
                        strict=True,
                    )
                ),
            )

    def rows_of(self, table: str, step: int, keys: Sequence[tuple[int, str]]) -> pa.Table:
        """The rows of some episodes of a step, in the order of `trajectories` and `turns`."""
        name = "id" if table == "trajectories" else "trajectory_id"
        rows = self.reader.rows_of_step(table, step)
        wanted = pa.array([f"{attempt}/{key}" for attempt, key in keys], type=pa.string())
        marks = pc.binary_join_element_wise(
            pc.cast(rows.column("attempt"), pa.string()), rows.column(name), "/"
        )
        return rows.filter(pc.is_in(marks, value_set=wanted))

    def done(self, count: int) -> None:
        """Report that so many more episodes were written."""
        self._num_done += count
        if self.progress:
            self.progress(self._num_done, self.chosen.num_rows)

    def episodes(self) -> Iterator[Episode]:
        """Every episode, step by step."""
        for step, keys in self.by_step():
            for start in range(0, len(keys), _SLICE):
                part = keys[start : start + _SLICE]
                yield from self._episodes(step, part)
                self.done(len(part))

    def _episodes(self, step: int, keys: Sequence[tuple[int, str]]) -> Iterator[Episode]:
        rows = {
            (row["attempt"], row["id"]): row
            for row in self.rows_of("trajectories", step, keys).to_pylist(maps_as_pydicts="lossy")
        }
        turns = turns_by_episode(self.rows_of("turns", step, keys))
        shown = self._shown(step, keys)
        for key in keys:
            row, own = rows.get(key), turns.get(key, [])
            if row is None or len(own) != row["num_turns"]:
                split, _, _ = parse_trajectory_id(key[1])
                self.leave_out(_DAMAGED, {"step": step, "split": split.value})
                continue
            prompts = shown.get(key, {})
            yield Episode(
                row=row,
                turns=own,
                shown=[prompts.get(turn["turn"]) for turn in own],
                system=self.system,
            )

    def _shown(
        self, step: int, keys: Sequence[tuple[int, str]]
    ) -> dict[tuple[int, str], dict[int, ShownTurn]]:
        if self.prompts is None:
            return {}
        columns = ["attempt", "trajectory_id", "turn", "prompt_tokens"]
        found: dict[tuple[int, str], dict[int, ShownTurn]] = {}
        for row in self.rows_of("tokens", step, keys).select(columns).to_pylist():
            turn = self.prompts.read(row["prompt_tokens"], is_first=row["turn"] == 0)
            if turn is not None:
                found.setdefault((row["attempt"], row["trajectory_id"]), {})[row["turn"]] = turn
        return found

    @cached_property
    def prompts(self) -> ShownPrompts | None:
        """Reads prompts from their tokens; None where the run has no tokenizer at hand."""
        has_tokens = self.reader.sql("SELECT 1 FROM tokens LIMIT 1").num_rows
        if not has_tokens:
            return None
        folders = tokenizer_folders(
            self.reader.path, self.info.base_model, reversed(self.reader.checkpoints())
        )
        detokenizer = load_detokenizer(folders)
        return None if detokenizer is None else ShownPrompts(detokenizer)

    @cached_property
    def system(self) -> str:
        """The system message that the configuration names; empty for none."""
        context = self.info.config.get("context")
        value = context.get("system") if isinstance(context, Mapping) else None
        return value if isinstance(value, str) else ""


def turns_by_episode(turns: pa.Table) -> dict[tuple[int, str], list[Row]]:
    """The rows of a table `turns`, as (attempt, id) -> rows in the order of the turns."""
    found: dict[tuple[int, str], list[Row]] = {}
    ordered = turns.sort_by([("trajectory_id", "ascending"), ("turn", "ascending")])
    for row in ordered.to_pylist(maps_as_pydicts="lossy"):
        found.setdefault((row["attempt"], row["trajectory_id"]), []).append(row)
    return found
