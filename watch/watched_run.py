"""The run that is written from what is watched: steps in, alarms out, steps taken back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.table import stored_rows
from echoscope.recorder.episodes import StepEpisodes
from echoscope.recorder.foreign_run import ForeignRun, JudgedStep, StepEnd
from echoscope.store.errors import StoreError
from echoscope.store.log.layout import Layout, shown_path
from echoscope.store.log.starting import is_free
from echoscope.store.reader import open_run
from echoscope.store.records import DiagnosticRecord
from echoscope.store.writer import RunWriter

from .acting import WatchError
from .rollouts import Claim

T = TypeVar("T")
KIND = "watch"
"""Of the diagnostic record that holds a step's claim."""


class WatchedRun:
    """A run of another trainer whose files are watched. One thread calls its methods.

    Once the disk has refused, every method raises this error, until `take_up`.

    Args:
        path: The run's folder. A run of an earlier watch of the same path goes on.
        watched: What is watched, as the run's page shows it.
        mapping: What the user says of names of metrics.

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
        mapping: Mapping[str, Meaning],
        say: Callable[[str], None],
    ) -> None:
        self.path, self._watched = path, watched
        self._refusal: StoreError | None = None
        self.run = ForeignRun(
            path, trainer="", settings=settings, meanings=mapping, given_by="--map", say=say
        )
        if Layout(path).run_json.is_file():
            _require_watched(path, watched)
        elif path.is_file():
            raise WatchError(f"{path}: is a file; -o names the folder of the run")
        elif not is_free(Layout(path)):
            raise WatchError(f"{path}: exists and is no run; name another folder with -o")

    def take_up(self) -> dict[int, Claim]:
        """Go on with the run that is there; what its steps were written from, if there are any."""
        self._refusal = None
        if not Layout(self.path).run_json.is_file():
            return {}
        reader = open_run(self.path)
        self.run.trainer = reader.info().config.get("trainer")
        rows = reader.sql("SELECT step, payload FROM diagnostics WHERE kind = $1", [KIND])
        claims = {
            int(step): _claim(text) for step, text in zip(*rows.to_pydict().values(), strict=True)
        }
        self._do(self.run.resume)
        return claims

    def stored(self) -> dict[int, dict[str, float]]:
        """The numbers of all steps that are on the disk."""
        return dict(stored_rows(open_run(self.path)))

    def commit(
        self, step: StepEnd, content: StepEpisodes, claim: Claim, trainer: str
    ) -> tuple[JudgedStep, Verdict]:
        """Measure, judge and write a step; what is known after it.

        Raises:
            StoreError: the disk refuses.
        """
        return self._do(lambda: self._commit(step, content, claim, trainer))

    def _commit(
        self, step: StepEnd, content: StepEpisodes, claim: Claim, trainer: str
    ) -> tuple[JudgedStep, Verdict]:
        run = self.run
        if run.writer is None:
            run.trainer = trainer
            run.writer = RunWriter.create(
                self.path,
                run_id=self.path.name,
                name=self.path.name,
                config={"trainer": trainer, "watched": {"path": self._watched}},
                tags=("watched", *([trainer] if trainer else [])),
            )
        payload = {"num_rows": claim.num_rows, "sum": claim.rows, "numbers": claim.numbers}
        record = DiagnosticRecord(step=step.number, kind=KIND, payload=json.dumps(payload))
        judged = run.judge(step, content, [record])
        run.write(judged)
        return judged, run.verdict()

    def take_back(self, first: int) -> Verdict:
        """Hide the steps from `first` on, because they come again; what is known before them."""

        def take_back() -> Verdict:
            if self.run.writer is not None:
                self.run.writer.close(status="interrupted")
                self.run.resume(first)
            return self.run.verdict()

        return self._do(take_back)

    def flush(self) -> None:
        """Wait until all steps are on the disk. Raises StoreError where it refuses."""
        if self.run.writer is not None:
            self._do(self.run.writer.flush)

    def close(self, status: str) -> None:
        """Let the run go. Raises StoreError where the disk refuses."""
        writer, self.run.writer = self.run.writer, None
        if writer is not None:
            writer.close(status=status)

    def _do(self, work: Callable[[], T]) -> T:
        if self._refusal is not None:
            raise self._refusal
        try:
            return work()
        except StoreError as error:
            self._refusal = error
            with suppress(StoreError):  # the first error is the one that says why
                self.close("failed")
            raise


def _claim(payload: str) -> Claim:
    claim = json.loads(payload)
    return Claim(int(claim["num_rows"]), int(claim.get("sum", 0)), str(claim.get("numbers", "")))


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
