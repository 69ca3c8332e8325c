"""Episodes of twelve turns under a window of four: what a prompt shows, which turn gets the credit.

The recipe `treasure` with the shipped policy, made smaller: one group of two, two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from listening import Listener
from transformers import AutoTokenizer

import echoscope
from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.store.reader import RunReader, open_run

TURNS, WINDOW, TURN_GAMMA = 12, 4, 0.95
SMALL = (
    "steps=2",
    "envs.group_size=2",
    f"envs.train=[{{env: treasure, groups: 1, max_turns: {TURNS}, max_actions_per_turn: 1}}]",
    "envs.eval=[]",
    "context.max_response_tokens=32",
    "diagnostics.enabled=false",
    "eval.every=0",
    "probe.every=0",
    "checkpoint.every=0",
)
SHIPPED = Path(echoscope.__file__).resolve().parent / "core" / "assets" / "tiny"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    folder = tmp_path_factory.mktemp("long") / "run"
    assert start(load_config("treasure", overrides=SMALL), folder, Listener()) == "finished"
    return open_run(folder)


def test_an_episode_that_max_turns_cut_says_so(run: RunReader) -> None:
    rows = run.sql("SELECT num_turns, stop_reason FROM trajectories").to_pylist()
    assert rows == [{"num_turns": TURNS, "stop_reason": "max_turns"}] * 4


def test_a_prompt_shows_the_last_four_turns_and_no_other(run: RunReader) -> None:
    decode = AutoTokenizer.from_pretrained(SHIPPED).decode
    for trajectory in run.trajectories_of_step(1):
        for turn in trajectory.turns:
            window = trajectory.turns[max(0, turn.index - WINDOW + 1) : turn.index + 1]
            prompt = decode(turn.prompt_tokens)
            assert prompt.count("Next: ") == len(window)
            places = [prompt.index(f"{each.observation}") for each in window]
            assert places[0] < 20
            for before, after in pairwise(window):
                assert decode(before.response_tokens) in prompt
                assert after.observation in prompt


def test_the_training_metrics_are_finite(run: RunReader) -> None:
    for key in ("loss/policy", "loss/value", "optim/grad_norm"):
        steps, values = run.metrics(key)
        assert len(steps) == 2, key
        assert np.isfinite(values).all(), key


def test_every_learned_token_has_the_credit_of_its_own_turn(run: RunReader) -> None:
    """At the first step the value head says 0 everywhere. Then bi-level GAE with gamma = lam = 1
    is H_k = r_k + 0.95 H_(k+1), the same for all tokens of turn k, whitened over the batch."""
    rows = run.sql(
        "SELECT trajectory_id, turn, advantages FROM tokens WHERE step = 1 "
        "ORDER BY trajectory_id, turn"
    ).to_pylist()
    stored = {(row["trajectory_id"], row["turn"]): row["advantages"] for row in rows}
    expected: dict[tuple[str, int], float] = {}
    for trajectory in run.trajectories_of_step(1):
        ahead = 0.0
        for turn in reversed(trajectory.turns):
            ahead = turn.reward + turn.format_penalty + TURN_GAMMA * ahead
            expected[trajectory.id, turn.index] = ahead
    assert len(stored) == len(expected) == 2 * TURNS
    tokens = np.array([expected[key] for key, values in stored.items() for _ in values])
    for key, values in stored.items():
        whitened = (expected[key] - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
        np.testing.assert_allclose(values, whitened, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_an_episode_that_its_token_budget_cut_says_so(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Ten tokens a turn and 325 an episode: 33 turns, whose prompts forget the oldest turns."""
    long_world: dict[str, Any] = {"env": "treasure", "groups": 1, "max_turns": 80}
    config = make_config(
        "steps=1",
        "envs.group_size=2",
        f"envs.train=[{long_world}]".replace("'", ""),
        "envs.eval=[]",
        "eval.every=0",
        "checkpoint.every=0",
        "context.on_long_prompt=drop_oldest",
        "context.max_episode_tokens=325",
        "reward.credit=turn",
        "diagnostics.enabled=false",
    )
    assert start(config, tmp_path / "run", Listener()) == "finished"
    for trajectory in open_run(tmp_path / "run").trajectories_of_step(1):
        assert trajectory.stop_reason == "max_tokens"
        assert sum(len(turn.response_tokens) for turn in trajectory.turns) == 325
        assert len(trajectory.turns) >= 33
        assert max(len(turn.prompt_tokens) for turn in trajectory.turns) <= 400
