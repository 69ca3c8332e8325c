"""verl's trainers as recorded runs: three lines in `fit`.

    logger.logger["echoscope"] = EchoscopeTracking("runs/verl", trainer=self)
    logger.logger["echoscope"].rollouts(batch, self.tokenizer)   # once a step, before the update
    batch = logger.logger["echoscope"].selected(batch)           # below that, to filter groups

verl has no list of loggers that a package could join, so the lines stand in the trainer. The object
has what `Tracking` calls: `log(data=..., step=...)` and `finish()`. `rollouts` gives the text with
its exact tokens; without it the run has numbers only. With `trainer` it also measures I(X;Z) and
H(Z|X) by verl's own workers. Legend: **B** rows of a batch, **Lr** tokens of a response.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.selection.filter import GroupArrays, select_from, tie_key
from echoscope.diagnostics.tools.setting_errors import SettingError, checked
from echoscope.store.importers.dialogue import read_flat
from echoscope.store.importers.draft import Draft
from echoscope.store.records import FloatArray, IntArray

from .recorder import Recorder

LIVE_SELECTION = ("strategy", "metric", "value", "keep", "include_zero")
"""Settings of the filter that a page or a command may change while verl trains."""
_METRICS = ("reward_std", "reward_mean", "reward_sum")


class TrainingStoppedError(RuntimeError):
    """Somebody, or an alarm, has asked for the end of the run."""


class VerlPolicy:
    """The policy of a verl trainer, as a function `(prompts, continuations) -> log-probs`.

    Args:
        compute: takes a `DataProto` and gives one with `old_log_probs` (B, Lr), or that and
            something else: a trainer's `_compute_old_log_prob`.
        pad: token id that fills rows up.
        temperature: of the sampling.
        multiple: a call has so many rows, or a multiple of it: verl's workers split a batch into
            equal micro-batches.
    """

    def __init__(
        self,
        compute: Callable[[Any], Any],
        *,
        pad: int = 0,
        temperature: float = 1.0,
        multiple: int = 1,
    ) -> None:
        self._compute, self._pad = compute, pad
        self._temperature, self._multiple = temperature, multiple

    @classmethod
    def of(cls, trainer: Any) -> VerlPolicy:
        """The policy of a `RayPPOTrainer`, whose workers are up."""
        rollout = trainer.config.actor_rollout_ref.rollout
        rows = rollout.get("log_prob_micro_batch_size_per_gpu") or 1
        return cls(
            trainer._compute_old_log_prob,
            pad=trainer.tokenizer.pad_token_id or 0,
            temperature=float(rollout.temperature),
            multiple=int(rows) * int(getattr(trainer.actor_rollout_wg, "world_size", 1)),
        )

    def __call__(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[FloatArray]]:
        """Log-probs (Lr,) of each continuation after its prompt."""
        rows = [
            (prompt, reply)
            for prompt, replies in zip(prompts, continuations, strict=True)
            for reply in replies
        ]
        answer = self._compute(self._batch(rows + rows[-1:] * (-len(rows) % self._multiple)))
        answer = answer[0] if isinstance(answer, tuple) else answer
        scores = answer.batch["old_log_probs"].float().cpu().numpy()
        scored = iter([scores[row, : len(reply)] for row, (_, reply) in enumerate(rows)])
        return [[next(scored) for _ in replies] for replies in continuations]

    def _batch(self, rows: Sequence[tuple[IntArray, IntArray]]) -> Any:
        """Rows as verl has them: prompts filled up on the left, responses on the right."""
        import torch
        from verl import DataProto

        width = max(len(prompt) for prompt, _ in rows)
        size = width + max(len(reply) for _, reply in rows)
        ids_BL = np.full((len(rows), size), self._pad, np.int64)
        seen_BL = np.zeros((len(rows), size), np.int64)
        for row, (prompt, reply) in enumerate(rows):
            begin, end = width - len(prompt), width + len(reply)
            ids_BL[row, begin:end] = np.concatenate([prompt, reply])
            seen_BL[row, begin:end] = 1
        tensors = {
            "input_ids": ids_BL,
            "attention_mask": seen_BL,
            "position_ids": np.maximum(seen_BL.cumsum(-1) - 1, 0),
            "prompts": ids_BL[:, :width],
            "responses": ids_BL[:, width:],
            "response_mask": seen_BL[:, width:],
        }
        return DataProto.from_dict(
            tensors={name: torch.from_numpy(array.copy()) for name, array in tensors.items()},
            meta_info={
                "temperature": self._temperature,
                "global_token_num": seen_BL.sum(-1).tolist(),
            },
        )


class EchoscopeTracking:
    """A backend of verl's `Tracking`, for its driver process alone.

    Args:
        path: the run's folder.
        trainer: a `RayPPOTrainer`, whose policy is then measured in `rollouts`. For another loop
            give `policy=VerlPolicy(...)` and `tokenizer=` instead.
        selection: which groups `selected` keeps, as under `selection`: `{"strategy": "top_p",
            "value": 0.9}`, or `{}` for all at first. A page or a command may change it. None: the
            loop does not call `selected`.
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
        trainer: Any = None,
        selection: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._is_raising = raise_on_stop
        self._selection = _checked_selection(selection or {})
        if trainer is not None:
            settings |= {"policy": VerlPolicy.of(trainer), "tokenizer": trainer.tokenizer}
        self._own_on_set = settings.get("on_set")
        if selection is not None:
            settings["live"] = {**settings.get("live", {}), **_live(self._selection)}
            settings["on_set"] = self._set
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
        """Record a batch with its exact tokens, before `log` names its step, and measure it.

        Call it where the rewards are known and before the update: `batch` is verl's `DataProto`
        with `prompts`, `responses`, `attention_mask` and `token_level_scores`; `uid` names the
        group, and `rollout_log_probs` are kept. In a response with observations `response_mask`
        says what was sampled.
        """
        tensors, extra = batch.batch, batch.non_tensor_batch
        prompts, replies = tensors["prompts"], tensors["responses"]
        width = prompts.shape[-1]
        seen = tensors["attention_mask"].bool()
        names = set(tensors.keys())
        sampled = tensors["response_mask"].bool() if "response_mask" in names else None
        logprobs = tensors["rollout_log_probs"] if "rollout_log_probs" in names else None
        scores = tensors["token_level_scores"].sum(-1).tolist()
        uids = extra.get("uid")
        for row in range(len(prompts)):
            prompt = prompts[row][seen[row, :width]].tolist()
            kept = seen[row, width:]
            reply = replies[row][kept].tolist()
            dialogue, _ = read_flat(tokenizer.decode(prompt), tokenizer.decode(reply))
            draft = Draft(
                turns=dialogue.turns,
                prompt=dialogue.prompt,
                group=None if uids is None else str(uids[row]),
                env=_text(extra.get("data_source"), row),
                final_observation=dialogue.final_observation,
            )
            draft.set_episode_reward(scores[row])
            is_sampled = (
                np.ones(len(reply), bool) if sampled is None else sampled[row][kept].numpy()
            )
            _set_tokens(
                draft,
                prompt,
                reply,
                is_sampled,
                None if logprobs is None else logprobs[row][kept].float().numpy(),
            )
            self._recorder.draft(draft)
        self._recorder.measure(1 if self._last is None else self._last + 1)

    def selected(self, batch: Any) -> Any:
        """The batch in which only the groups train that the filter keeps.

        The others stay, so that the batch can be split as before, and their `response_mask` is 0:
        they count in no loss. Without a `uid`, or with the strategy `none`, nothing changes.
        """
        uids = batch.non_tensor_batch.get("uid")
        if uids is None or self._selection.strategy == "none":
            return batch
        _, group_B = np.unique(np.asarray(uids, dtype=str), return_inverse=True)
        scores_B = batch.batch["token_level_scores"].sum(-1).double().numpy()
        keep_B = _kept(group_B, scores_B, self._selection)
        mask = batch.batch["response_mask"]
        batch.batch["response_mask"] = mask * mask.new_tensor(keep_B)[:, None]
        return batch

    def _set(self, settings: Mapping[str, Any]) -> None:
        ours = {f"selection.{name}" for name in LIVE_SELECTION} & settings.keys()
        changed = {key.removeprefix("selection."): settings[key] for key in ours}
        self._selection = _checked_selection(self._selection.model_dump() | changed)
        theirs = {key: value for key, value in settings.items() if key not in ours}
        if theirs and self._own_on_set is not None:
            self._own_on_set(theirs)

    def finish(self, exit_code: int = 0) -> None:
        """End the run; verl calls it for its own backends only, and the end of the process for
        this one."""
        self._recorder.close("failed" if exit_code else "")


