"""What RAGEN and verl call our metrics, so that runs of both stand in one chart.

Only numbers with the same meaning and unit. `collapse*` metrics have RAGEN's names already, because
they are measured by its formulas (`measure/information/ragen.py`). Names as in RAGEN at 20daedc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

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

_Written = Callable[[re.Match[str], float], tuple[str, float]]
_TAG = r"(?P<tag>(?!all/)[^/]+)"
"""`all` is the mean over environments, which RAGEN does not have."""
_OVERALL = frozenset(
    {
        "rollout/success_rate",
        "rollout/action_effective_frac",
        "rollout/action_valid_frac",
    }
)
_PATTERNS: tuple[tuple[re.Pattern[str], _Written], ...] = (
    (
        re.compile(rf"rollout/{_TAG}/success_rate"),
        lambda m, value: (f"train/{m['tag']}/success", value),
    ),
    (
        re.compile(rf"rollout/{_TAG}/action_effective_frac"),
        lambda m, value: (f"train/{m['tag']}/action_is_effective", value),
    ),
    (
        re.compile(rf"rollout/{_TAG}/action_valid_frac"),
        lambda m, value: (f"train/{m['tag']}/manager_invalid_action", 1.0 - value),
    ),
    (
        re.compile(rf"eval/{_TAG}/success_rate"),
        lambda m, value: (f"val-env/{m['tag']}/success", value),
    ),
    (
        re.compile(rf"eval/{_TAG}/action_valid_frac"),
        lambda m, value: (f"val-env/{m['tag']}/manager_invalid_action", 1.0 - value),
    ),
    (
        re.compile(r"gradient/(?P<term>policy|entropy|kl)/(?P<part>all|bucket_\d+)/norm"),
        lambda m, value: (
            f"grad_norm/{m['part']}/{'task' if m['term'] == 'policy' else m['term']}",
            value,
        ),
    ),
    (
        re.compile(r"gradient/(?P<part>bucket_\d+)/reward_std_mean"),
        lambda m, value: (f"grad_norm/{m['part']}/reward_std_mean", value),
    ),
)


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
    out: dict[str, float] = {}
    for own, value in values.items():
        key = own
        if tag and own in _OVERALL:
            key = own.replace("rollout/", f"rollout/{tag}/")
        for name in _SAME.get(key, ()):
            out[name] = value
        for pattern, written in _PATTERNS:
            match = pattern.fullmatch(key)
            if match:
                name, converted = written(match, value)
                out[name] = converted
    return {name: value for name, value in out.items() if name not in values}
