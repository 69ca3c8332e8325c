"""What counts as the right answer, per kind of question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from ..tools.calculator import read_number

_NUMBER = re.compile(r"(?:(?<!\w)-)?\d[\d,]*(?:\.\d+)?(?:/\d+)?", re.ASCII)
_BOXED = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)
_CHOICE = re.compile(r"\(?([a-z])\)?[.:]?", re.IGNORECASE)
_MAX_CHARS = 4_000


def last_number(text: str) -> Fraction | None:
    """The last number of a text, thousands commas allowed; None where there is none.

    >>> last_number("They have 1,200 - 3 = 1,197.")
    Fraction(1197, 1)
    """
    numbers = _NUMBER.findall(text[-_MAX_CHARS:])
    if not numbers:
        return None
    above, _, below = numbers[-1].replace(",", "").partition("/")
    value, divisor = read_number(above), read_number(below) if below else Fraction(1)
    return None if value is None or not divisor else value / divisor


def plain(text: str) -> str:
    """A text for comparison: no case, blanks, dollar signs, box or final full stop.

    >>> plain(r" $\\boxed{X + 1}$. ")
    'x+1'
    """
    short = text[:_MAX_CHARS].strip().rstrip(".")
    boxed = _BOXED.search(short)
    content = boxed[1] if boxed else short
    return "".join(content.replace("$", "").split()).casefold()


def chosen(text: str, choices: Sequence[str]) -> int | None:
    """Which choice a text names, by letter or in its words; None for none of them.

    >>> chosen("(b)", ["yes", "no"]), chosen("Yes.", ["yes", "no"]), chosen("c", ["yes", "no"])
    (1, 0, None)
    """
    letter = _CHOICE.fullmatch(text.strip())
    if letter is not None:
        number = ord(letter[1].casefold()) - ord("a")
        return number if number < len(choices) else None
    same = [i for i, choice in enumerate(choices) if plain(choice) == plain(text)]
    return same[0] if len(same) == 1 else None
