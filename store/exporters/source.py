"""The episodes of a run that are exported, one after the other, in bounded memory.

A run may be live: what is exported ends at the last step that was acknowledged when the export
began. One step is in memory at a time.

Turns store what the environment said. What the policy read has more around it: a system message,
the environment's rules, a hint on the form of a reply, an opened `<think>`. Only the tokens hold
that. Control tokens are told from text that spells them, because text is never tokenised as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from echoscope.text.strict_json import value_at

from ..errors import QueryError
from ..importers.draft import SUMMED_REWARDS
from ..models import Detokenizer, load_detokenizer, tokenizer_folders
from ..query.condition import FLAG, checked_condition, flags_without_prefix
from ..reader import RunInfo, RunReader, grouped
from ..records import StopReason, parse_trajectory_id
from ..schema import TABLES
from ..steer.episode_notes import EpisodeNote, EpisodeNotes, read_episode_notes
from .format import SPLITS, ExportError, Options, SplitChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """How a family of chat templates opens and closes a message."""

    opens: Mapping[str, str]
    """Control token -> the role that it names; "" where the role is text after it."""
    closes: tuple[str, ...]
    header_ends: str = ""
    """What ends the name of the role: text, or a control token of its own."""
    after_header: str = ""
    """Text after the header that belongs to the template."""


_FAMILIES = (
    _Marks(opens={"<|im_start|>": ""}, header_ends="\n", closes=("<|im_end|>",)),
    _Marks(
        opens={"<|start_header_id|>": ""},
        header_ends="<|end_header_id|>",
        closes=("<|eot_id|>", "<|eom_id|>"),
        after_header="\n\n",
    ),
    _Marks(opens={"<start_of_turn>": ""}, header_ends="\n", closes=("<end_of_turn>",)),
    # Phi, Zephyr, and the shipped policies.
    _Marks(
        opens={f"<|{role}|>": role for role in ("system", "user", "assistant", "tool")},
        closes=("<|end|>", "</s>"),
        after_header="\n",
    ),
)
_MAX_FIRSTS = 256
_ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "ipython": "tool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """What a turn's prompt added to the prompt of the turn before."""

    messages: tuple[tuple[str, str], ...]
    """(role, content) of each message after the last reply that the prompt repeats."""
    opening: str
    """What the prompt already wrote of the reply, for example `<think>`."""


