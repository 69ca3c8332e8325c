"""A new run from a checkpoint of another, with other settings: its parent stays as it is.

Steps are counted on, and every random number is a function of the seed and the step: a branch
without changed settings trains bit for bit as its parent went on. The monitor goes on too: it knows
the parent's best and its alarms; what the branch changed about the tasks begins anew.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.store.checkpoints import checkpoint_path, checkpoint_step, last_good_checkpoint
from echoscope.store.log.starting import is_free
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import CommandOutcome
from echoscope.store.steer.rewinds import (
    Rewind,
    checkpoints_before,
    is_begun,
    rewind_of,
    successor_of,
)
from echoscope.store.steer.settings import flat
from echoscope.store.steer.steering import check_texts, override_words
from echoscope.store.writer import RunWriter

from ..config.beside_training import BranchedFrom, GivenTreatment
from ..config.loading import ConfigError, override, validate
from ..config.settings import RunConfig
from .build import Builder
from .checkpoint import adopt_checkpoint, list_checkpoints, load_weights, read_state
from .control import REWOUND
from .launch import built_or_removed, closing, created, resume, train
from .observers import SilentEvents, TrainEvents

_FIXED = (
    "model.path",
    "model.dtype",
    "model.lora",
    "critic.kind",
    "critic.path",
)
"""What gives the weights and the optimizer's state their shape."""
_OWN = ("name", "branched_from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What a branch would be; nothing is written yet."""

    parent_run_id: str
    checkpoint: Path
    step: int
    """The step of the checkpoint: the new run's first is the next one."""
    choice: str
    """Why this checkpoint; empty where it was asked for."""
    config: RunConfig
    changed: Mapping[str, tuple[Any, Any]]
    """Dotted key to the value in the parent at that step, and the new one; None for absent."""


def plan_branch(
    parent: Path,
    *,
    checkpoint: int | None = None,
    overrides: Sequence[str] = (),
    name: str | None = None,
    reason: str = "",
    issued_by: str = "",
    command_id: str = "",
) -> Branch:
    """A branch of `parent` with `key=value` words applied to its settings at the checkpoint.

    Args:
        checkpoint: its step; None for the last good one (`last_good_checkpoint`). One from before
            a rewind made `parent` is that of the run which it goes on from.
        name: of the new run; None for its parent's.
        reason: kept with the new run, as `issued_by` is: who asks.
        command_id: the rewind that the branch carries out; empty for any other branch.

    Raises:
        NotARunError: no run there.
        ConfigError: no such checkpoint, a wrong setting, one that the weights do not allow, or
            no step left to train.
        SteeringError: the reason or the name of who asks is too long.
    """
    run = open_run(parent)
    folder, choice = _checkpoint(run, parent, checkpoint)
    owner = open_run(folder.parent.parent).run_id
    state = read_state(folder)
    before = state.config
    after = override(before, [*([] if name is None else [f"name={name}"]), *overrides])
    check_texts(reason, issued_by)
    if after.branched_from != before.branched_from:
        raise ConfigError("branched_from is what `ctl RUN branch` itself writes")
    changed = changed_settings(before, after)
    treatments: list[GivenTreatment] = []
    if command_id:  # what was tried before a rewind stays known
        earlier = validate(run.info().config).branched_from
        treatment = GivenTreatment(
            checkpoint=state.step,
            settings={key: new for key, (_, new) in changed.items()},
            before={key: old for key, (old, _) in changed.items() if old is not None},
        )
        treatments = [*(earlier.treatments if earlier is not None else []), treatment]
    fixed = [key for key in changed if key.startswith(_FIXED)]
    if fixed:
        raise ConfigError(
            f"{fixed[0]} cannot change in a branch: the checkpoint would not fit; "
            "start a run of its own with `echoscope train`"
        )
    if after.steps <= state.step:
        raise ConfigError(
            f"steps is {after.steps} and the checkpoint is of step {state.step}: nothing would "
            f"train; give for example steps={2 * state.step}"
        )
    origin = BranchedFrom(
        run_id=owner,
        step=state.step,
        reason=reason.strip(),
        issued_by=issued_by,
        command_id=command_id,
        treatments=treatments,
    )
    return Branch(
        parent_run_id=owner,
        checkpoint=folder,
        choice=choice,
        step=state.step,
        config=after.model_copy(update={"branched_from": origin}),
        changed=changed,
    )


def check_branch(branch: Branch, run_path: Path) -> None:
    """Check what `start_branch` checks before it loads the model: environments, rewards, memory.

    Raises:
        ConfigError, ValueError, OSError: the branch would not start.
    """
    Builder(branch.config, run_path, SilentEvents()).check()


def start_branch(branch: Branch, run_path: Path, events: TrainEvents) -> str:
    """Train the branch in `run_path`; returns its final status.

    It begins with a checkpoint of its own, so it can be resumed however early it dies.

    Raises:
        ConfigError, ValueError, OSError: something is wrong; nothing was started.
    """
    config = branch.config
    builder = Builder(config, run_path, events)
    builder.check()
    model = builder.load()
    load_weights(branch.checkpoint, model.learner)
    writer = created(run_path, config, model, parent_run_id=branch.parent_run_id)
    with closing(writer, config, events) as ending:
        trainer = built_or_removed(builder, model, writer)
        remembered = read_state(branch.checkpoint).observers
        for observer in trainer.observers:
            if observer.name in remembered:
                observer.restore(remembered[observer.name])
                observer.begin_branch(branch.changed)
        writer.record_checkpoint(
            adopt_checkpoint(
                branch.checkpoint,
                run_path,
                config,
                observers={watcher.name: watcher.state() for watcher in trainer.observers},
            )
        )
        trainer.begin_at(read_state(checkpoint_path(run_path, branch.step)))
        events.message(f"run {run_path}, from step {branch.step} of {branch.parent_run_id}")
        ending.status = train(trainer, is_new=False)
    return ending.status


def go_on(run_path: Path, events: TrainEvents, status: str) -> tuple[Path, str]:
    """Train what a run has become by rewinds, until one ends otherwise; its folder and status.

    Args:
        status: how the training of `run_path` ended in this process.

    Raises:
        ConfigError, ValueError, OSError: a rewind cannot be carried out; `train --resume RUN`
            tries again.
    """
    while (rewind := rewind_of(open_run(run_path))) is not None:
        _close(run_path, rewind)
        branch = plan_branch(
            run_path,
            checkpoint=rewind.checkpoint,
            overrides=override_words(rewind.settings),
            reason=rewind.command.reason,
            issued_by=rewind.command.issued_by,
            command_id=rewind.command.command_id,
        )
        after = successor_of(open_run(run_path), rewind)
        if after is not None and not is_begun(after):
            shutil.rmtree(after)  # a kill left it before it had its checkpoint: it never trained
            after = None
        run_path = after or next_path(run_path)
        status = resume(run_path, events) if after else start_branch(branch, run_path, events)
    return run_path, status


def _close(run_path: Path, rewind: Rewind) -> None:
    """End a run in order that a kill kept from it; no step of it is hidden."""
    run = open_run(run_path)
    info = run.info()
    if rewind.is_acknowledged and info.status == "stopped":
        return
    waiting = [state.command for state in run.commands() if state.ack is None]
    commands = [*([rewind.command] if rewind.is_acknowledged else []), *waiting]
    with RunWriter.resume(run_path, from_step=info.last_step) as writer:
        step = info.last_step + 1
        acks = [
            command.answered(step, CommandOutcome.APPLIED, "goes on as a new run")
            if command.command_id == rewind.command.command_id
            else command.answered(step, CommandOutcome.REJECTED, REWOUND)
            for command in commands
        ]
        writer.record_acks(acks, commands)
        writer.close(status="stopped")


def next_path(run_path: Path) -> Path:
    """The folder of the run that a run goes on as: `lake`, then `lake-2`, `lake-3`.

    >>> next_path(Path("runs/of-nobody-2")).name
    'of-nobody-3'
    """
    name, _, number = run_path.name.rpartition("-")
    is_numbered = bool(name) and number.isdigit() and len(number) < 4
    base, first = (name, int(number) + 1) if is_numbered else (run_path.name, 2)
    paths = (run_path.with_name(f"{base}-{count}") for count in itertools.count(first))
    return next(path for path in paths if is_free(path))


def _checkpoint(run: RunReader, parent: Path, step: int | None) -> tuple[Path, str]:
    """The checkpoint of a step, or the last good one and why."""
    checkpoints = list_checkpoints(parent)
    if not checkpoints:
        raise ConfigError(
            f"{parent} has no checkpoint yet; `echoscope ctl {parent} checkpoint` writes one"
        )
    if step is None:
        choice = last_good_checkpoint(run)
        good = [path for path in checkpoints if checkpoint_step(path) == choice.step]
        if good:
            return good[0], choice.reason
        return checkpoints[-1], f"{choice.reason} It is the newest."
    folder = checkpoint_path(parent, step)
    if folder in checkpoints:
        return folder, ""
    by_step = {checkpoint_step(path): path for path in checkpoints_before(parent)}
    if step not in by_step:
        steps = ", ".join(str(checkpoint_step(path)) for path in checkpoints)
        raise ConfigError(f"{parent} has no checkpoint of step {step}; there are: {steps}")
    return by_step[step], ""


def changed_settings(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted key to the value before and after, of what differs; None for absent."""
    old, new = (flat(config.model_dump(mode="json")) for config in (before, after))
    return {
        key: (old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key) and key not in _OWN
    }
