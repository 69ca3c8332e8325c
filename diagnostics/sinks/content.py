"""What a sink gets of a step: numbers under both names, alarms, the verdict, bounded episodes."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.store.records import Alarm, Split, Trajectory

from ..judge.record import Verdict
from .settings import SinksConfig

EPISODES_EVERY = 10
MAX_MESSAGES = 50
"""Messages of an episode that are copied; of a longer one the last ones are left out."""
MAX_CHARS = 2000
STATE_LEVELS: Mapping[str, int] = {
    "evaluation": 0,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOpening:
    """What a writer needs to begin."""

    config: SinksConfig
    run: str
    folder: Path
    run_config: Mapping[str, Any]
    identity: str
    """Of a run that goes on; "" for a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCopy:
    """One step, as every sink gets it."""

    step: int
    numbers: Mapping[str, float]
    """With `echoscope/level` where there is a verdict."""
    alarms: tuple[Alarm, ...] = ()
    verdict: Verdict | None = None
    is_news: bool = False
    """Whether the verdict differs from that of the step before."""
    episodes: tuple[Mapping[str, Any], ...] = ()


def shows_episodes(step: int) -> bool:
    """At the first step, and at every tenth."""
    return step == 1 or step % EPISODES_EVERY == 0


def numbers_of(
    values: Mapping[str, float], verdict: Verdict | None, tag: str = ""
) -> dict[str, float]:
    """The numbers of a step. What could not be computed (NaN) is left out, but of the update.

    Args:
        tag: the environment of all training episodes; "" where there are several.
    """
    finite = {
        key: float(value)
        for key, value in values.items()
        if not math.isnan(value) or key.startswith(("loss/", "optim/"))
    }
    level = {} if verdict is None else {"echoscope/level": STATE_LEVELS[verdict.state.value]}
    return finite | ragen_values(finite, tag) | level


def tag_of(trajectories: Sequence[Trajectory]) -> str:
    """The environment of the training episodes, if it is one."""
    tags = {trajectory.tag for trajectory in trajectories if trajectory.split is Split.TRAIN}
    return tags.pop() if len(tags) == 1 else ""


def alarm_title(alarm: Alarm) -> str:
    return f"{alarm.severity.value}: {alarm.rule} at step {alarm.step}"


def alarm_text(alarm: Alarm) -> str:
    """What an alarm says and advises."""
    lines = (text for text in (alarm.message, alarm.advice) if text)
    return "\n\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)


def episode_rows(episodes: Sequence[Trajectory], count: int) -> tuple[dict[str, Any], ...]:
    """At most `count` episodes with their text: first one of each group, then more."""
    chosen = sorted(episodes, key=lambda e: (e.split.value, e.sibling_index, e.index))
    return tuple(_episode(episode) for episode in chosen[:count])


def _episode(trajectory: Trajectory) -> dict[str, Any]:
    texts = [
        pair
        for turn in trajectory.turns
        for pair in (("user", turn.observation), ("assistant", turn.response))
    ]
    if trajectory.final_observation:
        texts.append(("user", trajectory.final_observation))
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
        "messages": [
            {"role": role, "content": _clipped(text)} for role, text in texts[:MAX_MESSAGES]
        ],
    }


def _clipped(text: str) -> str:
    """Characters that UTF-8 cannot carry, lone surrogates, are replaced."""
    cut = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."
    return cut.encode("utf-8", "replace").decode("utf-8")


_RAGEN: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "ragen_names.toml").read_text(encoding="utf-8")
)
_OVERALL = frozenset(
    f"rollout/{rate}" for rate in ("success_rate", "action_effective_frac", "action_valid_frac")
)
"""Rates over all training episodes: RAGEN has them for one environment each."""
_INVALID = "manager_invalid_action"
"""RAGEN's share of invalid actions, where ours is that of valid ones."""


def ragen_values(values: Mapping[str, float], tag: str = "") -> dict[str, float]:
    """The metrics that RAGEN logs too, under RAGEN's names; names that are taken are left alone.

    Args:
        tag: the environment of all training episodes; "" where there are several, whose rates have
            keys of their own.

    >>> ragen_values({"policy/entropy": 0.5, "eval/lake/success_rate": 0.25, "text/loop_frac": 0.0})
    {'actor/entropy': 0.5, 'val-env/lake/success': 0.25}
    >>> ragen_values({"rollout/success_rate": 0.25}, tag="lake")
    {'train/lake/success': 0.25}
    """
    renamed: dict[str, float] = {}
    for metric, value in values.items():
        key = metric.replace("/", f"/{tag}/") if tag and metric in _OVERALL else metric
        for name in _RAGEN["same"].get(key, ()):
            renamed[name] = value
        for pattern, template in _RAGEN["patterns"].items():
            if match := re.fullmatch(pattern, key):
                renamed[match.expand(template)] = 1.0 - value if _INVALID in template else value
    return {name: value for name, value in renamed.items() if name not in values}
