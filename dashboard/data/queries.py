"""Everything that pages read. No widgets here; answers are kept until something is acknowledged.

`run_id` is the name of a run's folder under the root, as the URL has it. What cannot be answered is
a `Problem`, which `ui.page` shows; a traceback is a bug of ours.

Tables that come out of a cache are shared: copy one before you change it.
"""

from __future__ import annotations

import functools
import os
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import duckdb
import pandas as pd
import pyarrow as pa

from echoscope.diagnostics.judge.advice import actions
from echoscope.diagnostics.judge.advice.actions import AlarmAdvice
from echoscope.diagnostics.judge.advice.situation import SettingsChange
from echoscope.diagnostics.judge.lineage import live_changes
from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.checkpoints import last_good_checkpoint
from echoscope.store.errors import NotARunError, QueryError, StoreError, StoreVersionError
from echoscope.store.log.durable import stat_of
from echoscope.store.log.layout import Layout, shown_path
from echoscope.store.log.remote.pulling import is_held
from echoscope.store.models import Detokenizer, load_detokenizer, tokenizer_folders
from echoscope.store.query.alarms import attention, raised_now
from echoscope.store.query.listing import RunDetails, RunList, RunRow, details_of, run_path
from echoscope.store.query.listing import row_status as status_of_row
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import (
    Alarm,
    Trajectory,
    TrajectoryOutcome,
    parse_trajectory_id,
)
from echoscope.store.status import RUNNING, RunStatus
from echoscope.store.steer import rewinds
from echoscope.store.steer.settings import live_settings

from ..page.problems import Problem
from ..web.settings import settings
from . import tables
from .cache import AnswerCache
from .foreign import ForeignSource, ForeignSources
from .verdict_cache import Judge, judge_at

MAX_READERS = 150
"""A page that compares runs asks all of them in turn: with fewer readers, each question would open
each run anew."""
MAX_OPEN = 40
"""Readers with a DuckDB, about 8 MB each."""
MAX_TOKENIZERS = 4
MAX_KEYS = 64
"""Of one call of `series`."""

Position = tuple[Any, ...]
T = TypeVar("T")
P = ParamSpec("P")

_readers: OrderedDict[Path, tuple[tuple[int, int], RunReader]] = OrderedDict()
_run_list = functools.cache(RunList)
_sources_of = functools.cache(ForeignSources)
_lock = threading.RLock()
answers = AnswerCache()
"""Of all pages: what is asked of a run, and what is made of that."""
_judge = Judge()


def forget() -> None:
    """Drop every reader and every answer that is kept."""
    with _lock:
        _readers.clear()
        _run_list.cache_clear()
        _sources_of.cache_clear()
        answers.clear()
        _judge.clear()
        _detokenizer.cache_clear()


def runs(*, most: int | None = None) -> list[RunRow]:
    """The runs under the root: pinned ones, then the newest.

    Args:
        most: Runs to read at most now, where many were never read; None for all. Rows of the others
            have `is_read=False`.

    Raises:
        Problem: the root cannot be listed.
    """
    try:
        return _listed().rows(most)
    except StoreError as error:
        root = shown_path(settings().root)
        advice = f"Make a first run with: echoscope demo --root {root}"
        raise Problem(str(error), advice) from error


def row_status(row: RunRow) -> RunStatus:
    """How the run of a row stands now; one that cannot be read, as far as its row tells."""
    return status_of_row(row, run_details(row), time.time())


def look_again_at_runs() -> None:
    """After something was noted about a run: `runs` says so at once."""
    _listed().look_again()


def foreign_sources() -> tuple[ForeignSource, ...]:
    """What other trainers wrote below the root, as it was seen last; never waits for a look."""
    return _sources_of(settings().root, settings().sources).known(_listed().others)


def _listed() -> RunList:
    return _run_list(settings().root)


def run_details(row: RunRow) -> RunDetails:
    """What the list shows of a run besides its row: for the rows of one page, not for all.

    Nothing of a run that cannot be read.
    """
    try:
        with reading(row.run_id):
            run_position = position(row.run_id)
            details: RunDetails = answers.get(
                ("details", run_position[0]), run_position, lambda: details_of(row)
            )
            return details
    except Problem:
        return RunDetails()


def path_of(run_id: str) -> Path:
    """The run's folder, which lies under the root."""
    try:
        return run_path(settings().root, run_id)
    except NotARunError as error:
        raise Problem(str(error), "Choose another run.") from error


def typed(run_id: str) -> str:
    """The run as a command names it."""
    return shown_path(path_of(run_id))


