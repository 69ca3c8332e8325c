"""Treatments of a collapsed run, compared as short branches: `echoscope cure`.

Each branch is `echoscope ctl RUN branch` as a process of its own, stopped by a command once it has
trained its part, and resumed where it goes on. So a branch is a run like any other, and whatever
ends this process, the next one goes on where the branches are. Parts are halves of the steps: after
each, branches that are worse than the best beyond chance, or that collapse, train no further.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.store.checkpoints import evaluation_success
from echoscope.store.errors import StoreError
from echoscope.store.log.layout import Layout
from echoscope.store.query.alarms import open_alarms
from echoscope.store.query.listing import RunList
from echoscope.store.query.metric_keys import SUCCESS_RATE
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import AlarmSeverity, CommandAction
from echoscope.store.status import RUNNING
from echoscope.store.steer.commands import new_command, post
from echoscope.store.steer.cures import FOLDER, Arm, Cure, write_cure
from echoscope.store.steer.rewinds import is_begun
from echoscope.store.steer.steering import override_words
from echoscope.text.amounts import percent

from ..judge.proposals import Proposals, proposals_of
from ..measure.rates import wilson_interval

PARTS = 2
"""Rounds; after each, the losers train no further."""
LAST = 3
"""The success of a branch is the mean over the last third of its steps."""
GRACE_STEPS = 10
"""The first steps of a branch, whose alarms may be about what came before."""
HELD = 0.8
"""Share of the best success before the collapse from which a treatment holds."""
FAILED = "the branch failed: "
"""Begins why such a branch was stopped: the next `compare` tries it again."""
_LOOK_S = 0.5
_PATIENCE_S = 300.0
"""How long a branch may take to end once the minutes are over."""

OnChange = Callable[[Cure, str], None]
"""Told of the cure as it stands, and what happened."""


class CureError(OSError):
    """A run that cannot be cured, or a branch that fails: one line with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStanding:
    """How a branch does, or the untreated run after the same checkpoint."""

    steps: tuple[int, ...]
    success: tuple[float, ...]
    """On the fixed tasks, or in training where none are played; by step."""
    num_trained: int
    level: float
    """Mean success over the last third of its steps, or the last half where that has none; else
    NaN."""
    interval: tuple[float, float]
    """Of the level, nominal 95 %."""
    alarms: tuple[str, ...]
    """Critical alarms that are open after the first `GRACE_STEPS`."""


def proposed(run: RunReader, *, may_change_task: bool = True) -> Proposals:
    """What a cure compares. Another task only where tasks that stay the same are played besides.

    Where none are, training success is compared, and an easier task would always win.

    Args:
        may_change_task: a person chooses among the branches.

    Raises:
        StoreError: the run cannot be read.
    """
    return proposals_of(run, may_change_task=may_change_task and bool(evaluation_success(run)))


def cure_of(run: Path, proposed: Proposals, *, by: str, steps: int) -> Cure:
    """A cure with an arm for each proposal; nothing is written.

    Raises:
        CureError: there is none, with the reason.
    """
    if not proposed.treatments:
        raise CureError(f"{run.name}: {proposed.why_none}")
    started = time.time()
    arms = tuple(
        Arm(
            reason=f"cure {started:.0f}, treatment {number}: {proposal.why}"[:1_000],
            checkpoint=proposal.checkpoint,
            settings=proposal.settings,
            why=proposal.why,
            rate=proposal.rate,
        )
        for number, proposal in enumerate(proposed.treatments, 1)
    )
    return Cure(run_id=run.name, by=by, started_at=started, steps=steps, arms=arms)


