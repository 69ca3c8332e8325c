"""The catalogue: every metric has one name, one unit, one sentence."""

from __future__ import annotations

import re

import pytest

from echoscope.diagnostics.catalogue import LISTED, METRICS, metric
from echoscope.diagnostics.judge.courses.channels import CHANNELS
from echoscope.diagnostics.metric_entry import POINTS, SHARE
from echoscope.store.query import metric_keys


@pytest.mark.parametrize(
    ("key", "name", "unit"),
    [
        ("policy/entropy", "Policy entropy", "nats per token"),
        ("eval/frozen_lake/success_rate", "Success rate, frozen_lake", "share"),
        ("gradient/kl/all/norm", "KL term", ""),
        ("time/rollout_s", "Rollout time", "s"),
        ("time/annotate_s", "Annotate", "s"),
        ("selection/num_groups_kept", "Number of groups kept", ""),
        ("text/template_frac", "Boilerplate", "share"),
        ("text/template_match_frac", "Template match", "share"),
        ("info/all_turns/mutual_information", "Mutual information, all turns", "nats"),
        ("mine", "Mine", ""),
        ("a//b/", "b", ""),
        ("", "", ""),
    ],
)
def test_any_key_has_a_name_and_a_unit(key: str, name: str, unit: str) -> None:
    entry = metric(key)
    assert (entry.name, entry.unit) == (name, unit)


def test_every_listed_metric_is_explained_in_sentences() -> None:
    assert len(LISTED) == len(METRICS)  # each key once
    for entry in METRICS:
        assert re.fullmatch(r"[A-Z0-9].*\.", entry.help), entry.key
        assert entry.name or "*" in entry.key, entry.key
        assert len(metric(entry.key).name.split()) <= 4, entry.key


def test_every_metric_of_a_channel_is_listed() -> None:
    """An alarm takes its label and its unit from the catalogue."""
    for spec in CHANNELS:
        entry = metric(spec.keys[0])
        assert entry.help, spec.name
        assert spec.label == entry.in_sentence
        assert all(metric(key).unit in (SHARE, POINTS) for key in spec.keys) or spec.unit != SHARE


def test_every_key_that_has_a_name_in_code_is_listed() -> None:
    constants = {key for name, key in vars(metric_keys).items() if name.isupper()}
    keys = {key for key in constants if not key.endswith("/")}  # the rest begin keys
    assert keys <= LISTED.keys()
