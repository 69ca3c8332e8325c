"""What a reply states as its answer, which number that is, and which choice.

A reply is read in two steps, the same for every kind of question:

1. `stated`: the text that the reply gives as its answer. That is the content of the last
   `\\boxed{}`; else what stands behind the last mark ("The answer is", "Answer:", "####"), up to
   the end of its sentence; else the whole reply. Dollar signs, bold type, quotes, words such as
   "So" before it and a full stop behind it do not belong to it.
2. `number` and `chosen`: what that text is. A number is one number in any spelling; sums and
   products are none. Of an equation the last side counts, unless the sides contradict each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from ..tools.calculator import CalculationError, calculate

_MAX_CHARS = 4_000
"""Of a reply, from its end: what a policy says last is its answer."""
_MAX_EXPONENT = 300
_MAX_POWER_CHARS = 1_000

# --- what the reply states ------------------------------------------------------------------------

_BOX = "\\boxed"
_MARK = re.compile(
    r"####|\banswer\s*(?:(?:is|was|equals|(?:would|must|should)\s+be)\b\s*:?|:|=)", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_LEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence|then|it is|it's|that is|is)\b[,:]?|=)\s*", re.IGNORECASE
)
_PAIRS = (
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("*", "*"),
    ("_", "_"),
    ("`", "`"),
    ('"', '"'),
    ("'", "'"),
)
_BOLD = re.compile(r"(?<![\w)])\*\*(?=\S)|(?<=\S)\*\*(?!\w)")
_STYLED = re.compile(r"\\(?:text|textbf|textit|textrm|mathbf|mathrm|mbox)\s*\{([^{}]*)\}")
_SPELLINGS = (
    ("\u2212", "-"),
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("\\$", ""),
    ("\\%", "%"),
    ("\\,", ""),
    ("\\!", ""),
    ("\\;", " "),
    ("{,}", ","),
)


def stated(text: str) -> str:
    """What a reply states as its answer, at most 4,000 characters of it.

    >>> stated("6 times 7 is 42. **The answer is: 42.** I am sure."), stated("So $x + 1$.")
    ('42', 'x + 1')
    """
    line, is_marked = _stated_line(text)
    return _bare(_SENTENCE_END.split(line, maxsplit=1)[0]) if is_marked else line


def _stated_line(text: str) -> tuple[str, bool]:
    """The stated answer with all of its line, and whether a mark stood before it."""
    readable = _readable(text)
    box = readable.rfind(_BOX)
    content = _braced(readable, box + len(_BOX)) if box >= 0 else None
    if content is not None:
        return _bare(content), False
    marks = list(_MARK.finditer(readable))
    if not marks:
        return _bare(readable), False
    return _bare(readable[marks[-1].end() :].strip().partition("\n")[0]), True


def _readable(text: str) -> str:
    """The end of a reply, with one spelling for what means the same."""
    readable = text.strip()[-_MAX_CHARS:]
    for spelling, plainer in _SPELLINGS:
        readable = readable.replace(spelling, plainer)
    return _BOLD.sub("", _STYLED.sub(r"\1", readable))


def _braced(text: str, start: int) -> str | None:
    """The content of the braces that open at `start`; None where they do not open, or not close."""
    opening = text[start:].lstrip()
    if not opening.startswith("{"):
        return None
    depth = 0
    for offset, char in enumerate(opening):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return opening[1:offset]
    return None


def _bare(text: str) -> str:
    """A text without what only surrounds it."""
    before = None
    while before != text:
        before, text = text, text.strip().rstrip(".").rstrip()
        for opening, closing in _PAIRS:
            is_pair = text.startswith(opening) and text.endswith(closing)
            inner = text[len(opening) : -len(closing)]
            if is_pair and len(text) > len(opening + closing) and opening not in inner:
                text = inner
        text = text[lead.end() :] if (lead := _LEAD.match(text)) else text
    return text


def plain(text: str) -> str:
    r"""The stated answer for comparison: no case, dollar signs or blanks but between digits.

    >>> plain(r" $\boxed{X + 1}$. "), plain("3 1/2")
    ('x+1', '3 1/2')
    """
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", stated(text).replace("$", "")).casefold()


# --- which number it is ---------------------------------------------------------------------------

_RUN = r"(?:\d+(?:[.,]\d+)*|\.\d+)"
_NUMBER = re.compile(
    rf"""
    (?P<before>[\^_{{]\s*)?                     # inside something that is no number
    (?P<sign>(?<![\w)\]}}.])-)? \$?
    (?: (?:(?P<whole>\d+)\s*)? \\frac\s* (?: \{{(?P<above>{_RUN})\}}\s*\{{(?P<below>{_RUN})\}}
                                           | (?P<above1>\d)(?P<below1>\d) )
      | (?P<mixed>\d+)[ ]+(?P<part>\d+/\d+)
      | (?P<run>{_RUN}) (?:[eE](?P<e>[-+]?\d+)(?!\w))?
        (?: \s*/\s*(?P<divisor>{_RUN})
          | \s*(?:\^|\*\*)\s*(?:\{{\s*(?P<braced>-?\d+)\s*\}}|(?P<power>-?\d+))
          | \s*(?:\\times|\\cdot|\u00d7|[x*])\s*10\s*(?:\^|\*\*)\s*\{{?(?P<tens>-?\d+)\}}?
        )?
    )
    (?P<after>(?:\s*(?:\^|\*\*)|/\d|[.,]\d)[\d^*{{}}.,/-]*)?  # it goes on as what is no number
    """,
    re.VERBOSE | re.ASCII,
)
_PLAIN_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?", re.ASCII)
_LIST = re.compile(rf"-?{_RUN}(?:\s*[,;]\s*-?{_RUN})+", re.ASCII)


def number(text: str) -> Fraction | None:
    r"""The number that a whole text is, in any spelling; None for any other text.

    >>> [str(number(text)) for text in ("1,200", r"-\frac{1}{2}", "3 1/2", "5^2", "2e3", "1,2,3")]
    ['1200', '-1/2', '7/2', '25', '2000', 'None']
    """
    match = _NUMBER.fullmatch(text.strip().rstrip("%").rstrip())
    return None if match is None else _value(match)


def stated_number(text: str) -> Fraction | None:
    """The number that a reply states; None for none, and for one that contradicts itself.

    Behind a mark it is the first number after the last equals sign, else the last number of all.

    >>> stated_number("They have 1,200 - 3 = 1,197."), stated_number("5 = 7")
    (Fraction(1197, 1), None)
    """
    _, is_marked = _stated_line(text)
    statement = stated(text)
    if is_contradiction(statement) or _LIST.fullmatch(statement):
        return number(statement)
    matches = list(_NUMBER.finditer(statement.rpartition("=")[2]))
    return _value(matches[0 if is_marked else -1]) if matches else None


def has_number(text: str) -> bool:
    """Whether a reply states something with a digit, so that it is an attempt at a number."""
    return re.search(r"\d", stated(text), re.ASCII) is not None


def is_contradiction(statement: str) -> bool:
    """Whether a text says that two different numbers are equal.

    >>> is_contradiction("5 = 7"), is_contradiction("2 * 3 = 6"), is_contradiction("x = 7")
    (True, False, False)
    """
    sides = statement.split("=")
    if not 2 <= len(sides) <= _MAX_CHARS // 100:
        return False
    values = [_calculated(side) for side in sides]
    return None not in values and len(set(values)) > 1


def _calculated(side: str) -> Fraction | None:
    if (value := number(side)) is not None:
        return value
    try:
        return calculate(side.strip())
    except CalculationError:
        return None


def _value(match: re.Match[str]) -> Fraction | None:
    """The value of a match of `_NUMBER`; None where its parts do not make a number."""
    part = match.groupdict()
    if part["before"] or part["after"]:
        return None
    above, below = part["above"] or part["above1"], part["below"] or part["below1"]
    if above:
        value = _quotient(_read(above), _read(below))
    elif part["mixed"]:
        value = _quotient(*map(_read, part["part"].split("/")))
    else:
        value = _read(part["run"])
        if part["e"] or part["tens"]:
            for exponent in filter(None, (part["e"], part["tens"])):
                factor = _power(Fraction(10), exponent)
                value = None if value is None or factor is None else value * factor
        elif part["divisor"]:
            value = _quotient(value, _read(part["divisor"]))
        elif (exponent := part["power"] or part["braced"]) and value is not None:
            value = _power(value, exponent)
    if value is None:
        return None
    return (-1 if part["sign"] else 1) * (int(part["whole"] or part["mixed"] or 0) + value)


def _read(run: str) -> Fraction | None:
    """Digits with a point and thousands commas; None for a list, a date or a version."""
    return Fraction(run.replace(",", "")) if _PLAIN_NUMBER.fullmatch(run) else None


def _quotient(above: Fraction | None, below: Fraction | None) -> Fraction | None:
    return None if above is None or not below else above / below


def _power(base: Fraction, exponent: str) -> Fraction | None:
    """None where the power would be a very long number, or has no value."""
    if len(exponent) > len(str(_MAX_EXPONENT)) + 1 or abs(int(exponent)) > _MAX_EXPONENT:
        return None
    is_long = len(f"{base}") * abs(int(exponent)) > _MAX_POWER_CHARS
    return None if is_long or (not base and int(exponent) < 0) else base ** int(exponent)


# --- which choice it is ---------------------------------------------------------------------------

_LETTER = re.compile(r"(?:[(\[]([a-z])[)\]]|([a-z])(?=[.:),\n]|\s*$))[.:),]*", re.IGNORECASE)
_LETTER_BEHIND = re.compile(r"(.*?)\s*\(([a-z])\)", re.IGNORECASE | re.DOTALL)


def chosen(text: str, choices: Sequence[str]) -> int | None:
    """Which choice a reply names, by letter or in its words; None for none or for two of them.

    >>> choices = ["yes", "no"]
    >>> [chosen(text, choices) for text in ("(b)", "A. yes", "The answer is No.", "c", "a or b")]
    [1, 0, 1, None, None]
    """
    return _choice(_stated_line(text)[0], choices)


def _choice(statement: str, choices: Sequence[str]) -> int | None:
    same = [i for i, choice in enumerate(choices) if plain(choice) == plain(statement)]
    if len(same) == 1:
        return same[0]
    behind = _LETTER_BEHIND.fullmatch(statement)
    letter = _LETTER.match(statement)
    if letter is not None:
        name, rest = letter[1] or letter[2], statement[letter.end() :].strip()
    elif behind is not None:
        name, rest = behind[2], behind[1]
    else:
        return None
    letter_index = ord(name.casefold()) - ord("a")
    others = {letter_index} if not rest else {letter_index, _choice(rest, choices)} - {None}
    return letter_index if letter_index < len(choices) and others == {letter_index} else None
