"""The checkpoints of a run: their files, which of them stay, and which is the last good one.

A checkpoint holds `MANIFEST.json`: size and SHA-256 of each of its files. The manifest is written
last, before the folder gets its name.

`kept_steps` decides what stays on the disk; `last_good_checkpoint` names the one to go back to.
Both work from what the run has recorded, so the trainer, the command line and the dashboard agree.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.text.strict_json import value_at

from .errors import StoreError
from .log.durable import (
    content_damage,
    read_checked_json,
    sha256_of,
    to_checked_json_bytes,
    write_new_file,
)
from .log.layout import MODEL_NAME, Layout
from .query.alarms import open_alarms
from .reader import RunReader, open_run
from .records import REQUESTED, Alarm, AlarmSeverity

MANIFEST_NAME = "MANIFEST.json"
STATE_NAME = "state.json"
_NAME = re.compile(r"step_([0-9]{6,})")
CLOSE = 0.9
"""Share of the highest success from which on a newer checkpoint is as good."""


def checkpoint_path(run_path: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return Layout(run_path).checkpoints / f"step_{step:06d}"


def checkpoint_folders(folder: Path) -> list[Path]:
    """Folders with the name of a checkpoint that hold a state, by step."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if checkpoint_step(path) >= 0]
    return [path for path in sorted(named, key=checkpoint_step) if (path / STATE_NAME).is_file()]


def checkpoint_step(folder: Path) -> int:
    """The step that a folder is named by; -1 where it has not the name of a checkpoint."""
    match = _NAME.fullmatch(folder.name)
    return -1 if match is None else int(match[1])


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST_NAME:
            yield path.relative_to(folder).as_posix(), path


def write_checkpoint_manifest(folder: Path, *, step: int, run_id: str | None) -> None:
    """Write the manifest of all files in a checkpoint folder, and make it durable.

    Args:
        run_id: the run that the checkpoint belongs to; None where nobody has named the run.

    Raises:
        OSError: the disk refuses.
    """
    files = {
        name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for name, path in _files(folder)
    }
    value = {"step": step, "run_id": run_id, "files": files}
    write_new_file(folder / MANIFEST_NAME, to_checked_json_bytes(value))


def checkpoint_damage(folder: Path, *, run_id: str | None = None, only: str | None = None) -> str:
    """What is wrong with a checkpoint, in one line; an empty text where nothing is.

    Args:
        run_id: the run that it must belong to; None for any.
        only: check this file of it alone, for example `"state.json"`.
    """
    if not (folder / MANIFEST_NAME).is_file():
        # Whoever reads the state says that there is none.
        return f"{MANIFEST_NAME} is missing" if (folder / STATE_NAME).is_file() else ""
    try:
        manifest = read_checked_json(folder / MANIFEST_NAME)
        files: dict[str, dict[str, Any]] = dict(manifest["files"])
        owner, step = manifest["run_id"], manifest["step"]
    except (StoreError, KeyError, TypeError, ValueError) as error:
        return f"{MANIFEST_NAME} is damaged ({error})"
    if checkpoint_step(folder) not in (-1, step):
        return f"it is the checkpoint of step {step}"
    if run_id is not None and owner is not None and owner != run_id:
        return f"it belongs to run {owner!r}"
    for name, entry in files.items():
        if only in (None, name):
            why = content_damage(folder / name, entry["bytes"], entry["sha256"])
            if why:
                return f"{name} {why.removeprefix('its content ').removeprefix('it ')}"
    if only is None:
        for name, _ in _files(folder):
            # What lies elsewhere is a note of somebody's; a file in `model/` may be loaded.
            if name.startswith(f"{MODEL_NAME}/") and name not in files:
                return f"{name} was not there when the checkpoint was written"
    return ""


def older_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of the same run that is older than `folder` and not damaged."""
    beside = checkpoint_folders(folder.parent)
    older = [path for path in beside if checkpoint_step(path) < checkpoint_step(folder)]
    return next((path for path in reversed(older) if not checkpoint_damage(path)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChoice:
    """The checkpoint to go back to, and why."""

    step: int | None
    """None where no checkpoint is left that could be called good."""
    reason: str
    """One sentence: why this one, or why there is none."""
    onset_step: int | None = None
    """Earliest step at which an open alarm's change may have begun; None without such an alarm."""


