"""What happened beside the curves: alarms, commands and rewinds, as signs on a chart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from echoscope.store.reader import CommandState
from echoscope.store.records import (
    Alarm,
    AlarmState,
    CommandAck,
    CommandAction,
    CommandOutcome,
    FloatArray64,
    author_words,
)
from echoscope.store.status import after_step

from ..words import NONE
from . import theme
from .parts import SILENT, Trace, figure_text, scatter

MARK_AXIS = "y9"
"""The y axis that marks lie on: from 0 to 1, whatever the curves do."""
MAX_MARKS = 300
"""Steps with a mark of one kind on one chart: the latest."""
MAX_TEXTS = 8
"""Marks at one step that hovering names one by one."""


class MarkKind(StrEnum):
    ALARM = "alarm"
    COMMAND = "command"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One sign at one step; `text` says everything, and may be foreign."""

    kind: MarkKind
    step: float
    text: str
    color: str
    symbol: str
    """As plotly names it; `-open` where something ended or was refused."""


_SYMBOLS: Mapping[str, str] = {"info": "circle", "warning": "triangle-up", "critical": "diamond"}
_ORDER = ("diamond", "triangle-up", "circle", "square")
"""Filled symbols, the most severe first; open ones say that something ended or was refused."""


def alarm_marks(alarms: Iterable[Alarm]) -> list[Mark]:
    """A filled sign where an alarm was raised, an open one where it was cleared."""
    out = []
    for alarm in alarms:
        severity = alarm.severity.value
        is_raised = alarm.state is AlarmState.RAISED
        out.append(
            Mark(
                kind=MarkKind.ALARM,
                step=alarm.step,
                text=f"{severity}, raised {after_step(alarm.step)}: {alarm.message}"
                if is_raised
                else f"cleared {after_step(alarm.step)}, was {severity}: {alarm.message}",
                color=theme.SEVERITIES[severity],
                symbol=_SYMBOLS[severity] + ("" if is_raised else "-open"),
            )
        )
    return out


def command_words(state: CommandState) -> str:
    """What was asked: `set selection.value = 0.5`."""
    command = state.command
    pairs = ", ".join(f"{key} = {_value(value)}" for key, value in command.settings.items())
    return f"{verb(command.action)} {pairs}".strip()


def verb(action: CommandAction) -> str:
    """`stop now`"""
    return action.value.replace("_", " ")


def outcome_words(state: CommandState) -> str:
    """What became of it: pending, or applied, rejected or expired, when and why."""
    if state.ack is None:
        return "pending"
    answer_text = f"{state.ack.outcome.value} {answered_after(state.ack)}"
    return f"{answer_text}: {state.ack.detail}" if state.ack.detail else answer_text


def command_rows(states: Iterable[CommandState]) -> list[dict[str, object]]:
    """Commands as rows of a table: when, who, what, why, and what became of each. Hostile text."""
    return [
        {
            "when": _local_time(state.command.issued_at),
            "who": author_words(state.command.issued_by) or NONE,
            "what": command_words(state),
            "why": state.command.reason or NONE,
            "outcome": outcome_words(state),
        }
        for state in states
    ]


def _local_time(seconds: float) -> str:
    """By this machine's clock; `none` where it is no time that a clock could show."""
    if not 0 <= seconds < 32_503_680_000:
        return NONE
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def answered_after(ack: CommandAck) -> str:
    """`after step 37`: an acknowledgement names the next step, the first that the command changes.

    Alarms, checkpoints and the counter of a run name the step that was finished.
    """
    return after_step(ack.step - 1)


def command_marks(states: Iterable[CommandState]) -> list[Mark]:
    """A vertical line with who, what and why, at the step after which a command was answered."""
    out = []
    for state in states:
        if state.ack is None:
            continue
        command = state.command
        who = author_words(command.issued_by) or "somebody"
        why = f" because: {command.reason}" if command.reason else ""
        is_applied = state.ack.outcome is CommandOutcome.APPLIED
        out.append(
            Mark(
                kind=MarkKind.COMMAND,
                step=max(0, state.ack.step - 1),
                text=f"{who}: {command_words(state)}{why} ({outcome_words(state)})",
                color=theme.COMMAND_MARK,
                symbol="square" if is_applied else "square-open",
            )
        )
    return out


