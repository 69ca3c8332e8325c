"""The run that grows while a foreign trainer is watched: steps in, alarms out, steps taken back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.advice.actions import trainer_of
from echoscope.diagnostics.judge.advice.situation import Situation, terms_of
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.monitor import Instruments, Monitor
from echoscope.diagnostics.read.names import RowNamer
from echoscope.diagnostics.read.run_meaning import RunMeaning
from echoscope.diagnostics.read.table import stored_meaning, stored_rows
from echoscope.recorder.episodes import StepEpisodes
from echoscope.store.errors import StoreError
from echoscope.store.importers.beside.metrics import without_reconstructed
from echoscope.store.importers.draft import Draft
from echoscope.store.importers.importing import step_metrics
from echoscope.store.log.layout import Layout, shown_path
from echoscope.store.log.starting import is_free
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import Alarm, DiagnosticRecord, IntArray, StepMetrics
from echoscope.store.writer import RunWriter

KIND = "watch"
"""Of the diagnostic record that each step of a watched run has."""


class WatchError(StoreError):
    """Nothing can be watched like that; one sentence with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What an earlier watch has left in the run."""

    values: Mapping[int, Mapping[str, float]]
    """Step -> its numbers."""
    episodes: Mapping[int, tuple[int, str]]
    """Step -> how many rows of rollouts it came from, and their hash."""
    meaning: RunMeaning
    """What was decided that the numbers mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """All that the trainer wrote of one step, ready to be judged."""

    step: int
    content: StepEpisodes
    values: Mapping[str, float]
    """Its numbers: those that follow from its episodes, and over them what the trainer wrote."""
    names: frozenset[str]
    """Names of what the trainer wrote."""
    signature: tuple[int, str]
    """How many rows of rollouts it came from, and their hash."""
    wall_time: float
    meaning: RunMeaning = field(default_factory=RunMeaning)
    """What the numbers of the run are, as far as it is decided."""

    @property
    def num_episodes(self) -> int:
        return len(self.content.trajectories)


def whole_step(
    run_id: str,
    step: int,
    numbers: Mapping[str, float],
    drafts: Iterable[tuple[Draft, str, str]],
    signature: tuple[int, str],
    wall_time: float,
    namer: RowNamer,
) -> WholeStep:
    """Put a step together; `drafts` are its episodes, each with its place and its format.

    A key has one source in all steps: what the trainer's numbers tell is not counted from episodes,
    and what was counted from episodes first is not read from a later column.
    """
    content = StepEpisodes(step)
    for draft, place, name in drafts:
        content.add(draft, source=place, format_name=name)
    values: dict[str, float] = {}
    if content.trajectories:
        counted: Mapping[str, float] = step_metrics(run_id, step, content.trajectories).values
        namer.leave(counted)
        told = namer.meaning.of_key
        counted = without_reconstructed(counted) if "reward/return_mean" in told else counted
        values = {k: v for k, v in counted.items() if not math.isnan(v) and k not in told}
    return WholeStep(
        step=step,
        content=content,
        values={**values, **numbers},
        names=frozenset(numbers),
        signature=signature,
        wall_time=wall_time,
        meaning=namer.meaning,
    )


