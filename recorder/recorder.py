"""Five lines in anyone's training loop: every episode kept, alarms raised, commands obeyed.

    recorder = echoscope.Recorder("runs/mine", config=vars(args))
    for step in range(1, steps + 1):
        ...
        recorder.episode(messages, reward=reward, group=prompt_id)     # once an episode
        recorder.step(step, {"loss": loss, "entropy": entropy})        # once a step
        if recorder.should_stop:
            break
    recorder.close()

The calls only put what they are given into a queue. A thread (`steps.py`) makes trajectories of
it, measures, judges and writes. What goes wrong there never reaches the training: it is said by
`on_message`, and stands in `problem`.
"""

from __future__ import annotations

import atexit
import logging
import math
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pydantic import BaseModel

from echoscope.diagnostics.config import AlarmConfig, DiagnosticsConfig, NotifyConfig
from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.names import MetricNameError, parse_map
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.diagnostics.sinks.settings import SinksConfig
from echoscope.diagnostics.tools.setting_errors import SettingError, checked, shown
from echoscope.store.importers.draft import Draft
from echoscope.store.records import SettingsRecord
from echoscope.store.steer.steering import CONTROLS
from echoscope.store.writer import STATUSES
from echoscope.text.strict_json import json_value

from .episodes import GivenEpisode, TurnTokens
from .foreign_run import StepEnd
from .orders import OnCheckpoint, OnSet, Orders, values_of
from .scoring import Scoring, ScoringConfig
from .steps import RunSteps

M = TypeVar("M", bound=BaseModel)

logger = logging.getLogger("echoscope.recorder")

MAX_WAITING = 20_000
"""Calls that wait for the writing thread; further episodes are dropped, and counted."""
MAX_STEP_EPISODES = 100_000
"""Episodes of one step: they are held in memory until `step` ends it. Further ones are dropped."""
_PAUSE_S = 0.1
_CLOSE_S = 60.0
"""How long `close` waits for what is still to be written."""
_FORKED = (
    "process {} was forked from the one that records; nothing of it is recorded: call the recorder "
    "in the main process"
)


