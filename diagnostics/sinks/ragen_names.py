"""What RAGEN and verl call our metrics, so that runs of both stand in one chart.

Only numbers with the same meaning and unit. `collapse*` metrics have RAGEN's names already, because
they are measured by its formulas (`measure/information/ragen.py`). Names as in RAGEN at 20daedc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
