"""Check every file of a run against what was promised when it was acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from echoscope.text.amounts import step_words

from ..checkpoints import checkpoint_damage, checkpoint_folders, checkpoint_step
from ..schema import TABLES
from .index import FileProblem, RunIndex
from .layout import FileEntry, FileGroup
from .parquet import damage_of


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """The outcome of `verify`. Hidden steps of earlier attempts are checked, too."""

    problems: tuple[FileProblem, ...]
    num_files: int = 0
    num_bytes: int = 0
    num_trajectories: int = 0
    whole_steps: str = ""
    """The visible steps of which nothing is lost, such as `0 to 7, 9`; empty for none."""


def verify(path: str | Path) -> VerifyReport:
    """Check sizes and hashes of all data files and checkpoints, and the journal record by record.

    Raises:
        NotARunError: no run there.
        StoreError: nothing of the run can be read.
    """
    index = RunIndex(Path(path), all_attempts=True)
    root = index.layout.root
    report = VerifyReport(problems=tuple(index.problems))
    bad: set[str] = set()
    index.fetch(entry for group in index.groups for entry in group.files)
    for group in index.groups:
        for entry in group.files:
            report.num_files += 1
            report.num_bytes += entry.num_bytes
            if why := damage_of(root, entry):
                report.problems += (FileProblem(root / entry.path, why, _lost_rows(group, entry)),)
                bad.add(entry.path)
            elif entry.table == "trajectories":
                report.num_trajectories += entry.num_rows
    for folder in checkpoint_folders(index.layout.checkpoints):
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        report.num_files += len(sizes)
        report.num_bytes += sum(sizes)
        if why := checkpoint_damage(folder, run_id=index.run_id):
            lost = f"the checkpoint of step {checkpoint_step(folder)}"
            report.problems += (FileProblem(folder, why, lost),)
    visible = RunIndex(root)
    steps = {row["step"] for row in visible.event_rows("steps")}
    for file in (file for table in TABLES for file in visible.visible_files(table)):
        if file.entry.path in bad:
            steps -= set(range(file.first_step, file.last_step + 1))
    report.whole_steps = _in_words(steps)
    return report


def _lost_rows(group: FileGroup, entry: FileEntry) -> str:
    """What cannot be read without one file of a segment or pack."""
    steps = step_words((group.first_step, group.last_step))
    return f"{entry.table} of {steps}, attempt {group.attempt} ({entry.num_rows} rows)"


def _in_words(steps: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> _in_words([0, 1, 2, 7])
    '0 to 2, 7'
    """
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and ranges[-1][-1] == step - 1:
            ranges[-1] = [ranges[-1][0], step]
        else:
            ranges.append([step])
    return ", ".join(" to ".join(map(str, span)) for span in ranges)
