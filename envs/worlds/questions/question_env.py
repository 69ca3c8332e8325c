"""Answer a question, some attempts: what `static_qa` and `metamathqa` share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base import Observation, StepResult, hash_task
from ...frames import card_frame
from ..task_env import TaskEnv
from .made_problems import draw_problem

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


class QuestionEnv(TaskEnv):
    """One question an episode. Right at the k-th attempt earns 2 to the power of 1 - k."""

    def __init__(self, config: Any, questions: tuple[Question, ...] | None) -> None:
        super().__init__(config)
        self._questions = questions
        self._question = Question(text="-", answer="-")
        self._num_attempts = 0
        self._is_answered = False

    @abstractmethod
    def is_answer(self, action: str) -> bool:
        """Whether a text is an answer to this kind of question at all."""

    @abstractmethod
    def is_right(self, action: str, question: Question) -> bool:
        """Whether it is the right one."""

    def begin(self, seed: int, noise_seed: int) -> None:
        rng = np.random.default_rng(seed)
        if self._questions is None:
            text, number = draw_problem(rng, self._config.kinds)
            self._question = Question(text=text, answer=str(number))
        else:
            self._question = self._questions[int(rng.integers(len(self._questions)))]
        self._num_attempts, self._is_answered = 0, False

    def step(self, action: str) -> StepResult:
        if self.is_over or not action.strip() or not self.is_answer(action):
            return self.refused(action)
        self._is_answered = self.is_right(action, self._question)
        reward = 0.5**self._num_attempts if self.is_solved else 0.0
        self._num_attempts += 1
        if self.is_solved:
            news = "Right."
        elif self.is_over:
            news = f"Wrong. The answer is {self._question.answer}."
        else:
            news = "Wrong. Try again."
        return self.result(reward, self.observe(news))

    def solve(self) -> list[str] | None:
        """The right answer; None once no attempt is left."""
        if self.is_solved:
            return []
        return None if self.is_over else [self._question.answer]

    def task_key(self) -> str:
        """The question as it is shown, with its answer."""
        return hash_task(self.spec.id, self._question.shown, self._question.answer)

    @property
    def num_tasks(self) -> int | None:
        """The different questions of the file; unknown for made ones."""
        return None if self._questions is None else len(set(self._questions))

    @property
    def is_over(self) -> bool:
        return self._is_answered or self._num_attempts >= self._config.attempts

    @property
    def is_solved(self) -> bool:
        return self._is_answered

    def info(self) -> dict[str, float]:
        return {"attempts": float(self._num_attempts)}

    def observe(self, news: str = "") -> Observation:
        """The question, or what an attempt gave."""
        question_text = self._question.shown
        lines = [*question_text.splitlines(), *([news] if news else [])]
        return Observation(text=news or question_text, frame=card_frame("Question", lines))
