"""TRL's trainers as recorded runs: `GRPOTrainer(..., callbacks=[EchoscopeCallback()])`.

TRL writes the completions of a step to `OUTPUT_DIR/completions/` after it has told callbacks of the
step's numbers. So a step is recorded when the next one begins, and the last at the end. Commands
are obeyed between two steps, by every process of the training alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from echoscope.store.importers.draft import Draft, RowError
from echoscope.store.importers.formats.trl import episode, reward_columns

from .recorder import Recorder
from .trl_settings import TrlSettings, running_trainer

_TERM = re.compile(r"rewards/(.+)/mean")
_SECRET = ("token", "key", "password", "secret")


@dataclass(frozen=True, slots=True)
class _Order:
    """What all processes of a training do between two steps."""

    should_stop: bool = False
    settings: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """Each set that was applied, in order."""


class EchoscopeCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Records a run of TRL's GRPO or RLOO trainer; pauses, stops and sets it at step boundaries.

    The return is what TRL trains on: its own `reward`, and of an episode the sum of the reward
    functions by `reward_weights`. Each function by its weight is `reward/term/NAME`.

    Set `log_completions=True` in the trainer's arguments: without it TRL keeps no text, and the
    run has numbers only.

    Args:
        path: the run's folder; None: `OUTPUT_DIR/echoscope`.
        settings: further arguments of `Recorder`, such as `alarms` and `notify`. With `live` and
            `on_set` of your own the trainer's settings (`trl_settings.py`) cannot be set.
    """

    def __init__(self, path: str | Path | None = None, **settings: Any) -> None:
        self._path = None if path is None else Path(path)
        self._settings = settings
        self._output = Path()
        self._recorder: Recorder | None = None
        self._trainer: TrlSettings | None = None
        self._applied: list[Mapping[str, Any]] = []
        """Settings that this process has changed and others have not yet."""
        self._step: int | None = None
        """The last step that was logged and is not recorded yet."""
        self._numbers: dict[str, Any] = {}
        self._weights: Sequence[float] | None = None
        """Of the reward functions; None: all 1."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        trainer = running_trainer(self)
        self._trainer = None if trainer is None else TrlSettings(trainer)
        if not state.is_world_process_zero:
            return
        steering: dict[str, Any] = {}
        if self._trainer is not None and self._settings.keys().isdisjoint(("live", "on_set")):
            steering = {"live": self._trainer.live, "on_set": self._set}
        self._output = Path(args.output_dir)
        self._weights = getattr(args, "reward_weights", None)
        config = {
            key: value
            for key, value in args.to_dict().items()
            if not any(word in key for word in _SECRET)
        }
        self._recorder = Recorder(
            self._path or self._output / "echoscope",
            config={"trainer": "TRL", "arguments": config},
            total_steps=state.max_steps,
            **steering | self._settings,
        )
        if not getattr(args, "log_completions", False):
            self._recorder.say(
                "recorder: TRL keeps no text: set log_completions=True to record completions"
            )

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._record()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        order: _Order | None = None
        if self._recorder is not None:
            self._recorder.obey(state.global_step, on_pause=_go_on_waiting)
            order = _to_all(_Order(self._recorder.should_stop, tuple(self._applied)))
            self._applied.clear()
        elif not state.is_world_process_zero:
            while order is None:
                order = _to_all(None)
            for settings in order.settings:
                self._set(settings)
            self._applied.clear()
        if order is not None and order.should_stop:
            control.should_training_stop = True
        return control

    def _set(self, settings: Mapping[str, Any]) -> str:
        assert self._trainer is not None
        note = self._trainer.set(settings)
        self._applied.append(settings)
        return note

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self._recorder is None or logs is None:
            return
        if state.global_step != self._step:
            self._record()
            self._step = state.global_step
        self._numbers |= dict(logs)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._recorder is None:
            return
        self._record()
        self._recorder.close()
        self._recorder = self._trainer = None

    def _record(self) -> None:
        """The step that was logged last, whose completions are on the disk by now."""
        if self._recorder is None or self._step is None:
            return
        step, numbers = self._step, self._numbers
        self._step, self._numbers = None, {}
        for draft in self._completions(step):
            self._recorder.draft(draft)
        self._recorder.record(step, numbers | self._terms(numbers))

    def _terms(self, numbers: Mapping[str, Any]) -> dict[str, float]:
        """What each reward function adds to the return, mean over the step."""
        means = {
            match[1]: value for key, value in numbers.items() if (match := _TERM.fullmatch(key))
        }
        weights = self._weights_of(len(means))
        if len(weights) != len(means):
            return {}
        pairs = zip(means.items(), weights, strict=True)
        return {f"reward/term/{name}": weight * float(mean) for (name, mean), weight in pairs}

    def _weights_of(self, num_functions: int) -> Sequence[float]:
        return [1.0] * num_functions if self._weights is None else self._weights

    def _completions(self, step: int) -> Iterator[Draft]:
        """The episodes in the file of a step; none where TRL wrote none."""
        assert self._recorder is not None
        path = self._output / "completions" / f"completions_{step:05d}.parquet"
        if not path.is_file():
            return
        try:
            rows = pq.read_table(path).to_pylist()
        except (OSError, ValueError) as error:
            self._recorder.say(f"recorder: cannot read {path.name}: {error}")
            return
        for row in rows:
            try:
                weights = self._weights_of(len(reward_columns(row)))
                yield episode(row, weights)
            except (RowError, KeyError, TypeError) as error:
                self._recorder.say(f"recorder: {path.name}: a completion was not read: {error}")


def _go_on_waiting() -> None:
    """Tell the other processes that a pause lasts: they wait for an answer only so long."""
    _to_all(None)


def _to_all(order: _Order | None) -> _Order | None:
    """What the first process says, in all processes of the training: each of them calls this."""
    told: _Order | None = broadcast_object_list([order])[0]
    return told
