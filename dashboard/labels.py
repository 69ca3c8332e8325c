"""Values and groups of metrics as pages show them. What a metric is stands in the catalogue."""

from __future__ import annotations

import math
from collections.abc import Mapping

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import POINTS, SHARE
from echoscope.text.amounts import percent_in_digits

from .words import NONE

SECTIONS: Mapping[str, str] = {
    "rollout": "Rollouts",
    "reward": "Reward",
    "selection": "Selection",
    "policy": "Policy",
    "loss": "Loss",
    "optim": "Optimizer",
    "critic": "Critic",
    "info": "Information",
    "text": "Text",
    "gradient": "Gradients",
    "eval": "Evaluation",
    "probe": "Probes",
    "collection": "Collection",
    "time": "Time",
    "system": "Machine",
    "collapse": "RAGEN-compatible metrics: format",
    "collapse_first_turn_sample": "RAGEN-compatible metrics: first turn",
}
"""What stands before the first "/" of a key, in words."""


def section(key: str) -> str:
    """What stands before the first "/"; "other" where there is none.

    >>> section("policy/entropy"), section("loss")
    ('policy', 'other')
    """
    before, slash, _ = key.partition("/")
    return before if slash and before else "other"


def section_title(name: str) -> str:
    return SECTIONS.get(name, name.replace("_", " "))


def value_words(key: str, value: float) -> str:
    """A value of a metric as people say it: a share as a percentage, no powers of ten.

    >>> value_words("rollout/success_rate", 0.015625), value_words("rollout/success_rate", 1.0)
    ('1.56 %', '100 %')
    >>> value_words("policy/entropy", 0.17712), value_words("policy/entropy", float("nan"))
    ('0.177', 'none')
    >>> value_words("rollout/response_length_mean", 3517.2), value_words("optim/lr", 0.00001)
    ('3,517', '0.00001')
    >>> value_words("policy/ref_kl", 2.5e9), value_words("policy/ref_kl", -1.2e-9)
    ('2,500 million', '-1.2e-09')
    """
    if not math.isfinite(value):
        return NONE
    unit = metric(key).unit
    if unit == POINTS:
        return percent_in_digits(value).replace(" %", " points")
    if unit == SHARE:
        return percent_in_digits(value)
    return number_words(value)


def number_words(value: float, *, is_signed: bool = False) -> str:
    """A number of three digits without powers of ten, and with its sign where it is a difference.

    >>> number_words(3560.4), number_words(0.5, is_signed=True), number_words(-3e6, is_signed=True)
    ('3,560', '+0.5', '-3 million')
    """
    if not math.isfinite(value):
        return NONE
    sign = "+" if is_signed and value > 0 else ""
    size = abs(value)
    if 1e6 <= size < 1e12:
        return f"{sign}{_three_digits(value / 1e6)} million"
    return sign + (_three_digits(value) if size < 1e6 else f"{value:.2e}")


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 999.5:
        return f"{value:,.0f}"
    if 1e-7 <= size < 1e-3:
        return f"{float(f'{value:.3g}'):.10f}".rstrip("0")
    return f"{value:.3g}"


def interval_words(key: str, interval: tuple[float, float] | None) -> str:
    """Both ends of an interval, `none` without one."""
    if interval is None:
        return NONE
    return f"{value_words(key, interval[0])} to {value_words(key, interval[1])}"
