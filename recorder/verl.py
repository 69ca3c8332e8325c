"""verl's trainers as recorded runs: one line in `fit`, below `logger = Tracking(...)`.

    logger.logger["echoscope"] = EchoscopeTracking("runs/verl", rollout_data_dir="rollouts")

verl has no list of loggers that a package could join, so the line stands in the trainer. The object
has what `Tracking` calls: `log(data=..., step=...)` and `finish()`. The text comes from the files
of `trainer.rollout_data_dir`, or exactly, with tokens, from `rollouts(batch, tokenizer)`.
"""

from __future__ import annotations

import atexit
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.store.importers.dialogue import read_flat
from echoscope.store.importers.draft import Draft, RowError
from echoscope.store.importers.format import Where
from echoscope.store.importers.formats.table import VAGEN, VERL, VERL_V1

from .recorder import Recorder

_FORMATS = (VAGEN, VERL_V1, VERL)
_SETTLED_S = 0.5
"""verl writes a step's file in a thread, in one go: one that has not grown for so long is whole."""
_WAIT_S = 10.0
"""How long the end of a run waits for the file of its last step."""


class TrainingStoppedError(RuntimeError):
    """Somebody, or an alarm, has asked for the end of the run."""


class EchoscopeTracking:
    """A backend of verl's `Tracking`, for its driver process alone.

    Args:
        path: the run's folder.
        config: of the trainer, as verl hands it to `Tracking`; shown, never interpreted.
        rollout_data_dir: as `trainer.rollout_data_dir`; None: numbers only, or `rollouts`.
        raise_on_stop: end the training by a `TrainingStoppedError` out of `log`, at a step
            boundary. Without it the loop must look at `should_stop`.
        settings: further arguments of `Recorder`, such as `alarms` and `notify`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        rollout_data_dir: str | Path | None = None,
        raise_on_stop: bool = False,
        **settings: Any,
    ) -> None:
        self._folder = None if rollout_data_dir is None else Path(rollout_data_dir)
        self._is_raising = raise_on_stop
        self._since = time.time()
        self._recorder = Recorder(path, config={"trainer": "verl", **(config or {})}, **settings)
        self._waiting: tuple[int, dict[str, Any]] | None = None
        """A step whose file was not whole when it was logged."""
        self._last: int | None = None
        self._has_batch = False
        # verl ends only backends that it knows. This comes before the recorder's own end.
        atexit.register(self._end_waiting, _WAIT_S)

    @property
    def should_stop(self) -> bool:
        """Somebody, or an alarm that may, asked for the end of the run."""
        return self._recorder.should_stop

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Record a step; called by `Tracking.log` once a step.

        Raises:
            TrainingStoppedError: a stop was asked for, and `raise_on_stop` is set.
        """
        if self._last is not None and step <= self._last:
            self._recorder.say(f"recorder: step {step} was logged again; only its first is kept")
            return
        self._end_waiting(0.0)
        self._last = step
        self._waiting = (step, dict(data))
        if self._has_batch or self._folder is None or step == 0 or self._is_whole(step):
            self._end_waiting(0.0)
        self._recorder.obey(step)
        if self.should_stop and self._is_raising:
            self.finish()
            raise TrainingStoppedError(f"Echoscope stopped the training after step {step}")

    def rollouts(self, batch: Any, tokenizer: Any) -> None:
        """Record a batch with its exact tokens, before `log` names its step.

        Call it where the rewards are known: `batch` is verl's `DataProto` with `prompts`,
        `responses`, `attention_mask` and `token_level_scores`; `uid` names the group, and
        `rollout_log_probs` are kept. A response with observations in it (`response_mask`) is
        recorded as its text.
        """
        self._has_batch = True
        tensors, extra = batch.batch, batch.non_tensor_batch
        prompts, replies = tensors["prompts"], tensors["responses"]
        width = prompts.shape[-1]
        seen = tensors["attention_mask"].bool()
        names = set(tensors.keys())
        sampled = tensors["response_mask"].bool() if "response_mask" in names else None
        has_logprobs = "rollout_log_probs" in names
        scores = tensors["token_level_scores"].sum(-1).tolist()
        uids = extra.get("uid")
        for row in range(len(prompts)):
            prompt = prompts[row][seen[row, :width]].tolist()
            kept = seen[row, width:]
            reply = replies[row][kept].tolist()
            is_one_turn = sampled is None or bool(sampled[row][kept].all())
            dialogue, _ = read_flat(tokenizer.decode(prompt), tokenizer.decode(reply))
            draft = Draft(
                turns=dialogue.turns,
                prompt=dialogue.prompt,
                group=None if uids is None else str(uids[row]),
                env=_text(extra.get("data_source"), row),
                final_observation=dialogue.final_observation,
            )
            draft.set_episode_reward(scores[row])
            if is_one_turn and len(dialogue.turns) == 1:
                (turn,) = dialogue.turns
                turn.prompt_tokens = np.array(prompt, dtype=np.int32)
                turn.response_tokens = np.array(reply, dtype=np.int32)
                if has_logprobs:
                    turn.logprobs = tensors["rollout_log_probs"][row][kept].float().numpy()
            self._recorder.draft(draft)

    def finish(self, exit_code: int = 0) -> None:
        """End the run; verl calls it for its own backends only, and the end of the process for
        this one."""
        atexit.unregister(self._end_waiting)
        self._end_waiting(_WAIT_S)
        self._recorder.close("failed" if exit_code else "")

    def _end_waiting(self, patience_s: float) -> None:
        """Record the step that waits for its file, whole or not."""
        if self._waiting is None:
            return
        step, numbers = self._waiting
        deadline = time.monotonic() + patience_s
        while not self._has_batch and not self._is_whole(step) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._waiting = None
        if not self._has_batch:
            for draft in self._drafts(step):
                self._recorder.draft(draft)
        self._has_batch = False
        self._recorder.record(step, numbers)

    def _file(self, step: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{step}.jsonl"

    def _is_whole(self, step: int) -> bool:
        path = self._file(step)
        if path is None:
            return True
        try:
            changed = path.stat().st_mtime
        except OSError:
            return False
        # A file of an earlier training in the same folder is about to be replaced.
        return changed >= self._since and time.time() - changed >= _SETTLED_S

    def _drafts(self, step: int) -> Iterator[Draft]:
        path = self._file(step)
        if path is None or step == 0:
            return
        try:
            if path.stat().st_mtime < self._since:
                return
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            self._recorder.say(f"recorder: step {step} has no text: {error}")
            return
        for line in lines:
            try:
                row = json.loads(line)
                kind = next(one for one in _FORMATS if one.matches(row))
                yield from kind.drafts(row, Where(path=Path(path.name)))
            except (RowError, ValueError, StopIteration, RecursionError, AttributeError) as error:
                why = str(error) or "it is no row of verl"
                self._recorder.say(f"recorder: {path.name}: a row was not read: {why}")


def _text(values: Any, row: int) -> str:
    if values is None:
        return ""
    value = np.asarray(values, dtype=object)[row]
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
