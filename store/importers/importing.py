"""Rollouts of another trainer into a run's folder, step by step, through the store's own writer.

Each step is one acknowledged record with the hash of the rows that it came from. So an import that
was killed goes on where it stopped, a second import adds nothing, and one of files that grew adds
what is new.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echoscope.text.did_you_mean import did_you_mean

from ..errors import StoreError
from ..log.layout import Layout
from ..log.starting import is_free
from ..reader import open_run
from ..records import DiagnosticRecord
from ..writer import RunWriter
from .draft import RowError
from .format import RewardValues
from .lines import BadJsonError
from .registry import FORMATS
from .steps.episodes import StepEpisodes
from .steps.metrics import Beside
from .survey import NotedRow, Progress, Survey

KIND = "import"
"""Of the diagnostic record that each imported step has."""

Write = Callable[[RunWriter, StepEpisodes, DiagnosticRecord], None]
"""Writes a step: its episodes, and the record of which rows they came from."""


class ImportingError(StoreError):
    """Nothing can be imported, with the reason in words."""


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """What an import did."""

    path: Path
    """The run's folder."""
    survey: Survey
    """The rollouts, and which of their rows and files were refused; empty where there are none."""
    trainer: str
    num_kept: int = 0
    """Trajectories that this import added."""
    num_there: int = 0
    """Rows that the run had already."""
    num_steps: int = 0
    """Steps that this import added."""
    num_steps_with_numbers: int = 0
    """Of these, steps that metrics files say something of."""
    num_steps_there: int = 0
    """Steps that the run had already."""
    first_step: int | None = None
    last_step: int | None = None
    reconstructed: Counter[str] = field(default_factory=Counter)
    """What had to be guessed -> in how many episodes."""

    @property
    def format(self) -> str:
        """Of the rollouts; "" where there are none."""
        return self.survey.format.name if self.survey.format else ""


def check_paths(path: Path, run_path: Path) -> None:
    """Raises ImportingError where a path cannot be imported into a run's folder at all."""
    if not path.exists():
        raise ImportingError(f"{path}: no such file or folder")
    if not path.is_dir() and not path.is_file():
        raise ImportingError(
            f"{path}: is a pipe or a device, and no file; write its content to a file first"
        )
    if run_path.is_file():
        raise ImportingError(f"{run_path}: is a file; -o names the folder of the new run")
    if path.is_dir() and not any(path.iterdir()):
        raise ImportingError(f"{path}: is empty")
    if run_path.exists() and path.resolve() == run_path.resolve():
        raise ImportingError(f"{path}: is the folder that the run would be written to")
    if Layout(path).is_run:
        raise ImportingError(f"{path}: is a run already; `echoscope diagnose {path}` reads it")


def import_surveyed(
    source: Path | str,
    run_path: Path,
    survey: Survey,
    beside: Beside,
    write: Write,
    *,
    writing: Progress | None = None,
    is_packing: bool = True,
) -> ImportReport:
    """Import rows that were surveyed, metrics that were read, or both; or add what is new.

    Args:
        source: What is imported: the path that was surveyed, or an address. Kept in the run's
            configuration.
        survey: The rollouts; an empty one where there are none.
        beside: Metrics of the run's steps, read already. A step with metrics alone becomes a step
            without trajectories.
        write: Writes each step that is new, with its metrics.
        writing: Called with (rows, of rows).
        is_packing: Merge the files of every 256 steps, in a process of its own.

    Raises:
        ImportingError: neither rollouts nor metrics, or the folder is not the run of such an
            import.
        OSError: a file cannot be read, or the disk refuses.
    """
    if not survey.num_rows and not beside.steps:
        raise ImportingError(_nothing(str(source), survey))
    if survey.unseen:
        raise ImportingError(_unseen(str(source), survey))
    is_success = _rewards_say_success(survey)
    mark = "success" if is_success else ""  # where that changes, all steps are written again
    digests = {
        step: beside.digest(step, survey.digests.get(step, "")) + mark
        for step in sorted({*survey.digests, *beside.steps})
    }
    description = _description(str(source), survey, beside)
    report = ImportReport(path=run_path, survey=survey, trainer=description["trainer"])
    stored = _stored_steps(run_path, survey)
    start = _first_difference(run_path, stored, digests)
    if start is None:
        report.num_there, report.num_steps_there = survey.num_rows, len(digests)
        return report
    tags = ("imported", *([report.trainer] if report.trainer else []))
    if stored is None:
        writer = RunWriter.create(
            run_path,
            run_id=run_path.name,
            config={"imported": description},
            name=run_path.name,
            tags=tags,
            is_packing=is_packing,
        )
    else:
        info = open_run(run_path).info()
        # What these files do not say is as it was.
        changed = {key: value for key, value in description.items() if value}
        writer = RunWriter.resume(
            run_path,
            from_step=max((step for step in stored if step < start), default=-1),
            config={**info.config, "imported": {**info.config["imported"], **changed}},
            tags=tuple(dict.fromkeys((*info.tags, *tags))),
            is_packing=is_packing,
        )
    with writer:
        num_done, total = 0, survey.num_rows or len(digests)
        for step, digest in digests.items():
            rows = survey.rows.get(step, [])
            num_done += len(rows) if survey.num_rows else 1
            if step < start:
                report.num_there += len(rows)
                report.num_steps_there += 1
                continue
            content = StepEpisodes(step)
            _read(content, rows, report, is_success)
            payload = {
                "rows": digest,
                "num_rows": len(rows),
                "num_kept": len(content.trajectories),
                "skipped": dict(content.refused),
                "reconstructed": dict(content.reconstructed),
            }
            record = DiagnosticRecord(step=step, kind=KIND, payload=json.dumps(payload))
            write(writer, content, record)
            report.num_kept += len(content.trajectories)
            report.num_steps += 1
            report.num_steps_with_numbers += step in beside.steps
            report.first_step = step if report.first_step is None else report.first_step
            report.last_step = step
            if writing:
                writing(num_done, total)
    if stored is None and not report.num_kept and not report.num_steps_with_numbers:
        shutil.rmtree(run_path)  # made a moment ago, and empty
        raise ImportingError(_nothing(str(source), survey))
    return report


