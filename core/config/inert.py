"""Which live settings have no effect under which others: handed down with the schema of each run.

`inert.yaml` has the rules. `store/steer/steering.py` reads them from `run.json` and knows no
setting by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from echoscope.text.yaml_text import read_yaml_file

InertRule = Mapping[str, Any]
"""`when`, `unless`, `keys_in` and `why` of a rule, as `inert.yaml` explains them."""
_ALWAYS_ACTS = ("selection.strategy",)


@cache
def _rules() -> Sequence[Mapping[str, Any]]:
    rules: list[Mapping[str, Any]] = read_yaml_file(Path(__file__).parent / "inert.yaml")
    return rules


def inert_rules(key: str) -> list[InertRule]:
    """The rules of a live setting, in the order in which they are told; [] where it always acts."""
    if key in _ALWAYS_ACTS:
        return []
    return [
        {name: value for name, value in rule.items() if name != "of"}
        for rule in _rules()
        if any(key == of or (of.endswith(".") and key.startswith(of)) for of in rule["of"])
    ]


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
