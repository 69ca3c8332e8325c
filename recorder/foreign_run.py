"""The run of another trainer while it goes on: each of its steps is measured and judged here.

Whoever reads it, a hook in the trainer's loop or a watch of its files.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.advice.actions import trainer_of
from echoscope.diagnostics.judge.advice.situation import Situation, terms_of
from echoscope.diagnostics.judge.lineage import live_changes
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.monitor import Instruments, Monitor, StepMeasurements
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.names import RowNamer
from echoscope.diagnostics.read.run_meaning import RunMeaning
from echoscope.diagnostics.read.table import stored_meaning, stored_rows
from echoscope.diagnostics.tools.foreign_step import ForeignStep
from echoscope.store.importers.steps.episodes import StepEpisodes, step_values
from echoscope.store.importers.steps.metrics import joined
from echoscope.store.query.metric_keys import RETURN_MEAN
from echoscope.store.reader import open_run
from echoscope.store.records import (
    DiagnosticRecord,
    IntArray,
    SettingsRecord,
)
from echoscope.store.steer.settings import LiveSettings, live_settings
from echoscope.store.writer import RunWriter


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a step: what its trainer says of it."""

    number: int
    values: Mapping[str, float]
    """Under the trainer's names."""
    at: float
    """In seconds since the epoch."""
    information: StepMeasurements | None = None
    """What the trainer's own policy says of the episodes, where it was asked."""


def _undecodable(tokens: IntArray) -> str:
    raise ValueError("the run of another trainer has no tokenizer")


class ForeignRun:
    """Measures, judges and writes the steps of another trainer. All methods are for one thread.

    Args:
        path: the run's folder.
        trainer: whose run it is, as its configuration says; "" where that is not known.
        meanings: what the user says that metrics are, by the trainer's names.
        given_by: where the user says so, for what is said of them.
        say: told what the user should know.
        live: the settings that a person may change while the run goes on, as they are now.
    """

    def __init__(
        self,
        path: Path,
        *,
        trainer: Any,
        settings: DiagnosticsConfig,
        meanings: Mapping[str, Meaning],
        given_by: str,
        say: Callable[[str], None],
        live: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.trainer = path, trainer
        self.live = LiveSettings(initial=dict(live or {}))
        self.writer: RunWriter | None = None
        """None while the run is not held: the caller makes it, or calls `resume`."""
        self._settings, self._say = settings, say
        self._meanings, self._given_by = meanings, given_by
        self._namer = self._new_namer(RunMeaning())
        self._stored_meaning = RunMeaning()
        self._said: set[str] = set()
        self._begin_to_judge(())

    def resume(self, first: int | None = None) -> list[int]:
        """Go on with the run of the folder, as its next attempt.

        Args:
            first: the run's steps from here on are hidden, because they come again; None: none is.

        Returns the steps that it had. Raises as `RunWriter.resume`.
        """
        reader = open_run(self.path)
        steps: list[int] = reader.steps().column("step").to_pylist()
        last = max((step for step in steps if first is None or step < first), default=-1)
        if not self.meaning.columns:  # else this process goes on deciding
            self._namer = self._new_namer(stored_meaning(reader))
        self.writer = RunWriter.resume(self.path, from_step=last)
        self.live = live_settings(reader)
        # The record of the meaning may be hidden now: then it is written again.
        self._stored_meaning = RunMeaning() if last < max(steps, default=-1) else self.meaning
        self._judge_again(last + 1)
        return steps

    @property
    def meaning(self) -> RunMeaning:
        """What the numbers of the run are, as far as that is decided."""
        return self._namer.meaning

    def settings_changed(self, settings: SettingsRecord) -> None:
        """Somebody has set live settings: advice knows what holds, and what was changed when."""
        changes = (*self.live.changes, (settings.step, settings.values))
        self.live = replace(self.live, changes=changes)

    def verdict(self) -> Verdict:
        """What is known of the run now."""
        return self._monitor.diagnosis.verdict()

    def judge(
        self, step: StepEnd, content: StepEpisodes, records: Sequence[DiagnosticRecord] = ()
    ) -> ForeignStep:
        """The step with what is measured of it, and the alarms that it raises or clears.

        Args:
            records: what else is stored beside the step.

        Raises:
            StoreError: the run cannot be read, where earlier steps must be judged again.
        """
        judged = ForeignStep(
            content=content,
            values=self._named(step, content),
            records=[*records, *self._meaning_records(step.number)],
            at=step.at,
            phase="train" if step.number else "eval",
        )
        if step.information is not None:
            judged.values |= step.information.values
            judged.records += step.information.records
        batch = content.batch()
        if batch.groups and step.number > 0:
            instruments = Instruments(decode=_undecodable)
            text = self._monitor.measure(step.number, batch, self._settings, instruments)
            judged.values |= {k: v for k, v in text.values.items() if k.startswith("text/")}
            judged.records += text.records
        self._situate(step.values)
        judged.alarms = self._monitor.judge(step.number, judged.values)
        return judged

    def _named(self, step: StepEnd, content: StepEpisodes) -> dict[str, float]:
        """What is counted from the episodes, and the trainer's numbers under its names and ours.

        A key has one source in all steps: what the trainer's numbers tell is not counted, and what
        was counted first is not read from a later column.
        """
        self._namer.learn(step.number, step.values)
        for note in self._namer.notes:
            if note not in self._said:
                self._said.add(note)
                self._say(note)
        counted = step_values(content.trajectories)
        self._namer.leave(counted)
        named, told = self._namer.named(step.values), self.meaning.of_key
        return joined(
            counted,
            named,
            is_told=lambda key: key in told or key in named,
            has_return=RETURN_MEAN in told,
        )

    def _meaning_records(self, step: int) -> Iterator[DiagnosticRecord]:
        """What the numbers mean, where that is not stored yet; earlier steps that mean something
        else now are judged again."""
        earlier, self._stored_meaning = self._stored_meaning, self.meaning
        if earlier == self.meaning:
            return
        if earlier.is_revised_by(self.meaning) and self.writer is not None:
            self.writer.flush()
            self._judge_again(step)
        yield self.meaning.record(step)

    def _judge_again(self, before: int) -> None:
        """Follow the stored steps before this one, by what their numbers mean now."""
        rows = dict(stored_rows(open_run(self.path), before))
        self._begin_to_judge(rows[max(rows)] if rows else ())
        for number, values in rows.items():
            self._monitor.judge(number, values | self.meaning.row(values))

    def _begin_to_judge(self, names: Collection[str]) -> None:
        self._monitor = Monitor(self._settings, run_id=self.path.name, on_message=self._say)
        self._situate(names)

    def _situate(self, names: Collection[str]) -> None:
        trainer = terms_of(self.trainer) or trainer_of(names)
        self._monitor.situate(
            Situation(
                run=shlex.quote(str(self.path)),
                trainer=trainer,
                live=self.live.now,
                changes=live_changes(self.live),
            )
        )

    def _new_namer(self, meaning: RunMeaning) -> RowNamer:
        return RowNamer(mapping=self._meanings, meaning=meaning, given_by=self._given_by)
