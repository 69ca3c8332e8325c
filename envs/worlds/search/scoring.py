"""Exact match and F1 of an answer, normalised as SQuAD and HotpotQA do.

Source: the evaluation scripts of SQuAD 1.1 (Rajpurkar et al., 2016) and HotpotQA (Yang et al.,
2018).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

MAX_ANSWER_CHARS = 500
"""Of an answer: no longer one is compared."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = frozenset({"yes", "no", "noanswer"})
"""Answers that HotpotQA compares as a whole."""


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """How well an answer fits the best of the right ones: `f1` lies between 0 and 1."""

    is_exact: bool
    f1: float


def normalised(text: str) -> str:
    """A text without case, ASCII punctuation, English articles and spare blanks.

    >>> normalised("The  U.S. dollar!")
    'us dollar'
    """
    plain = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def f1(given: str, right: str) -> float:
    """Harmonic mean of the shares of words that two texts have in common, 0 to 1.

    >>> f1("in the city of Paris", "Paris")
    0.4
    """
    given_text, other = normalised(given), normalised(right)
    if given_text != other and _VERDICTS & {given_text, other}:
        return 0.0
    given_words, right_words = given_text.split(), other.split()
    num_common = (Counter(given_words) & Counter(right_words)).total()
    # 2PR / (P + R) with P = common / words, R = common / wanted; without the two roundings.
    return 2 * num_common / (len(given_words) + len(right_words)) if num_common else 0.0


def judge(given: str, answers: Iterable[str]) -> AnswerScore:
    """The judgement of an answer by the right one that it fits best.

    A text of more than `MAX_ANSWER_CHARS` characters fits none.
    """
    if len(given) > MAX_ANSWER_CHARS:
        return AnswerScore(False, 0.0)
    rights = tuple(answers)
    return AnswerScore(
        is_exact=any(normalised(given) == normalised(right) for right in rights),
        f1=max((f1(given, right) for right in rights), default=0.0),
    )
