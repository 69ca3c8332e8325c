"""A run of an earlier version opens: settings that are gone are left out, or told."""

from __future__ import annotations

from typing import Any

import pytest

from echoscope.core.config.loading import ConfigError, load_config, validate
from echoscope.core.config.stored import FIXED, read_stored

HEAD = "critic={kind: head}"


def stored(*overrides: str) -> dict[str, Any]:
    config = load_config(overrides=["envs.train=[{env: bandit}]", *overrides])
    return config.model_dump(mode="json")


def with_setting(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *sections, name = key.split(".")
    section = values
    for part in sections:
        section = section[part]
    section[name] = value
    return values


def test_a_configuration_of_this_version_is_itself() -> None:
    values = stored(HEAD)
    config, changed = read_stored(values)
    assert config.model_dump(mode="json") == values
    assert changed == {}


def test_what_holds_now_is_left_out_without_a_word() -> None:
    values = stored(HEAD, "engine={kind: ray}")
    for key, value in FIXED.items():
        with_setting(values, key, value)
    config, changed = read_stored(values)
    assert config.critic.kind == "head"
    assert changed == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [("critic.epochs", 3), ("envs.probe", [{"env": "bandit"}]), ("optim.of_the_future", True)],
)
def test_another_value_is_told(key: str, value: Any) -> None:
    values = with_setting(stored(HEAD), key, value)
    config, changed = read_stored(values)
    assert config == validate(stored(HEAD))
    assert changed == {key: value}
    assert key.split(".")[-1] in values[key.split(".")[0]], "what was given stays as it is"


def test_a_setting_inside_a_list_is_found() -> None:
    values = stored()
    values["envs"]["train"][0]["old"] = 1
    assert read_stored(values)[1] == {"envs.train.0.old": 1}


def test_another_mistake_is_one() -> None:
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        read_stored(with_setting(stored(), "optim.lr", -1))


@pytest.mark.parametrize("key", sorted(FIXED))
def test_a_run_file_that_names_one_gets_the_usual_sentence(key: str) -> None:
    kinds = {"critic": HEAD, "engine": "engine={kind: ray}"}
    section = key.partition(".")[0]
    words = [kinds[section]] if section in kinds else []
    with pytest.raises(ConfigError, match=f"unknown key '{key}'"):
        load_config(overrides=["envs.train=[{env: bandit}]", *words, f"{key}=1"])
