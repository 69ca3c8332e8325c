"""Rollouts of another trainer as a source of a verdict: imported into a folder that does not stay.

What text alone can tell is measured, and the notes say what could not be, what was reconstructed
and which rows were skipped.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from echoscope.store.query.metric_keys import RETURN_MEAN, SUCCESS_RATE
from echoscope.text.amounts import counted, listed
from echoscope.text.did_you_mean import did_you_mean

from .names import ROLES

if TYPE_CHECKING:
    from echoscope.store.importers.format import Roles
    from echoscope.store.importers.survey import Progress

    from ..tools.importing import JointReport
    from .foreign_names import Meaning
    from .sources import Opened, Rescore
    from .table import MetricTable


def roles_of(mapping: Mapping[str, Meaning] | None) -> Roles:
    """What a mapping says of the keys of rollouts."""
    from echoscope.store.importers.format import Roles  # a metrics file does without

    columns = {meaning.key: column for column, meaning in (mapping or {}).items()}
    return Roles(**{role: columns[role] for role in ROLES if role in columns})


def metrics_mapping(mapping: Mapping[str, Meaning] | None) -> dict[str, Meaning]:
    """Of a mapping, what it says of columns of metrics: a step is one of both."""
    roles = set(ROLES) - {"step"}
    return {name: meaning for name, meaning in (mapping or {}).items() if meaning.key not in roles}


def outcomes_mapping(mapping: Mapping[str, Meaning] | None) -> dict[str, Meaning]:
    """A mapping as it is of rows that are read as answers: success and reward are metrics there."""
    keys = {"success": SUCCESS_RATE, "reward": RETURN_MEAN}
    outcomes = {
        name: replace(meaning, key=keys[meaning.key])
        for name, meaning in (mapping or {}).items()
        if meaning.key in keys
    }
    return metrics_mapping(mapping) | outcomes


def no_rollouts(path: Path | str, mapping: Mapping[str, Meaning] | None) -> str:
    """Why keys of rollouts cannot be mapped where a path holds none; "" where none is mapped."""
    of_metrics = metrics_mapping(mapping)
    roles = {
        meaning.key: name for name, meaning in (mapping or {}).items() if name not in of_metrics
    }
    if not roles:
        return ""
    from echoscope.store.importers.survey import look

    keys = look(Path(path)).keys if Path(path).is_file() else ()
    missing = next((role for role, name in roles.items() if name.split(".")[0] not in keys), "")
    if keys and missing:
        hint = did_you_mean(roles[missing], keys)
        return f"{path}: --map {missing}={roles[missing]}: the first row has no such key{hint}"
    role, name = next(iter(roles.items()))
    return (
        f"{path}: --map {role}={name} names a key of rollouts, and no rollouts were found. A row "
        f"of rollouts needs a text: --map reply=KEY. For a column of metrics write "
        f"--map {name}=KEY with one of our keys, such as reward/return_mean"
    )


ONE_EVALUATION = (
    "no step is written in the rollouts: all episodes are one evaluation (step 0), not a course "
    "over time; --map step=KEY names the key of the step where there is one"
)
_ENDINGS = (".pkl", ".pickle", ".pt")
"""Of files whose first bytes do not tell: old pickles."""


@contextmanager
def of_another_trainer(
    path: Path,
    progress: Progress | None = None,
    rescore: Rescore | None = None,
    mapping: Mapping[str, Meaning] | None = None,
    run: str = "",
) -> Iterator[Opened | None]:
    """The rollouts of a path as a source, while the block runs; None where it holds none.

    Metrics files beside them are joined by their steps.

    Args:
        mapping: What columns of the metrics files mean, and which keys of rollouts hold what.
        run: Whose metrics are joined, where the files hold several runs.

    Raises:
        ImportingError: the rollouts cannot be imported; one line.
        OSError: a file cannot be read.
    """
    if not _holds_rollouts(path, roles_of(mapping), run):
        yield None
        return
    from ..tools.importing import import_path
    from .sources import open_source

    with tempfile.TemporaryDirectory(prefix="echoscope-rollouts-") as folder:
        report = import_path(
            path,
            Path(folder) / "run",
            run=run,
            mapping=mapping,
            writing=progress,
            is_packing=False,
        )
        opened = open_source(report.path, rescore=rescore)
        quoted = shlex.quote(str(path))
        notes = (
            *notes_of(report, quoted),
            *_without_success(opened.table, report.written.trainer),
            *opened.table.notes,
        )
        yield replace(
            opened,
            name=quoted,
            table=replace(opened.table, notes=notes),
            situation=replace(opened.situation, run=quoted),
        )


def _holds_rollouts(path: Path, roles: Roles, run: str) -> bool:
    """Whether a folder without runs, or a file that may, holds rollouts, by its first rows."""
    if path.is_dir():
        from echoscope.store.log.layout import Layout

        if any(Layout(p).is_run for p in (path, *path.iterdir())):
            return False
    elif not _begins_like_rollouts(path):
        return False
    from echoscope.store.importers.survey import is_rollouts

    return is_rollouts(path, roles, run)


def _begins_like_rollouts(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(64)
    is_text = head.isascii() and b"\x00" not in head
    return not is_text or head.lstrip()[:1] in b"{[" or path.suffix.lower() in _ENDINGS


def notes_of(joint: JointReport, path: str) -> list[str]:
    """What a reader of the verdict must know of the import, in sentences."""
    from echoscope.store.importers.draft import RECONSTRUCTIONS

    report = joint.written
    parts = [f"{counted(report.num_kept, 'episode')} of {report.format}"] if report.format else []
    if joint.metrics is not None:
        steps = counted(joint.metrics.table.num_rows, "step")
        parts.append(f"the metrics of {steps} ({listed(joint.metrics.files)})")
    notes = [
        f"judged from {' and '.join(parts)}; "
        f"`echoscope import {path}` keeps them, so that you can read them in the dashboard"
    ]
    if joint.metrics is not None:
        notes += _true_of_all(joint.metrics.table.notes, joint.path)
    if report.survey.refused_rows.total:
        reason, times = report.survey.refused_rows.counts.most_common(1)[0]
        more = "" if len(report.survey.refused_rows.counts) == 1 else " and for other reasons"
        skipped = counted(report.survey.refused_rows.total, "row")
        notes.append(f"skipped {skipped}: {reason} ({times}){more}")
    notes += joint.sentences()
    notes += [
        f"left out {counted(times, 'row')} of {name}, another trainer's format"
        for name, (times, _) in report.survey.others.items()
    ]
    notes += [f"reconstructed: {RECONSTRUCTIONS[name]}" for name in sorted(report.reconstructed)]
    return notes


def _true_of_all(notes: Sequence[str], run: Path) -> list[str]:
    """Notes on metrics as they are true of their run, whose rollouts may say what was missed."""
    from echoscope.store.reader import open_run

    from .table import NO_OUTCOME, table_of_run

    if NO_OUTCOME not in notes:
        return list(notes)
    keys = table_of_run(open_run(run)).keys()
    has_outcome = any(key.endswith(("success_rate", "return_mean")) for key in keys)
    return [note for note in notes if note != NO_OUTCOME or not has_outcome]


def _without_success(table: MetricTable, trainer: str) -> list[str]:
    """What is said where rollouts have rewards and say no success."""
    keys = table.keys()
    if RETURN_MEAN not in keys or any(key.endswith("success_rate") for key in keys):
        return []
    where = " (no field `acc`, `success` or `is_correct`)" if trainer == "verl" else ""
    return [f"the rows do not say which episodes succeeded{where}: the mean return is judged"]