def position(run_id: str) -> Position:
    """Changes when something is acknowledged or asked for, or the writer comes or goes. Cheap."""
    layout = Layout(path_of(run_id))
    try:
        run = os.stat(layout.run_json)
    except OSError as error:
        raise _gone(run_id) from error
    journal, packs, commands = (
        stat_of(path) for path in (layout.journal, layout.packs, layout.commands)
    )
    return (
        str(layout.root),
        identity_of(run),
        (journal.st_ino, journal.st_size) if journal else None,
        packs.st_mtime_ns if packs else None,
        commands.st_mtime_ns if commands else None,
        is_held(layout),
    )


def reader(run_id: str) -> RunReader:
    """A reader of the run with a cursor of its own: the caller's thread may use it at once."""
    path = path_of(run_id)
    with reading(run_id):
        identity = identity_of(os.stat(Layout(path).run_json))
        with _lock:
            opened = _readers.pop(path, None)
            if opened is None or opened[0] != identity:
                opened = (identity, open_run(path))
                _make_room()
            _readers[path] = opened
            return opened[1].cursor()


def _make_room() -> None:
    """Close the readers that were asked longest ago, so that one more may be kept."""
    with_duckdb = [path for path, (_, opened) in _readers.items() if opened.has_duckdb]
    for path in with_duckdb[: max(0, len(with_duckdb) - MAX_OPEN + 1)]:
        del _readers[path]
    while len(_readers) >= MAX_READERS:
        _readers.popitem(last=False)


def attempt(run_id: str) -> Position:
    """Of answers about finished steps: what the run writes after them changes none."""
    return (*position(run_id)[:2], info(run_id).attempt)


def kept(
    ask: Callable[Concatenate[RunReader, P], T], moment: Callable[[str], Position] = position
) -> Callable[Concatenate[str, P], T]:
    """A question to a reader as one to the run of a name.

    The answer is kept as long as the `moment` of the run is the same.
    """

    @functools.wraps(ask)
    def answer(run_id: str, /, *args: P.args, **options: P.kwargs) -> T:
        asked_at = moment(run_id)

        def fresh() -> T:
            with reading(run_id):
                return ask(reader(run_id), *args, **options)

        given = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
        key = (ask.__name__, asked_at[0], given, *options.items())
        answer: T = answers.get(key, asked_at, fresh)
        return answer

    return answer


info = kept(RunReader.info)
"""Name, status, configuration and progress."""


def warnings(run_id: str) -> list[str]:
    """What could not be read and was left out, each naming its file: hostile text."""
    with reading(run_id):
        return reader(run_id).warnings


@kept
def table(run: RunReader, sql: str, params: Sequence[Any] = ()) -> pd.DataFrame:
    """The answer to a SELECT of ours. What a person typed goes through `sql_box.ask`."""
    return _frame(run.sql(sql, list(params)))


@kept
def step_table(run: RunReader) -> pd.DataFrame:
    """The table `steps`, in order, one row per acknowledged step."""
    return _frame(run.steps())


metric_keys = kept(RunReader.metric_keys)
"""Every metric that the run has, sorted."""


@kept
def series(
    run: RunReader,
    keys: Sequence[str],
    phase: str | None = None,
    *,
    max_points: int | None = tables.MAX_POINTS,
) -> pd.DataFrame:
    """Metrics over the run, as `tables.series` has them, with the keys as categories.

    Raises:
        Problem: more than MAX_KEYS keys, or the run cannot be read.
    """
    if len(keys) > MAX_KEYS:
        raise Problem(
            f"{len(keys)} metrics were asked for at once, at most {MAX_KEYS} can be",
            "Narrow the search.",
        )
    points = tables.series(run, [*dict.fromkeys(keys)], phase, max_points=max_points)
    # Each chart looks for a few keys: as categories they are found by number.
    return points.assign(key=points["key"].astype("category"))


outlines = kept(tables.outlines)
"""Where some metrics began, where they are, and means between."""


@kept
def listing(run: RunReader, step: int) -> pd.DataFrame:
    """The rows of `trajectories` of one step, by id. Opens the files of that step only."""
    return _frame(run.listing(step))


trajectory_steps = kept(tables.trajectory_steps)
"""Steps that have trajectories, in order."""


@kept
def trajectory(run: RunReader, trajectory_id: str) -> Trajectory:
    """One full record, tokens included.

    Raises:
        Problem: not a trajectory id, or the run has no such trajectory.
    """
    _require_trajectory_id(trajectory_id)
    return run.trajectory(trajectory_id)


@kept
def outcome(run: RunReader, trajectory_id: str) -> TrajectoryOutcome | None:
    """What the update learned about a trajectory; None where it has not seen it."""
    _require_trajectory_id(trajectory_id)
    return run.outcome(trajectory_id)


