"""How a verdict is put into words: one paragraph a person can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .alarms import RULES_BY_NAME, Blindness, OpenAlarm, RunState
from .changes import Channel
from .regimes import Regime, RegimeTracker
from .rules import describe
from .verdict_record import Action

Onset = tuple[int | None, tuple[int, int] | None]

_FORM = {"format", "validity", "entropy"}
_REASONING = {
    "dependence_first",
    "dependence_all",
    "retrieval",
    "text_retrieval",
    "text_dependence",
}

_HEADS = {
    RunState.COLLAPSED: "the run has collapsed",
    RunState.COLLAPSING: "the run is collapsing",
    RunState.WATCH: "watch",
}


def verdict_text(
    *,
    state: RunState,
    num_rows: int,
    measured: Sequence[str],
    open_alarms: Sequence[OpenAlarm],
    onset: Onset,
    channels: Mapping[str, Channel],
    regimes: RegimeTracker,
    template: str,
    actions: Sequence[Action],
    unseen: Sequence[Blindness],
) -> str:
    """What happened, since when, on what evidence, what to do, and what could not be seen."""
    parts: list[str] = []
    if state is RunState.INSUFFICIENT:
        known = ", ".join(measured) or "no metric that a rule reads"
        parts.append(f"Insufficient evidence: {num_rows} steps, {known}.")
    elif not open_alarms:
        parts.append("Nothing alarming in what was measured.")
    else:
        parts += _alarm_sentences(state, open_alarms, onset, channels)
    if regimes.num_measured and regimes.regime is not Regime.UNDETERMINED:
        parts.append(f"The regime is {regimes.regime.words} since step {regimes.since_step}.")
    if template:
        parts.append(template)
    if actions and state is not RunState.INSUFFICIENT:
        command = next((action.command for action in actions if action.command), "")
        parts.append(actions[0].text + (f" Try: `{command}`." if command else ""))
    parts += _unseen_words(unseen)
    return " ".join(parts)


def _alarm_sentences(
    state: RunState,
    open_alarms: Sequence[OpenAlarm],
    onset: Onset,
    channels: Mapping[str, Channel],
) -> list[str]:
    worst = open_alarms[0]
    title = RULES_BY_NAME[worst.rule].title
    head = f"{title}: {_HEADS[state]}" if state in _HEADS else title
    first = f"{head}{onset_words(*onset)}. {worst.words[:1].upper()}{worst.words[1:]}."
    said = set(worst.channels)
    lines = [first]
    for alarm in open_alarms[1:]:
        title = RULES_BY_NAME[alarm.rule].title
        fresh = [name for name in alarm.channels if name not in said]
        if len(fresh) == len(alarm.channels):
            lines.append(f"{title} as well: {alarm.words}.")
        else:
            moved = "; ".join(describe(channels[name]) for name in fresh)
            lines.append(f"{title} as well{': ' + moved if moved else ''}.")
        said.update(fresh)
    return lines


def onset_words(onset: int | None, interval: tuple[int, int] | None) -> str:
    """` since step 84 (between 79 and 88)`.

    >>> onset_words(84, (79, 88))
    ' since step 84 (between 79 and 88)'
    """
    if onset is None:
        return ""
    is_wide = interval is not None and interval[0] != interval[1]
    between = f" (between {interval[0]} and {interval[1]})" if interval and is_wide else ""
    return f" since step {onset}{between}"


def confidence_words(
    state: RunState, num_families: int, measured: Sequence[str], num_rows: int
) -> tuple[str, str]:
    """How sure the verdict is, and what that rests on.

    >>> confidence_words(RunState.COLLAPSED, 3, ["format", "success", "validity"], 200)
    ('high', '3 independent channels of 3 measured, over 200 steps')
    """
    if state is RunState.INSUFFICIENT:
        return "none", f"{num_rows} steps"
    total = len(measured)
    over = f"{total} measured, over {num_rows} steps"
    if state.is_collapse:
        level = "high" if num_families >= 3 or state is RunState.COLLAPSED else "medium"
        return level, f"{num_families} independent channels of {over}"
    if state is RunState.WATCH:
        return "low" if num_families < 2 else "medium", f"{num_families} channels of {over}"
    found = set(measured)
    sees_task, sees_reasoning = {"success", "reward"} & found, _REASONING & found
    is_wide = bool(sees_task) and bool((_FORM | _REASONING) & found)
    # Where the reasoning cannot be seen, it may be anything: quiet is no proof of health.
    is_whole = is_wide and bool(sees_reasoning) and total >= 4
    return ("high" if is_whole else "medium" if is_wide else "low"), over


def _unseen_words(unseen: Sequence[Blindness]) -> list[str]:
    blind = [_wanting(b) for b in unseen if b.is_blind]
    partly = [_wanting(b) for b in unseen if not b.is_blind]
    words = []
    if blind:
        words.append(f"Could not be seen, for want of a metric: {', '.join(blind)}.")
    if partly:
        words.append(f"Could be suspected but not confirmed: {', '.join(partly)}.")
    return words


def _wanting(blind: Blindness) -> str:
    return f"{RULES_BY_NAME[blind.rule].title.lower()} ({blind.wanted[0]})"