def _set_tokens(
    draft: Draft, prompt: list[int], reply: list[int], is_sampled: Any, logprobs: Any
) -> None:
    """Give each turn its exact tokens, where the stretches that were sampled are the turns."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_sampled.astype(int), [0]])))
    stretches = edges.reshape(-1, 2).tolist()
    ends_sampled = bool(len(is_sampled)) and bool(is_sampled[-1])
    if len(stretches) != len(draft.turns) or ends_sampled == bool(draft.final_observation):
        return
    for turn, (begin, end) in zip(draft.turns, stretches, strict=True):
        turn.prompt_tokens = np.array(prompt + reply[:begin], dtype=np.int32)
        turn.response_tokens = np.array(reply[begin:end], dtype=np.int32)
        turn.logprobs = None if logprobs is None else logprobs[begin:end]


def _checked_selection(values: Mapping[str, Any]) -> SelectionConfig:
    """Settings of the filter, of those that need nothing but rewards.

    Raises:
        SettingError: one is wrong, or looks at something that verl's driver does not know.
    """
    config = checked(SelectionConfig, values, ("selection",))
    if config.strategy == "custom" or config.metric not in _METRICS:
        raise SettingError(
            f"selection has strategy {config.strategy} and metric {config.metric}, but groups of "
            f"verl can be ranked by {', '.join(_METRICS)} only, and not by a rule of your own"
        )
    return config


def _live(config: SelectionConfig) -> dict[str, dict[str, Any]]:
    """The filter's settings as JSON Schema with their values."""
    schema = SelectionConfig.model_json_schema()["properties"]
    return {
        f"selection.{name}": schema[name] | {"value": getattr(config, name)}
        for name in LIVE_SELECTION
    }


