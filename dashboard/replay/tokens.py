"""Response text and tokens as escaped HTML: regions, token heat, legend.

All of it is HTML text whose only elements are `<div>`, `<span>` and `<b>`, with classes that begin
with `es-` and a `title`. Put `STYLE` on the page once. Colours are one orange and one blue at five
opacities, which a colour-blind reader can tell apart, over whatever background the theme has;
tokens below the neutral value have a dotted line, too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import get_args

from echoscope.store.records import FloatArray64, Span, Turn
from echoscope.text.replies import THINK_CLOSE
from echoscope.text.tool_calls import ToolFormat, find_calls

from ..charts.theme import style_sheet
from ..escaping import cut_note, escape_fragment, marked
from .heat import LEVELS, Heat, HeatScale

MAX_TOKENS, MAX_CHARS = 2_000, 20_000
"""Of a response that are shown; a trajectory can be downloaded as a whole."""
_TAG = re.compile(r"(</?(?:think|answer|ans)>)")
_AROUND = {"reasoning": ("<think>", THINK_CLOSE), "answer": ("<answer>", "</answer>")}
"""Region -> the tags that begin and end it."""
_FENCE = re.compile(r"(```.*?```)", re.DOTALL)
_RETURN_SIGN = '<span class="es-nl">&#8629;</span>'


STYLE = style_sheet(Path(__file__).parent / "look" / "tokens.css")


def level_class(level: int) -> str:
    """The CSS class of a level of `HeatScale.levels`; empty for the neutral one."""
    return "" if level == 0 else f"es-{'p' if level > 0 else 'n'}{min(abs(level), LEVELS)}"


def text_html(turn: Turn, size: int = MAX_CHARS, hits: Sequence[str] = ()) -> str:
    """The first characters of a response with reasoning and answer marked; a `<div>`.

    Tags around what is marked, and calls that are shown as calls, do not stand there once more.
    `hits` are pieces of text that a search matched: they are marked, too. Says what it leaves out.
    """
    calls = _call_spans(turn)
    regions = _regions(turn)
    names = ["", *(name for name, _ in regions), ""]
    blocks = []
    for number, (name, (low, high)) in enumerate(regions):
        text = _without(turn.response, (low, min(high, size)), calls)
        if name == "outside":
            text = _untagged(text, names[number], names[number + 2])
            if turn.answer_chars is None and not turn.calls:
                name = "unmarked"  # nothing else in it is marked as what was said
        label = "tool call" if turn.calls and name == "answer" else name
        label = "reply" if name == "unmarked" else label
        if name == "unmarked" and len(regions) == 1:
            blocks.append(_prose(text, hits))
        else:
            blocks.append(_region_html(name, text, hits, label) if text.strip() else "")
    body = "".join(blocks)
    if not body and not calls:
        body = '<span class="es-note">empty response</span>'
        if turn.response:
            body = _outside(turn.response[:size], hits)
    note = cut_note(max(len(turn.response) - size, 0))
    note = f'<div class="es-note">{note}</div>' if note else ""
    return f'<div class="es-text" dir="auto">{body}</div>{note}'


def _call_spans(turn: Turn) -> list[Span]:
    """Where the calls of a reply stand in it; empty unless each of them is shown as a call."""
    if not turn.calls or any(call.problem for call in turn.calls):
        return []
    close = turn.response.find(THINK_CLOSE)
    start = 0 if close < 0 else close + len(THINK_CLOSE)
    for form in get_args(ToolFormat):
        calls = find_calls(turn.response, start, form)
        if [call.name for call in calls] == [call.name for call in turn.calls]:
            return [call.chars for call in calls]
    return []


def _without(text: str, part: Span, holes: Sequence[Span]) -> str:
    """A part of a text without what stands in some holes."""
    low, high = part
    parts = []
    for start, end in holes:
        parts.append(text[low : min(start, high)] if start > low else "")
        low = max(low, end)
    return "".join([*parts, text[low:high]])


def _untagged(text: str, before: str, after: str) -> str:
    """What stands between two regions, without the tags that part them."""
    if before in _AROUND:
        text = text.lstrip().removeprefix(_AROUND[before][1])
    if after in _AROUND:
        text = text.rstrip().removesuffix(_AROUND[after][0])
    return text if text.strip() else ""


def _prose(text: str, hits: Sequence[str]) -> str:
    """Text with fenced code in letters of one width."""
    parts = _FENCE.split(text)
    return "".join(
        f'<span class="es-code">{marked(part, hits)}</span>' if number % 2 else marked(part, hits)
        for number, part in enumerate(parts)
    )


def _region_html(name: str, text: str, hits: Sequence[str], label: str) -> str:
    if name == "outside":
        parts = _TAG.split(text)
        parts[::2] = [_outside(part, hits) for part in parts[::2]]
        parts[1::2] = [f'<span class="es-tag">{escape_fragment(tag)}</span>' for tag in parts[1::2]]
        return "".join(parts)
    return (
        f'<div class="es-region es-region-{name}"><span class="es-name">{label}</span>'
        f'<span class="es-{name}">{_prose(text.strip(), hits)}</span></div>'
    )


def _outside(text: str, hits: Sequence[str]) -> str:
    return f'<span class="es-outside">{_prose(text, hits)}</span>' if text else ""


def _regions(turn: Turn) -> list[tuple[str, Span]]:
    """(reasoning | answer | outside, characters), in order, covering the response once."""
    named: list[tuple[str, Span]] = [
        (name, span)
        for name, span in (("reasoning", turn.reasoning_chars), ("answer", turn.answer_chars))
        if span is not None
    ]
    out: list[tuple[str, Span]] = []
    position = 0
    for name, (start, end) in sorted(named, key=lambda item: item[1]):
        start = max(start, position)  # spans from a file may overlap: each character is shown once
        if start > position:
            out.append(("outside", (position, start)))
        if end > start:
            out.append((name, (start, end)))
            position = end
        position = max(position, start)
    if position < len(turn.response):
        out.append(("outside", (position, len(turn.response))))
    return out


def heat_html(
    turn: Turn,
    heat: Heat,
    values: FloatArray64,
    scale: HeatScale,
    *,
    pieces: Sequence[str] | None,
    size: int = MAX_TOKENS,
) -> str:
    """The first tokens of a response, coloured by `values`; a `<div>`.

    Args:
        values: one per sampled token.
        pieces: text of each of these tokens; None (no tokenizer at hand) makes a strip of cells.
            Regions are marked where all tokens of the response are shown.
    """
    marks = [
        (level_class(int(level)), _tooltip(index, float(values[index]), heat))
        for index, level in enumerate(scale.levels(values[:size]))
    ]
    if pieces is None or len(pieces) != len(marks):
        cells = "".join(
            f'<span class="es-cell {css}" title="{title}"></span>' for css, title in marks
        )
        body = f'<div class="es-strip">{cells}</div>'
    else:
        names = _token_regions(turn, pieces)
        spans = [
            f'<span class="es-t {css}{name}" title="{title}">{_piece_html(piece)}</span>'
            for piece, name, (css, title) in zip(pieces, names, marks, strict=True)
        ]
        body = f'<div class="es-text" dir="auto">{"".join(spans)}</div>'
    if len(marks) == len(values):
        return body
    return (
        f'{body}<div class="es-note">the first {len(marks):,} tokens of {len(values):,}; '
        "the others are not shown</div>"
    )


def _tooltip(position: int, value: float, heat: Heat) -> str:
    if value != value:
        return f"token {position}: not measured"
    unit = f" {heat.unit}" if heat.unit else ""
    return f"token {position}: {value:.4g}{unit}"


def _piece_html(piece: str) -> str:
    if not piece:
        return '<span class="es-void" title="part of the next character">&#183;</span>'
    return escape_fragment(piece[:2_000]).replace("\n", f"{_RETURN_SIGN}\n")


def _token_regions(turn: Turn, pieces: Sequence[str]) -> list[str]:
    """Per token a class of its region; empty where the pieces do not spell the response."""
    if not "".join(pieces).startswith(turn.response):
        return [""] * len(pieces)
    regions = _regions(turn)
    starts = [span[0] for _, span in regions]
    classes = []
    for piece, end in zip(pieces, accumulate(map(len, pieces)), strict=True):
        index = bisect_right(starts, max(end - max(len(piece), 1), 0)) - 1
        name = regions[index][0] if regions and end <= len(turn.response) else "outside"
        classes.append("" if name == "reasoning" else f" es-{name}")
    return classes


def legend_html(heat: Heat, scale: HeatScale) -> str:
    """Colours with their numbers, and what the number means; a `<div>`."""
    keys = "".join(
        f'<span class="es-key {level_class(level)}">{_tick(value, level)}</span>'
        for level, value in scale.ticks()
    )
    unit = f" ({heat.unit})" if heat.unit else ""
    return (
        f'<div class="es-legend"><b>{escape_fragment(heat.label + unit)}</b> {keys} '
        f'<span class="es-note">{escape_fragment(heat.meaning)}. Hover a token for its '
        "value.</span></div>"
    )


def _tick(value: float, level: int) -> str:
    sign = {LEVELS: "&ge;", -LEVELS: "&le;"}.get(level, "")
    return f"{sign}{value:.4g}"
