"""When does a run that trains write a checkpoint, and which of them stay?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from echoscope.store.checkpoints import (
    checkpoint_step,
    earliest_onset,
    evaluation_success,
    newest_before,
    none_before,
    surplus_steps,
)
from echoscope.store.errors import StoreError
from echoscope.store.reader import open_run
from echoscope.store.records import (
    REQUESTED,
    Alarm,
    AlarmSeverity,
    AlarmState,
    CheckpointRecord,
    StepMetrics,
)
from echoscope.store.writer import RunWriter

from ..config.beside_training import CheckpointConfig
from ..rollout.evaluate import success_over_tags
from ..update.learners.alone import Learner
from .checkpoint import TrainState, begin_checkpoint, list_checkpoints, remove_checkpoints

BEST_MARGIN = 0.05
"""A checkpoint of the best evaluation is written where it is so much above that of every other:
without it each evaluation of a run that learns would write one."""


class Checkpoints:
    """The checkpoints of a run that trains: when one is due, and which are kept."""

    def __init__(self, writer: RunWriter, say: Callable[[str], None]) -> None:
        self._run_path, self._writer, self._say = writer.path, writer, say
        self.saved_step = 0
        """The last step whose state is on disk; starting weights need no file."""
        self.unsaved_s = 0.0
        """Seconds trained since the last checkpoint: what a crash would cost now."""
        self._success, self._best_saved = math.nan, -math.inf
        """Of the last evaluation, and of the best weights on the disk, starting ones included."""
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._unfinished: Future[CheckpointRecord] | None = None
        self._keep = 1

    def steps(self) -> list[int]:
        return [checkpoint_step(path) for path in list_checkpoints(self._run_path)]

    def note(self, metrics: Sequence[StepMetrics]) -> None:
        """Remember the evaluation among these metrics, if there is one."""
        for each in metrics:
            rate = success_over_tags(each.values)
            if math.isfinite(rate):
                self._success = rate

    def recall(self, *, up_to: int) -> None:
        """What an earlier attempt has evaluated, up to the step that this one goes on from."""
        success = evaluation_success(open_run(self._run_path))
        rates = {step: rate for step, rate in success.items() if step <= up_to}
        for saved in sorted({0, *self.steps()}):
            before = [step for step in rates if step <= saved]
            if before:
                self._success = rates[max(before)]
                self.weights_are_kept()
        self._success = rates[max(rates)] if rates else math.nan

    def weights_are_kept(self) -> None:
        """Those of the last evaluation are on the disk."""
        if self._success > self._best_saved:
            self._best_saved = self._success

    def due(self, step: int, config: CheckpointConfig) -> str:
        """Why a checkpoint is due after a step; empty where none is."""
        if config.every > 0 and step % config.every == 0:
            return "schedule"
        if 0 < 60 * config.minutes <= self.unsaved_s:
            return "time"
        is_best = self._success >= self._best_saved + BEST_MARGIN
        return "best" if config.best and is_best else ""

    def save(
        self,
        state: TrainState,
        learner: Learner,
        tokenizer: PreTrainedTokenizerBase,
        *,
        reason: str,
    ) -> None:
        """Write the state after an acknowledged step; then surplus ones go.

        The files are written at once, as far as the memory of the operating system takes them. What
        waits for the disk, and the hashes, is done beside the next steps: see `settle`.

        Raises:
            CheckpointError: the disk refuses; older checkpoints are as they were.
        """
        self.settle(waits=True)
        self._writer.flush()
        finish = begin_checkpoint(self._run_path, state, learner, tokenizer, reason=reason)
        self._unfinished = self._thread.submit(finish)
        self._keep = state.config.checkpoint.keep
        self.saved_step, self.unsaved_s = state.step, 0.0
        self.weights_are_kept()

    def settle(self, *, waits: bool = False) -> None:
        """Put the last checkpoint on record once it is on the disk; older ones may go then.

        Args:
            waits: until it is.

        Raises:
            CheckpointError: the disk refused it; older checkpoints are as they were.
        """
        if self._unfinished is None or not (waits or self._unfinished.done()):
            return
        unfinished, self._unfinished = self._unfinished, None
        record = unfinished.result()
        self._writer.record_checkpoint(record)
        self._writer.flush()  # the new one is on record before an older one goes
        self._remove_surplus(record.step, self._keep)

    def keep_for_good(self, step: int) -> bool:
        """The checkpoint of this step was asked for after it had been written.

        Returns:
            Whether there is one.
        """
        self.settle(waits=True)
        if step not in self.steps():
            return False
        self._writer.flush()
        for record in open_run(self._run_path).checkpoints():
            if record.step == step and record.reason != REQUESTED:
                self._writer.record_checkpoint(
                    replace(record, reason=REQUESTED, wall_time=time.time())
                )
        self._writer.flush()  # the person is told that it stays
        return True

    def last_good_words(self, alarm: Alarm, every: int) -> str:
        """Which checkpoint a new critical alarm leaves to go back to, or that it leaves none.

        Args:
            every: `checkpoint.every`.

        Returns:
            One sentence; empty for another alarm.
        """
        onset = earliest_onset(alarm)
        is_news = alarm.state is AlarmState.RAISED and alarm.severity is AlarmSeverity.CRITICAL
        if onset is None or not is_news:
            return ""
        step = newest_before(self.steps(), onset)
        if step is None:
            hint = f" A shorter checkpoint.every ({every}) helps." if onset > 1 else ""
            return none_before(onset) + hint
        return (
            f"the checkpoint of step {step} is from before step {onset}, where the change may "
            "have begun; it is kept while the alarm is open"
        )

    def _remove_surplus(self, last_step: int, keep: int) -> None:
        steps = [step for step in self.steps() if step <= last_step]
        if len(steps) <= keep and self._writer.attempt == 1:
            return  # all are among the newest, and no rewind hid one
        try:
            surplus = surplus_steps(self._run_path, steps, keep=keep)
        except StoreError as error:
            self._say(f"no old checkpoint was deleted: {error}")
            return
        for record in remove_checkpoints(self._run_path, surplus):
            self._writer.record_checkpoint(record)
