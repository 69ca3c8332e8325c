"""What trial rollouts say: each finding from rollouts that show it, and silence from good ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.tools.preflight import (
    Cost,
    FindingLevel,
    Preflight,
    PreflightFinding,
    TrialSettings,
    judge,
    measure,
)
from echoscope.store.records import FinishReason, RolloutBatch, StopReason, Trajectory, Turn

LIMITS = TrialSettings(
    group_size=4,
    max_prompt_tokens=100,
    max_response_tokens=20,
    temperature=1.0,
    selection=SelectionConfig(),
    compares_siblings=True,
)
COST = Cost(
    device="a CPU",
    rollout_s=2.0,
    update_s=3.0,
    episode_s=0.01,
    steps=100,
    num_evaluated=1000,
    diagnostics_frac=0.1,
    num_parameters=1_000_000,
    num_trainable=500_000,
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
    limits: TrialSettings = LIMITS,
    cost: Cost | None = None,
    warm_start: str = "warm up",
) -> Preflight:
    return judge([rollouts], limits, command=command, warm_start=warm_start, cost=cost)


def finding_named(preflight: Preflight, name: str) -> PreflightFinding:
    (finding,) = [finding for finding in preflight.findings if finding.name == name]
    return finding


MIXED = [[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0], [0, 1, 1, 0]] * 2


def test_good_rollouts_give_no_finding() -> None:
    preflight = judged(batch(MIXED), cost=COST)
    assert preflight.findings == ()
    assert preflight.is_go
    assert preflight.text == "Ready to start: no problem found."
    assert preflight.lines["groups"].startswith("8 with reward spread, 0 all solved, 0 all failed")


def test_the_numbers() -> None:
    returns = [[0, 0], [1, 1], [0, 2]]
    n = measure([batch(returns), batch(returns)], replace(LIMITS, group_size=2))
    assert (n.num_steps, n.num_groups, n.num_episodes, n.num_prompts) == (2, 6, 12, 3)
    assert (n.num_mixed, n.num_solved, n.num_hopeless) == (2, 2, 2)
    assert n.success_rate == 0.5
    assert n.group_std_mean == pytest.approx(np.sqrt(2) / 3)
    assert n.prompt_max == 10
    assert (n.response_p50, n.capped_frac, n.turns_mean) == (5, 0, 1)
    assert n.num_kept == 6


CUT = {"answer_chars": None, "finish_reason": FinishReason.LENGTH, "is_valid": False}


@pytest.mark.parametrize(
    ("rollouts", "limits", "level", "name", "fix"),
    [
        (batch([[0] * 4] * 10), {}, "stop", "hopeless", "warm up"),
        (batch([[1] * 4] * 10), {}, "stop", "solved already", ""),
        (batch([[1] * 4, [0] * 4]), {}, "stop", "no reward spread", ""),
        (batch([[1], [0]]), {"group_size": 1}, "stop", "no siblings", "train envs.group_size=8"),
        (batch([[0.0, 0.1, 0.2, 0.3]] * 4), {}, "warn", "no success", "warm up"),
        (batch([[0, 1, 0, 0], *[[1] * 4] * 9]), {}, "warn", "starved signal", ""),
        (batch(MIXED, **CUT), {}, "stop", "broken format", "train context.max_response_tokens=80"),
        (
            batch(MIXED, **CUT),
            {"explains_format": False},
            "stop",
            "broken format",
            "train context.instructions=True context.format_hint=True",
        ),
        (batch(MIXED, answer_chars=None, is_valid=False), {}, "stop", "broken format", "warm up"),
        (batch(MIXED, is_valid=False), {}, "stop", "invalid actions", "warm up"),
        (
            batch(MIXED, finish_reason=FinishReason.LENGTH),
            {},
            "warn",
            "replies cut at the cap",
            "train context.max_response_tokens=40",
        ),
        (
            batch(MIXED, prompt_size=95),
            {},
            "warn",
            "prompts near the limit",
            "train context.max_prompt_tokens=200",
        ),
        (batch([[float("nan"), 1, 0, 1]] * 4), {}, "stop", "non-finite numbers", ""),
        (batch(MIXED, logprobs=np.full(5, np.nan)), {}, "stop", "non-finite numbers", ""),
    ],
)
def test_rollouts_that_show_a_finding(
    rollouts: RolloutBatch, limits: dict[str, object], level: str, name: str, fix: str
) -> None:
    preflight = judged(rollouts, replace(LIMITS, **limits))
    assert (finding_named(preflight, name).level, finding_named(preflight, name).command) == (
        level,
        fix,
    )
    assert preflight.is_go == (level == "warn")
    assert name in preflight.text


def changed(rollouts: RolloutBatch, **changes: object) -> RolloutBatch:
    groups = (tuple(replace(t, **changes) for t in group) for group in rollouts.groups)
    return RolloutBatch(groups=tuple(groups))


def test_nothing_that_compares_siblings_needs_a_spread_within_groups() -> None:
    alone = replace(LIMITS, group_size=1, compares_siblings=False)
    assert judged(batch([[1], [0]]), alone).is_go
    assert not judged(batch([[0], [0]]), alone).is_go


def test_weak_format_is_a_warning() -> None:
    bad = batch(MIXED, answer_chars=None, is_valid=False)
    preflight = judged(RolloutBatch(groups=batch(MIXED).groups[:7] + bad.groups[:1]))
    assert finding_named(preflight, "weak format").level is FindingLevel.WARN
    assert preflight.is_go


def test_tasks_are_not_blamed_where_no_reply_can_be_read() -> None:
    preflight = judged(batch([[0] * 4] * 4, **CUT))
    assert preflight.findings[0].name == "broken format"
    assert finding_named(preflight, "hopeless").advice.startswith("Fix the other findings first")


def test_episodes_that_end_early() -> None:
    ended = changed(batch(MIXED), turns=(), stop_reason=StopReason.PROMPT_TOO_LONG)
    assert finding_named(judged(ended), "prompts too long").level is FindingLevel.STOP
    failed = changed(batch(MIXED), stop_reason=StopReason.ENV_ERROR)
    assert finding_named(judged(failed), "failing environments").level is FindingLevel.STOP


def test_repeated_prompts_and_identical_siblings() -> None:
    same = changed(batch(MIXED), prompt_key="one")
    assert (
        "8 groups begin with 1 distinct prompt"
        in finding_named(judged(same), "repeated prompts").text
    )
    turn = batch([[0]]).groups[0][0].turns[0]
    stuck = changed(batch([[0] * 4] * 4), turns=(turn,))
    cold = judged(stuck, replace(LIMITS, temperature=0.1))
    assert finding_named(cold, "identical siblings").command == "train sampling.temperature=1.0"


def test_empty_selections() -> None:
    rule = replace(LIMITS, selection=SelectionConfig(strategy="top_p", value=0.5))
    preflight = judge([batch(MIXED), batch([[0] * 4] * 8)], rule, command=command, warm_start="")
    assert "On 1 of 2 steps" in finding_named(preflight, "empty selections").text


def test_the_cost_of_the_run() -> None:
    """100 (2 + 3) 1.1 + 1000 x 0.01 seconds."""
    assert COST.total_s == pytest.approx(560.0)
    lines = judged(batch(MIXED), cost=COST).lines
    assert lines["time"].startswith("about 9 min 20 s: 100 steps of 2.00 s rollouts and 3.00 s")
    assert lines["disk"] == "10 MiB a checkpoint, 3 kept"


def test_an_update_that_fails() -> None:
    failed = judged(batch(MIXED), cost=replace(COST, problem="memory ran out", update_s=np.nan))
    assert finding_named(failed, "the update fails").level is FindingLevel.STOP
    assert "time" not in failed.lines


def test_json_holds_no_nan() -> None:
    preflight = judged(batch([[1], [0]]), replace(LIMITS, group_size=1), cost=COST)
    plain = json.loads(json.dumps(preflight.to_json(), allow_nan=False))
    assert plain["go"] is False
    assert plain["findings"][0]["level"] == "stop"
    assert plain["numbers"]["group_std_mean"] is None
    assert plain["cost"]["total_s"] == pytest.approx(560.0)


def test_without_an_expert_no_demonstrations_are_advised() -> None:
    preflight = judged(batch([[0] * 4] * 4, answer_chars=None), warm_start="")
    assert "a stronger model. For a warm start" in finding_named(preflight, "broken format").advice
    assert all("on demonstrations" not in finding.advice for finding in preflight.findings)
