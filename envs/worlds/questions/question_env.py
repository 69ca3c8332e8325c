"""Answer a question, some attempts: what `static_qa` and `metamathqa` share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base import Observation, StepResult, TextEnv, check_seed, hash_task, prefixed
from ...frames import card_frame

MAX_SHOWN_CHARS = 8_000
"""Of a question: what no policy could read is cut, and says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with its right answer; `choices` in the order of their letters."""

    text: str
    answer: str
    choices: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The question as it is asked."""
        text = self.text.strip()
        if len(text) > MAX_SHOWN_CHARS:
            text = f"{text[:MAX_SHOWN_CHARS]} (cut)"
        listed = [f"{chr(ord('A') + i)}. {choice}" for i, choice in enumerate(self.choices)]
        return "\n".join([text, *listed])


class QuestionEnv(TextEnv):
    """One question an episode. Right at the k-th attempt earns 2 to the power of 1 - k."""

    def __init__(self, config: Any, questions: tuple[Question, ...] | None) -> None:
        super().__init__(config)
        self._questions = questions
        self._max_attempts: int = config.attempts
        self._question = Question(text="-", answer="-")
        self._num_attempts = 0
        self._is_solved = False

    @abstractmethod
    def drawn(self, rng: np.random.Generator) -> Question:
        """A made question, where there is no file."""

    @abstractmethod
    def is_answer(self, action: str) -> bool:
        """Whether a text is an answer to this kind of question at all."""

    @abstractmethod
    def is_right(self, action: str, question: Question) -> bool:
        """Whether it is the right one."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        check_seed("noise_seed", noise_seed)
        rng = np.random.default_rng(check_seed("seed", seed))
        if self._questions is None:
            self._question = self.drawn(rng)
        else:
            self._question = self._questions[int(rng.integers(len(self._questions)))]
        self._num_attempts, self._is_solved = 0, False
        return self._observe(self._question.shown)

    def step(self, action: str) -> StepResult:
        if self._is_over or not action.strip() or not self.is_answer(action):
            observation = prefixed(self.invalid_notice(action), self._observe(self._question.shown))
            return self._result(observation, 0.0, is_valid=False)
        self._is_solved = self.is_right(action, self._question)
        reward = 0.5**self._num_attempts if self._is_solved else 0.0
        self._num_attempts += 1
        if self._is_solved:
            news = "Right."
        elif self._is_over:
            news = f"Wrong. The answer is {self._question.answer}."
        else:
            news = "Wrong. Try again."
        return self._result(self._observe(news), reward, is_valid=True)

    def solve(self) -> list[str] | None:
        """The right answer; None once no attempt is left."""
        if self._is_solved:
            return []
        return None if self._is_over else [self._question.answer]

    def task_key(self) -> str:
        """The question as it is shown, with its answer."""
        return hash_task(self.spec.id, self._question.shown, self._question.answer)

    @property
    def num_tasks(self) -> int | None:
        """The different questions of the file; unknown for made ones."""
        return None if self._questions is None else len(set(self._questions))

    @property
    def _is_over(self) -> bool:
        return self._is_solved or self._num_attempts >= self._max_attempts

    def _result(self, observation: Observation, reward: float, *, is_valid: bool) -> StepResult:
        return StepResult(
            observation=observation,
            reward=reward,
            terminated=self._is_over,
            success=self._is_solved,
            is_valid=is_valid,
            is_effective=is_valid,
            info={"attempts": float(self._num_attempts)},
        )

    def _observe(self, text: str) -> Observation:
        lines = self._question.shown.splitlines()
        if text != self._question.shown:
            lines.append(text)
        return Observation(text=text, frame=card_frame("Question", lines))
