"""verl's trainers as recorded runs: two lines in `fit`.

    logger.logger["echoscope"] = EchoscopeTracking("runs/verl")    # below logger = Tracking(...)
    logger.logger["echoscope"].rollouts(batch, self.tokenizer)     # once a step, before logger.log

verl has no list of loggers that a package could join, so the lines stand in the trainer. The object
has what `Tracking` calls: `log(data=..., step=...)` and `finish()`. `rollouts` gives the text with
its exact tokens; without it the run has numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.store.importers.dialogue import read_flat
from echoscope.store.importers.draft import Draft

from .recorder import Recorder


class TrainingStoppedError(RuntimeError):
    """Somebody, or an alarm, has asked for the end of the run."""


class EchoscopeTracking:
    """A backend of verl's `Tracking`, for its driver process alone.

    Args:
        path: the run's folder.
        config: of the trainer, as verl hands it to `Tracking`; shown, never interpreted.
        raise_on_stop: end the training by a `TrainingStoppedError` out of `log`, at a step
            boundary. Without it the loop must look at `should_stop`.
        settings: further arguments of `Recorder`, such as `alarms` and `notify`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        raise_on_stop: bool = False,
        **settings: Any,
    ) -> None:
        self._is_raising = raise_on_stop
        self._recorder = Recorder(path, config={"trainer": "verl", **(config or {})}, **settings)
        self._last: int | None = None

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
        self._last = step
        self._recorder.step(step, data)
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
        self._recorder.close("failed" if exit_code else "")


def _text(values: Any, row: int) -> str:
    if values is None:
        return ""
    value = np.asarray(values, dtype=object)[row]
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
