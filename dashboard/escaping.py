"""Hostile text -> text that is safe to show: nothing in it acts, nothing in it is invisible.

`escape` makes HTML, `visible` makes plain text for where no markup is read (attributes, tooltips,
SVG). Both keep newlines and tabs, and put what cannot be seen (control characters, bidirectional
marks, zero-width characters, lone surrogates) in a box or in brackets, by name.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections.abc import Sequence

MAX_CHARS = 20_000
"""Characters of one text that are shown unless the caller says otherwise."""

# fmt: off
_CONTROL_NAMES = (
    "NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL",
    "BS", "TAB", "LF", "VT", "FF", "CR", "SO", "SI",
    "DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB",
    "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US",
)
# fmt: on

_UNSEEN_RANGES = (
    (0x00, 0x08),
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),  # soft hyphen
    (0x061C, 0x061C),
    (0x180E, 0x180E),
    (0x200B, 0x200F),  # zero width, left-to-right and right-to-left marks
    (0x2028, 0x202E),  # separators, embeddings and overrides
    (0x2060, 0x206F),  # joiners, isolates
    (0xD800, 0xDFFF),  # lone surrogates
    (0xFDD0, 0xFDEF),  # no characters
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xFFFE, 0xFFFF),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE007F),  # tags
    *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0x10000, 0x110000, 0x10000)),
)
_UNSEEN_CLASS = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in _UNSEEN_RANGES)
_UNSEEN_RUN = re.compile(f"([{_UNSEEN_CLASS}])\\1*")
_BACKTICKED = re.compile("`([^`\n]+)`")


def character_name(char: str) -> str:
    """A name for people: `ESC`, `RIGHT-TO-LEFT OVERRIDE`, else `U+E0041`."""
    code = ord(char)
    if code < len(_CONTROL_NAMES):
        return _CONTROL_NAMES[code]
    return "DEL" if code == 0x7F else unicodedata.name(char, f"U+{code:04X}")


def _times(run: str) -> str:
    return f" x{len(run)}" if len(run) > 1 else ""


def _boxed(match: re.Match[str]) -> str:
    run = match.group()
    return (
        f'<span class="es-ctl" title="U+{ord(run[0]):04X}">'
        f"{html.escape(character_name(run[0]))}{_times(run)}</span>"
    )


def _bracketed(match: re.Match[str]) -> str:
    run = match.group()
    return f"[{character_name(run[0])}{_times(run)}]"


def cut(text: str, limit: int | None = MAX_CHARS) -> tuple[str, int]:
    """The first `limit` characters, and how many were left out; None for all."""
    if limit is None or len(text) <= limit:
        return text, 0
    return text[:limit], len(text) - limit


def cut_note(left_out: int) -> str:
    """What to say about characters that were left out; empty for none."""
    return f"{left_out:,} more characters are not shown" if left_out else ""


def escape_fragment(text: str) -> str:
    """As `escape`, for text that is short already: without a limit."""
    return str(_UNSEEN_RUN.sub(_boxed, html.escape(text)))


def marked(text: str, hits: Sequence[str]) -> str:
    """As `escape_fragment`, with each of `hits` in a `<span class="es-hit">`, longest first.

    >>> marked("a <b> b", ["b"])
    'a &lt;<span class="es-hit">b</span>&gt; <span class="es-hit">b</span>'
    """
    if not hits:
        return escape_fragment(text)
    pattern = "|".join(re.escape(hit) for hit in sorted(hits, key=len, reverse=True))
    parts, end = [], 0
    for hit in re.finditer(pattern, text):
        marked_hit = f'<span class="es-hit">{escape_fragment(hit.group())}</span>'
        parts += [escape_fragment(text[end : hit.start()]), marked_hit]
        end = hit.end()
    return "".join([*parts, escape_fragment(text[end:])])


def escape(text: str, limit: int | None = MAX_CHARS, hits: Sequence[str] = ()) -> str:
    """HTML that shows `text` as it is: markup is text, what is unseen stands in a box by name.

    `hits` are marked, as `marked` does.

    Newlines stay newlines (show it with `white-space: pre-wrap`). What exceeds `limit` characters
    is cut, and a note says how much. The only markup in the answer is `<span>` with our classes.
    """
    safe, left_out = cut(text, limit)
    note = f'<span class="es-cut">[{cut_note(left_out)}]</span>' if left_out else ""
    return marked(safe, hits) + note


def escape_with_code(text: str, limit: int | None = MAX_CHARS) -> str:
    """As `escape`, for our own sentences: what stands between backticks becomes `<code>`.

    >>> escape_with_code("set `optim.lr=<1`")
    'set <code>optim.lr=&lt;1</code>'
    """
    return _BACKTICKED.sub(r"<code>\1</code>", escape(text, limit))


def visible(text: str, limit: int | None = MAX_CHARS) -> str:
    """Plain text that shows what is unseen by name, in brackets; cut as `escape` does.

    Contains no character that XML or a terminal could stumble over. Not escaped.
    """
    safe, left_out = cut(text, limit)
    note = f" [{cut_note(left_out)}]" if left_out else ""
    return _UNSEEN_RUN.sub(_bracketed, safe) + note


def attribute(text: str, limit: int | None = 300) -> str:
    """For between the quotes of an HTML or XML attribute."""
    return html.escape(visible(text, limit), quote=True).replace("\n", "&#10;")


def component_key(text: str) -> str:
    """The key of a component from any text, names of runs and metrics among it.

    Streamlit keeps two underscores in a row to itself and refuses a key that has them.

    >>> component_key("chart_loss"), component_key("cursor:a__b:step")
    ('chart_loss', 'cursor:a_b:step:b1d9ce89')
    """
    if "__" not in text:
        return text
    return f"{re.sub('__+', '_', text)}:{_digest(text, 4)}"


def digest_of(*parts: object, size: int = 4) -> str:
    """A short name for anything, for addresses and keys: two hexadecimal digits a byte."""
    return _digest(repr(parts), size)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size).hexdigest()
