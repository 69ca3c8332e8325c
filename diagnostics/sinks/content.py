"""What a sink gets of a step: numbers under both names, alarms, the verdict, bounded episodes."""

from __future__ import annotations

import math
import re
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
class Opening:
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


# What RAGEN and verl call our metrics, so that runs of both stand in one chart: only numbers with
# the same meaning and unit. `collapse*` metrics have RAGEN's names already. Names as in RAGEN at
# 20daedc.
_SAME: Mapping[str, tuple[str, ...]] = {
    "policy/entropy": ("actor/entropy",),
    "policy/approx_kl": ("actor/ppo_kl",),
    "policy/ref_kl": ("actor/kl_loss",),
    "policy/clip_dual_frac": ("actor/pg_clipfrac_lower",),
    "optim/grad_norm": ("actor/grad_norm",),
    "optim/lr": ("actor/lr",),
    "loss/policy": ("actor/pg_loss",),
    "loss/value": ("critic/vf_loss",),
    "critic/explained_variance": ("critic/vf_explained_var",),
    "reward/return_mean": ("critic/score/mean", "critic/rewards/mean"),
    "reward/return_max": ("critic/score/max", "critic/rewards/max"),
    "reward/return_min": ("critic/score/min", "critic/rewards/min"),
    "reward/group_std_mean": ("rollout/in_group_reward_std",),
    "selection/kept_frac": ("rollout/filter_kept_ratio",),
    "selection/num_groups_kept": ("rollout/filter_kept_count",),
    "selection/num_zero": ("rollout/filter_zero_count",),
    "selection/is_empty": ("rollout/empty_after_filter",),
    "rollout/num_sampled_tokens_mean": ("train/response_length",),
    "time/step_s": ("timing_s/step",),
    "time/rollout_s": ("timing_s/gen",),
    "time/update_s": ("timing_s/update_actor",),
    "time/evaluate_s": ("timing_s/testing",),
}
_OVERALL = frozenset(
    {
        "rollout/success_rate",
        "rollout/action_effective_frac",
        "rollout/action_valid_frac",
    }
)
"""Rates over all training episodes: RAGEN has them for one environment each."""
_INVALID = "manager_invalid_action"
"""RAGEN's share of invalid actions, where ours is that of valid ones."""
_TAG = r"((?!all/)[^/]+)"
"""`all` is the mean over environments, which RAGEN does not have."""
_PATTERNS: Mapping[str, str] = {
    rf"rollout/{_TAG}/success_rate": r"train/\1/success",
    rf"rollout/{_TAG}/action_effective_frac": r"train/\1/action_is_effective",
    rf"rollout/{_TAG}/action_valid_frac": rf"train/\1/{_INVALID}",
    rf"eval/{_TAG}/success_rate": r"val-env/\1/success",
    rf"eval/{_TAG}/action_valid_frac": rf"val-env/\1/{_INVALID}",
    r"gradient/policy/(all|bucket_\d+)/norm": r"grad_norm/\1/task",
    r"gradient/(entropy|kl)/(all|bucket_\d+)/norm": r"grad_norm/\2/\1",
    r"gradient/(bucket_\d+)/reward_std_mean": r"grad_norm/\1/reward_std_mean",
}


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
        for name in _SAME.get(key, ()):
            renamed[name] = value
        for pattern, template in _PATTERNS.items():
            if match := re.fullmatch(pattern, key):
                renamed[match.expand(template)] = 1.0 - value if _INVALID in template else value
    return {name: value for name, value in renamed.items() if name not in values}
