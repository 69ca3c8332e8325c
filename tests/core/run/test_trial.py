"""Rollouts without learning: the run's own first tasks, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.run.trial import run_trial
from echoscope.store.reader import open_run

MakeConfig = Callable[..., RunConfig]


def silent(name: str, done: int, of: int) -> None:
    pass


def test_the_rollouts_are_those_of_the_first_step(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("steps=1", "eval.before=false", "eval.every=0")
    batches, _, _ = run_trial(config, num_groups=2, on_progress=silent)
    start(config, tmp_path / "run", SilentEvents())
    recorded = [t for t in open_run(tmp_path / "run").trajectories_of_step(1) if t.split == "train"]
    played = batches[0].trajectories
    assert [t.id for t in played] == [t.id for t in recorded]
    assert [[turn.response for turn in t.turns] for t in played] == [
        [turn.response for turn in t.turns] for t in recorded
    ]


def test_whole_steps_at_least(make_config: MakeConfig) -> None:
    seen: list[tuple[str, int, int]] = []
    batches, _, _ = run_trial(
        make_config(), num_groups=3, on_progress=lambda *progress: seen.append(progress)
    )
    assert [batch.num_groups for batch in batches] == [2, 2]
    assert ("playing episodes", 16, 16) in seen


def test_fewer_groups_than_a_step_has(make_config: MakeConfig) -> None:
    config = make_config("envs.train.0.groups=6", "diagnostics.enabled=false")
    batches, cost, _ = run_trial(config, num_groups=2, on_progress=silent)
    assert [batch.num_groups for batch in batches] == [2]
    assert cost.diagnostics_frac == 0


def test_the_cost(make_config: MakeConfig) -> None:
    """Four steps, evaluated before, at 2 and at 4: three times three episodes."""
    config = make_config("probe.every=0")
    _, cost, _ = run_trial(config, num_groups=2, on_progress=silent)
    assert cost.num_evaluated == 9
    assert cost.problem == ""
    assert "on the CPU, estimated: weights" in cost.memory
    assert cost.update_s > 0
    assert cost.rollout_s > 0
    assert cost.num_trainable == cost.num_parameters
    assert cost.checkpoint_bytes > 3 * 4 * cost.num_parameters  # weights and two moments


def test_an_empty_selection_still_measures_an_update(make_config: MakeConfig) -> None:
    config = make_config("reward.shaping=[]", "selection.strategy=top_p")
    _, cost, _ = run_trial(config, num_groups=2, on_progress=silent)
    assert cost.problem == ""
    assert cost.update_s > 0


def test_nothing_to_train_on(make_config: MakeConfig) -> None:
    """Every first prompt is longer than the limit, so nothing is ever sampled."""
    config = make_config("context.max_prompt_tokens=8")
    _, cost, _ = run_trial(config, num_groups=2, on_progress=silent)
    assert cost.problem.startswith("there is nothing to train on, empty: none of the 8")


def test_nothing_is_written(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_trial(make_config(), num_groups=2, on_progress=silent)
    assert os.listdir(tmp_path) == []


def test_stored_rollouts_need_no_trial(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="need no trial"):
        run_trial(make_config("from_run=runs/x"), num_groups=2, on_progress=silent)


def test_the_trial_says_how_far_updates_at_the_highest_rate_move_the_policy(
    make_config: MakeConfig,
) -> None:
    """After the warm-up, whatever the first step's rate is; and how much of the reward is luck."""
    shifts = []
    for rate in ("1e-4", "1e-2"):
        overrides = (f"optim.lr={rate}", "optim.warmup_steps=3")
        _, _, signs = run_trial(make_config(*overrides), num_groups=2, on_progress=silent)
        assert signs.lr == float(rate)
        shifts.append(signs.shift)
    assert 0 < 10 * shifts[0] < shifts[1]


def test_how_far_the_policy_moves_is_known_of_several_updates_a_step_too(
    make_config: MakeConfig,
) -> None:
    overrides = ("optim.epochs=4", "optim.lr=1e-3")
    shifts = [
        run_trial(make_config(*some), num_groups=2, on_progress=silent)[2].shift
        for some in (overrides[1:], overrides)
    ]
    assert 0 < shifts[0] < shifts[1]


def test_the_trial_sees_a_critic_that_diverges(make_config: MakeConfig) -> None:
    """Its loss on the same rollouts falls after an update, unless its steps are too large."""

    def growth(*overrides: str) -> float:
        config = make_config("advantage={kind: gae}", *overrides)
        return run_trial(config, num_groups=2, on_progress=silent)[2].critic_growth

    assert growth("critic={kind: head, lr: 1e-3}") < 1
    diverging = ("critic={kind: head, lr: 0.3}", "loss.value_coef=50", "loss.value_clip=null")
    assert growth(*diverging) > 10


def test_the_trial_names_a_term_that_makes_the_rewards_differ(make_config: MakeConfig) -> None:
    """Nobody reaches the goal, so that only the run's own term makes siblings differ."""
    (letters,) = run_trial(make_config(), num_groups=2, on_progress=silent)[2].terms
    assert (letters.name, letters.weight) == ("letters", "reward.shaping.0.weight")
    assert letters.share > 0.9


def test_the_trial_weighs_an_entropy_bonus_against_the_task(make_config: MakeConfig) -> None:
    bonuses = [
        run_trial(
            make_config(f"loss.entropy_coef={coefficient}"), num_groups=2, on_progress=silent
        )[2].bonus
        for coefficient in ("0.1", "0.2")
    ]
    assert bonuses[1] == pytest.approx(2 * bonuses[0], rel=1e-3)
