"""Rollouts alone into a run's folder; `import_path` of the product imports metrics as well."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from echoscope.store.importers.format import NO_ROLES, Roles
from echoscope.store.importers.importing import ImportReport, check_paths, import_surveyed
from echoscope.store.importers.steps.metrics import Beside
from echoscope.store.importers.survey import survey


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
            lambda step, trajectories: ({}, ()),
            writing=writing,
            is_packing=is_packing,
        )
