"""Starting and resuming runs: everything a Trainer needs, built from a configuration."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.store.checkpoints import checkpoint_step, resumable_checkpoints
from echoscope.store.errors import StoreError
from echoscope.store.log.packing import pack
from echoscope.store.log.remote.pushing import Copier
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import CommandAction, StepMetrics
from echoscope.store.steer.commands import Mailbox
from echoscope.store.steer.settings import applied, replayed
from echoscope.store.steer.steering import unfinished_action
from echoscope.store.writer import RunWriter
from echoscope.text.amounts import step_words

from ..config.loading import ConfigError, apply_settings, live_schema, placed, validate
from ..config.settings import RunConfig
from ..rollout.sources import with_stored_sampling
from .build import Builder
from .checkpoint import load_weights, require_whole
from .observers import TrainEvents, judge
from .train import Model, Trainer


def start(config: RunConfig, run_path: Path, events: TrainEvents) -> str:
    """Train a new run in `run_path`; returns its final status.

    Raises:
        ConfigError, ValueError, OSError: something is wrong; nothing was started.
    """
    if config.branched_from is not None:
        raise ConfigError("branched_from is set by `echoscope ctl RUN branch`, and only there")
    config = with_stored_sampling(config, events.message)
    builder = Builder(config, run_path, events)
    builder.check()
    model = builder.load()
    writer = created(run_path, config, model)
    with closing(writer, config, events) as ending:
        trainer = built_or_removed(builder, model, writer)
        events.message(f"run {run_path}")
        ending.status = train(trainer, is_new=True)
    return ending.status


def built_or_removed(builder: Builder, model: Model, writer: RunWriter) -> Trainer:
    """The trainer of a new run; a start that fails here leaves nothing on the disk."""
    try:
        return builder.build(model, writer, Mailbox(writer.path))
    except Exception:
        model.learner.close()
        writer.close(status="failed")
        shutil.rmtree(writer.path)
        raise


def resume(
    run_path: Path,
    events: TrainEvents,
    *,
    settings: Mapping[str, Any] | None = None,
    checkpoint: int | None = None,
) -> str:
    """Continue a run from a checkpoint, or from its beginning; returns its final status.

    Settings that were changed live after that checkpoint change again at the same step; pause and
    stop do not come back, but for those of an alarm that a crash cut off. `settings` change
    before the first step, as a live change of their own. Those of `engine` and `trainer`, which say
    where the run goes on, are the run's own from now on, whichever checkpoint it goes on from.

    Args:
        checkpoint: its step; None for the last.

    Raises:
        ConfigError: not a run, a broken checkpoint, or a setting that is not live.
    """
    reader = open_run(run_path)
    info = reader.info()
    config = validate(info.config)
    origin = config.branched_from
    whole = resumable_checkpoints(reader)
    if checkpoint is not None:
        whole = [path for path in whole if checkpoint_step(path) == checkpoint]
        if not whole:
            raise ConfigError(f"{run_path} has no checkpoint of step {checkpoint} to resume from")
    state = require_whole(whole[-1]) if whole else None
    if state is None and origin is not None:
        raise ConfigError(
            f"{run_path} has lost the checkpoint of step {origin.step} that it started from; "
            f"branch {origin.run_id} again"
        )
    step = state.step if state is not None else 0
    states = reader.commands()
    replay = replayed(applied(states), after=step)
    lost = unfinished_action(info, states, after=step)
    moved, settings = placed(config, settings or {})
    is_moved, config = moved != config, moved
    if state is not None:
        here = {"engine": moved.engine.model_dump(), "trainer": moved.trainer.model_dump()}
        config = validate(state.config.model_dump() | here)
    if settings:
        apply_settings(config, settings)  # refuse before anything is touched
    builder = Builder(config, run_path, events)
    builder.check()
    has_first = info.last_step >= 0
    writer = RunWriter.resume(
        run_path,
        from_step=step if has_first else -1,
        config=moved.model_dump(mode="json") if is_moved else None,
    )
    with closing(writer, config, events) as ending:
        mailbox = Mailbox(run_path, seen_ids=writer.seen_command_ids)
        trainer = builder.build(builder.load(), writer, mailbox, replay=replay)
        if state is not None:
            load_weights(whole[-1], trainer.model.learner)
            trainer.begin_at(state)
            for observer in trainer.observers:
                if observer.name in state.observers:
                    observer.restore(state.observers[observer.name])
        elif has_first:
            _judge_again(reader, trainer)
        if settings:
            trainer.control.request(CommandAction.SET, "given with --resume", settings)
        if lost is not None:
            trainer.control.request(
                lost.action, lost.reason, lost.settings, issued_by=lost.issued_by
            )
        again = _played_again(step, info.last_step)
        events.message(f"resuming {run_path} after step {step}, attempt {writer.attempt}{again}")
        ending.status = train(trainer, is_new=not has_first and origin is None)
    return ending.status


def _played_again(start: int, last_step: int) -> str:
    """What a run plays again that goes on after step `start`, and why.

    >>> _played_again(0, 10)
    ': steps 1 to 10 will be played again, because they were finished after its last checkpoint'
    """
    if last_step <= start:
        return ""
    first = start + 1
    steps = step_words((first, last_step))
    them = "they were" if last_step > first else "it was"
    return f": {steps} will be played again, because {them} finished after its last checkpoint"


def _judge_again(reader: RunReader, trainer: Trainer) -> None:
    """Show the stored evaluation before the first step, which is not made again."""
    rows = reader.sql("SELECT key, value FROM metrics WHERE step = 0 AND key NOT LIKE 'time/%'")
    values = {
        row["key"]: math.nan if row["value"] is None else row["value"] for row in rows.to_pylist()
    }
    if values:
        first = StepMetrics(
            run_id=reader.run_id,
            step=0,
            phase="eval",
            policy_version=trainer.model.policy.version,
            values=values,
        )
        judge(trainer.observers, [first], trainer.config)


def train(trainer: Trainer, *, is_new: bool) -> str:
    """Train to the end; returns the run's final status. Everything is closed but the writer."""
    status = "failed"
    try:
        with trainer.control.signals(trainer.events.message):
            status = trainer.run(is_new=is_new)
        return status
    finally:
        for observer in trainer.observers:
            observer.close(status)
        trainer.sources.close()
        trainer.model.learner.close()
        trainer.log.mirror.close(status)


