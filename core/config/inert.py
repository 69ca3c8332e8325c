"""Which live settings have no effect under which others: handed down with the schema of each run.

`store/steer/steering.py` reads these rules from `run.json` and knows no setting by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

InertRule = Mapping[str, Any]
"""Keys as JSON stores them, all of which must hold:
`when`: setting to the values that it must have; `unless`: ... that it must not have;
`keys_in`: a setting that lists keys: those keys of this one, which is a mapping, have no effect;
`why`: the end of the sentence "... has no effect: ", with {setting} for a setting's value."""

_USED_ONCE = {"optim.epochs": [1], "optim.minibatches": [1]}
_NO_CLIP = (
    "each batch is used for one update, so the importance ratio is 1 and nothing is clipped. The "
    "clip acts with optim.epochs or optim.minibatches above 1."
)
_CLIP: tuple[InertRule, ...] = (
    {"when": {**_USED_ONCE, "from_run": [None]}, "why": _NO_CLIP},
    {"when": {**_USED_ONCE, "off_policy.old_logprobs": ["trainer"]}, "why": _NO_CLIP},
)
_NO_SELECTION: InertRule = {
    "when": {"selection.strategy": ["none"]},
    "why": "selection.strategy is none, so every group trains. Set for example "
    "selection.strategy=top_p as well.",
}
_OWN_SELECTION: InertRule = {
    "when": {"selection.strategy": ["custom"]},
    "unless": {"selection.function": [""]},
    "why": "selection.strategy is custom: your own rule decides, with the parameters that it was "
    "started with.",
}
_NO_CORRECTION: InertRule = {
    "when": {"off_policy.correction": ["none"]},
    "why": "off_policy.correction is none. Set for example off_policy.correction=tis as well.",
}
_ONLY_MIS: InertRule = {
    "when": {"off_policy.correction": ["tis"]},
    "why": "only off_policy.correction=mis uses it, and the correction is tis.",
}

_OF_A_GROUP: Mapping[str, tuple[InertRule, ...]] = {
    "selection.": (_NO_SELECTION, _OWN_SELECTION),
    "sampling.": (
        {
            "unless": {"from_run": [None]},
            "why": "the run learns from stored trajectories and samples none itself.",
        },
    ),
    "diagnostics.": (
        {
            "when": {"diagnostics.enabled": [False]},
            "why": "diagnostics.enabled is false, so nothing is measured or judged.",
        },
    ),
}
"""By the beginning of a dotted key."""
_OF_A_SETTING: Mapping[str, tuple[InertRule, ...]] = {
    "loss.clip_low": _CLIP,
    "loss.clip_high": _CLIP,
    "loss.value_coef": ({"when": {"critic.kind": ["none"]}, "why": "the run has no critic."},),
    "off_policy.level": (_NO_CORRECTION,),
    "off_policy.cap": (
        _NO_CORRECTION,
        {
            "when": {"off_policy.correction": ["mis"], "off_policy.level": ["token"]},
            "why": "only off_policy.correction=tis uses it, and the correction is mis.",
        },
    ),
    "off_policy.low": (_NO_CORRECTION, _ONLY_MIS),
    "off_policy.high": (_NO_CORRECTION, _ONLY_MIS),
    "eval.every": ({"when": {"envs.eval": [[]]}, "why": "envs.eval is empty."},),
    "diagnostics.information.every": (
        {
            "unless": {"from_run": [None]},
            "why": "the weights of this run did not sample the stored trajectories.",
        },
    ),
    "diagnostics.alarms.actions": (
        {
            "keys_in": "diagnostics.alarms.disabled",
            "why": "diagnostics.alarms.disabled keeps those rules silent.",
        },
    ),
}
_ALWAYS_ACTS = ("selection.strategy",)


def inert_rules(key: str) -> list[InertRule]:
    """The rules of a live setting, in the order in which they are told; [] where it always acts."""
    if key in _ALWAYS_ACTS:
        return []
    groups = [rules for group, rules in _OF_A_GROUP.items() if key.startswith(group)]
    return [rule for rules in (*groups, _OF_A_SETTING.get(key, ())) for rule in rules]


def may_hold(rule: InertRule, fixed: Callable[[str], tuple[bool, Any]]) -> bool:
    """Whether a rule may come to hold in a run.

    Args:
        fixed: whether a setting stays what it is during the run, and what it is.
    """

    def is_fixed_in(name: str, values: Sequence[Any], *, expected: bool) -> bool:
        stays, value = fixed(name)
        return stays and (value in values) is expected

    when, unless = rule.get("when", {}), rule.get("unless", {})
    return not (
        any(is_fixed_in(name, values, expected=False) for name, values in when.items())
        or any(is_fixed_in(name, values, expected=True) for name, values in unless.items())
    )