def kept_steps(
    steps: Collection[int],
    *,
    keep: int,
    success: Mapping[int, float],
    onsets: Iterable[int],
    requested: Collection[int] = (),
) -> frozenset[int]:
    """The checkpoints that stay: no other rule ever protects one, so the disk stays bounded.

    The newest `keep`, the best by evaluation, for each open alarm the two from before its onset
    that may be gone back to (`offered`), and every one that a person asked for. At most `keep` + 1
    + 2 (open alarms) + (requested).

    Args:
        steps: Steps of the checkpoints on the disk.
        success: Evaluation step to success rate; a checkpoint counts by the last one at its step
            or before.
        onsets: Of each open alarm, the earliest step at which its change may have begun.
        requested: Steps of the checkpoints that a person asked for.

    >>> sorted(kept_steps(range(20, 201, 20), keep=2, success={40: 0.8, 60: 0.5}, onsets=[91]))
    [40, 80, 180, 200]
    """
    ordered = sorted(steps)
    kept = set(ordered[max(0, len(ordered) - keep) :]) | (set(requested) & set(ordered))
    best = best_step(ordered, success)
    kept |= {step for onset in onsets for step in offered(ordered, onset, success)}
    return frozenset(kept if best is None else kept | {best})


def newest_before(steps: Iterable[int], onset: int) -> int | None:
    """The newest of the checkpoints that were written before a step; None where there is none."""
    return max((step for step in steps if step < onset), default=None)


def offered(steps: Collection[int], onset: int, success: Mapping[int, float]) -> set[int]:
    """The checkpoints from before an onset that may be gone back to, at most two.

    The newest one, and the newest that an evaluation before the onset still followed. When a change
    began is an estimate; that evaluation was there.
    """
    evaluated = max((e for e in success if e < onset and math.isfinite(success[e])), default=-1)
    both = (newest_before(steps, onset), newest_before(steps, evaluated + 1))
    return {step for step in both if step is not None}


def best_step(steps: Iterable[int], success: Mapping[int, float]) -> int | None:
    """The checkpoint with the highest success, the newest of equals; None without evaluations."""
    rated = [(rate, step) for step in steps if (rate := _rating(step, success)) is not None]
    return max(rated)[1] if rated else None


def _rating(step: int, success: Mapping[int, float], *, is_cautious: bool = False) -> float | None:
    """Success of a checkpoint: that of the last evaluation at its step or before; None without one.

    Args:
        is_cautious: the worse of that one and the next: between them it may have fallen already.
    """
    measured = sorted(other for other, rate in success.items() if math.isfinite(rate))
    index = bisect.bisect_right(measured, step)
    if not index:
        return None
    is_between = is_cautious and measured[index - 1] < step and index < len(measured)
    return min(success[other] for other in measured[index - 1 : index + is_between])


def earliest_onset(alarm: Alarm) -> int | None:
    """The earliest step at which the change that an alarm reports may have begun.

    At least 1: nothing has changed the weights that a run starts with.
    """
    onsets = [s for s in (alarm.earliest_onset_step, alarm.onset_step) if s is not None]
    return max(1, min(onsets)) if onsets else None


def evaluation_success(run: RunReader) -> dict[int, float]:
    """Step to success on the fixed tasks: the evaluation's, or the probe's without an evaluation.

    Over all tags where there are several.
    """
    for kind in ("eval", "probe"):
        rows = run.sql(
            "SELECT step, coalesce(avg(value) FILTER (key = $1), avg(value)) success FROM metrics "
            "WHERE phase = 'eval' AND key LIKE $2 AND NOT isnan(value) GROUP BY step ORDER BY step",
            [f"{kind}/all/success_rate", f"{kind}/%/success_rate"],
        ).to_pylist()
        if rows:
            return {row["step"]: row["success"] for row in rows}
    return {}


def last_good_checkpoint(run: RunReader) -> CheckpointChoice:
    """The checkpoint to go back to: for suggestions, the form of a branch and `ctl RUN branch`."""
    return choose_checkpoint(
        [checkpoint.step for checkpoint in run.checkpoints()],
        open_alarms(run.alarms()),
        evaluation_success(run),
    )


