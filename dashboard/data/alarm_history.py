"""The alarms of a run as rows of a table, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from echoscope.diagnostics.judge.rules.alarm_texts import RULE_TEXTS
from echoscope.store.query.alarms import AlarmHistory, severity_words

from ..charts.marks import command_words, outcome_words
from ..words import NONE

MAX_ROWS = 100


def alarm_rows(alarms: Sequence[AlarmHistory]) -> list[dict[str, object]]:
    """Alarms as rows of a table: column -> hostile text or a number.

    A rule of somebody else's is called by its own name.
    """
    titles = {rule: text.title for rule, text in RULE_TEXTS.items()}
    return [
        {
            "alarm": titles.get(alarm.latest.rule, alarm.latest.rule),
            "severity": "cleared, was " * (not alarm.is_open) + severity_words(alarm.course),
            "raised": alarm.raised.step,
            "began": NONE if alarm.raised.onset_step is None else alarm.raised.onset_step,
            "cleared": "open" if alarm.is_open else alarm.cleared_step,
            "what happened": f"{alarm.latest.message} {alarm.ending}".strip(),
            "done by the alarm": "; ".join(
                f"{command_words(state)} ({outcome_words(state)})" for state in alarm.done
            )
            or NONE,
            "rule": alarm.latest.rule,
        }
        for alarm in alarms[:MAX_ROWS]
    ]
