"""MetaMathQa: mathematical questions, some attempts, answers compared as mathematics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...base import EnvSpec
from ...params import require_within
from ..rows import Row, read_items
from .answers import is_contradiction, number, plain, stated
from .made_problems import ALL_KINDS, Kind, check_kinds
from .math_worker import are_equal
from .question_env import Question, QuestionEnv

_MARKS = ("The answer is:", "####")
_MAX_ANSWER_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaMathQaConfig:
    """Source of `metamathqa`.

    `data`: a file (JSON lines, a JSON list or Parquet) with `query` and `response`, as MetaMathQA
    has them, or `question` and `answer`, as GSM8K does; null draws made word problems. The answer
    stands behind "The answer is:" or "####". `attempts`: answers in an episode. `equality`: `math`
    takes every form of the right value (1/2 for 0.5), `text` the same characters or number only.
    `kinds`: which made word problems are drawn.
    """

    data: str | None = None
    attempts: int = 3
    equality: Literal["math", "text"] = "math"
    kinds: tuple[Kind, ...] = ALL_KINDS

    def __post_init__(self) -> None:
        require_within(self, attempts=(1, math.inf))
        check_kinds(self.kinds, self.data)


class MetaMathQa(QuestionEnv):
    r"""A mathematical question, answered in some attempts.

    Description:
        Word problems of one or two steps are drawn from sentences of our own; a file in the shape
        of MetaMathQA or GSM8K gives its own questions.
    Observation:
        The question; after a wrong answer "Wrong. Try again." or the right one.
    Actions:
        The answer alone: a number or an expression. A sentence around it is read as well: the last
        box counts, else what stands behind the last "The answer is", "Answer:" or "####", else the
        whole reply without words such as "So" before it. Of an equation the last side counts.
    Rewards:
        1 for the right answer at the first attempt, half as much at every further one, else 0.
    Episode end:
        The right answer, or no attempt is left.
    Success:
        The answer was right.
    Seeds:
        `seed` draws the question; `noise_seed` is not used.
    Requires:
        math-verify (`pip install -e '.[math]'`). It runs in processes of its own. An answer that
        takes it longer than a second of a core is wrong.
    Example:
        >>> world = MetaMathQa(MetaMathQaConfig(equality="text"))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> world.step("-1").reward, world.step(rf"$\boxed{{{world.solve()[0]}}}$.").reward
        (0.0, 0.5)
    """

    spec = EnvSpec(
        id="metamathqa",
        config_type=MetaMathQaConfig,
        max_turns=3,
        description="Answer a mathematical question in some attempts.",
        requires=("math-verify",),
        extra="math",
    )

    def __init__(self, config: MetaMathQaConfig | None = None) -> None:
        config = MetaMathQaConfig() if config is None else config
        super().__init__(config, None if config.data is None else read_questions(config.data))

    def score(self, action: str) -> float | None:
        if len(action.strip()) > _MAX_ANSWER_CHARS:
            return None
        given, right_answer = stated(action), stated(self._question.answer)
        if plain(given) == plain(right_answer):
            return 1.0
        if is_contradiction(given):
            return 0.0
        last_side = given if "=" in right_answer else given.rpartition("=")[2]
        numbers = number(last_side), number(right_answer)
        if None not in numbers:
            return float(numbers[0] == numbers[1])
        return float(self._config.equality == "math" and are_equal(given, right_answer))

    def instructions(self) -> str:
        attempts = self._config.attempts
        tries = "one attempt" if attempts == 1 else f"{attempts} attempts"
        return f"Answer the question. You have {tries}. Action: the answer alone."

    def guesses(self) -> tuple[str, ...]:
        return ("10", "24", "50")


def read_questions(path: str) -> tuple[Question, ...]:
    """The questions of a file; rows without a marked answer are left out.

    Raises:
        EnvUnavailableError: the file cannot be read, or no row has a question with an answer.
    """
    what = (
        "row with query and response, or question and answer, whose answer stands behind "
        f"{' or '.join(map(repr, _MARKS))}"
    )
    return read_items(path, (), _question_of, what)


def _question_of(row: Row) -> Question | None:
    for asked, answered in (("query", "response"), ("question", "answer")):
        text, solution = row.get(asked), row.get(answered)
        if not isinstance(text, str) or not isinstance(solution, str) or not text.strip():
            continue
        for mark in _MARKS:
            answer = solution.rpartition(mark)[2].strip() if mark in solution else ""
            if answer and len(answer) <= _MAX_ANSWER_CHARS:
                return Question(text=text, answer=answer)
    return None
