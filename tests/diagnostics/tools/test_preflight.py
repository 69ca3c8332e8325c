"""What trial rollouts say: each finding from rollouts that show it, and silence from good ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.selection.payoff import Worth
from echoscope.diagnostics.tools.preflight.findings import (
    Cost,
    Dependence,
    Finding,
    Level,
    Limits,
    Preflight,
)
from echoscope.diagnostics.tools.preflight.trial import judge, measure
from echoscope.store.records import FinishReason, RolloutBatch, StopReason, Trajectory, Turn

LIMITS = Limits(
    group_size=4,
    max_prompt_tokens=100,
    max_response_tokens=20,
    temperature=1.0,
    selection=SelectionConfig(),
    compares_siblings=True,
)
COST = Cost(
    device="a CPU",
    load_s=1.0,
    rollout_s=2.0,
    update_s=3.0,
    episode_s=0.01,
    steps=100,
    num_evaluated=1000,
    diagnostics_frac=0.1,
    num_parameters=1_000_000,
    num_trainable=500_000,
    peak_bytes=1 << 30,
    total_bytes=16 << 30,
    is_gpu=False,
    checkpoint_bytes=10 << 20,
    num_checkpoints=3,
)


def episode(p: int, g: int, reward: float, *, prompt_size: int = 10, **turn: object) -> Trajectory:
    text = f"go {p} {g}</think><answer>up</answer>"
    settings = {
        "answer_chars": (len(text) - 11, len(text) - 9),
        "prompt_tokens": np.arange(prompt_size),
        "response_tokens": np.arange(5),
        "logprobs": np.full(5, -1.0),
        "reward": reward,
        "actions": ("up",),
    } | turn
    return make_trajectory(
        Turn(index=0, observation="", response=text, **settings),
        index=p * 100 + g,
        group_index=p,
        sibling_index=g,
        tag="lake",
        env_seed=p,
        noise_seed=g,
        prompt_key=str(p),
        is_success=reward >= 1,
    )


def batch(returns: Sequence[Sequence[float]], **turn: object) -> RolloutBatch:
    return RolloutBatch(
        groups=tuple(
            tuple(episode(p, g, reward, **turn) for g, reward in enumerate(group))
            for p, group in enumerate(returns)
        )
    )


def command(changes: Mapping[str, object]) -> str:
    return " ".join(["train", *(f"{key}={value}" for key, value in changes.items())])


def judged(
    rollouts: RolloutBatch,
    limits: Limits = LIMITS,
    dependence: Dependence | None = None,
    cost: Cost | None = None,
) -> Preflight:
    return judge(
        [rollouts],
        limits,
        command=command,
        warm_start="warm up",
        dependence=dependence,
        cost=cost,
    )


def one(found: Preflight, name: str) -> Finding:
    (finding,) = [finding for finding in found.findings if finding.name == name]
    return finding


MIXED = [[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0], [0, 1, 1, 0]] * 2


def test_good_rollouts_give_no_finding() -> None:
    found = judged(batch(MIXED), cost=COST)
    assert found.findings == ()
    assert found.is_go
    assert found.text == "Ready to start: no problem found."
    assert found.lines["groups"].startswith("8 with reward spread, 0 all solved, 0 all failed")


def test_the_numbers() -> None:
    returns = [[0, 0], [1, 1], [0, 2]]
    n = measure([batch(returns), batch(returns)], replace(LIMITS, group_size=2))
    assert (n.num_steps, n.num_groups, n.num_episodes, n.num_prompts) == (2, 6, 12, 3)
    assert (n.num_mixed, n.num_solved, n.num_hopeless, n.num_equal) == (2, 2, 2, 0)
    assert n.success_rate == 0.5
    assert n.group_std_mean == pytest.approx(np.sqrt(2) / 3)
    assert n.prompt_max == 10
    assert (n.response_p50, n.capped_frac, n.turns_mean) == (5, 0, 1)
    assert n.num_kept == 6


def test_all_hopeless() -> None:
    found = judged(batch([[0] * 4] * 10))
    finding = one(found, "hopeless")
    assert not found.is_go
    assert finding.command == "warm up"
    assert "At most 26 %" in finding.text  # 1 - 0.05 ** (1 / 10)


def test_all_solved() -> None:
    found = judged(batch([[1] * 4] * 10))
    assert one(found, "solved already").level is Level.STOP


def test_equal_returns_for_both_reasons() -> None:
    found = judged(batch([[1] * 4, [0] * 4]))
    assert "1 all solved, 1 all failed" in one(found, "no reward spread").text


def test_nothing_that_compares_siblings_needs_a_spread_within_groups() -> None:
    alone = replace(LIMITS, group_size=1, compares_siblings=False)
    assert judged(batch([[1], [0]]), alone).is_go
    assert not judged(batch([[0], [0]]), alone).is_go
    compared = replace(LIMITS, group_size=1)
    assert one(judged(batch([[1], [0]]), compared), "no siblings").command == (
        "train envs.group_size=8"
    )


def test_no_success_but_a_spread() -> None:
    """Of the task's own rewards: may be learned from; of format penalties: not the task."""
    assert one(judged(batch([[0.0, 0.1, 0.2, 0.3]] * 4)), "no success").level is Level.WARN
    shaped = RolloutBatch(
        groups=tuple(
            tuple(episode(p, g, 0.0, format_penalty=-0.1 * (g % 2)) for g in range(4))
            for p in range(4)
        )
    )
    finding = one(judged(shaped), "no success")
    assert finding.level is Level.STOP
    assert "format penalties and shaping alone" in finding.text
    assert "at most 17.1 %" in finding.text  # 1 - 0.05 ** (1 / 16)