class Recorder:
    """A run that another trainer trains, in a folder that all of Echoscope reads.

    One process writes a run. All methods are for one thread, the trainer's.

    Args:
        path: the run's folder. An earlier run there goes on: steps from the first one that is
            recorded now replace its own.
        config: what the run was started with; shown, never interpreted. What JSON cannot hold is
            shown as text. Keep secrets out.
        meanings: what a metric of `step` is, where its name does not say so, as metric -> key:
            `{"score": "rollout/success_rate", "error_rate": "1-rollout/success_rate"}`. It holds
            for the whole run.
        live: settings that may change while the run goes on, as JSON Schema with the present
            `value`: `{"lr": {"type": "number", "exclusiveMinimum": 0, "value": 1e-5}}`.
        on_set: called in `step` with checked new values of `live`. It may return a remark for the
            answer, and refuse by a `SteeringError` that says why.
        on_checkpoint: called in `step` where somebody asks for a checkpoint.
        alarms: settings of the alarms, as under `diagnostics.alarms`: `{"actions": {"LOW_SUCCESS":
            "stop"}}`.
        notify: who is told, as under `diagnostics.notify`.
        sinks: which other tools get a copy, as under `sinks`: `{"wandb": "offline"}`.
        total_steps: how many steps the run will take, where that is known.
        policy: the model that trains, to measure I(X;Z) and H(Z|X) in `step`: a causal language
            model of transformers, or a function `(prompts, continuations) -> log-probs`. It gets
            its modes, and random generators their states, back.
        tokenizer: of the policy; a fast tokenizer of transformers.
        scoring: how the policy is measured, and what that may cost: `ScoringConfig`.
        on_message: told of alarms and of what went wrong, from the writing thread. None: the log
            `echoscope.recorder`.

    Raises:
        SettingError: an argument, or a setting in `live`, `alarms`, `notify`, `sinks` or `scoring`,
            is wrong, or the policy cannot score; a ValueError of one sentence.
        NotifyError: a target of `notify` cannot be told.
        SinkError: the package of a sink is not installed.
        StoreError: the folder holds something else, such as a run that was imported or that
            Echoscope trained, or the disk refuses.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        meanings: Mapping[str, str] | None = None,
        live: Mapping[str, Mapping[str, Any]] | None = None,
        on_set: OnSet | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        alarms: Mapping[str, Any] | None = None,
        notify: Mapping[str, Any] | None = None,
        sinks: Mapping[str, Any] | None = None,
        total_steps: int | None = None,
        policy: Any = None,
        tokenizer: Any = None,
        scoring: Mapping[str, Any] | None = None,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike) or not str(path).strip():
            raise SettingError(f"path is {shown(path)}, but must be a folder such as 'runs/mine'")
        self.path = Path(path)
        if not isinstance(name, str):
            raise SettingError(f"name is {shown(name)}, but must be text")
        if total_steps is not None and (not isinstance(total_steps, int) or total_steps < 1):
            raise SettingError(
                f"total_steps is {shown(total_steps)}, but must be a whole number above 0, or None"
            )
        if config is not None and not isinstance(config, Mapping):
            raise SettingError(f"config is {shown(config)}, but must be a dict such as vars(args)")
        self.say = on_message or logger.warning
        """Tells the reader of the log."""
        self._orders = Orders({} if live is None else live, on_set, on_checkpoint)
        self._last_step: int | None = None
        self._status = ""
        self._total_steps = total_steps
        self._num_open = 0
        """Episodes since the last step."""
        self._num_dropped = 0
        """Episodes that never reached the thread."""
        self._process = os.getpid()
        self._scoring = self._scorer(policy, tokenizer, scoring)
        settings = DiagnosticsConfig(alarms=_argument(AlarmConfig, "alarms", alarms))
        shown_config = json_value(dict(config or {}))
        self._steps = RunSteps(
            path=self.path,
            name=name or self.path.name,
            config=shown_config
            | ({} if total_steps is None else {"steps": total_steps})
            | {"recorded": True, CONTROLS: self._orders.actions},
            live=self._orders.live,
            meanings=_meanings(meanings),
            settings=settings,
            notifier=Notifier(
                _argument(NotifyConfig, "notify", notify),
                run=self.path.name,
                on_message=self.say,
            ),
            mirror=Mirror(
                _argument(SinksConfig, "sinks", sinks),
                run_path=self.path,
                run_config=shown_config,
                on_message=self.say,
            ),
            on_message=self.say,
        )
        atexit.register(self._end_with_process)

    def _scorer(
        self, policy: Any, tokenizer: Any, scoring: Mapping[str, Any] | None
    ) -> Scoring | None:
        config = _argument(ScoringConfig, "scoring", scoring)
        if policy is None:
            given = {"tokenizer": tokenizer, "scoring": scoring}
            unused = [name for name, value in given.items() if value is not None]
            if unused:
                raise SettingError(
                    f"{unused[0]}= needs policy=, the model that is measured; without a policy "
                    f"leave {unused[0]}= out"
                )
            return None
        return Scoring(policy, tokenizer, config, run_id=self.path.name, say=self.say)

    @property
    def problem(self) -> str:
        """What went wrong last; empty while all is well."""
        return self._steps.problem

    @property
    def num_lost(self) -> int:
        """Episodes and steps that were not written."""
        return self._num_dropped + self._steps.num_lost

    @property
    def should_stop(self) -> bool:
        """Somebody, or an alarm that may, asked for the end of the run."""
        return self._orders.should_stop

    def episode(
        self,
        messages: Sequence[Mapping[str, Any]],
        reward: float = math.nan,
        *,
        turn_rewards: Sequence[float] | None = None,
        group: str | int | None = None,
        success: bool | None = None,
        env: str = "",
        is_eval: bool = False,
        tokens: Sequence[TurnTokens] | None = None,
        **fields: Any,
    ) -> None:
        """Record an episode of the step that the next `step` names.

        Args:
            messages: as chat templates and the OpenAI API take them; each message of the assistant
                is a turn. Do not change them afterwards.
            reward: of the whole episode; it stands at the last turn. Or give `turn_rewards`, one
                a turn.
            group: siblings, sampled for one task, have the same; None: those with the same prompt.
            success: whether the task was solved; None where that is not known.
            is_eval: of an evaluation, not of training.
            tokens: what was sampled, one entry a turn, as `TurnTokens(prompt=ids, reply=ids,
                logprobs=...)`; without them a policy is measured on the text's own tokens.
            fields: anything else; kept beside the episode.

        Raises:
            ValueError: the recorder is closed.
        """
        self.draft(
            GivenEpisode(
                messages=messages,
                reward=reward,
                turn_rewards=turn_rewards,
                group=None if group is None else str(group),
                success=success,
                env=env,
                is_eval=is_eval,
                fields=fields,
                tokens=tokens,
            )
        )

    def draft(self, draft: Draft | GivenEpisode) -> None:
        """Record an episode that a reader of another trainer's files has made."""
        self._require_open()
        if not self._is_own_process:
            self._drop(_FORKED.format(os.getpid()))
        elif self._steps.num_jobs >= MAX_WAITING:
            self._drop(f"the disk is too slow: {MAX_WAITING} calls wait; episodes are dropped")
        elif self._num_open >= MAX_STEP_EPISODES:
            self._drop(
                f"{MAX_STEP_EPISODES} episodes without a call of step: further episodes are "
                "dropped until step is called"
            )
        else:
            self._num_open += 1
            if self._scoring is not None:
                self._scoring.add(draft)
            self._steps.put(self._steps.add, draft)

    def measure(self, step: int) -> None:
        """Measure I(X;Z) and H(Z|X) of the episodes so far, where that is due.

        Call it before the update, at the weights that sampled.

        Args:
            step: the one that `step` ends next.
        """
        if self._scoring is not None and self._is_own_process:
            self._scoring.measure(step)

    def step(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """End a step: its episodes and numbers are written, and commands are obeyed.

        `record` and then `obey`.

        Args:
            step: counts up from 1 (0: an evaluation before training).
            metrics: numbers under any names. Those of verl, TRL, RAGEN and prime-rl are
                understood; `docs/names.md` has the list. A
                reward is a return, whatever its range. What a metric is, is decided by the first
                20 steps that have it, and stays so: `meanings` says it where a name does not.

        Raises:
            ValueError: the step is no whole number or does not come after the last one, `metrics`
                is no mapping, or the recorder is closed.
        """
        self.record(step, metrics)
        self.obey(step)

    def record(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Write a step's episodes and numbers; arguments and errors as of `step`."""
        self._require_open()
        number, values = _step_number(step), {} if metrics is None else metrics
        if self._last_step is not None and number <= self._last_step:
            raise ValueError(f"step is {number}, but must come after step {self._last_step}")
        if not isinstance(values, Mapping):
            raise ValueError(f"metrics is {shown(metrics)}, but must be a dict of numbers")
        self._last_step, self._num_open = number, 0
        if not self._is_own_process:
            self._drop(_FORKED.format(os.getpid()))
            return
        measured = None if self._scoring is None else self._scoring.take()
        end = StepEnd(number, numbers_of(values), time.time(), measured)
        self._steps.put(self._steps.commit, end)

    def obey(self, step: int, *, on_pause: Callable[[], None] | None = None) -> None:
        """Obey commands between two steps.

        Returns at once, but for a pause that somebody asked for, which lasts until `resume` or
        `stop`.

        Args:
            step: the last that has trained.
            on_pause: called again and again while a pause lasts.
        """
        if not self._is_own_process:
            return
        while True:
            self._answer(step + 1)
            if not self._orders.is_paused or not self._steps.is_alive():
                return
            if on_pause is not None:
                on_pause()
            time.sleep(_PAUSE_S)

    def _answer(self, step: int) -> None:
        """Apply the commands that wait; those that must wait for a later step go on waiting."""
        waiting = self._steps.commands
        commands = [waiting.popleft() for _ in range(len(waiting))]
        acks = [self._orders.apply(command, step) for command in commands]
        answered = [command for command, ack in zip(commands, acks, strict=True) if ack]
        waiting.extendleft(command for command in reversed(commands) if command not in answered)
        if answered:
            settings = SettingsRecord(step=step, values=values_of(self._orders.live))
            self._steps.put(self._steps.answer, [ack for ack in acks if ack], answered, settings)

    @property
    def _is_own_process(self) -> bool:
        """A forked process has the recorder without its thread: nothing can be written there."""
        return os.getpid() == self._process

    def _drop(self, why: str) -> None:
        self._num_dropped += 1
        self._steps.trouble(why)

    def _require_open(self) -> None:
        if self._status:
            raise ValueError("the recorder is closed")

    def flush(self, timeout_s: float = _CLOSE_S) -> bool:
        """Wait until everything recorded so far is on the disk; whether it is."""
        if not self._is_own_process:
            return False
        is_done = threading.Event()
        self._steps.put(self._steps.flush)
        self._steps.put(is_done.set)
        return is_done.wait(timeout_s) and not self.problem

    def close(self, status: str = "") -> None:
        """Write what is left, and let the run go. Never raises for what the disk does.

        Args:
            status: finished, stopped, failed or interrupted; "": stopped where somebody asked for
                the end, else finished.
        """
        if self._status:
            return
        self._status = status or ("stopped" if self.should_stop else "finished")
        if self._status not in STATUSES:
            wrong, self._status = self._status, ""
            raise ValueError(f"status is {wrong!r}, but must be one of {', '.join(STATUSES)}")
        atexit.unregister(self._end_with_process)
        if not self._is_own_process:
            return
        self._steps.put(self._steps.close, self._status)
        if not self._steps.end(_CLOSE_S):
            self._steps.trouble(f"not everything was written within {_CLOSE_S:.0f} s")

    def _end_with_process(self) -> None:
        """The process ends and nobody called `close`: what is left is written all the same."""
        if not self._is_own_process:
            return
        error = getattr(sys, "last_value", None)
        is_whole = self._total_steps is not None and self._last_step == self._total_steps
        if is_whole or self.should_stop:
            self.close()
        else:
            is_failed = error is not None and not isinstance(error, KeyboardInterrupt)
            self.close("failed" if is_failed else "interrupted")

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Recorder cannot be sent to another process; make and call it in the process that "
            "trains, such as rank 0"
        )

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close("" if kind is None else "interrupted" if interrupted else "failed")


def _argument(model: type[M], name: str, value: Any) -> M:
    """Settings that the caller gave as a dict, or the defaults for None.

    Raises:
        SettingError: names the first wrong key as the caller wrote it.
    """
    return checked(model, {} if value is None else value, (name,))


def _meanings(given: Any) -> dict[str, Meaning]:
    """What the caller said that metrics are.

    Raises:
        SettingError: no mapping, or a key that no rule reads.
    """
    if given is not None and not isinstance(given, Mapping):
        example = "{'score': 'rollout/success_rate'}"
        raise SettingError(f"meanings is {shown(given)}, but must be a dict such as {example}")
    entries = [f"{name}={key}" for name, key in (given or {}).items()]
    try:
        return parse_map(entries, known_keys(), "meanings")
    except MetricNameError as error:
        raise SettingError(str(error)) from None


def _step_number(step: Any) -> int:
    """The step as an int of Python: trainers count with NumPy's and torch's as well."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"step is {shown(step)}, but must be a whole number, 0 or more")
    return number


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values: Python's, NumPy's, and tensors of one element.

    >>> numbers_of({"loss": 0.5, "note": "text", "flag": True})
    {'loss': 0.5, 'flag': 1.0}
    """
    out: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, int | float) or hasattr(value, "item"):
            # A tensor of more than one element is no number.
            with suppress(TypeError, ValueError, OverflowError, RuntimeError):
                out[str(key)] = float(value.item() if hasattr(value, "item") else value)
    return out
