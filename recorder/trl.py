"""TRL's trainers as recorded runs: `GRPOTrainer(..., callbacks=[EchoscopeCallback()])`.

TRL writes the completions of a step to `OUTPUT_DIR/completions/` after it has told callbacks of the
step's numbers. So a step is recorded when the next one begins, and the last at the end. Commands
are obeyed at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from echoscope.store.importers.draft import Draft, RowError
from echoscope.store.importers.formats.trl import episode, reward_columns

from .recorder import Recorder

_TERM = re.compile(r"rewards/(.+)/mean")
_SECRET = ("token", "key", "password", "secret")


class EchoscopeCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Records a run of TRL's GRPO or RLOO trainer; pauses and stops it at step boundaries.

    The return is what TRL trains on: its own `reward`, and of an episode the sum of the reward
    functions by `reward_weights`. Each function by its weight is `reward/term/NAME`.

    Set `log_completions=True` in the trainer's arguments: without it TRL keeps no text, and the
    run has numbers only.

    Args:
        path: the run's folder; None: `OUTPUT_DIR/echoscope`.
        settings: further arguments of `Recorder`, such as `alarms` and `notify`.
    """

    def __init__(self, path: str | Path | None = None, **settings: Any) -> None:
        self._path = None if path is None else Path(path)
        self._settings = settings
        self._output = Path()
        self._recorder: Recorder | None = None
        self._step: int | None = None
        """The last step that was logged and is not recorded yet."""
        self._numbers: dict[str, Any] = {}
        self._weights: Sequence[float] | None = None
        """Of the reward functions; None: all 1."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
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
            **self._settings,
        )
        if not getattr(args, "log_completions", False):
            self._recorder.say(
                "recorder: TRL keeps no text: set log_completions=True to record completions"
            )

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._record()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> TrainerControl:
        if self._recorder is None or logs is None:
            return control
        if state.global_step != self._step:
            self._record()
            self._step = state.global_step
        self._numbers |= dict(logs)
        self._recorder.obey(state.global_step)
        if self._recorder.should_stop:
            control.should_training_stop = True
        return control

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._recorder is None:
            return
        self._record()
        self._recorder.close()
        self._recorder = None

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
