"""Rollouts of another trainer into a run's folder, step by step, through the store's own writer.

Each step is one acknowledged record with the hash of the rows that it came from. So an import that
was killed goes on where it stopped, a second import adds nothing, and one of files that grew adds
what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.text.did_you_mean import did_you_mean

from ..errors import StoreError
from ..log.layout import Layout
from ..log.starting import is_free
from ..reader import open_run
from ..records import (
    MAX_INDEX,
    DiagnosticRecord,
    Split,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
    num_outcomes,
    trajectory_id,
)
from ..writer import RunWriter
from .beside.metrics import IS_RECONSTRUCTED, Beside, Merger
from .draft import SUMMED_REWARDS, Draft, Place, RowError, trajectory_of
from .format import RewardValues
from .lines import BadJsonError
from .registry import FORMATS
from .survey import Progress, Refusals, Survey

logger = logging.getLogger("echoscope.store")
KIND = "import"
"""Of the diagnostic record that each imported step has."""
_BAD_ROW = (
    *(TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError),
    OverflowError,
)
"""What a row raises whose values are not of the kinds that its keys promise."""

Measured = tuple[Mapping[str, float], Sequence[DiagnosticRecord]]
Measure = Callable[[int, Sequence[Trajectory]], Measured]
"""Measures the trajectories of a step: numbers, and what is stored beside them."""


class ImportingError(StoreError):
    """Nothing can be imported, with the reason in words."""


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """What an import did."""

    path: Path
    """The run's folder."""
    format: str
    """Of the rollouts; "" where there are none."""
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
    rows: Refusals = field(default_factory=Refusals)
    """Rows that were skipped."""
    files: Refusals = field(default_factory=Refusals)
    """Files that were refused."""
    others: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Rows of other trainers beside them: format -> how many, and the first file."""
    reconstructed: Counter[str] = field(default_factory=Counter)
    """What had to be guessed -> in how many episodes."""
    num_unclean: int = 0
    """Rows with bytes that are not UTF-8."""
    encoding: str = ""
    """What these bytes seem to be; "" where that is not known."""
    is_evaluation: bool = False
    """No row says a step: all episodes are one evaluation, stored as step 0."""


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
    if Layout(path).run_json.is_file():
        raise ImportingError(f"{path}: is a run already; `echoscope diagnose {path}` reads it")


def import_surveyed(
    source: Path | str,
    run_path: Path,
    rollouts: Survey | None,
    *,
    beside: Beside | None = None,
    writing: Progress | None = None,
    is_packing: bool = True,
    measure: Measure | None = None,
) -> ImportReport:
    """Import rows that were surveyed, metrics that were read, or both; or add what is new.

    Args:
        source: What is imported: the path that was surveyed, or an address. Kept in the run's
            configuration.
        rollouts: None: there are none.
        beside: Metrics of the run's steps, read already. A step with metrics alone becomes a step
            without trajectories.
        writing: Called with (rows, of rows).
        is_packing: Merge the files of every 256 steps, in a process of its own.
        measure: What else is measured of each step that is written.

    Raises:
        ImportingError: neither rollouts nor metrics, or the folder is not the run of such an
            import.
        OSError: a file cannot be read, or the disk refuses.
    """
    survey, beside = rollouts or Survey(), beside or Beside()
    if not survey.num_rows and not beside.steps:
        raise ImportingError(_nothing(str(source), survey))
    if survey.unseen:
        raise ImportingError(_unseen(str(source), survey))
    merger = Merger.of(beside, len(survey.digests))
    is_success = _rewards_say_success(survey)
    mark = "success" if is_success else ""  # where that changes, all steps are written again
    digests = {
        step: merger.digest(step, survey.digests.get(step, "")) + mark
        for step in sorted({*survey.digests, *beside.steps})
    }
    description = _description(str(source), survey, beside)
    report = ImportReport(
        path=run_path,
        format=survey.format.name if survey.format else "",
        trainer=description["trainer"],
        rows=survey.refused_rows,
        files=survey.refused_files,
        others=survey.others,
        num_unclean=survey.num_unclean,
        encoding=survey.encoding,
        is_evaluation=survey.is_evaluation,
    )
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
        rows_of, total = dict(survey.steps()), survey.num_rows or len(digests)
        num_done = 0
        for step, digest in digests.items():
            rows = rows_of.get(step, range(0))
            num_done += len(rows) if survey.num_rows else 1
            if step < start:
                report.num_there += len(rows)
                report.num_steps_there += 1
                continue
            content = _StepDrafts(
                step=step, survey=survey, report=report, rewards_say_success=is_success
            )
            content.read(rows)
            _write_step(writer, content, merger, _record(digest, len(rows), content), measure)
            report.num_steps_with_numbers += step in beside.steps
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
    for row in range(survey.num_rows):
        with contextlib.suppress(RowError, BadJsonError, *_BAD_ROW):  # said when it is written
            for draft in survey.episodes(row):
                values.add(draft)
        if values.is_other:
            break
    survey.close()
    return values.say_success


def _nothing(path: str, survey: Survey) -> str:
    refused = [f"{file}: {why}" for why, file in survey.refused_files.places.items()]
    rows = [f"{place}: {why}" for why, place in survey.refused_rows.places.items()]
    why = f" ({'; '.join([*refused, *rows][:3])})" if refused or rows else ""
    trainers = ", ".join(dict.fromkeys(form.trainer for form in FORMATS))
    if survey.num_rows:
        return f"{path}: no episode can be stored{why}"
    return (
        f"{path}: holds neither rollouts nor metrics of a known form{why}. Rollouts of these can "
        f"be read: {trainers}. docs/alarms.md lists the metrics files that are read"
    )


def _description(source: str, survey: Survey, beside: Beside) -> dict[str, Any]:
    names = sorted({FORMATS[index].name for index in np.unique(survey.rows_R["format"]).tolist()})
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
    if is_free(Layout(run_path)):
        return None
    if not Layout(run_path).run_json.is_file():
        raise ImportingError(f"{run_path}: exists and is no run; name another folder with -o")
    reader = open_run(run_path)
    imported = reader.info().config.get("imported")
    if not isinstance(imported, Mapping):
        raise ImportingError(
            f"{run_path}: is a run that was not imported; name another folder with -o"
        )
    is_of_rollouts = bool(imported.get("formats")) and survey.format is not None
    if is_of_rollouts and survey.format and imported.get("trainer") != survey.format.trainer:
        raise ImportingError(
            f"{run_path}: was imported from {imported.get('trainer')}, and these files are of "
            f"{survey.format.trainer}; name another folder with -o"
        )
    rows = reader.sql("SELECT step, payload FROM diagnostics WHERE kind = $1", [KIND])
    pairs = zip(rows.column("step").to_pylist(), rows.column("payload").to_pylist(), strict=True)
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


def _write_step(
    writer: RunWriter,
    content: _StepDrafts,
    merger: Merger,
    record: DiagnosticRecord,
    measure: Measure | None,
) -> None:
    metrics = step_metrics(writer.run_id, content.step, content.trajectories)
    records = [record]
    if measure and content.trajectories:
        values, more = measure(content.step, content.trajectories)
        metrics = replace(metrics, values={**metrics.values, **values})
        records += more
    writer.commit_step(
        metrics=merger.metrics(metrics),
        trajectories=content.trajectories,
        outcomes=content.outcomes,
        diagnostics=records,
    )
    report = content.report
    report.num_kept += len(content.trajectories)
    report.num_steps += 1
    report.first_step = content.step if report.first_step is None else report.first_step
    report.last_step = content.step


def _record(digest: str, num_rows: int, content: _StepDrafts) -> DiagnosticRecord:
    payload = {
        "rows": digest,
        "num_rows": num_rows,
        "num_kept": len(content.trajectories),
        "skipped": dict(content.skipped),
        "reconstructed": dict(content.reconstructed),
    }
    return DiagnosticRecord(step=content.step, kind=KIND, payload=json.dumps(payload))


@dataclass(slots=True, kw_only=True)
class _StepDrafts:
    """The episodes of one step while they are collected."""

    step: int
    survey: Survey
    report: ImportReport
    rewards_say_success: bool
    trajectories: list[Trajectory] = field(default_factory=list)
    outcomes: list[TrajectoryOutcome] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    reconstructed: Counter[str] = field(default_factory=Counter)
    _num_episodes: Counter[Split] = field(default_factory=Counter)
    _num_groups: Counter[Split] = field(default_factory=Counter)
    _groups: dict[tuple[str, bytes], tuple[int, int]] = field(default_factory=dict)
    """Key of a group -> its number, and its siblings so far."""

    def read(self, rows: range) -> None:
        for row in rows:
            file, at = self.survey.file_of(row), int(self.survey.rows_R[row]["place"])
            place = f"{file.where.path}:{at}"
            try:
                for draft in self.survey.episodes(row):
                    if self.rewards_say_success:
                        RewardValues.read_success(draft)
                    self._add(draft, place, self.survey.format_of(row).name)
            except RowError as error:
                self._skip(str(error), place)
            except BadJsonError as error:
                self._skip(f"the file changed while it was read: {error}", place)
            except _BAD_ROW as error:
                logger.debug("%s: %r", place, error)
                self._skip("its values are not of the kinds that its keys promise", place)
            if row + 1 == rows.stop or self.survey.file_of(row + 1) is not file:
                file.source.close()

    def _skip(self, reason: str, place: str) -> None:
        self.skipped[reason] += 1
        self.report.rows.add(reason, place)

    def _add(self, draft: Draft, place: str, format_name: str) -> None:
        if len(self.trajectories) > MAX_INDEX:
            raise RowError(f"a step holds at most {MAX_INDEX + 1:,} episodes")
        if not draft.turns:
            raise RowError("it has no reply of the policy")
        kind = "group"
        name = draft.group
        if name is None:
            kind, name = "prompt", draft.prompt
            draft.reconstructed.add("groups")
        key = (
            f"{draft.split}{kind}",
            hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest(),
        )
        # Each split counts from 0, as in the runs that training writes.
        group, sibling = self._groups.get(key, (self._num_groups[draft.split], 0))
        trajectory = trajectory_of(
            draft,
            Place(
                step=self.step,
                index=self._num_episodes[draft.split],
                group_index=group,
                sibling_index=sibling,
                source=place,
            ),
            format_name,
        )
        self._num_groups[draft.split] += key not in self._groups
        self._num_episodes[draft.split] += 1
        self._groups[key] = (group, sibling + 1)
        self.trajectories.append(trajectory)
        self.reconstructed.update(draft.reconstructed)
        self.report.reconstructed.update(draft.reconstructed)
        outcome = outcome_of(draft, trajectory)
        if outcome is not None:
            self.outcomes.append(outcome)


def outcome_of(draft: Draft, trajectory: Trajectory) -> TrajectoryOutcome | None:
    """What the file says of the update; None where it says nothing."""
    per_token = (draft.advantages, draft.trainer_logprobs, draft.reference_logprobs)
    is_said = draft.advantage is not None or draft.is_kept is not None
    if not is_said and all(values is None for values in per_token):
        return None
    return TrajectoryOutcome(
        trajectory_id=trajectory_id(trajectory.split, trajectory.step, trajectory.index),
        advantage=draft.advantage,
        kept=draft.is_kept is not False,
        drop_reason="the trainer masked it" if draft.is_kept is False else None,
        advantages=draft.advantages,
        trainer_logprobs=draft.trainer_logprobs,
        ref_logprobs=draft.reference_logprobs,
    )


def step_metrics(run_id: str, step: int, trajectories: Sequence[Trajectory]) -> StepMetrics:
    """The numbers of a step that rollouts alone give; none where the files do not say.

    Evaluations are no part of them: a step that holds nothing else has none.
    """
    own = [t for t in trajectories if t.split in (Split.IMPORT, Split.TRAIN)]
    returns = [t.episode_return for t in own]
    known = np.array([value for value in returns if not math.isnan(value)])
    solved = [float(t.is_success) for t in own if t.is_success is not None]
    is_made_up = any(re.search(SUMMED_REWARDS, t.extra or "") for t in own)
    # What was added up without weights is shown, and says nothing of what groups can teach.
    groups = [] if is_made_up else list(_groups(own))
    stds = [std for std, _ in groups]
    solved_of = [(std == 0, rate) for std, rate in groups if rate is not None]
    values = {
        "reward/return_mean": float(known.mean()) if known.size else math.nan,
        IS_RECONSTRUCTED: 1.0 if is_made_up else math.nan,
        "reward/return_std": float(known.std(ddof=1)) if known.size > 1 else math.nan,
        "reward/return_min": float(known.min()) if known.size else math.nan,
        "reward/return_max": float(known.max()) if known.size else math.nan,
        "reward/group_std_mean": float(np.mean(stds)) if stds else math.nan,
        "reward/zero_std_frac": float(np.mean(np.array(stds) == 0)) if stds else math.nan,
        "reward/solved_frac": _share(is_equal and rate == 1 for is_equal, rate in solved_of),
        "reward/hopeless_frac": _share(is_equal and rate == 0 for is_equal, rate in solved_of),
        "rollout/success_rate": float(np.mean(solved)) if solved else math.nan,
        "rollout/num_trajectories": float(len(own)) if own else math.nan,
        **num_outcomes(own),
        "rollout/num_turns_mean": float(np.mean([t.num_turns for t in own])) if own else math.nan,
    }
    return StepMetrics(
        run_id=run_id,
        step=step,
        phase="train",
        policy_version=None,
        wall_time=time.time(),
        values={key: value for key, value in values.items() if not math.isnan(value)},
    )


def _groups(trajectories: Sequence[Trajectory]) -> Iterator[tuple[float, float | None]]:
    """Of each group of two and more siblings whose returns are known: the spread of the return, and
    the success rate; None where it is not known of all."""
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        if not math.isnan(trajectory.episode_return):
            groups.setdefault(trajectory.group_index, []).append(trajectory)
    for siblings in groups.values():
        if len(siblings) > 1:
            known = [t.is_success for t in siblings if t.is_success is not None]
            rate = float(np.mean(known)) if len(known) == len(siblings) else None
            yield float(np.std([t.episode_return for t in siblings], ddof=1)), rate


def _share(flags: Iterable[bool]) -> float:
    """How many are so; NaN of none."""
    known = list(flags)
    return sum(known) / len(known) if known else math.nan
