"""Rollouts alone into a run's folder; `import_path` of the product imports metrics as well."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from echoscope.diagnostics.tools.foreign_step import ForeignStep
from echoscope.store.importers.format import NO_ROLES, Roles
from echoscope.store.importers.importing import ImportReport, check_paths, import_surveyed
from echoscope.store.importers.steps.episodes import StepEpisodes, step_values
from echoscope.store.importers.steps.metrics import Beside
from echoscope.store.importers.survey import survey
from echoscope.store.records import DiagnosticRecord
from echoscope.store.writer import RunWriter


def import_run(
    path: Path,
    run_path: Path,
    *,
    roles: Roles = NO_ROLES,
    writing: Callable[[int, int], None] | None = None,
    is_packing: bool = True,
) -> ImportReport:
    check_paths(path, run_path)
    with (
        tempfile.TemporaryDirectory(prefix="echoscope-import-") as spool,
        closing(survey(path, Path(spool), roles=roles, run="")) as rollouts,
    ):
        return import_surveyed(
            path,
            run_path,
            rollouts,
            Beside(),
            _write,
            writing=writing,
            is_packing=is_packing,
        )


def _write(writer: RunWriter, content: StepEpisodes, record: DiagnosticRecord) -> None:
    """With what is counted from the rollouts alone."""
    values = step_values(content.trajectories)
    ForeignStep(content=content, values=values, records=[record], at=time.time()).write(writer)