def compare(run: Path, cure: Cure, *, minutes: float, on_change: OnChange) -> Cure:
    """Train the branches of a cure until one can be chosen, or the minutes are over.

    Those that failed before, or whose folders are gone, are tried again.

    Raises:
        CureError: all branches fail.
        StoreError: the disk refuses; the record is as it was.
    """
    deadline = time.monotonic() + 60 * minutes
    for index, arm in enumerate(cure.arms):
        is_gone = bool(arm.run_id) and not is_begun(run.parent / arm.run_id)
        if is_gone or arm.ended.startswith(FAILED):
            cure = cure.with_arm(index, ended="", run_id="" if is_gone else arm.run_id)
    write_cure(run, cure)
    for part in range(1, PARTS + 1):
        target = math.ceil(cure.steps * part / PARTS)
        for index, arm in enumerate(cure.arms):
            if arm.ended or time.monotonic() >= deadline:
                continue
            try:
                run_id = _trained(run, arm, target, deadline, partial(on_change, cure, ""))
                cure = cure.with_arm(index, run_id=run_id)
            except CureError as error:
                cure = cure.with_arm(index, ended=str(error), run_id=_branch_of(run, arm))
                on_change(cure, f"treatment {index + 1}: {error}")
            write_cure(run, cure)
        cure = _without_losers(run, cure, on_change)
        write_cure(run, cure)
    if all(arm.ended.startswith(FAILED) for arm in cure.arms):
        why = cure.arms[0].ended.removeprefix(FAILED)
        raise CureError(
            f"{run.name}: all branches failed, the first because: {why}. Put that right; the same "
            "command tries them again"
        )
    return cure


def _without_losers(run: Path, cure: Cure, on_change: OnChange) -> Cure:
    """End the branches that collapse, or are worse than the best beyond chance."""
    stands = list(_compared(run, cure))
    levels = [stand.interval[0] for _, _, stand in stands if not math.isnan(stand.level)]
    best = max(levels, default=math.nan)
    for number, _, stand in stands:
        why = ""
        if stand.alarms:
            why = f"{stand.alarms[0]} is critical after {stand.num_trained} steps"
        elif stand.interval[1] < best:
            why = f"success {percent(stand.level)} is below the best beyond chance"
        if why:
            cure = cure.with_arm(number - 1, ended=why)
            on_change(cure, f"treatment {number} ended early: {why}")
    return cure


def _compared(run: Path, cure: Cure) -> Iterator[tuple[int, Arm, BranchStanding]]:
    """The branches that are still compared, numbered from 1, and how they do."""
    for number, arm in enumerate(cure.arms, 1):
        if arm.run_id and not arm.ended:
            yield number, arm, standing(open_run(run.parent / arm.run_id), arm.checkpoint)


def winner(run: Path, cure: Cure) -> tuple[Arm | None, str]:
    """The treatment that holds, or None; and what the comparison says, in one sentence.

    Raises:
        StoreError: a run cannot be read.
    """
    if all(arm.ended for arm in cure.arms):
        return None, "No treatment holds: every branch failed or ended early."
    if not is_compared(run, cure):
        return None, (
            f"No treatment is chosen yet: not every branch has trained its {cure.steps} steps. "
            "The same command goes on; --choose BRANCH goes on with one as it stands."
        )
    stands = [entry for entry in _compared(run, cure) if not math.isnan(entry[2].level)]
    if not stands:
        return None, "No treatment has a success to compare: train the branches longer (--steps)."
    number, arm, stand = max(stands, key=lambda entry: (entry[2].level, -entry[0]))
    best = best_success(open_run(run))
    pairs = " ".join(override_words(arm.settings))
    level = f"success {percent(stand.level)} with {pairs}"
    if not stand.level >= HELD * best:
        return None, (
            f"No treatment holds: the best is {level}, below {percent(HELD)} of the "
            f"{percent(best)} before the collapse."
        )
    return (
        arm,
        f"Treatment {number} holds: {level}; the best before the collapse was {percent(best)}.",
    )


def is_compared(run: Path, cure: Cure) -> bool:
    """Whether every branch has trained its steps, or ended early.

    Raises:
        StoreError: a run cannot be read.
    """
    going = [(arm, run.parent / arm.run_id) for arm in cure.arms if not arm.ended]
    return all(
        arm.run_id and is_begun(branch) and _is_over(branch, arm, cure.steps)
        for arm, branch in going
    )


