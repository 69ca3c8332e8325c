"""A verdict as escaped HTML: the page Diagnosis, the report and a notebook show this. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict_text import STARTING, onset_words, verdict_parts
from echoscope.text.sentences import capitalised, parts_of_list

from ..charts.theme import STATE_TONES, TONES, shown_state, style_sheet
from ..escaping import escape, escape_with_code
from .evidence_rows import evidence_rows

STYLE = style_sheet(Path(__file__).parent / "css" / "verdict.css")

_ORDER = {"Evidence": 0, "Meanwhile": 1, "What to do": 2}
_LISTED = ("Likely causes", "Not checked", "Not yet confirmed", "Cannot be confirmed")
"""Parts that stand below as lists, in full."""


def box(verdict: Verdict) -> str:
    """State and confidence, what, since when, the evidence, and what to do."""
    color = TONES[STATE_TONES[shown_state(verdict)]]
    # White words are readable on the colour once it is a little darker.
    badge = f"background:color-mix(in srgb,{color} 80%,black)"
    step = "" if verdict.last_step is None else f"after step {verdict.last_step}, "
    return (
        f'<div class="es-verdict" style="border-color:{color}">'
        f'<span class="es-state" style="{badge}">{escape(verdict.state_words)}</span> '
        f'<span class="es-quiet">{step}confidence {escape(verdict.confidence)}; reasoning: '
        f"{escape(verdict.regime.words)}</span>{_parts(verdict)}</div>"
    )


def grounds(verdict: Verdict) -> str:
    """All evidence in numbers; then causes, what would refute the verdict, and what is missing."""
    titled: list[tuple[str, Sequence[str]]] = [
        ("Likely causes, in order", verdict.causes),
        ("This verdict is false if", verdict.refuted_by),
        ("Not checked", verdict.could_not_see),
        ("Notes", verdict.notes),
    ]
    lists = [
        f'<details class="es-list"><summary>{title}</summary><ul>'
        + "".join(f"<li>{escape_with_code(text, 1000)}</li>" for text in texts)
        + "</ul></details>"
        for title, texts in titled
        if texts
    ]
    return table([row.cells() for row in evidence_rows(verdict)]) + "".join(lists)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of hostile text as a table; empty without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name, 100)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell), 2000)}</td>" for cell in row.values()) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="es-wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _parts(verdict: Verdict) -> str:
    """The parts of a verdict as a `<dl>`; commands stand by themselves."""
    since = onset_words(verdict.onset_step, verdict.onset_interval)
    (_, what), *others = verdict_parts(verdict.text)
    rows = [("What", what.replace(f"{STARTING}{since}", "", 1) if since else what)]
    rows += [("Since when", capitalised(since))] if since else []
    rest = [part for part in others if part[0] not in _LISTED]
    rows += sorted(rest, key=lambda part: _ORDER.get(part[0], len(_ORDER)))
    out = []
    for title, part_text in rows:
        text, _, command = part_text.partition("\n  ")
        pieces = parts_of_list(text) if title in ("Evidence", "Meanwhile") else [text]
        text_html = "<br>".join(escape_with_code(capitalised(piece), 2000) for piece in pieces)
        typed = f"<pre>{escape(command, 1000)}</pre>" if command else ""
        out.append(f"<dt>{escape(title)}</dt><dd>{text_html}{typed}</dd>")
    return f"<dl>{''.join(out)}</dl>"
