"""What is usual is what the shipped recipes have, and what is far above it is undone as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from echoscope.core.config.loading import load_config, recipe_names
from echoscope.core.config.settings import RunConfig
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.advice.usual import MOST, RATES, Unusual, unusual
from echoscope.diagnostics.judge.verdict import Diagnosis, Verdict


@pytest.fixture(scope="module")
def recipes() -> list[RunConfig]:
    return [load_config(name) for name in recipe_names() if not name.startswith("collapse-")]


def values(recipes: list[RunConfig], key: str) -> list[float]:
    situations = [Situation(config=recipe.model_dump(mode="json")) for recipe in recipes]
    if key.startswith("loss.clip"):
        situations = [each for each in situations if each.setting("loss.kind") == "clip"]
    return [each.number(key) for each in situations if each.setting(key) is not None]


@pytest.mark.parametrize("key", MOST)
def test_the_most_is_that_of_the_recipes(recipes: list[RunConfig], key: str) -> None:
    assert max(values(recipes, key)) == MOST[key]


def test_rates_are_those_of_the_recipes_by_model_and_world(recipes: list[RunConfig]) -> None:
    rates: dict[tuple[str, str], float] = {}
    for recipe in recipes:
        for task in recipe.envs.train:
            place = (recipe.model.path, task.env)
            rates[place] = max(rates.get(place, 0.0), recipe.optim.lr)
    assert {(m, w): rate for m, by_world in RATES.items() for w, rate in by_world.items()} == rates


ON_BANDIT = "healthy recipes that train `tiny` on bandit"
RUN = Situation(kind="ended", run="runs/a", checkpoints=(10, 20, 30, 40))
CONFIG = {
    "model": {"path": "tiny"},
    "envs": {"train": [{"env": "bandit"}]},
    "optim": {"lr": 2e-4, "epochs": 1, "minibatches": 1},
    "loss": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.28, "value_coef": 0.5},
    "critic": {"kind": "none"},
    "reward": {"shaping": []},
}


def with_settings(**sections: dict[str, object]) -> Situation:
    merged = {**CONFIG, **{name: {**CONFIG[name], **new} for name, new in sections.items()}}  # type: ignore[dict-item]
    return replace(RUN, config=merged)


def test_twice_the_recipes_value_is_still_usual() -> None:
    assert unusual(with_settings()) == ()
    rate = Unusual("optim.lr", 3e-4, 1e-4, ON_BANDIT)
    assert unusual(with_settings(optim={"lr": 3e-4})) == (rate,)
    epochs = Unusual("optim.epochs", 8, 1, "all healthy recipes")
    assert unusual(with_settings(optim={"lr": 3e-4, "epochs": 8})) == (rate, epochs)


def test_a_world_that_no_recipe_has_is_compared_with_all_recipes_of_the_model() -> None:
    situation = with_settings(envs={"train": [{"env": "mine"}]}, optim={"lr": 1e-3})
    rate = Unusual("optim.lr", 1e-3, 3e-4, "healthy recipes that train `tiny`")
    assert unusual(situation) == (rate,)


def test_a_model_that_no_recipe_trains_has_no_usual_rate() -> None:
    assert unusual(with_settings(model={"path": "mine"}, optim={"lr": 1.0})) == ()


def test_another_loss_has_clips_of_its_own() -> None:
    wide, calm = {"clip_high": 10.0}, {"lr": 1e-4}
    clip = Unusual("loss.clip_high", 10.0, 0.28, "all healthy recipes")
    assert unusual(with_settings(loss=wide, optim=calm)) == (clip,)
    assert unusual(with_settings(loss={**wide, "kind": "gspo"}, optim=calm)) == ()


def test_beside_one_that_is_far_above_all_that_are_above_count() -> None:
    rate = Unusual("optim.lr", 2e-4, 1e-4, ON_BANDIT)
    epochs = Unusual("optim.epochs", 8, 1, "all healthy recipes")
    assert unusual(with_settings(optim={"epochs": 8})) == (rate, epochs)


def test_the_recipe_that_a_run_extends_is_the_measure() -> None:
    recipe = {"name": "mine", "values": {"optim.lr": 1e-3}}
    situation = replace(RUN, config={**CONFIG, "recipe": recipe, "optim": {"lr": 3e-3}})
    assert unusual(situation) == (Unusual("optim.lr", 3e-3, 1e-3, "`mine`"),)


def falls(step: int) -> dict[str, float]:
    """An evaluation on 200 fixed tasks, and 64 episodes of training."""
    rate = 0.85 if step < 35 else 0.05
    return {
        "eval/all/success_rate": rate,
        "eval/all/num_tasks": 200.0,
        "rollout/success_rate": rate,
        "rollout/num_episodes": 64.0,
    }


def judged(row: Callable[[int], dict[str, float]], situation: Situation) -> Verdict:
    diagnosis = Diagnosis()
    diagnosis.engine.situation = situation
    for step in range(60):
        diagnosis.observe(step, row(step))
    return diagnosis.verdict()


def test_a_lost_run_goes_on_with_what_the_recipes_have() -> None:
    verdict = judged(falls, with_settings(optim={"lr": 1e-3, "epochs": 8}))
    assert verdict.causes == (
        "optim.lr is 0.001 (healthy recipes that train `tiny` on bandit have at most 0.0001), "
        "optim.epochs is 8 (all healthy recipes have at most 1)",
    )
    action = verdict.actions[0]
    assert action.command == (
        "echoscope ctl runs/a branch --checkpoint 30 optim.lr=0.0001 optim.epochs=1"
    )
    assert not action.is_trial


def test_samples_of_older_weights_are_weighed_where_a_mask_lets_every_one_through() -> None:
    def stale(step: int) -> dict[str, float]:
        drift = 0.01 if step < 35 else 0.5
        lag = {"rollout/staleness_mean": 1.0, "policy/stale_kl": drift, "policy/mismatch_kl": drift}
        return falls(step) | lag | {"rollout/num_sampled_tokens_mean": 20.0}

    mask = {"old_logprobs": "trainer", "correction": "mis", "low": 0.0, "high": 1e6}
    situation = with_settings(optim={"lr": 1e-3})
    situation = replace(situation, config={**situation.config, "off_policy": mask})
    action = judged(stale, situation).actions[0]
    assert action.settings["optim.lr"] == 1e-4
    assert action.settings["off_policy.correction"] == "tis"
    binding = {**situation.config, "off_policy": {**mask, "high": 5.0}}
    assert (
        "off_policy.correction"
        not in judged(stale, replace(situation, config=binding)).actions[0].settings
    )


def test_a_known_cause_is_taken_away_together_with_steps_that_are_too_large() -> None:
    def hacked(step: int) -> dict[str, float]:
        noise = 0.002 * (-1) ** step
        length = (0.4 if step < 35 else 3.0) + noise
        success = falls(step)["rollout/success_rate"] + noise
        terms = {"reward/term/env": success, "reward/term/length": length}
        return falls(step) | terms | {"reward/return_mean": success + length}

    terms = {"shaping": [{"name": "length", "function": "length", "weight": 1.0}]}
    action = judged(hacked, with_settings(reward=terms, optim={"lr": 1e-3})).actions[0]
    assert action.settings == {"reward.shaping": [], "optim.lr": 1e-4}
    assert action.text.endswith(
        "Without this term the reward pays for solving the tasks. Possible "
        "further causes change as well: optim.lr."
    )
