"""What was set and when, on one line of time with the onset, the alarms and the commands. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.record import Verdict
from echoscope.text.sentences import capitalised

from ..words import NONE, setting_words
from . import theme
from .curated import onset_range
from .marks import Mark, MarkKind, signs
from .parts import CLEAR, Spec, Trace, figure_text, note, scatter

TIMELINE_HELP = (
    "Grey: as the run began. Blue: set during the run, or not what the recipe has. Shaded in red: "
    "when the problem began. A command stands at the step after which it was applied."
)
MAX_SETTINGS = 10
_ROW = 40
"""Pixels."""
_NAME_WIDTH, _VALUE_WIDTH = 60, 40
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One value of a setting over some steps. Hostile."""

    first: int
    last: int
    text: str
    is_changed: bool
    """Somebody set it during the run, or it differs from the recipe."""


def settings_held(
    situation: Situation, verdict: Verdict | None, last_step: int
) -> Mapping[str, Sequence[Held]]:
    """The settings that matter to a verdict, each with the values that it had.

    Those that were changed during the run come first, then those that advice would change, then
    those that differ from the recipe; at most MAX_SETTINGS.
    """
    changed = [key for change in situation.changes for key in change.values]
    actions = verdict.actions if verdict else ()
    advised = [key for action in actions for key in action.settings]
    name, recipe = situation.recipe
    keys = dict.fromkeys([*changed, *advised, *recipe])
    return {
        key: _held(
            situation, key, last_step, f"{name} has {_words(recipe[key])}" if key in recipe else ""
        )
        for key in list(keys)[:MAX_SETTINGS]
        if key in changed or situation.setting(key) is not None
    }


def _held(situation: Situation, key: str, last_step: int, recipe: str) -> Sequence[Held]:
    moments = [(c.step, c.values[key]) for c in situation.changes if key in c.values]
    if not moments:
        value_text = _words(situation.setting(key)) + (f" ({recipe})" if recipe else "")
        return (Held(first=0, last=last_step, text=value_text, is_changed=bool(recipe)),)
    values = [moments[0][1][0], *(new for _, (_, new) in moments)]
    starts = [0, *(step for step, _ in moments)]
    ends = [*starts[1:], max(last_step, starts[-1])]
    return tuple(
        Held(first=first, last=last, text=_words(value), is_changed=index > 0)
        for index, (first, last, value) in enumerate(zip(starts, ends, values, strict=True))
        if index or last > 0
    )


def _words(value: Any) -> str:
    return NONE if value is None else setting_words(value)


def timeline(
    held: Mapping[str, Sequence[Held]],
    marks: Iterable[Mark],
    verdict: Verdict | None,
    last_step: int,
) -> Spec | None:
    """The figure; None where nothing happened and nothing is known."""
    by_kind = {kind: [mark for mark in marks if mark.kind is kind] for kind in MarkKind}
    rows = [kind for kind, of_kind in by_kind.items() if of_kind]
    if not rows and not held:
        return None
    num_rows = len(rows) + len(held)
    data: list[Trace] = []
    notes: list[dict[str, Any]] = []
    for row, kind in enumerate(rows):
        notes.append(_name(capitalised(f"{kind.value}s"), num_rows - row))
        texts = [figure_text(mark.text) for mark in by_kind[kind]]
        x = np.array([mark.step for mark in by_kind[kind]], np.float64)
        y = np.full(len(x), num_rows - row - 0.7)
        data.append(signs(by_kind[kind], texts, size=11, x=x, y=y, name=""))
    for row, (key, values) in enumerate(held.items(), start=len(rows)):
        notes.append(_name(key, num_rows - row))
        for value in values:
            data.append(_bar(key, value, num_rows - row - 0.5))
            if value.last - value.first >= 0.08 * last_step:
                notes.append(_value(value, num_rows - row - 0.5))
    onset = onset_range(verdict)
    shapes = [] if onset is None else [theme.onset_shape(*map(float, onset)) | {"label": {}}]
    return {
        "data": data,
        "layout": {
            "height": _ROW * num_rows + 60,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            **CLEAR,
            "showlegend": False,
            "hovermode": "closest",
            "xaxis": {
                "title": {"text": "step", "standoff": 4},
                "range": [-0.01 * last_step - 0.5, 1.01 * last_step + 0.5],
                "zeroline": False,
                "automargin": True,
                "gridcolor": theme.GRID,
            },
            "yaxis": {"visible": False, "range": [0, num_rows], "fixedrange": True},
            "shapes": shapes,
            "annotations": notes,
        },
    }


def _name(text: str, top: float) -> dict[str, Any]:
    """What a row is about, above it."""
    name = figure_text(text, width=200, limit=_NAME_WIDTH)
    return note(name, (0, top), "left top", paper="x", color=theme.COMMAND_MARK)


def _value(value: Held, y: float) -> dict[str, Any]:
    text = figure_text(value.text, width=200, limit=_VALUE_WIDTH)
    return note(text, (value.first, y - 0.22), "left middle", shift=(4, 0), size=11.5)


def _bar(key: str, value: Held, y: float) -> Trace:
    low, high = y - 0.42, y - 0.02
    color = theme.ACCENT if value.is_changed else theme.COMMAND_MARK
    text = figure_text(f"{key} = {value.text}, steps {value.first} to {value.last}")
    return scatter(
        x=np.array([value.first, value.last, value.last, value.first, value.first], np.float64),
        y=np.array([low, low, high, high, low]),
        mode="lines",
        fill="toself",
        fillcolor=color,
        opacity=0.32,
        line={"color": color, "width": 1},
        text=text,
        hoverinfo="text",
        hoveron="fills",
        showlegend=False,
        name="",
    )
