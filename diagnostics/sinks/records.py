"""What a run tells its sinks, as plain JSON values: one record a line to the sink's process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from echoscope.store.records import Alarm, AlarmState, Split, Trajectory

from ..judge.record import Verdict
from .ragen_names import ragen_values
from .settings import SinksConfig

MAX_MESSAGES = 50
"""Messages of an episode that are copied; of a longer one the last ones are left out."""
STATE_LEVELS: Mapping[str, int] = {
    "insufficient evidence": 0,
    "healthy": 0,
    "converged": 0,
    "watch": 1,
    "recovering": 1,
    "not learning": 2,
    "collapsing": 2,
    "collapsed": 3,
}
"""The state of the verdict as a number that can be drawn: 0 is well, 3 is collapsed."""

Record = dict[str, Any]


def opening(
    config: SinksConfig, sink: str, *, run: str, folder: str, run_config: Mapping[str, Any]
) -> Record:
    """The first record: what the sink needs to begin."""
    settings = getattr(config, sink).model_dump(mode="json")
    return {
        "kind": "open",
        "sink": sink,
        "settings": settings,
        "run": run,
        "folder": folder,
        "config": dict(run_config),
    }


def step_record(
    step: int,
    values: Mapping[str, float],
    trajectories: Sequence[Trajectory],
    *,
    ragen_names: bool,
) -> Record:
    """The numbers of a step. What could not be computed (NaN) is left out, but of the update."""
    kept = {
        key: float(value)
        for key, value in values.items()
        if not math.isnan(value) or key.startswith(("loss/", "optim/"))
    }
    if ragen_names:
        tags = {trajectory.tag for trajectory in trajectories if trajectory.split is Split.TRAIN}
        kept |= ragen_values(kept, tags.pop() if len(tags) == 1 else "")
    return {"kind": "step", "step": step, "values": kept}


def alarm_record(alarm: Alarm) -> Record:
    return {
        "kind": "alarm",
        "step": alarm.step,
        "rule": alarm.rule,
        "severity": alarm.severity.value,
        "is_raised": alarm.state is AlarmState.RAISED,
        "message": _line(alarm.message, 1000),
        "advice": _line(alarm.advice, 1000),
    }


def verdict_record(verdict: Verdict) -> Record:
    """The verdict as `diagnose` says it: state, sentence, evidence, the first action."""
    first, _, _ = verdict.text.partition("\n")
    return {
        "kind": "verdict",
        "step": verdict.last_step,
        "state": verdict.state.value,
        "level": STATE_LEVELS[verdict.state.value],
        "sentence": first,
        "text": verdict.text,
        "alarms": list(verdict.kinds),
        "onset_step": verdict.onset_step,
        "confidence": verdict.confidence,
        "evidence": [one.words for one in verdict.evidence if one.words],
        "advice": verdict.actions[0].text if verdict.actions else "",
    }


def episodes_record(step: int, trajectories: Sequence[Trajectory], config: SinksConfig) -> Record:
    """At most `config.episodes` episodes with their text: first one of each group, then more."""
    chosen = sorted(trajectories, key=lambda one: (one.split.value, one.sibling_index, one.index))
    return {
        "kind": "episodes",
        "step": step,
        "rows": [_episode(one, config.max_chars) for one in chosen[: config.episodes]],
    }


def _episode(trajectory: Trajectory, max_chars: int) -> Record:
    messages: list[dict[str, str]] = []
    for turn in trajectory.turns:
        messages.append({"role": "user", "content": _clipped(turn.observation, max_chars)})
        messages.append({"role": "assistant", "content": _clipped(turn.response, max_chars)})
    if trajectory.final_observation:
        messages.append(
            {"role": "user", "content": _clipped(trajectory.final_observation, max_chars)}
        )
    value = trajectory.episode_return
    return {
        "id": trajectory.id,
        "split": trajectory.split.value,
        "env": trajectory.tag or trajectory.env_id,
        "group": trajectory.group_index,
        "sibling": trajectory.sibling_index,
        "return": value if math.isfinite(value) else None,
        "success": trajectory.is_success,
        "stop": trajectory.stop_reason.value,
        "turns": len(trajectory.turns),
        "messages": messages[:MAX_MESSAGES],
    }


def _clipped(text: str, max_chars: int) -> str:
    """Characters that JSON cannot carry as UTF-8, lone surrogates, are replaced."""
    cut = text if len(text) <= max_chars else text[: max_chars - 3] + "..."
    return cut.encode("utf-8", "replace").decode("utf-8")


def _line(text: str, max_chars: int) -> str:
    """One printable line."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return _clipped(printable, max_chars)
