"""Every environment has a recipe that trains with what is here, or says what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from echoscope.core.config.loading import load_config, recipe_description, recipe_names
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.diagnostics.measure.costs import Purse
from echoscope.envs import registry
from echoscope.envs.base import EnvUnavailableError

WORLDS = [env_id for env_id in registry.known_ids() if env_id in registry.BUILTIN]


@pytest.mark.parametrize("env_id", WORLDS)
def test_every_environment_has_a_recipe_of_its_name(env_id: str) -> None:
    config = load_config(env_id)
    assert {group.env for group in (*config.envs.train, *config.envs.eval)} == {env_id}
    assert config.envs.eval
    assert recipe_description(env_id)
    assert resolve_model(config.model.path)


def _without_choice(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters but for those that choose among tasks of a data set."""
    return {key: value for key, value in params.items() if key not in ("first_game", "split")}


@pytest.mark.parametrize("env_id", WORLDS)
def test_training_and_evaluation_play_the_same_world_within_its_limits(env_id: str) -> None:
    config = load_config(env_id)
    train, evaluated = config.envs.train[0], config.envs.eval[0]
    assert _without_choice(train.params) == _without_choice(evaluated.params)
    assert train.settings() == evaluated.settings()


@pytest.mark.parametrize("env_id", WORLDS)
def test_the_recipes_world_can_be_built_or_says_in_one_sentence_what_it_lacks(env_id: str) -> None:
    group = load_config(env_id).envs.train[0]
    if env_id in registry.unavailable():
        params = {**group.params, "wait_s": 0.0} if env_id == "remote" else group.params
        with pytest.raises(EnvUnavailableError) as error:
            registry.make(env_id, **params)
        assert "\n" not in str(error.value)
        return
    world = registry.make(group.env, **group.params)
    try:
        assert world.reset(0, 0).text
    finally:
        world.close()


def test_recipes_are_named_as_they_say() -> None:
    assert all(load_config(name).name == name for name in recipe_names())


@pytest.mark.parametrize("name", ["bandit-llm", "frozen_lake-llm"])
def test_a_short_run_of_a_language_model_measures_information_at_least_once(name: str) -> None:
    """As measured on two busy cores: a step takes 25 s, and measuring is expected to take 22 s. A
    tenth of nine steps pays for it."""
    config = load_config(name)
    frac = config.diagnostics.budget_frac
    assert Purse(trained_s=25).step_to_pay(22, frac, 1) <= config.steps / 2
    assert frac <= 0.1
