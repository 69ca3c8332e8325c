"""What differs between two episodes, turn by turn, word by word: escaped HTML. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from echoscope.store.records import Trajectory, Turn

from ..charts.theme import style_sheet
from ..escaping import cut_note, escape_fragment
from .html import turn_line

MAX_CHARS = 8_000
"""Of a text that is compared and shown."""
MAX_PAIRS = 250_000
"""Words of one text times words of the other, up to which they are compared word by word."""
MAX_WORK = 1_600_000
"""The same, summed over the turns of two episodes: at worst a second or two of processor time."""
MAX_TURNS = 60
_BOTH = "es-both"
"""Of a cell that is as wide as two."""
_WORD = re.compile(r"\w+\s*|[^\w\s]+\s*|\s+")

STYLE = style_sheet(Path(__file__).parent / "look" / "difference.css")


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of a text."""

    text: str
    is_shared: bool
    """It stands in the other text as well, in the same order."""


@dataclass(slots=True)
class DiffBudget:
    """How much may still be compared word by word."""

    left: int = MAX_WORK

    def allows(self, size: int) -> bool:
        """Whether a comparison of this size may be made; if so, it is paid for."""
        if size > min(self.left, MAX_PAIRS):
            return False
        self.left -= size
        return True


def word_diff(
    left: str, right: str, budget: DiffBudget | None = None
) -> tuple[list[TextPiece], list[TextPiece]]:
    """Both texts in pieces, by the words that they share.

    What is equal at both ends is never looked at twice. Where the middles are too long for each
    other, they count as different.

    >>> left, right = word_diff("go up now", "go left now")
    >>> [piece.text for piece in left if not piece.is_shared]
    ['up ']
    """
    ours, theirs = _WORD.findall(left), _WORD.findall(right)
    most = min(len(ours), len(theirs))
    start = next((n for n in range(most) if ours[n] != theirs[n]), most)
    rest = most - start
    end = next((n for n in range(rest) if ours[-1 - n] != theirs[-1 - n]), rest)
    a, b = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    parts = [(True, ours[:start], theirs[:start])]
    if (budget or DiffBudget()).allows(len(a) * len(b)):
        codes = SequenceMatcher(None, a, b).get_opcodes()
        parts += [(tag == "equal", a[a0:a1], b[b0:b1]) for tag, a0, a1, b0, b1 in codes]
    else:
        parts.append((False, a, b))
    parts.append((True, ours[len(ours) - end :], theirs[len(theirs) - end :]))
    return (
        [TextPiece("".join(tokens), is_shared) for is_shared, tokens, _ in parts if tokens],
        [TextPiece("".join(tokens), is_shared) for is_shared, _, tokens in parts if tokens],
    )


def first_difference(left: Trajectory, right: Trajectory) -> int | None:
    """The first turn that one episode has and the other has not, or has in other words."""
    for index, (a, b) in enumerate(zip_longest(left.turns, right.turns)):
        if a is None or b is None or (a.observation, a.response) != (b.observation, b.response):
            return index
    return None


def episodes_html(left: Trajectory, right: Trajectory, turn: int) -> str:
    """Two episodes side by side, turn by turn; what is the same in both stands once.

    Args:
        turn: The one that the address names.
    """
    budget = DiffBudget()
    rows = []
    pairs = [*zip_longest(left.turns, right.turns)]
    for index, pair in enumerate(pairs[:MAX_TURNS]):
        is_now = " es-now" * (index == min(turn, len(pairs) - 1))
        rows.append(f'<div class="es-turn{is_now}">{_pair_html(*pair, budget)}</div>')
    if len(pairs) > MAX_TURNS:
        rows.append(f'<div class="es-note">{len(pairs) - MAX_TURNS} more turns</div>')
    return "".join(rows)


def _pair_html(a: Turn | None, b: Turn | None, budget: DiffBudget) -> str:
    turns = (a, b)
    lines = ["" if turn is None else turn_line(turn) for turn in turns]
    cells = _cell(lines[0], _BOTH) if lines[0] == lines[1] else "".join(map(_cell, lines))
    if any(turn is not None and turn.observation for turn in turns):
        texts = [None if turn is None else turn.observation for turn in turns]
        cells += _compared(texts, "es-asked", budget)
    texts = [None if turn is None else turn.response for turn in turns]
    return f'<div class="es-pair">{cells}{_compared(texts, "es-reply", budget)}</div>'


def _cell(html: str, css: str = "") -> str:
    return f'<div class="{css}">{html}</div>'


def _compared(texts: Sequence[str | None], css: str, budget: DiffBudget) -> str:
    """Two texts; None for that of an episode that had ended."""
    cut_texts = ["" if text is None else text[:MAX_CHARS] for text in texts]
    alone = [[TextPiece(text, is_shared=True)] for text in cut_texts]
    sides = alone if None in texts else word_diff(cut_texts[0], cut_texts[1], budget)
    ended = '<div class="es-note">The episode has ended.</div>' if css == "es-reply" else ""
    boxes = [
        ended if text is None else _box(side, name, len(text) - MAX_CHARS)
        for text, side, name in zip(texts, sides, ("es-left", "es-right"), strict=True)
    ]
    if texts[0] == texts[1]:
        return _cell(boxes[0], f"{_BOTH} {css}")
    return "".join(_cell(box, css) for box in boxes)


def _box(pieces: Sequence[TextPiece], css: str, num_cut: int) -> str:
    """A text in pieces, and how many characters of it are not in them."""
    spans = []
    for piece in pieces:
        html = escape_fragment(piece.text)
        spans.append(html if piece.is_shared else f'<span class="{css}">{html}</span>')
    note = f'<div class="es-note">{cut_note(num_cut)}</div>' if num_cut > 0 else ""
    return f'<div class="es-text" dir="auto">{"".join(spans) or "&#160;"}</div>{note}'
