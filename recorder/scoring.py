"""I(X;Z) and H(Z|X) inside another trainer's loop, with its model, within a budget of seconds.

Runs in the caller's thread, because the weights may be used there and nowhere else. What is
measured, and how, is that of Echoscope's own runs (`Monitor.information`).

The budget is a share of the time since the recorder was made. The first step is always measured:
later ones are compared with it. After that a step is measured where `information.every` steps have
passed and the time spent so far, with another measurement as long as the last one, stays within the
share. Sizes never change with the budget, because estimates of different sizes cannot be compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from echoscope.diagnostics.config import DiagnosticsConfig, FrozenModel, InformationConfig
from echoscope.diagnostics.measure.draws import SCORED_EPISODES, generator
from echoscope.diagnostics.measure.information.cross_scores import (
    Scorer,
    ScoringError,
    Tally,
)
from echoscope.diagnostics.measure.information.pairs import TURN_PROMPTS
from echoscope.diagnostics.monitor import Instruments, Monitor, StepMeasurements
from echoscope.diagnostics.tools.setting_errors import SettingError
from echoscope.store.importers.dialogue import reply_text
from echoscope.store.importers.draft import Draft, RowError, parts_of
from echoscope.store.importers.steps.episodes import StepEpisodes
from echoscope.store.models import Detokenizer, token_span
from echoscope.store.records import (
    FinishReason,
    FloatArray,
    IntArray,
    RolloutBatch,
    Trajectory,
    Turn,
)
from echoscope.text.sentences import in_one_line

from .episodes import GivenEpisode, take


class ScoringConfig(FrozenModel):
    """How the policy of a recorded run is measured."""

    budget_frac: float = Field(
        0.05, gt=0, le=1, description="Share of the time since the start that measuring may take."
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Of the sampling.")
    template_args: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of the chat template."
    )
    information: InformationConfig = Field(
        default_factory=InformationConfig, description="As `diagnostics.information`."
    )


class Scoring:
    """Measures the steps of a run under the policy that trains. Only the caller's thread calls it.

    Args:
        policy: a causal language model of transformers; or a `Scorer`; or a function as its
            `score`.
        tokenizer: a fast tokenizer of transformers.
        say: told of what could not be measured.

    Raises:
        SettingError: no tokenizer, or a policy that cannot score.
    """

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        config: ScoringConfig,
        *,
        run_id: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            given = "no tokenizer" if tokenizer is None else f"a {type(tokenizer).__name__}"
            raise SettingError(
                f"policy needs tokenizer=, a fast tokenizer of transformers, but got {given}"
            )
        self._scorer, self._undisturbed = _lent(policy, config)
        self._tokenizer, self._config, self._say, self._clock = tokenizer, config, say, clock
        self._detokenizer = Detokenizer(backend)
        self._monitor = Monitor(DiagnosticsConfig(), run_id=run_id, on_message=say)
        self._waiting: list[GivenEpisode | Draft] = []
        self._started = clock()
        self._spent_s = self._last_s = 0.0
        self._last_step: int | None = None
        self._measured: StepMeasurements | None = None
        self._said: set[str] = set()

    def add(self, episode: GivenEpisode | Draft) -> None:
        """An episode of the step that is not over. Nothing is read yet."""
        self._waiting.append(episode)

    def measure(self, step: int) -> None:
        """Measure the episodes so far, where that is due. Never raises for what it meets."""
        if self._measured is not None or not self._waiting or not self._is_due(step):
            return
        began = self._clock()
        self._last_step = step
        try:
            measured = self._measure(step)
        except Exception as error:  # noqa: BLE001 - the training goes on, and it is said
            reason = in_one_line(error)
            self._say_once(reason, f"recorder: step {step}: I(X;Z) was not measured: {reason}")
            measured = StepMeasurements()
        self._last_s = self._clock() - began
        self._spent_s += self._last_s
        measured.values["time/diagnostics_information_s"] = self._last_s
        self._measured = measured

    def take(self) -> StepMeasurements | None:
        """End the step: what was measured of it; None if nothing was."""
        if self._waiting and self._last_step is None:
            self._say_once(
                "call",
                "recorder: the policy was not measured: call Recorder.measure(step) before the "
                "update, while the weights are those that sampled",
            )
        measured, self._measured = self._measured, None
        self._waiting = []
        return measured

    def _is_due(self, step: int) -> bool:
        every = self._config.information.every
        if every == 0:
            return False
        if self._last_step is None:
            return True
        allowed = self._config.budget_frac * (self._clock() - self._started)
        return step - self._last_step >= every and self._spent_s + self._last_s <= allowed

    def _measure(self, step: int) -> StepMeasurements:
        trajectories = self._with_tokens(self._chosen(step))
        if not trajectories:
            return StepMeasurements()
        config = DiagnosticsConfig(information=self._config.information)
        instruments = Instruments(
            scorer=self._scorer,
            decode=lambda tokens: self._detokenizer.decode(tokens)[0],
        )
        with self._undisturbed():
            return self._monitor.information(
                step, RolloutBatch(groups=(tuple(trajectories),)), config, instruments
            )

    def _chosen(self, step: int) -> list[tuple[Trajectory, GivenEpisode | Draft]]:
        """Whole groups, drawn at random where there are more than can be compared."""
        content = StepEpisodes(step)
        episodes: dict[str, GivenEpisode | Draft] = {}
        for episode in self._waiting:
            size = len(content.trajectories)
            take(content, episode)
            if len(content.trajectories) > size:
                episodes[content.trajectories[-1].id] = episode
        groups = content.batch().groups
        config = self._config.information
        siblings = min(config.reasonings, max((len(group) for group in groups), default=1))
        num_groups = max(config.prompts, math.ceil(TURN_PROMPTS / siblings))
        rng = generator(step, SCORED_EPISODES)
        places = sorted(rng.permutation(len(groups))[:num_groups].tolist())
        return [
            (t, episodes[t.id]) for group_index in places for t in groups[group_index][:siblings]
        ]

    def _with_tokens(
        self, chosen: Sequence[tuple[Trajectory, GivenEpisode | Draft]]
    ) -> list[Trajectory]:
        """Trajectories whose turns have tokens, and say where the reasoning stands in them."""
        has_tags = any(
            t.reasoning_chars is not None for trajectory, _ in chosen for t in trajectory.turns
        )
        if chosen and not has_tags:
            self._say_once(
                "tags", "recorder: no reply has <think>: the whole reply is measured as Z"
            )
        out = []
        for trajectory, episode in chosen:
            try:
                turns = [self._turn(turn, has_tags) for turn in self._tokens(trajectory, episode)]
            except (RowError, ValueError, TypeError) as error:
                reason = " ".join(str(error).split())[:300]
                self._say_once(reason, f"recorder: an episode was not measured: {reason}")
                continue
            out.append(replace(trajectory, turns=tuple(turns)))
        return out

    def _tokens(self, trajectory: Trajectory, episode: GivenEpisode | Draft) -> Sequence[Turn]:
        """The turns with prompt and reply in tokens: those that were sampled, or made of the text.

        Raises:
            RowError: there are none, and the text has pictures or is not in messages.
        """
        if all(turn.response_tokens is not None for turn in trajectory.turns):
            return trajectory.turns
        if isinstance(episode, Draft):
            raise RowError("its turns cannot be told apart in its tokens")
        messages = episode.messages
        replies = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
        return [
            replace(
                turn,
                prompt_tokens=self._prompt(messages[:place]),
                response_tokens=self._ids(reply_text(messages[place])),
            )
            for turn, place in zip(trajectory.turns, replies, strict=True)
        ]

    def _prompt(self, messages: Sequence[Mapping[str, Any]]) -> IntArray:
        pictures = [m for m in messages if isinstance(m.get("content"), list)]
        if any(not isinstance(part.get("text"), str) for m in pictures for part in m["content"]):
            raise RowError("its messages have pictures; give tokens= to episode")
        text = self._tokenizer.apply_chat_template(
            list(messages),
            add_generation_prompt=True,
            tokenize=False,
            **self._config.template_args,
        )
        return self._ids(text)

    def _ids(self, text: str) -> IntArray:
        return np.asarray(self._tokenizer(text, add_special_tokens=False).input_ids, np.int32)

    def _turn(self, turn: Turn, has_tags: bool) -> Turn:
        """The turn as its tokens say it. A reply is read as Echoscope's own policies are."""
        ids = turn.response_tokens
        assert ids is not None
        is_ended = len(ids) > 0 and int(ids[-1]) == self._tokenizer.eos_token_id
        text, ends = self._detokenizer.decode(ids[:-1] if is_ended else ids)
        reasoning, answer = parts_of(text)
        chars = reasoning if has_tags else (0, len(text))
        return replace(
            turn,
            response=text,
            reasoning_chars=chars,
            answer_chars=answer,
            reasoning_span=token_span(chars, ends),
            entropies=None,
            support=None,
            finish_reason=FinishReason.STOP
            if turn.finish_reason is FinishReason.UNKNOWN
            else turn.finish_reason,
        )

    def _say_once(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            self._say(text)


Lent = tuple[Callable[[], Scorer], Callable[[], AbstractContextManager[None]]]
"""What scores under a policy, and within what it is left undisturbed meanwhile."""


def _lent(policy: Any, config: ScoringConfig) -> Lent:
    """Raises SettingError for what cannot score."""
    if hasattr(policy, "parameters") and hasattr(policy, "forward"):
        # Torch is loaded by now: who has a model has it.
        from echoscope.diagnostics.measure.information.scoring import (
            ModelScorer,
            undisturbed,
            unwrapped,
        )

        try:
            model = unwrapped(policy)
        except ScoringError as error:
            raise SettingError(str(error)) from None
        if not hasattr(model, "config"):
            raise _wrong_policy(model)
        return (
            lambda: ModelScorer(model, temperature=config.temperature),
            lambda: undisturbed(model),
        )
    if hasattr(policy, "score") and hasattr(policy, "tally"):
        return lambda: policy, nullcontext
    if callable(policy):
        function = _FunctionScorer(policy)
        return lambda: function, nullcontext
    raise _wrong_policy(policy)


def _wrong_policy(policy: Any) -> SettingError:
    return SettingError(
        f"policy is a {type(policy).__name__}, but must be a causal language model of "
        "transformers, or a function that scores"
    )


class _FunctionScorer:
    """A function `(prompts, continuations) -> log-probs` as a `Scorer`."""

    def __init__(
        self,
        score: Callable[
            [Sequence[IntArray], Sequence[Sequence[IntArray]]], Sequence[Sequence[Any]]
        ],
    ) -> None:
        self.tally = Tally()
        self._score = score

    def score(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[FloatArray]]:
        for prompt, rows in zip(prompts, continuations, strict=True):
            self.tally.num_tokens += len(prompt) + sum(map(len, rows))
        scores = self._score(prompts, continuations)
        return [[np.asarray(row, dtype=np.float32) for row in rows] for rows in scores]