class Keeper:
    """Writes the run of a watched trainer and judges each step.

    Args:
        path: The run's folder. A run of an earlier watch of the same path goes on.
        watched: What is watched, as the run's page shows it.

    Raises:
        WatchError: the folder holds something else.
        StoreError: the run cannot be read or written, or another process writes it.
    """

    def __init__(
        self,
        path: Path,
        *,
        watched: str,
        settings: DiagnosticsConfig,
        say: Callable[[str], None],
    ) -> None:
        self.path = path
        self.trainer = ""
        self._watched, self._settings, self._say = watched, settings, say
        self._writer: RunWriter | None = None
        self._monitor = self._new_monitor()
        self._meaning = RunMeaning()
        self.last_step = -1
        if Layout(path).run_json.is_file():
            _require_watched(path, watched)
        elif path.is_file():
            raise WatchError(f"{path}: is a file; -o names the folder of the run")
        elif not is_free(Layout(path)):
            raise WatchError(f"{path}: exists and is no run; name another folder with -o")

    @property
    def is_open(self) -> bool:
        """Whether the run is there and held by this process."""
        return self._writer is not None

    def take_up(self) -> Stored | None:
        """Go on with the run that is there; None for a new one."""
        if not Layout(self.path).run_json.is_file():
            return None
        reader = open_run(self.path)
        self.last_step = reader.info().last_step
        imported = reader.info().config.get("trainer")
        self.trainer = imported if isinstance(imported, str) else ""
        self._writer = RunWriter.resume(self.path, from_step=self.last_step)
        self._meaning = stored_meaning(reader)
        stored = Stored(
            values=dict(stored_rows(reader)), episodes=_episodes(reader), meaning=self._meaning
        )
        self._judge_again(stored.values)
        return stored

    def begin(self, trainer: str) -> None:
        """Make the new run."""
        self.trainer = trainer
        self._writer = RunWriter.create(
            self.path,
            run_id=self.path.name,
            name=self.path.name,
            config={"trainer": trainer, "watched": {"path": self._watched}},
            tags=("watched", *([trainer] if trainer else [])),
        )
        self._situate(())

    def commit(self, whole: WholeStep) -> tuple[list[Alarm], dict[str, float]]:
        """Measure, judge and write a whole step.

        Returns the alarms that it raises or clears, and all its numbers.

        Raises:
            StoreError: the disk refuses.
        """
        assert self._writer is not None
        step, content, values = whole.step, whole.content, dict(whole.values)
        records = [_record(step, whole.signature)]
        if whole.meaning != self._meaning:
            records.append(self._take_meaning(step, whole.meaning))
        batch = content.batch()
        if batch.groups and step > 0:
            instruments = Instruments(decode=_undecodable)
            measured = self._monitor.measure(step, batch, self._settings, instruments)
            values |= {k: v for k, v in measured.values.items() if k.startswith("text/")}
            records += measured.records
        self._situate(whole.names)
        alarms = self._monitor.judge(step, values)
        self._writer.commit_step(
            metrics=[
                StepMetrics(
                    run_id=self.path.name,
                    step=step,
                    phase="train" if step else "eval",
                    policy_version=None,
                    wall_time=whole.wall_time,
                    values=values,
                )
            ],
            trajectories=content.trajectories,
            outcomes=content.outcomes,
            alarms=alarms,
            diagnostics=records,
        )
        self.last_step = step
        return alarms, values

    def take_back(self, first: int) -> None:
        """Hide the steps from `first` on: they come again."""
        assert self._writer is not None
        self._writer.close(status="interrupted")
        self._writer = None
        reader = open_run(self.path)
        earlier = [step for step in _steps(reader) if step < first]
        self.last_step = max(earlier, default=-1)
        self._writer = RunWriter.resume(self.path, from_step=self.last_step)
        self._judge_again(dict(stored_rows(reader, before=first)))
        self._meaning = RunMeaning()  # its record may be hidden: it is written again

    def flush(self) -> None:
        """Wait until all steps are on the disk. Raises StoreError where it refuses."""
        if self._writer is not None:
            self._writer.flush()

    def close(self, status: str) -> None:
        """Let the run go. Raises StoreError where the disk refuses."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close(status=status)

    def verdict(self) -> Verdict:
        """What is known of the run now."""
        return self._monitor.diagnosis.verdict()

    def _new_monitor(self) -> Monitor:
        return Monitor(self._settings, run_id=self.path.name, on_message=self._say)

    def _judge_again(self, values: Mapping[int, Mapping[str, float]]) -> None:
        self._monitor = self._new_monitor()
        self._situate(values[max(values)] if values else ())
        for step in sorted(values):
            self._monitor.judge(step, {**values[step], **self._meaning.row(values[step])})

    def _take_meaning(self, step: int, meaning: RunMeaning) -> DiagnosticRecord:
        """Follow what the numbers mean from now on; rows that mean something else are judged again.

        Raises StoreError: the disk refuses.
        """
        assert self._writer is not None
        earlier, self._meaning = self._meaning, meaning
        if earlier.is_revised_by(meaning):
            self._writer.flush()
            self._judge_again(dict(stored_rows(open_run(self.path), before=step)))
        return meaning.record(step)

    def _situate(self, names: Iterable[str]) -> None:
        trainer = terms_of(self.trainer) or trainer_of(list(names))
        self._monitor.situate(Situation(run=str(self.path), trainer=trainer))


def _undecodable(tokens: IntArray) -> str:
    raise ValueError("a watched run has no tokenizer")


def _record(step: int, signature: tuple[int, str]) -> DiagnosticRecord:
    payload = {"num_rows": signature[0], "rows": signature[1]}
    return DiagnosticRecord(step=step, kind=KIND, payload=json.dumps(payload))


def _steps(reader: RunReader) -> list[int]:
    rows = reader.sql("SELECT DISTINCT step FROM metrics ORDER BY step")
    return [int(step) for step in rows.column("step").to_pylist()]


def _episodes(reader: RunReader) -> dict[int, tuple[int, str]]:
    rows = reader.sql("SELECT step, payload FROM diagnostics WHERE kind = $1", [KIND])
    pairs = zip(rows.column("step").to_pylist(), rows.column("payload").to_pylist(), strict=True)
    out = {}
    for step, text in pairs:
        payload: Any = json.loads(text)
        out[int(step)] = int(payload["num_rows"]), str(payload["rows"])
    return out


def _require_watched(path: Path, watched: str) -> None:
    """Raises WatchError for a run that is not of this watch."""
    config = open_run(path).info().config
    earlier = config.get("watched")
    if not isinstance(earlier, Mapping):
        raise WatchError(
            f"{shown_path(path)}: holds a run that was not made by `echoscope watch`; name another "
            "folder with -o"
        )
    if earlier.get("path") != watched:
        raise WatchError(
            f"{shown_path(path)}: was made by watching {earlier.get('path')}; name another folder "
            "with -o"
        )