def _unseen(path: str, survey: Survey) -> str:
    """What is said where no row has a key that a user named."""
    role = survey.unseen[0]
    key = survey.roles.given[role]
    hint = did_you_mean(key, survey.keys)
    return f"{path}: --map {role}={key}: no row of the rollouts has the key {key!r}{hint}"


def _rewards_say_success(survey: Survey) -> bool:
    """Whether the rewards of all episodes are 0 or 1, or -1 or 1: then they are its success.

    All rows are read for that; but as soon as one says anything else, no further one.
    """
    values = RewardValues()
    for row in itertools.chain.from_iterable(survey.rows.values()):
        with contextlib.suppress(RowError, BadJsonError):  # said when it is written
            for draft in row.episodes(survey.roles):
                values.add(draft)
        if values.is_other:
            break
    survey.close()
    return values.say_success


def _nothing(path: str, survey: Survey) -> str:
    refused = [f"{file}: {why}" for why, file in survey.refused_files.places.items()]
    rows = [f"{row}: {why}" for why, row in survey.refused_rows.places.items()]
    why = f" ({'; '.join([*refused, *rows][:3])})" if refused or rows else ""
    trainers = ", ".join(dict.fromkeys(form.trainer for form in FORMATS))
    if survey.num_rows:
        return f"{path}: no episode can be stored{why}"
    return (
        f"{path}: holds neither rollouts nor metrics of a known form{why}. Rollouts of these can "
        f"be read: {trainers}. docs/alarms.md lists the metrics files that are read"
    )


def _description(source: str, survey: Survey, beside: Beside) -> dict[str, Any]:
    names = sorted({row.format.name for rows in survey.rows.values() for row in rows})
    return {
        "trainer": survey.format.trainer if survey.format else beside.trainer,
        "formats": names,
        "source": source,
        "num_files": len(survey.files),
        "num_rows": survey.num_rows,
        "skipped_rows": dict(survey.refused_rows.counts),
        "refused_files": dict(survey.refused_files.counts),
        "left_out": {name: times for name, (times, _) in survey.others.items()},
        **({"metrics": dict(beside.description)} if beside.steps else {}),
    }


def _stored_steps(run_path: Path, survey: Survey) -> dict[int, str] | None:
    """The steps that the run has, with the hashes of their rows; None for a new run.

    Raises:
        ImportingError: the folder holds something else.
    """
    if is_free(run_path):
        return None
    if not Layout(run_path).is_run:
        raise ImportingError(f"{run_path}: exists and is no run; name another folder with -o")
    reader = open_run(run_path)
    imported = reader.info().config.get("imported")
    if not isinstance(imported, Mapping):
        raise ImportingError(
            f"{run_path}: is a run that was not imported; name another folder with -o"
        )
    form = survey.format
    if form and imported.get("formats") and imported.get("trainer") != form.trainer:
        raise ImportingError(
            f"{run_path}: was imported from {imported.get('trainer')}, and these files are of "
            f"{form.trainer}; name another folder with -o"
        )
    rows = reader.sql("SELECT step, payload FROM diagnostics WHERE kind = $1", [KIND])
    pairs = zip(*rows.to_pydict().values(), strict=True)
    return {int(step): str(json.loads(text)["rows"]) for step, text in pairs}


def _first_difference(
    run_path: Path, stored: Mapping[int, str] | None, digests: Mapping[int, str]
) -> int | None:
    """The first step that has to be written; None where there is nothing to add.

    Raises:
        ImportingError: writing it would hide steps that came from other files.
    """
    if stored is None:
        return min(digests)
    changed = [step for step, digest in digests.items() if stored.get(step) != digest]
    if not changed:
        return None
    first = min(changed)
    lost = sorted(step for step in stored if step >= first and step not in digests)
    if lost:
        raise ImportingError(
            f"{run_path}: step {first} of these files comes before step {lost[0]}, which the run "
            "has from other files; import all files at once into another folder with -o"
        )
    return first


def _read(
    content: StepEpisodes, rows: Sequence[NotedRow], report: ImportReport, is_success: bool
) -> None:
    """Take the episodes of a step's rows; what is skipped is counted in `content` and `report`.

    Args:
        is_success: The rewards say success.
    """
    survey = report.survey
    for row, following in itertools.zip_longest(rows, rows[1:]):
        source = row.location
        try:
            for draft in row.episodes(survey.roles):
                if is_success:
                    RewardValues.read_success(draft)
                if problem := content.add(draft, source=source, format_name=row.format.name):
                    survey.refused_rows.add(problem, source)
        except (RowError, BadJsonError) as error:
            is_changed = isinstance(error, BadJsonError)
            reason = f"the file changed while it was read: {error}" if is_changed else str(error)
            content.refused[reason] += 1
            survey.refused_rows.add(reason, source)
        if following is None or following.file is not row.file:
            row.file.source.close()
    report.reconstructed.update(content.reconstructed)