def _is_over(branch: Path, arm: Arm, num_steps: int) -> bool:
    """Whether a branch has trained so many steps, or all that it has."""
    info = open_run(branch).info()
    return info.last_step - arm.checkpoint >= num_steps or info.status == "finished"


def standing(reader: RunReader, checkpoint: int) -> BranchStanding:
    """How a run does since a checkpoint.

    Raises:
        StoreError: it cannot be read.
    """
    curve = {step: rate for step, rate in success_of(reader).items() if step > checkpoint}
    last = max(reader.info().last_step, checkpoint)
    num_trained = last - checkpoint
    spans = (max(num_trained / LAST, 1), num_trained / 2)
    of_spans = ([rate for step, rate in curve.items() if step > last - span] for span in spans)
    late = next(filter(None, of_spans), [])
    level = sum(late) / len(late) if late else math.nan
    low, high = wilson_interval(level, _num_tasks(reader, len(late)))
    onsets = open_alarms(reader.alarms())
    alarms = tuple(
        alarm.rule
        for alarm in onsets
        if alarm.severity is AlarmSeverity.CRITICAL and num_trained > GRACE_STEPS
    )
    return BranchStanding(
        steps=tuple(curve),
        success=tuple(curve.values()),
        num_trained=num_trained,
        level=level,
        interval=(float(low), float(high)),
        alarms=alarms,
    )


def success_of(reader: RunReader) -> dict[int, float]:
    """Step to success on the fixed tasks, or in training where none are played."""
    rates = evaluation_success(reader)
    if rates:
        return rates
    steps, values = reader.metrics(SUCCESS_RATE)
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


def best_success(reader: RunReader) -> float:
    """The best of `success_of`; NaN without any."""
    return max(filter(math.isfinite, success_of(reader).values()), default=math.nan)


def _num_tasks(reader: RunReader, num_rows: int) -> int:
    """Tasks behind so many values of `success_of`, by the settings of the run.

    Those of evaluations are the same each time, and siblings share theirs: neither adds any.
    """
    envs = reader.info().config.get("envs", {})
    if envs.get("eval"):
        return sum(int(group.get("groups", 1)) for group in envs["eval"])
    return num_rows * sum(int(group.get("groups", 1)) for group in envs.get("train", [])) or 1


# -- branches as processes ------------------------------------------------------------------------


def _trained(run: Path, arm: Arm, num_steps: int, deadline: float, look: Callable[[], None]) -> str:
    """Train a branch until it has so many steps, or the deadline; the name of its folder.

    Raises:
        CureError: the branch fails.
    """
    run_id = arm.run_id or _branch_of(run, arm)
    if run_id and open_run(run.parent / run_id).info().status == RUNNING:
        # A cure that was killed left it: two processes cannot train it.
        _follow(None, run, arm, num_steps, deadline, look)
    if run_id and _is_over(run.parent / run_id, arm, num_steps):
        return run_id
    log = run.parent / FOLDER / f"{run.name}-{arm.reason.split(':')[0].replace(' ', '-')}.log"
    with log.open("ab") as output:
        begins_at = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "echoscope", *_words(run, arm, run_id)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        run_id = _follow(process, run, arm, num_steps, deadline, look)
    except BaseException:
        process.terminate()  # it stops with a checkpoint, and may be resumed
        raise
    if process.returncode != 0 or not run_id:
        said = log.read_bytes()[begins_at:].decode(errors="replace").strip().splitlines()
        why = said[-1].removeprefix("error: ")[:500] if said else "it ended silently"
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            why = f"{name} ended its process, as the system does where memory runs out"
        raise CureError(f"{FAILED}{why}")
    return run_id


def _words(run: Path, arm: Arm, run_id: str) -> list[str]:
    """The command that begins a branch, or goes on with it."""
    if run_id:
        return ["train", "--resume", str((run.parent / run_id).absolute()), "--headless"]
    is_guarded = open_run(run).info().config.get("guard", {}).get("mode", "off") != "off"
    return [
        *("ctl", str(run.absolute()), "branch", "--headless"),
        *(f"--checkpoint={arm.checkpoint}", f"--reason={arm.reason}"),
        *("--", *override_words(arm.settings)),
        *(["guard.mode=off"] if is_guarded else []),  # it would treat the treatment
    ]