def _kept(group_B: Any, scores_B: Any, config: SelectionConfig) -> Any:
    """(B,) whether each row trains."""
    num_groups, size = int(group_B.max()) + 1, int(np.bincount(group_B).max())
    row_PG = np.full((num_groups, size), -1)
    for row, group in enumerate(group_B.tolist()):
        row_PG[group, np.argmax(row_PG[group] < 0)] = row
    is_row_PG = row_PG >= 0
    returns_PG = np.where(is_row_PG, scores_B[row_PG], 0.0)
    unknown_PG = np.full(row_PG.shape, np.nan)
    ties_PG = [[tie_key(None, None, group, sibling) for sibling in range(size)]
               for group in range(num_groups)]  # fmt: skip
    selection = select_from(
        GroupArrays(
            returns_PG=returns_PG,
            success_PG=unknown_PG,
            trainable_PG=is_row_PG,
            lengths_PG=unknown_PG,
            entropies_PG=unknown_PG,
            overlong_PG=np.zeros(row_PG.shape, np.bool_),
            ties_PG=np.array(ties_PG, dtype=np.uint64),
            tags_P=("",) * num_groups,
        ),
        config,
    )
    return selection.keep_P[group_B]  # groups are kept as a whole


def _text(values: Any, row: int) -> str:
    if values is None:
        return ""
    value = np.asarray(values, dtype=object)[row]
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)