def _require_trajectory_id(text: str) -> None:
    try:
        parse_trajectory_id(text)
    except ValueError as error:
        raise Problem(
            f"{text[:80]!r} is not a trajectory id", "One looks like t00000120-00037."
        ) from error


alarms = kept(RunReader.alarms)
"""Every alarm raised or cleared during the run, by step."""


def open_alarms(run_id: str) -> list[Alarm]:
    """Alarms that are not cleared, each as it was raised last: the worst, then the newest first."""
    return sorted(raised_now(alarms(run_id)), key=attention)


def alarm_advice(run_id: str, alarm: Alarm, *, is_open: bool = True) -> AlarmAdvice:
    """What an alarm of the run advises, as far as it can still be followed."""
    return actions.alarm_advice(
        alarm,
        run=shlex.quote(typed(run_id)),
        is_live=info(run_id).status == RUNNING,
        current=current_settings(run_id),
        is_open=is_open,
    )


commands = kept(RunReader.commands)
"""Every command in the order it was answered, those that still wait last."""


@kept
def current_settings(run: RunReader) -> Mapping[str, Any]:
    """The live settings that hold for the next step, by dotted key."""
    return live_settings(run).now


asked_rewind = kept(rewinds.asked_rewind)
"""The settings of the rewind that a paused run asks for; None where it asks for none."""


@kept
def settings_changes(run: RunReader) -> tuple[SettingsChange, ...]:
    """What somebody changed while the run trained, in the order of steps."""
    return live_changes(live_settings(run))


checkpoints = kept(RunReader.checkpoints)
"""Checkpoints that exist, by step."""


last_good = kept(last_good_checkpoint)
"""The checkpoint to go back to, and why."""


diagnostic_near = kept(tables.diagnostic_near)
"""The diagnostic of a kind at the step nearest to one."""


diagnostic_steps = kept(tables.diagnostic_steps)
"""Steps at which a diagnostic of this kind was stored, in order."""


def verdict(run_id: str, *, wait_s: float = 0.5) -> Verdict:
    """What is happening to the run, as of `verdict.last_step`.

    A long run takes time to judge. After `wait_s` seconds the verdict before this one is returned,
    or one that says that none is there yet; `is_judging` then says True, and asking again later
    gives the new one.
    """
    run_position = position(run_id)
    with reading(run_id):
        return _judge.verdict(path_of(run_id), run_position, lambda: reader(run_id), wait_s)


verdict_at = kept(judge_at)
"""What was to be said of the run after a step, from nothing later."""


def is_judging(run_id: str) -> bool:
    """Whether a newer verdict is being worked out."""
    return _judge.is_busy(path_of(run_id))


def known_verdict(run_id: str) -> Verdict | None:
    """The last verdict if there was one; works nothing out."""
    return _judge.known(path_of(run_id))


def token_pieces(run_id: str, token_ids: Sequence[int]) -> list[str] | None:
    """The text of each token by the run's own tokenizer; None where the run does not have one.

    A character of several tokens belongs to the last of them; the others are empty.
    """
    path = path_of(run_id)
    folders = tokenizer_folders(path, info(run_id).base_model, checkpoints(run_id))
    detokenizer = _detokenizer(path, tuple(folders))
    if detokenizer is None:
        _detokenizer.cache_clear()  # it may come
        return None
    return detokenizer.pieces(token_ids)


@functools.lru_cache(maxsize=MAX_TOKENIZERS)
def _detokenizer(run: Path, folders: tuple[Path, ...]) -> Detokenizer | None:
    return load_detokenizer(folders)


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    return frame


def identity_of(run_json: os.stat_result) -> tuple[int, int]:
    """Tells a run from another one that took its folder's place: inodes are used again."""
    return run_json.st_ino, run_json.st_mtime_ns


def _gone(run_id: str) -> Problem:
    return Problem(f"the run {run_id!r} is gone", "Choose another run.")


@contextmanager
def reading(run_id: str) -> Iterator[None]:
    """Puts what the store says into words a person can act on."""
    try:
        yield
    except StoreVersionError as error:
        raise Problem(str(error), "Install a newer Echoscope.") from error
    except (NotARunError, FileNotFoundError) as error:
        raise _gone(run_id) from error
    except KeyError as error:
        raise Problem(str(error.args[0]), "Choose another trajectory.") from error
    except QueryError as error:
        raise Problem(f"the question could not be answered: {error}") from error
    except (StoreError, OSError, pa.ArrowException, duckdb.Error) as error:
        raise Problem(
            f"the run {run_id!r} cannot be read: {error}",
            "See what is damaged with: "
            f"echoscope runs verify {shown_path(settings().root / run_id)}",
        ) from error