def _follow(
    process: subprocess.Popen[bytes] | None,
    run: Path,
    arm: Arm,
    num_steps: int,
    deadline: float,
    look: Callable[[], None],
) -> str:
    """Wait until a branch ends, which is told to once it has trained enough.

    Args:
        process: that trains it; None where it is somebody else's.
    """
    run_id, is_told = arm.run_id or _branch_of(run, arm), False

    def is_going() -> bool:
        if process is not None:
            return process.poll() is None
        return open_run(run.parent / run_id).info().status == RUNNING

    while is_going():
        time.sleep(_LOOK_S)
        if time.monotonic() >= deadline + _PATIENCE_S:
            if process is not None:
                os.killpg(process.pid, signal.SIGKILL)
            raise CureError(f"{FAILED}its process did not end when the minutes were over")
        run_id = run_id or _branch_of(run, arm)
        if not run_id or is_told:
            continue
        is_due = time.monotonic() >= deadline or _is_over(run.parent / run_id, arm, num_steps)
        if is_due and open_run(run.parent / run_id).info().status == RUNNING:
            stop = new_command(
                run_id, CommandAction.STOP, issued_by="cure", reason="its part is over"
            )
            post(run.parent / run_id, stop)
            is_told = True
        look()
    return run_id or _branch_of(run, arm)


def _branch_of(run: Path, arm: Arm) -> str:
    """The branch that tries a treatment; empty where it was not begun."""
    for row in RunList(run.parent).rows():
        if row.parent_run_id != run.name or row.problem:
            continue
        try:
            origin = open_run(row.path).info().config.get("branched_from") or {}
        except StoreError:
            continue
        if origin.get("reason") == arm.reason.strip() and is_begun(row.path):
            return row.run_id
    return ""


def promote(run: Path, cure: Cure, arm: Arm, *, by: str) -> Cure:
    """Make a branch the successor of the run: on record, the run itself stays as it is.

    Raises:
        CureError: another one is already.
        OSError: the disk refuses.
    """
    if cure.chosen and cure.chosen != arm.run_id:
        raise CureError(
            f"{cure.chosen_by or 'somebody'} chose {cure.chosen} before; "
            "`echoscope cure RUN --again` begins anew"
        )
    if not Layout(run.parent / arm.run_id).is_run:
        raise CureError(f"{arm.run_id} is gone; `echoscope cure RUN --again` begins anew")
    chosen = replace(cure, chosen=arm.run_id, chosen_by=by)
    write_cure(run, chosen)
    return chosen


def table(
    run: Path, cure: Cure, stand_of: Callable[[str, int], BranchStanding] | None = None
) -> Iterator[dict[str, Any]]:
    """A row for the untreated run and each treatment: for people and for `--json`.

    Args:
        stand_of: how the run of a name does since a checkpoint; None to read it.

    Raises:
        StoreError: a run cannot be read.
    """
    if stand_of is None:

        def stand_of(name: str, checkpoint: int) -> BranchStanding:
            return standing(open_run(run.parent / name), checkpoint)

    first = min(arm.checkpoint for arm in cure.arms)
    untreated = Arm(reason="", checkpoint=first, settings={}, why="", run_id=cure.run_id)
    for number, arm in enumerate((untreated, *cure.arms)):
        stand = stand_of(arm.run_id, arm.checkpoint) if arm.run_id else None
        yield {
            "number": number,
            "run_id": arm.run_id,
            "checkpoint": arm.checkpoint,
            "settings": dict(arm.settings),
            "why": arm.why,
            "rate": arm.rate,
            "num_steps": 0 if stand is None else stand.num_trained,
            "success": math.nan if stand is None else stand.level,
            "ended": arm.ended,
            "is_chosen": bool(arm.run_id) and arm.run_id == cure.chosen,
        }
