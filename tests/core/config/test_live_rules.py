"""The form judges a live setting by the schema in `run.json`, the trainer by the model behind it.

Both must say the same of every value, or a page would refuse what the trainer takes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from echoscope.core.config.loading import (
    ConfigError,
    apply_settings,
    live_schema,
    live_values,
    load_config,
)
from echoscope.store.steer.steering import SteeringError, check_settings

CONFIG = load_config(
    "demo",
    overrides=[
        "selection.strategy=top_k_abs",
        "selection.mixed=return",
        "off_policy.old_logprobs=trainer",
    ],
)
"""With settings that allow every value that the schema of the others allows."""
SCHEMA = live_schema(CONFIG)
OTHERS = (None, True, "text", "", -1, 0, 1, 7, 0.5, 2.0, 2.5, 1e9, math.nan, math.inf, {}, [1])


def values_of(schema: dict[str, Any]) -> list[Any]:
    """Values at, within and beyond every bound, and of every type."""
    bounds = [schema[name] for name in schema if name.lower().endswith("imum")]
    near = [value for bound in bounds for value in (bound, bound - 1, bound + 1, bound / 2)]
    return [*OTHERS, *near, *schema.get("enum", ())]


def form_takes(key: str, value: Any) -> bool:
    try:
        check_settings(SCHEMA, {key: value})
    except SteeringError:
        return False
    return True


def trainer_takes(key: str, value: Any) -> bool:
    try:
        apply_settings(CONFIG, {key: value})
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("key", SCHEMA)
def test_form_and_trainer_agree_on_every_value(key: str) -> None:
    differing = [
        value
        for value in values_of(SCHEMA[key])
        if form_takes(key, value) != trainer_takes(key, value)
    ]
    assert differing == []


@pytest.mark.parametrize("strategy", ["top_p", "top_k", "min_p"])
def test_the_trainer_refuses_a_count_where_the_strategy_takes_a_share(strategy: str) -> None:
    """The schema of one setting cannot say so: the strategy may change in the same command."""
    with pytest.raises(ConfigError, match="must be between 0 and 1 with"):
        apply_settings(CONFIG, {"selection.strategy": strategy, "selection.value": 2})


def test_the_present_values_are_right() -> None:
    check_settings(SCHEMA, live_values(CONFIG))
    assert apply_settings(CONFIG, live_values(CONFIG)) == CONFIG