def rewind_marks(steps: pd.DataFrame) -> list[Mark]:
    """Where a run went on from a checkpoint: the first step of each later attempt."""
    ordered = steps.sort_values("step")
    attempts = ordered["attempt"].to_numpy(np.int64)
    numbers = ordered["step"].to_numpy(np.int64)
    places = np.flatnonzero(np.diff(attempts) > 0) + 1
    return [
        Mark(
            kind=MarkKind.REWIND,
            step=float(numbers[index]),
            text=f"resumed here from a checkpoint: attempt {attempts[index]} begins",
            color=theme.COMMAND_MARK,
            symbol="star-triangle-up-open",
        )
        for index in places.tolist()
    ]


def run_marks(
    alarms: Iterable[Alarm], commands: Iterable[CommandState], steps: pd.DataFrame
) -> list[Mark]:
    """Everything that happened to a run beside its curves; `steps` is the table of that name."""
    return [*alarm_marks(alarms), *command_marks(commands), *rewind_marks(steps)]


def mark_traces(
    marks: Sequence[Mark], position: Callable[[Sequence[float]], FloatArray64]
) -> list[Trace]:
    """Traces over the y axis MARK_AXIS: one sign a kind and step, whose hover names everything."""
    traces = []
    for kind, dash, height in (
        (MarkKind.REWIND, "dash", 0.5),
        (MarkKind.COMMAND, "dot", 0.02),
        (MarkKind.ALARM, "", 0.97),
    ):
        by_step: dict[float, list[Mark]] = {}
        for mark in marks:
            if mark.kind is kind:
                by_step.setdefault(mark.step, []).append(mark)
        together = [by_step[step] for step in sorted(by_step)][-MAX_MARKS:]
        if not together:
            continue
        of_kind = [_foremost(at_one) for at_one in together]
        x = position([mark.step for mark in of_kind])
        if dash:
            traces.append(_lines(x, dash))
        texts = [_texts(at_one) for at_one in together]
        line = {"x": x, "y": np.full(len(x), height), "yaxis": MARK_AXIS}
        traces.append(signs(of_kind, texts, size=9, name=kind.value, **line))
    return traces


def signs(marks: Sequence[Mark], texts: Sequence[str], *, size: int, **props: Any) -> Trace:
    """The signs of some marks; hovering says a text of each, which is escaped already."""
    colors = [mark.color for mark in marks]
    return scatter(
        mode="markers",
        marker={
            "symbol": [mark.symbol for mark in marks],
            "color": colors,
            "size": size,
            "line": {"width": 1.5, "color": colors},
        },
        text=texts,
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        cliponaxis=False,
        **props,
    )


def _foremost(marks: Sequence[Mark]) -> Mark:
    """Of several at one step the one whose sign is shown: what holds, and the most severe of it."""
    rank_of = {symbol: rank for rank, symbol in enumerate(_ORDER)}
    return min(marks, key=lambda mark: rank_of.get(mark.symbol, len(rank_of)))


def _texts(marks: Sequence[Mark]) -> str:
    """One below the other, in the order in which they came."""
    texts = [figure_text(mark.text) for mark in marks[:MAX_TEXTS]]
    more = len(marks) - len(texts)
    return "<br>".join([*texts, *([f"and {more} more"] if more else [])])


def _lines(x: FloatArray64, dash: str) -> Trace:
    """Vertical lines over the whole height, all in one trace."""
    xs = np.column_stack([x, x, np.full(len(x), np.nan)]).ravel()
    ys = np.tile([0.0, 1.0, np.nan], len(x))
    return scatter(
        x=xs,
        y=ys,
        mode="lines",
        line={"color": theme.COMMAND_MARK, "width": 1, "dash": dash},
        yaxis=MARK_AXIS,
        name="",
        **SILENT,
    )


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
