"""A verdict in its parts: as escaped HTML for the report and a notebook, and its lists. Pure."""

from __future__ import annotations

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.sentences import STARTING, onset_words, verdict_parts
from echoscope.text.sentences import capitalised, parts_of_list

from ..escaping import escape


def parts(verdict: Verdict) -> str:
    """What, since when, the evidence, what to do; then the rest; a `<dl>`.

    Commands stand by themselves.
    """
    since = onset_words(verdict.onset_step, verdict.onset_interval)
    (_, what), *others = verdict_parts(verdict.text)
    rows = [("What", what.replace(f"{STARTING}{since}", "", 1) if since else what)]
    rows += [("Since when", capitalised(since))] if since else []
    rest = [part for part in others if part[0] not in _LISTED]
    rows += sorted(rest, key=lambda part: _ORDER.get(part[0], len(_ORDER)))
    out = []
    for title, words in rows:
        text, _, command = words.partition("\n  ")
        pieces = parts_of_list(text) if title == "Evidence" else [text]
        lines = [capitalised(piece) for piece in pieces]
        shown = "<br>".join(escape(line, 2000) for line in lines)
        typed = f"<pre>{escape(command, 1000)}</pre>" if command else ""
        out.append(f"<dt>{escape(title)}</dt><dd>{shown}{typed}</dd>")
    return f"<dl>{''.join(out)}</dl>"


def lists(verdict: Verdict) -> list[tuple[str, tuple[str, ...]]]:
    """What stands below a verdict in full, each list under its title; without empty ones."""
    titled = [
        ("Likely causes, in order", verdict.causes),
        ("This verdict is false if", verdict.refuted_by),
        ("Not checked", verdict.could_not_see),
        ("Notes", verdict.notes),
    ]
    return [(title, tuple(texts)) for title, texts in titled if texts]


_ORDER = {"Evidence": 0, "What to do": 1}
_LISTED = (
    "Likely cause",
    "Likely causes",
    "Not checked",
    "Not yet confirmed",
    "Cannot be confirmed",
)
"""Parts that stand below as lists, in full."""