class ShownPrompts:
    """Reads the prompts of one run."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        # Siblings share their first prompt.
        self._first = lru_cache(_MAX_FIRSTS)(partial(self._messages, is_first=True))

    def read(self, tokens: Sequence[int], *, is_first: bool) -> ShownTurn | None:
        """The messages in prompt tokens; None where no known chat template wrote them.

        Args:
            tokens: The whole prompt of the first turn; of a later one, what it has beyond the
                prompt and reply before.
        """
        return self._first(tuple(tokens)) if is_first else self._messages(tokens, is_first=False)

    def _messages(self, tokens: Sequence[int], *, is_first: bool) -> ShownTurn | None:
        pieces = self._detokenizer.pieces(tokens)
        marks = next((family for family in _FAMILIES if family.opens.keys() & set(pieces)), None)
        if marks is None:
            return None
        messages_with_end = list(_split(pieces, marks))
        if any(role not in _ROLES for role, _, _ in messages_with_end):
            return None
        *before, (role, opening, is_closed) = messages_with_end
        if _ROLES[role] != "assistant" or is_closed:
            return None
        replies = [i for i, (name, _, _) in enumerate(before) if _ROLES[name] == "assistant"]
        start = replies[-1] + 1 if replies and not is_first else 0
        messages = tuple((_ROLES[name], text) for name, text, _ in before[start:])
        return ShownTurn(messages=messages, opening=opening) if messages else None


def _split(pieces: Sequence[str], marks: _Marks) -> Iterator[tuple[str, str, bool]]:
    """(role, content, whether it was closed) of each message."""
    role = ""
    text: list[str] | None = None
    for piece in pieces:
        if piece in marks.opens:
            if text is not None:
                yield (*_headed(role, "".join(text), marks), False)
            role, text = marks.opens[piece], []
        elif piece in marks.closes and text is not None:
            yield (*_headed(role, "".join(text), marks), True)
            text = None
        elif text is not None:
            text.append(piece)
    if text is not None:
        yield (*_headed(role, "".join(text), marks), False)


def _headed(role: str, text: str, marks: _Marks) -> tuple[str, str]:
    if not role:
        header, _, text = text.partition(marks.header_ends)
        role = header.strip()
    return role, text.removeprefix(marks.after_header)


Row = Mapping[str, Any]
Progress = Callable[[int, int], None]
"""Called with (episodes, of episodes)."""

_SLICE = 128
"""Episodes that are Python objects at a time."""
_FLAGS = flags_without_prefix(TABLES["trajectories"].column_names)
_COLUMNS = (*TABLES["trajectories"].column_names, *_FLAGS)
"""What a condition may name."""
_EPISODES = (
    f"(SELECT *, {', '.join(f'{FLAG}{name} AS {name}' for name in _FLAGS)} FROM trajectories) "
    "trajectories"
)

_NOTHING_NOTED = EpisodeNote()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRows:
    """One episode as rows of the store; `prompts` as they were shown, where that is known."""

    row: Row
    turns: Sequence[Row]
    prompts: Sequence[ShownTurn | None]
    """One per turn."""
    system: str = ""
    """The system message, where the prompts are not known."""
    noted: EpisodeNote = _NOTHING_NOTED
    """What people noted about it."""

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def step(self) -> int:
        return int(self.row["step"])

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
    notes: EpisodeNotes = field(init=False)
    chosen: pa.Table = field(init=False)
    """Of each episode that is asked for (step, attempt, id, split), in order."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Why episodes that were asked for were left out, a clause -> how many."""
    _left_out: Counter[tuple[int, str]] = field(default_factory=Counter)
    """(step, split) -> how many of the episodes that were asked for were left out."""
    _num_done: int = 0

    def __post_init__(self) -> None:
        self.info = self.reader.info()
        self.cut = self.info.last_step
        self.notes = read_episode_notes(self.reader.path)
        self.chosen = self.select(self.split)

    def leave_out(self, reason: str, *rows: Row) -> None:
        """Count episodes, given as rows with step and split, as left out for a reason."""
        self.skipped[reason] += len(rows)
        self._left_out.update((row["step"], row["split"]) for row in rows)

    def written(self) -> Counter[tuple[int, str]]:
        """(step, split) -> episodes that were asked for and not left out."""
        steps, splits = (self.chosen.column(name).to_pylist() for name in ("step", "split"))
        return Counter(zip(steps, splits, strict=True)) - self._left_out

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

    @property
    def _labelled(self) -> list[str] | None:
        """`attempt/id` of the episodes with one of the labels; None where none is asked for."""
        labels = {*self.options.labels, self.options.over} - {""}
        if not labels:
            return None
        return [f"{attempt}/{key}" for attempt, key in self.notes.labelled(labels)]

    def select(self, split: SplitChoice) -> pa.Table:
        """The episodes that the options and a choice of splits take."""
        best = ""
        if self.options.best is not None:
            best = (
                "QUALIFY row_number() OVER (PARTITION BY step, split, group_index ORDER BY "
                f"episode_return DESC NULLS LAST, sibling_index, id) <= {int(self.options.best)}"
            )
        query = (
            f"SELECT step, attempt, id, split FROM {_EPISODES} WHERE step BETWEEN $1 AND $2 "
            f"AND list_contains($3, split) AND {self._condition} "
            f"AND ($4 IS NULL OR list_contains($4::VARCHAR[], attempt || '/' || id)) {best} "
            "ORDER BY step, split <> 'train', id"
        )
        try:
            return self.reader.sql(query, [*self.steps, list(SPLITS[split]), self._labelled])
        except QueryError as error:
            if not self.options.where.strip():
                raise
            raise ExportError(f"--where {self.options.where!r}: {error}") from error

    def _count(self, condition: str, value: Any) -> int:
        query = f"SELECT count(*) AS num FROM trajectories WHERE {condition}"
        return int(self.reader.sql(query, [value]).column("num")[0].as_py())

    def num_all(self) -> int:
        """Episodes up to the last step that is exported."""
        return self._count("step <= $1", self.cut)

    def num_summed(self) -> int:
        """Episodes of the run whose return was added up from rewards without their weights."""
        return self._count("regexp_matches(extra, $1)", SUMMED_REWARDS)

    def by_step(self) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Each step with the (attempt, id) of its episodes."""
        steps = self.chosen.column("step")
        for step in pc.unique(steps).to_pylist():
            rows = self.chosen.filter(pc.equal(steps, step))
            keys = (rows.column(name).to_pylist() for name in ("attempt", "id"))
            yield step, list(zip(*keys, strict=True))

    def rows_of(self, table: str, step: int, keys: Sequence[tuple[int, str]]) -> pa.Table:
        """The rows of some episodes of a step, in the order of `trajectories` and `turns`."""
        name = "id" if table == "trajectories" else "trajectory_id"
        rows = self.reader.rows_of_step(table, step)
        asked = pa.array([f"{attempt}/{key}" for attempt, key in keys], type=pa.string())
        marks = pc.binary_join_element_wise(
            pc.cast(rows.column("attempt"), pa.string()), rows.column(name), "/"
        )
        return rows.filter(pc.is_in(marks, value_set=asked))

    def done(self, count: int) -> None:
        """Report that so many more episodes were written."""
        self._num_done += count
        if self.progress:
            self.progress(self._num_done, self.chosen.num_rows)

    def episodes(self) -> Iterator[EpisodeRows]:
        """Every episode, step by step."""
        for step, keys in self.by_step():
            for start in range(0, len(keys), _SLICE):
                part = keys[start : start + _SLICE]
                yield from self._episodes(step, part)
                self.done(len(part))

    def _episodes(self, step: int, keys: Sequence[tuple[int, str]]) -> Iterator[EpisodeRows]:
        rows = {
            (row["attempt"], row["id"]): row
            for row in self.rows_of("trajectories", step, keys).to_pylist(maps_as_pydicts="lossy")
        }
        order = [("trajectory_id", "ascending"), ("turn", "ascending")]
        turn_rows = self.rows_of("turns", step, keys).sort_by(order)
        turns = grouped(turn_rows, "attempt", "trajectory_id")
        prompts_shown = self._shown(step, keys)
        for key in keys:
            row, turns_of_row = rows.get(key), turns.get(key, [])
            if row is None or len(turns_of_row) != row["num_turns"]:
                split, _, _ = parse_trajectory_id(key[1])
                self.leave_out(
                    "a damaged file of the run holds their turns",
                    {"step": step, "split": split.value},
                )
                continue
            prompts = prompts_shown.get(key, {})
            yield EpisodeRows(
                row=row,
                turns=turns_of_row,
                prompts=[prompts.get(turn["turn"]) for turn in turns_of_row],
                system=self.system,
                noted=self.notes.of(*key),
            )

    def _shown(
        self, step: int, keys: Sequence[tuple[int, str]]
    ) -> dict[tuple[int, str], dict[int, ShownTurn | None]]:
        if self.prompts is None:
            return {}
        columns = ["attempt", "trajectory_id", "turn", "prompt_tokens"]
        rows_of = grouped(
            self.rows_of("tokens", step, keys).select(columns), "attempt", "trajectory_id"
        )
        return {
            (attempt, identity): {
                row["turn"]: self.prompts.read(row["prompt_tokens"], is_first=row["turn"] == 0)
                for row in rows
            }
            for (attempt, identity), rows in rows_of.items()
        }

    @cached_property
    def prompts(self) -> ShownPrompts | None:
        """Reads prompts from their tokens; None where the run has no tokenizer at hand."""
        if not self.reader.sql("SELECT 1 FROM tokens LIMIT 1").num_rows:
            return None
        folders = tokenizer_folders(
            self.reader.path, self.info.base_model, reversed(self.reader.checkpoints())
        )
        detokenizer = load_detokenizer(folders)
        return None if detokenizer is None else ShownPrompts(detokenizer)

    @cached_property
    def system(self) -> str:
        """The system message that the configuration names; empty for none."""
        return value_at(self.info.config, str, "context", "system") or ""
