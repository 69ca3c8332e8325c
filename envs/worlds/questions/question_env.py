"""Answer a question, some attempts: what `static_qa`, `metamathqa` and `reasoning_gym` share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base import hash_task
from ..task_env import AttemptEnv, one_of
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
        text = self.text.strip()
        if len(text) > MAX_SHOWN_CHARS:
            text = f"{text[:MAX_SHOWN_CHARS]} (cut)"
        listed = [f"{chr(ord('A') + i)}. {choice}" for i, choice in enumerate(self.choices)]
        return "\n".join([text, *listed])


class QuestionEnv(AttemptEnv[Any]):
    """One question an episode. Right at the k-th attempt earns 2 to the power of 1 - k."""

    title = "Question"

    def __init__(self, config: Any, questions: tuple[Question, ...] | None) -> None:
        super().__init__(config)
        self._questions = questions
        self._question = Question(text="-", answer="-")

    @abstractmethod
    def score(self, action: str) -> float | None:
        """1 for the right answer, less for another one; None for a text that is none."""

    def draw(self, rng: np.random.Generator) -> Question:
        if self._questions is None:
            text, number = draw_problem(rng, self._config.kinds)
            return Question(text=text, answer=str(number))
        return one_of(rng, self._questions)

    def begin(self, seed: int, noise_seed: int) -> None:
        self._question = self.draw(np.random.default_rng(seed))
        self.pose(self._question.shown, self._question.answer)

    def judge(self, action: str) -> tuple[float, bool, str] | None:
        score = self.score(action) if action.strip() else None
        if score is None:
            return None
        answer = self._question.answer
        if score >= 1:
            news = "Right."
        elif self._num_attempts + 1 < self._config.attempts:
            news = "Wrong. Try again."
        else:
            news = f"Wrong. The answer is {answer}." if answer else "Wrong."
        return score * 0.5**self._num_attempts, score >= 1, news

    def task_key(self) -> str:
        return hash_task(self.spec.id, self._asked, self._solution)

    @property
    def num_tasks(self) -> int | None:
        """The different questions of the file; unknown for made ones."""
        return None if self._questions is None else len(set(self._questions))

    def info(self) -> dict[str, float]:
        return {"attempts": float(self._num_attempts)}
