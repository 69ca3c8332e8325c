"""What advice calls our settings in another trainer's words; nothing where it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from echoscope.diagnostics.judge.advice.actions import _IN_OTHER_VALUES, _foreign, _names
from echoscope.diagnostics.judge.advice.causes import Cause
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.advice.treatments import treatment
from echoscope.diagnostics.judge.alarms import RULES_BY_NAME

PAGE = (Path(__file__).parents[3] / "docs" / "names.md").read_text(encoding="utf-8")
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction.rollout_is"


@pytest.mark.parametrize(
    ("trainer", "name", "words"),
    [
        ("verl", "warm-up", f"`{ACTOR}.optim.lr_warmup_steps`"),
        ("trl", "warm-up", "`warmup_steps`"),
        ("verl", "importance", f"`{CORRECTION}=token` and `{CORRECTION}_threshold=2`"),
        (
            "trl",
            "importance",
            "`vllm_importance_sampling_mode=token_truncate` and "
            "`vllm_importance_sampling_clip_max=2`, with vLLM",
        ),
        ("ragen", "importance", ""),
        ("verl", "spread", "`algorithm.filter_groups.enable=true`"),
        (
            "ragen",
            "spread",
            f"`{ROLLOUT}.rollout_filter_strategy`, `{ROLLOUT}.rollout_filter_value`",
        ),
        ("trl", "spread", ""),
        (
            "verl",
            "one-pass",
            f"`{ACTOR}.ppo_epochs=1`, with `{ACTOR}.ppo_mini_batch_size` equal to "
            "`data.train_batch_size`",
        ),
        (
            "trl",
            "one-pass",
            "`num_iterations=1`, with `steps_per_generation` equal to "
            "`gradient_accumulation_steps`",
        ),
        ("trl", "no-shaping", "`reward_weights` of 0 for what does not check the task"),
        ("verl", "no-shaping", ""),
        ("trl", "lr-third", "`learning_rate`"),
        ("trl", "tight-clip", "`epsilon`, `epsilon_high`, `max_grad_norm`"),
        ("trl", "calm-critic", ""),
        ("", "kl", ""),
    ],
)
def test_a_treatment_in_the_words_of_a_trainer(trainer: str, name: str, words: str) -> None:
    assert _names(treatment(name), trainer) == words


@pytest.mark.parametrize("trainer", _IN_OTHER_VALUES)
def test_the_page_of_names_has_every_setting_that_is_named(trainer: str) -> None:
    for words in _IN_OTHER_VALUES[trainer].values():
        for named in words.split("`")[1::2]:
            last = named.partition("=")[0].rpartition(".")[2]
            assert f"{last}`" in PAGE, named


def test_a_live_run_that_can_be_set_is_told_the_command() -> None:
    cause = Cause(text="it rose", refuted_by="", settings={"optim.lr": 1e-4}, why="It was well.")
    rule = RULES_BY_NAME["ENTROPY_EXPLOSION"]
    live = Situation(run="runs/a", trainer="trl", live={"optim.lr": 1e-3})
    action = _foreign(rule, [cause], [], live, is_lost=False)
    assert (action.verb, action.command) == ("set", "echoscope ctl runs/a set optim.lr=0.0001")
    lost = _foreign(rule, [cause], [], live, is_lost=True)
    silent = _foreign(rule, [cause], [], Situation(trainer="trl"), is_lost=False)
    for action in (lost, silent):
        assert action.text == "Continue with `learning_rate=0.0001`. It was well."
        assert not action.command
