"""Treatments as settings: what each changes about a run, and when it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from echoscope.diagnostics.judge.advice.actions import command_line
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.advice.treatments import CONTROLS, TREATMENTS, treatment

CONFIG: dict[str, Any] = {
    "optim": {"lr": 3e-3, "epochs": 4, "minibatches": 1, "grad_clip": 1.0, "weight_decay": 0.0},
    "loss": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0},
    "envs": {
        "group_size": 8,
        "train": [
            {"groups": 4, "format_penalty": 0.0, "params": {"slip": 0.9}},
            {"groups": 2, "format_penalty": -0.5, "params": {}},
        ],
    },
    "sampling": {"temperature": 1.0},
    "advantage": {"kind": "rloo"},
    "critic": {"kind": "none"},
    "reward": {"shaping": [{"name": "detail", "function": "length", "weight": -4.0}]},
}
RUN = Situation(config=CONFIG).setting


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lr-third", {"optim.lr": 1e-3}),
        ("lr-tenth", {"optim.lr": 3e-4}),
        ("kl", {"loss.kl_coef": 0.1}),
        ("one-pass", {"optim.epochs": 1}),
        ("siblings", {"envs.group_size": 16}),
        ("tasks", {"envs.train.0.groups": 8, "envs.train.1.groups": 4}),
        ("format-penalty", {"envs.train.0.format_penalty": -0.1}),
        ("undo-luck", {"envs.train.0.params.slip": 0.0}),
        ("no-shaping", {"reward.shaping": []}),
        ("cooler", {"sampling.temperature": 0.7}),
        ("rewound", {}),
        ("no-entropy", {}),
        ("rloo", {}),
        ("calm-critic", {}),
        ("less-kl", {}),
    ],
)
def test_a_treatment_changes_these_settings(name: str, settings: dict[str, Any]) -> None:
    assert treatment(name).settings(RUN) == settings


def with_settings(changed: dict[str, Any]) -> Callable[[str], Any]:
    return lambda key: changed.get(key, RUN(key))


@pytest.mark.parametrize("each", TREATMENTS, ids=lambda each: each.name)
def test_a_treatment_that_holds_already_sets_nothing_twice(each: Any) -> None:
    """Limits are limits; factors go on, because a third of a third is another treatment."""
    settings = each.settings(RUN)
    again = each.settings(with_settings(settings))
    has_factor = any(change.times == change.times for change in each.changes)
    assert (again == {}) or has_factor


def test_settings_can_be_typed_as_they_are() -> None:
    words = command_line("branch", "a", treatment("no-shaping").settings(RUN), checkpoint=4)
    assert words == "echoscope ctl a branch --checkpoint 4 'reward.shaping=[]'"


def test_names_are_unique_and_labels_follow_continue_with() -> None:
    every = (*CONTROLS, *TREATMENTS)
    assert len({each.name for each in every}) == len(every)
    assert all(each.why.endswith(".") and not each.label.endswith(".") for each in every)
