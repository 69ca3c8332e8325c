"""Which live settings have no effect under which others, as whoever steers a run is told."""

from __future__ import annotations

from typing import Any

import pytest
from run_infos import run_info

from echoscope.core.config.inert import inert_rules
from echoscope.core.config.loading import live_fields, live_schema, live_values, load_config
from echoscope.store.steer.steering import setting_warnings


def warnings(overrides: list[str], changes: dict[str, Any]) -> list[str]:
    config = load_config("bandit", overrides=overrides)
    info = run_info(config=config.model_dump(mode="json"), live_knobs=live_schema(config))
    return setting_warnings(info, live_values(config), changes)


TWICE = ["optim.epochs=2"]
TRAINER = "off_policy.old_logprobs=trainer"
TIS = [TRAINER, "off_policy.correction=tis"]
MIS = [TRAINER, "off_policy.correction=mis", "off_policy.level=token"]


@pytest.mark.parametrize(
    ("overrides", "changes", "phrase"),
    [
        (
            ["selection.strategy=none"],
            {"selection.value": 0.5},
            "selection.value=0.5 has no effect: selection.strategy is none",
        ),
        (["critic.kind=none", "advantage.kind=grpo"], {"loss.value_coef": 1.0}, "has no critic"),
        (["envs.eval=[]"], {"eval.every": 7}, "envs.eval is empty"),
        (["optim.epochs=1", "optim.minibatches=1"], {"loss.clip_low": 0.1}, "for one update"),
        (["off_policy.correction=none"], {"off_policy.cap": 3.0}, "off_policy.correction=tis"),
        (TIS, {"off_policy.low": 0.9}, "only off_policy.correction=mis"),
        (MIS, {"off_policy.cap": 3.0}, "only off_policy.correction=tis"),
        (["diagnostics.enabled=false"], {"diagnostics.text.every": 3}, "nothing is measured"),
        (
            ["diagnostics.alarms.disabled=[KL_DRIFT]"],
            {"diagnostics.alarms.actions": {"KL_DRIFT": "stop"}},
            "has no effect for KL_DRIFT",
        ),
    ],
)
def test_a_setting_without_effect_says_why(
    overrides: list[str], changes: dict[str, Any], phrase: str
) -> None:
    (warning,) = warnings(overrides, changes)
    assert phrase in warning


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ([], {"selection.strategy": "top_p", "selection.value": 0.5}),
        (TWICE, {"loss.clip_low": 0.1}),
        (MIS, {"off_policy.low": 0.4}),
        ([], {"optim.lr": 0.2}),
    ],
)
def test_a_setting_with_an_effect_passes_without_a_word(
    overrides: list[str], changes: dict[str, Any]
) -> None:
    assert warnings(overrides, changes) == []


@pytest.mark.parametrize("key", ["sampling.top_p", "diagnostics.information.every"])
def test_a_run_that_learns_from_stored_trajectories_samples_none(key: str) -> None:
    assert {"from_run": [None]} in [rule.get("unless") for rule in inert_rules(key)]


def test_rules_are_of_settings_that_there_are() -> None:
    values = load_config("bandit").model_dump(mode="json")
    for key in live_fields():
        for rule in inert_rules(key):
            for name in (*rule.get("when", {}), *rule.get("unless", {})):
                value: Any = values
                for part in name.split("."):
                    assert part in value, name
                    value = value[part]
