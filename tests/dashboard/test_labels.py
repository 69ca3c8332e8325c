"""Plain names for metrics."""

from __future__ import annotations

import pytest

from echoscope.dashboard.labels import LABELS, label, section, section_title


@pytest.mark.parametrize(
    ("key", "name", "unit"),
    [
        ("policy/entropy", "Policy entropy", "nats a token"),
        ("eval/frozen_lake/success_rate", "Success rate, frozen_lake", "share"),
        ("gradient/kl/all/norm", "KL term", "norm"),
        ("time/rollout_s", "Rollout time", "s"),
        ("time/annotate_s", "Annotate", "s"),
        ("selection/num_groups_kept", "Number of groups kept", ""),
        ("text/template_frac", "Template", "share"),
        ("info/all_turns/mutual_information", "Mutual information, all turns", "nats"),
        ("mine", "Mine", ""),
        ("a//b/", "b", ""),
        ("", "", ""),
    ],
)
def test_any_key_has_a_name_and_a_unit(key: str, name: str, unit: str) -> None:
    found = label(key)
    assert (found.name, found.unit) == (name, unit)


def test_every_known_metric_is_explained_in_a_sentence() -> None:
    for key, words in LABELS.items():
        assert words.help.endswith("."), key


@pytest.mark.parametrize(
    ("key", "name"),
    [("policy/entropy", "policy"), ("loss", "other"), ("/x", "other"), ("a/b/c", "a")],
)
def test_sections_are_what_stands_before_the_first_slash(key: str, name: str) -> None:
    assert section(key) == name


def test_an_unknown_section_keeps_its_name() -> None:
    assert section_title("my_own") == "my own"
