"""The run that is written from what is watched: steps in, alarms out, steps taken back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.table import stored_rows
from echoscope.diagnostics.tools.foreign_step import ForeignStep
from echoscope.recorder.foreign_run import ForeignRun, StepEnd
from echoscope.store.errors import StoreError
from echoscope.store.importers.steps.episodes import StepEpisodes
from echoscope.store.log.layout import Layout, shown_path
from echoscope.store.log.starting import is_free
from echoscope.store.reader import open_run
from echoscope.store.records import DiagnosticRecord
from echoscope.store.writer import RunWriter

from .ledger import MAX_STEPS
from .rollouts import Claim

KIND = "watch"
"""Of the diagnostic record that says which rows a step was written from."""


class WatchError(StoreError):
    """Nothing can be watched like that; one sentence with the way out."""


class WatchedRun(ForeignRun):
    """The run of another trainer whose files are watched.

    Args:
        path: The run's folder. A run of an earlier watch of the same path goes on.
        watched: What is watched, as the run's page shows it.
        mapping: What the user says of names of metrics.

    Raises:
        WatchError: the folder holds something else.
        StoreError: the run cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        watched: str,
        settings: DiagnosticsConfig,
        mapping: Mapping[str, Meaning],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(
            path, trainer="", settings=settings, meanings=mapping, given_by="--map", say=say
        )
        self._watched = watched
        if Layout(path).is_run:
            _require_watched(path, watched)
        elif path.is_file():
            raise WatchError(f"{path}: is a file; -o names the folder of the run")
        elif not is_free(path):
            raise WatchError(f"{path}: exists and is no run; name another folder with -o")

    def take_up(self) -> dict[int, Claim]:
        """Go on with the run that is there; what its steps were written from, if there are any.

        Raises:
            StoreError: another process writes it, or the disk refuses.
        """
        if not Layout(self.path).is_run:
            return {}
        reader = open_run(self.path)
        self.trainer = reader.info().config.get("trainer")
        rows = reader.sql("SELECT step, payload FROM diagnostics WHERE kind = $1", [KIND])
        stored = dict(list(stored_rows(reader))[-MAX_STEPS:])
        claims = {}
        for step, text in zip(*rows.to_pydict().values(), strict=True):
            payload = json.loads(text)
            numbers = stored.get(step, {})
            claims[int(step)] = Claim(payload["num_rows"], payload["sum"], numbers, is_stored=True)
        self.resume()
        return claims

    def commit(
        self, step: StepEnd, content: StepEpisodes, rows: tuple[int, int], trainer: str
    ) -> ForeignStep:
        """Measure, judge and write a step.

        Args:
            rows: How many rows of rollouts it was written from, and the sum of their digests.

        Raises:
            StoreError: the disk refuses.
        """
        if self.writer is None:
            self.trainer = trainer
            self.writer = RunWriter.create(
                self.path,
                run_id=self.path.name,
                name=self.path.name,
                config={"trainer": trainer, "watched": {"path": self._watched}},
                tags=("watched", *([trainer] if trainer else [])),
            )
        payload = json.dumps({"num_rows": rows[0], "sum": rows[1]})
        record = DiagnosticRecord(step=step.number, kind=KIND, payload=payload)
        judged = self.judge(step, content, [record])
        judged.write(self.writer)
        return judged

    def take_back(self, first: int) -> None:
        """Hide the steps from `first` on, because they come again."""
        if self.writer is not None:
            self.writer.close(status="interrupted")
            self.resume(first)

    def flush(self) -> None:
        """Wait until all steps are on the disk. Raises StoreError where it refuses."""
        if self.writer is not None:
            self.writer.flush()

    def close(self, status: str) -> None:
        """Let the run go. Raises StoreError where the disk refuses."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close(status=status)


def _require_watched(path: Path, watched: str) -> None:
    """Raises WatchError for a run that is not of this watch."""
    earlier = open_run(path).info().config.get("watched")
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
