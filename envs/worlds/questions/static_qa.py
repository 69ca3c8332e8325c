"""StaticQa: questions with numbers or choices for answers, made or of a file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...base import EnvSpec
from ...params import require, require_within
from ..rows import Row, read_items
from .answers import chosen, has_number, stated_number
from .made_problems import ALL_KINDS, Kind, check_kinds
from .question_env import Question, QuestionEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticQaConfig:
    """Source of `static_qa`.

    `data`: a file (JSON lines, a JSON list or Parquet); null draws made word problems. `format`:
    what its rows are: `gsm8k` has `question` and `answer`, whose text after "####" is a number;
    `mmlu` has `question`, `choices` and `answer`, the place of the right choice. `attempts`:
    answers in an episode. `kinds`: which made word problems are drawn.
    """

    data: str | None = None
    format: Literal["gsm8k", "mmlu"] = "gsm8k"
    attempts: int = 1
    kinds: tuple[Kind, ...] = ALL_KINDS

    def __post_init__(self) -> None:
        require_within(self, attempts=(1, math.inf))
        require(
            self.data is not None or self.format == "gsm8k",
            f"format is {self.format!r}, which needs data: made questions have numbers for answers",
        )
        check_kinds(self.kinds, self.data)


class StaticQa(QuestionEnv):
    """A question with a number or a letter for an answer.

    Description:
        Word problems of one or two steps are drawn from sentences of our own; a file in the shape
        of GSM8K or MMLU gives its own questions.
    Observation:
        The question, choices one a line; after a wrong answer "Wrong. Try again." or the right one.
    Actions:
        The number: the last one of the text counts. With choices, the letter, the choice itself or
        both. A box, or "The answer is", "Answer:" or "####", says where the answer stands: then
        only what is in the last box counts, or what stands behind the last of these marks.
    Rewards:
        1 for the right answer at the first attempt, half as much at every further one, else 0.
    Episode end:
        The right answer, or no attempt is left. A text without a number, or that names no choice,
        costs no attempt.
    Success:
        The answer was right.
    Seeds:
        `seed` draws the question; `noise_seed` is not used.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> world = StaticQa()
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> world.step(world.solve()[0]).reward
        1.0
    """

    spec = EnvSpec(
        id="static_qa",
        config_type=StaticQaConfig,
        max_turns=3,
        description="Answer a question with a number or a choice.",
    )

    def __init__(self, config: StaticQaConfig | None = None) -> None:
        config = StaticQaConfig() if config is None else config
        questions = None if config.data is None else read_questions(config.data, config.format)
        super().__init__(config, questions)

    def score(self, action: str) -> float | None:
        question = self._question
        if question.choices:
            choice = chosen(action, question.choices)
            return None if choice is None else float(choice == ord(question.answer) - ord("A"))
        if not has_number(action):
            return None
        number = stated_number(action)
        return float(number is not None and number == stated_number(question.answer))

    def instructions(self) -> str:
        if self._config.format == "mmlu":
            return "Answer the question. Action: the letter of the right choice."
        return "Answer the question. Action: the number alone."

    def guesses(self) -> tuple[str, ...]:
        letters = tuple(chr(ord("A") + i) for i in range(len(self._question.choices)))
        return letters or ("10", "24", "50")


def read_questions(path: str, form: str) -> tuple[Question, ...]:
    """The questions of a file; rows that are none are left out.

    Raises:
        EnvUnavailableError: the file cannot be read, or has no row of this format.
    """
    what = f"question of the format {form}"
    if form == "mmlu":
        return read_items(path, ("question", "answer", "choices"), _mmlu, what)
    return read_items(path, ("question", "answer"), _gsm8k, what)


def _gsm8k(row: Row) -> Question | None:
    text, answer = row["question"], str(row["answer"]).rpartition("####")[2].strip()
    if not isinstance(text, str) or not text.strip() or stated_number(answer) is None:
        return None
    return Question(text=text, answer=answer)


def _mmlu(row: Row) -> Question | None:
    text, choices, answer = row["question"], row["choices"], row["answer"]
    if not isinstance(text, str) or not isinstance(choices, list) or not 2 <= len(choices) <= 26:
        return None
    if isinstance(answer, str) and len(answer) == 1 and answer.isalpha():
        answer = ord(answer.upper()) - ord("A")
    if type(answer) is not int or not 0 <= answer < len(choices):
        return None
    return Question(text=text, answer=chr(ord("A") + answer), choices=tuple(map(str, choices)))