def choose_checkpoint(
    steps: Collection[int], alarms: Collection[Alarm], success: Mapping[int, float]
) -> CheckpointChoice:
    """The checkpoint to go back to.

    Each open alarm offers checkpoints from before its onset (`offered`); the newest is chosen of
    those whose success, by the worse of the evaluations around it, is close to the highest. Where
    one of them has no evaluation before it, such as the first of a branch, it is the newest from
    before the earliest onset of the most serious alarms. Without an open alarm it is the newest.

    Args:
        steps: Steps of the checkpoints that are left.
        alarms: The open ones.
        success: Evaluation step to success rate.
    """
    if not steps:
        return CheckpointChoice(step=None, reason="The run has no checkpoint.")
    worst = [alarm for alarm in alarms if alarm.severity is AlarmSeverity.CRITICAL] or alarms
    onsets = {a.alarm_id: o for a in alarms if (o := earliest_onset(a)) is not None}
    if not onsets:
        return CheckpointChoice(step=max(steps), reason="It is the newest, and no alarm is open.")
    offers = {o: steps_of for o in onsets.values() if (steps_of := offered(steps, o, success))}
    serious = [onsets[alarm.alarm_id] for alarm in worst if alarm.alarm_id in onsets]
    onset = min(serious or onsets.values())
    candidates = set().union(*offers.values())
    ratings = {step: _rating(step, success, is_cautious=True) for step in candidates}
    rated = {step: rate for step, rate in ratings.items() if rate is not None}
    if rated and len(rated) == len(candidates):
        chosen = max(s for s, rate in rated.items() if rate >= CLOSE * max(rated.values()))
        onset = min(o for o, steps_of in offers.items() if chosen in steps_of)
    elif onset in offers:
        chosen = max(offers[onset])
    else:
        return CheckpointChoice(step=None, reason=none_before(onset), onset_step=onset)
    is_newest = chosen == newest_before(steps, onset)
    which = "from" if is_newest else "that was evaluated"
    reason = f"It is the newest {which} before step {onset}, where the change may have begun."
    return CheckpointChoice(step=chosen, reason=reason, onset_step=onset)


def none_before(onset: int) -> str:
    """The sentence of a run that has nothing good to go back to."""
    return f"No checkpoint is left from before step {onset}, where the change may have begun."


def surplus_steps(run_path: Path, on_disk: Collection[int], *, keep: int) -> set[int]:
    """The checkpoints on the disk that nothing protects: what a trainer may delete.

    Those that an earlier attempt wrote for steps that a rewind has hidden are among them once the
    run has passed them: their weights belong to no visible step.

    Raises:
        StoreError: the run cannot be read.
    """
    run = open_run(run_path)
    recorded, onsets = run.checkpoints(), [earliest_onset(a) for a in open_alarms(run.alarms())]
    kept = kept_steps(
        set(on_disk) - hidden_steps(run),
        keep=keep,
        success=evaluation_success(run),
        onsets=[onset for onset in onsets if onset is not None],
        requested={record.step for record in recorded if record.reason == REQUESTED},
    )
    return set(on_disk) - kept


def resumable_checkpoints(run: RunReader) -> list[Path]:
    """The checkpoints that a run may go on from, oldest first; whether they are whole is not asked.

    Those of steps that a rewind has hidden are not what this run has become.

    Raises:
        StoreError: the run cannot be read.
    """
    info, hidden = run.info(), hidden_steps(run)
    branched_at = value_at(info.config, int, "branched_from", "step")
    last_step = max(info.last_step, -1 if branched_at is None else branched_at)
    folders = checkpoint_folders(Layout(run.path).checkpoints)
    return [
        path
        for path in folders
        if checkpoint_step(path) <= last_step and checkpoint_step(path) not in hidden
    ]


def resume_step(run: RunReader) -> int | None:
    """The step of the checkpoint that a run goes on from; None where it begins anew."""
    folders = resumable_checkpoints(run)
    return checkpoint_step(folders[-1]) if folders else None


def hidden_steps(run: RunReader) -> set[int]:
    """Steps of checkpoints that only a rewound attempt wrote: the disk may still have them."""
    if run.info().attempt == 1:
        return set()
    written = open_run(run.path, all_attempts=True).checkpoints()
    return {record.step for record in written} - {record.step for record in run.checkpoints()}