def created(
    run_path: Path, config: RunConfig, model: Model, *, parent_run_id: str | None = None
) -> RunWriter:
    """The writer of a new run.

    Raises:
        RunExistsError, StoreError: the folder holds something, or cannot be written.
    """
    return RunWriter.create(
        run_path,
        run_id=run_path.name,
        config=config.model_dump(mode="json"),
        live_knobs=live_schema(config),
        name=config.name,
        base_model=config.model.path,
        tokenizer=model.chat.fingerprint,
        parent_run_id=parent_run_id,
    )


@dataclass(slots=True)
class Ending:
    """What a run has come to."""

    status: str = "failed"


@contextmanager
def closing(writer: RunWriter, config: RunConfig, events: TrainEvents) -> Iterator[Ending]:
    """Closes the writer with the status reached; `failed` or `interrupted` if an error ended it.

    With `trainer.copy_to` the run is copied there meanwhile.
    """
    ending, url, copies = Ending(), config.trainer.copy_to, config.trainer.copy_checkpoints
    copier = Copier(writer.path, url, events.message, takes_checkpoints=copies) if url else None
    try:
        yield ending
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else ending.status
        try:
            writer.close(status=status)
        except StoreError as second:
            error.add_note(str(second))
        raise
    else:
        writer.close(status=ending.status)
    finally:
        if copier is not None:
            try:  # what is still in the journal: a catalogue of the copies reads packs only
                pack(writer.path)
            except StoreError as error:
                events.message(f"the end of the run is copied unpacked: {error}")
            copier.close()