def test_few_mixed_groups() -> None:
    returns = [[0, 1, 0, 0], *[[1] * 4] * 9]
    finding = one(judged(batch(returns)), "starved signal")
    assert finding.level is Level.WARN
    assert "Only 1 of 10 groups" in finding.text
    assert "harder" in finding.advice
    cold = judged(batch(returns), replace(LIMITS, temperature=0.3))
    assert one(cold, "starved signal").command == "train sampling.temperature=1.0"


def test_broken_format_by_the_cap() -> None:
    cut = {"answer_chars": None, "finish_reason": FinishReason.LENGTH, "is_valid": False}
    found = judged(batch([[0] * 4] * 4, **cut))
    finding = found.findings[0]
    assert (finding.level, finding.name) == (Level.STOP, "broken format")
    assert "100 % are cut at context.max_response_tokens=20" in finding.text
    assert finding.command == "train context.max_response_tokens=80"
    assert one(found, "hopeless").command == ""  # the tasks are not to blame


def test_broken_format_by_the_policy() -> None:
    found = judged(batch(MIXED, answer_chars=None, is_valid=False))
    assert one(found, "broken format").command == "warm up"
    assert not found.is_go


def test_weak_format_and_actions() -> None:
    weak = batch(MIXED)
    bad = batch(MIXED, answer_chars=None, is_valid=False)
    mixed = RolloutBatch(groups=weak.groups[:7] + bad.groups[:1])
    found = judged(mixed)
    assert one(found, "weak format").level is Level.WARN
    assert found.is_go
    assert one(judged(batch(MIXED, is_valid=False)), "invalid actions").level is Level.STOP


def test_replies_at_the_cap() -> None:
    found = judged(batch(MIXED, finish_reason=FinishReason.LENGTH))
    assert one(found, "replies cut at the cap").command == "train context.max_response_tokens=40"


def test_prompts() -> None:
    near = judged(batch(MIXED, prompt_size=95))
    assert "95 of 100 tokens" in one(near, "prompts near the limit").text
    ended = RolloutBatch(
        groups=tuple(
            tuple(
                replace(t, turns=(), stop_reason=StopReason.PROMPT_TOO_LONG, is_success=False)
                for t in group
            )
            for group in batch(MIXED).groups
        )
    )
    finding = one(judged(ended), "prompts too long")
    assert finding.level is Level.STOP
    assert finding.command == "train context.max_prompt_tokens=200"


def test_repeated_prompts_and_identical_siblings() -> None:
    same = RolloutBatch(
        groups=tuple(
            tuple(replace(t, prompt_key="one") for t in group) for group in batch(MIXED).groups
        )
    )
    assert "8 groups begin with 1 distinct prompt:" in one(judged(same), "repeated prompts").text

    def echoing(group: tuple[Trajectory, ...]) -> tuple[Trajectory, ...]:
        first = group[0].turns[0]
        return tuple(
            replace(t, turns=(replace(t.turns[0], response=first.response),)) for t in group
        )

    lucky = RolloutBatch(groups=tuple(echoing(group) for group in batch(MIXED).groups))
    assert one(judged(lucky), "identical siblings").level is Level.WARN
    stuck = RolloutBatch(groups=tuple(echoing(group) for group in batch([[0] * 4] * 4).groups))
    cold = judged(stuck, replace(LIMITS, temperature=0.1))
    assert one(cold, "identical siblings").command == "train sampling.temperature=1.0"


def test_failing_environments_and_non_finite_numbers() -> None:
    failed = RolloutBatch(
        groups=tuple(
            tuple(replace(t, stop_reason=StopReason.ENV_ERROR) for t in group)
            for group in batch(MIXED).groups
        )
    )
    assert one(judged(failed), "failing environments").level is Level.STOP
    broken = judged(batch([[float("nan"), 1, 0, 1]] * 4))
    assert one(broken, "non-finite numbers").level is Level.STOP
    assert one(judged(batch(MIXED, logprobs=np.full(5, np.nan))), "non-finite numbers")


def test_whether_selection_pays() -> None:
    returns = [[0] * 4] * 6 + [[0, 1, 0, 1]] * 2
    noise = judged(batch(returns))  # the same actions, paid differently
    assert noise.numbers.payoff.worth is Worth.NOISE
    assert "selection would pay" not in [finding.name for finding in noise.findings]
    found = judged(batch(returns, actions=()))
    assert found.numbers.payoff.worth is Worth.PAYS
    assert one(found, "selection would pay").command == (
        "train selection.strategy=top_p selection.value=0.9"
    )
    alike = replace(LIMITS, selection=SelectionConfig(strategy="top_p", value=0.5))
    assert one(judged(batch(MIXED), alike), "selection may not pay").level is Level.INFO


def test_empty_selections() -> None:
    rule = replace(LIMITS, selection=SelectionConfig(strategy="top_p", value=0.5))
    found = judge([batch(MIXED), batch([[0] * 4] * 8)], rule, command=command, warm_start="warm up")
    assert "On 1 of 2 steps" in one(found, "empty selections").text


def test_reasoning_that_does_not_show_the_prompt() -> None:
    blind = Dependence(mutual_information=0.01, dependence=0.0, num_prompts=8, p_value=0.4)
    assert one(judged(batch(MIXED), dependence=blind), "reasoning does not show the prompt")
    missing = replace(blind, problem="one prompt")
    found = judged(batch(MIXED), dependence=missing)
    assert found.findings == ()
    assert found.lines["I(X;Z)"] == "not available: one prompt"


def test_the_cost_of_the_run() -> None:
    """1 + 100 (2 + 3) 1.1 + 1000 x 0.01 seconds."""
    assert COST.total_s == pytest.approx(561.0)
    lines = judged(batch(MIXED), cost=COST).lines
    assert lines["time"].startswith("about 9 min 21 s: 100 steps of 2.00 s rollouts and 3.00 s")
    assert lines["memory"].startswith("peak 1.0 GiB of 16 GiB")
    assert lines["disk"] == "10 MiB a checkpoint (measured), 3 kept"


def test_an_update_that_fails_and_tight_memory() -> None:
    failed = judged(batch(MIXED), cost=replace(COST, problem="memory ran out", update_s=np.nan))
    assert one(failed, "the update fails").level is Level.STOP
    assert "time" not in failed.lines
    tight = judged(batch(MIXED), cost=replace(COST, peak_bytes=15 << 30))
    assert one(tight, "tight memory").level is Level.WARN


def test_json_holds_no_nan() -> None:
    found = judged(batch([[1], [0]]), replace(LIMITS, group_size=1), cost=COST)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["go"] is False
    assert plain["findings"][0]["level"] == "stop"
    assert plain["numbers"]["group_std_mean"] is None
    assert plain["cost"]["total_s"] == pytest.approx(561.0)


def test_no_rollouts() -> None:
    with pytest.raises(ValueError, match="there are none"):
        judged(RolloutBatch(groups=()))


def test_a_model_that_was_told_nothing_is_not_blamed_on_the_reply_cap() -> None:
    """All replies run to the cap without an answer: told how to reply, or not told."""
    rollouts = batch([[0.0] * 4] * 4, answer_chars=None, finish_reason=FinishReason.LENGTH)
    untold = judged(rollouts, replace(LIMITS, has_instructions=False, has_format_hint=False))
    found = one(untold, "broken format")
    assert "cut at" not in found.text
    assert found.command == "train context.instructions=True context.format_hint=True"
    told = one(judged(rollouts), "broken format")
    assert "context.max_response_tokens" in told.command


def test_only_what_is_not_set_and_can_work_is_advised() -> None:
    failed = [[0.0] * 4] * 4
    rollouts = batch(failed, answer_chars=None)
    hinted = replace(LIMITS, has_instructions=True, has_format_hint=False)
    found = one(judged(rollouts, hinted), "broken format")
    assert found.advice == (
        "Show the policy the format (context.format_hint=true), or warm-start the policy on "
        "demonstrations."
    )
    assert one(judged(rollouts), "broken format").advice == (
        "Warm-start the policy on demonstrations."
    )
    # No expert: nothing that needs demonstrations, and no command.
    found = judge([rollouts], LIMITS, command=command, warm_start="")
    assert one(found, "broken format").advice.startswith("Take a stronger model. For a warm start")
    assert all("warm up" not in finding.command for finding in found.findings)
    assert all("demonstrations" not in finding.advice for finding in found.findings)
