"""RAGEN's numbers, worked by hand, defects included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.measure.information.cross_scores import CrossScores
from echoscope.diagnostics.measure.information.ragen import (
    FIRST_TURN,
    TRAJECTORY,
    as_ragen_first_turn,
    draw_first_turn,
    draw_trajectory,
    ragen_metrics,
    thinking_rates,
)
from echoscope.store.records import Trajectory, Turn


def scores(logprobs, lengths, columns, **more) -> CrossScores:
    return CrossScores(
        logprobs_MNR=np.array(logprobs, dtype=float),
        lengths_M=np.array(lengths),
        column_M=np.array(columns),
        family="x",
        **more,
    )


def test_mutual_information_of_length_normalised_and_of_whole_sequences() -> None:
    # Two columns. Row 0: two tokens at 1/2 under its own, 1/8 under the other; row 1: one token at
    # 1/2 under its own, 1/4 under the other.
    half, eighth, quarter = math.log(1 / 2), math.log(1 / 8), math.log(1 / 4)
    found = ragen_metrics(
        scores([[[half, half], [eighth, eighth]], [[quarter, 0], [half, 0]]], [2, 1], [0, 1])
    )
    # Per token: own 1/2 against the mixtures (1/2 + 1/8) / 2 = 5/16 and (1/2 + 1/4) / 2 = 3/8.
    per_token = np.array([math.log(8 / 5), math.log(4 / 3)])
    marginal = np.array([math.log(5 / 16), math.log(3 / 8)])
    assert found["x/mi_estimate"] == pytest.approx(per_token.mean())
    assert found["x/conditional_entropy_est"] == pytest.approx(math.log(2))
    assert found["x/reasoning_entropy_est"] == pytest.approx(-marginal.mean())
    assert found["x/marginal_std"] == pytest.approx(marginal.std())
    assert found["x/mi_zscore"] == pytest.approx(per_token.mean() / (marginal.std() + 1e-3))
    # Per sequence: row 0 has 1/4 against (1/4 + 1/64) / 2 = 17/128.
    per_sequence = np.array([math.log(32 / 17), math.log(4 / 3)])
    assert found["x/mi_seq_estimate"] == pytest.approx(per_sequence.mean())
    assert found["x/conditional_entropy_seq_est"] == pytest.approx(1.5 * math.log(2))
    assert found["x/mi_upper_bound"] == pytest.approx(math.log(2))
    assert found["x/retrieval_accuracy"] == 1
    assert found["x/retrieval_chance_level"] == 0.5
    assert found["x/retrieval_above_chance@2"] == 0


def test_only_tokens_between_the_tags_count() -> None:
    half, tag = math.log(1 / 2), -9.0
    table = [[[half, tag], [half, 0.0]], [[half, tag], [half, 0.0]]]
    found = ragen_metrics(scores(table, [2, 2], [0, 1], inner_M2=np.array([[0, 1]] * 2)))
    assert found["x/mi_seq_estimate"] == pytest.approx(0)
    assert found["x/conditional_entropy_seq_est"] == pytest.approx(math.log(2))


def test_equal_prompts_in_two_groups_look_like_nothing_is_known() -> None:
    # Its weakness 7: two columns of one prompt give information 0 and accuracy 1 at chance 1.
    same = [[[-1.0], [-1.0]], [[-2.0], [-2.0]]]
    found = ragen_metrics(scores(same, [1, 1], [0, 1], cluster_N=np.array([0, 0])))
    assert found["x/mi_estimate"] == pytest.approx(0)
    assert found["x/retrieval_accuracy"] == 1
    assert found["x/retrieval_chance_level"] == 1


def test_moving_averages_start_at_the_first_value() -> None:
    one = scores([[[-1.0], [-3.0]], [[-3.0], [-2.0]]], [1, 1], [0, 1])
    other = scores([[[-1.0], [-3.0]], [[-6.0], [-5.0]]], [1, 1], [0, 1])
    first = ragen_metrics(one)
    assert first["x/marginal_std_ema"] == first["x/marginal_std"]
    second = ragen_metrics(other, first)
    expected = 0.9 * first["x/marginal_std"] + 0.1 * second["x/marginal_std"]
    assert second["x/marginal_std_ema"] == pytest.approx(expected)
    assert second["x/mi_zscore_ema"] == pytest.approx(second["x/mi_estimate"] / (expected + 1e-3))


def test_one_column_has_no_metrics() -> None:
    assert ragen_metrics(scores([[[-1.0]]], [1], [0])) == {}
    assert ragen_metrics(CrossScores.missing("nothing")) == {}


# -- samples ----------------------------------------------------------------------------------


def turn(index: int, text: str, *, prompt: int = 1, is_forced: bool = True) -> Turn:
    """One character is one token; the reasoning starts at once or behind a sampled tag."""
    start = 0 if is_forced else len("<think>")
    close = text.find("</think>", start)
    span = (start, len(text) if close < 0 else close)
    return Turn(
        index=index,
        observation="",
        response=text,
        reasoning_chars=span,
        reasoning_span=span,
        prompt_tokens=np.array([prompt, index], dtype=np.int32),
        response_tokens=np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32),
    )


def trajectory(group: int, *turns: Turn) -> Trajectory:
    return make_trajectory(*turns, step=0, group_index=group, tag="lake", prompt_key=str(group))


@pytest.fixture
def episodes() -> list[Trajectory]:
    return [
        trajectory(0, turn(0, "up</think>"), turn(1, "again</think>")),
        trajectory(0, turn(0, "cut off")),
        trajectory(1, turn(0, "  </think>"), turn(1, "no</think>", prompt=2)),
        trajectory(1, turn(0, "<think>left</think>", prompt=2, is_forced=False)),
    ]


def test_first_turns_need_a_closed_reasoning_with_something_in_it(episodes) -> None:
    draw = draw_first_turn(episodes, np.random.default_rng(0))
    assert draw.family == FIRST_TURN
    texts = {bytes(z.astype(np.uint8)).decode() for z in draw.reasonings}
    assert texts == {"up", "left"}
    assert sorted(draw.column_M.tolist()) == [0, 1]
    opened = draw.prompts[draw.column_M[[len(z) for z in draw.reasonings].index(4)]]
    assert bytes(opened[2:].astype(np.uint8)) == b"<think>"


def test_every_drawn_pair_is_a_column(episodes) -> None:
    draw = draw_trajectory(episodes, np.random.default_rng(0), num_samples=64)
    assert draw.family == TRAJECTORY
    # Four valid turns, so four tries; the trajectory without one may be among them.
    assert 1 <= draw.num_reasonings <= 4
    assert draw.column_M.tolist() == list(range(draw.num_reasonings))
    assert draw.num_prompts == draw.num_reasonings


def test_nothing_valid_says_so() -> None:
    episodes = [trajectory(0, turn(0, "cut off"))]
    rng = np.random.default_rng(0)
    assert "no turn has a closed reasoning" in draw_first_turn(episodes, rng).problem
    assert "no turn has a closed reasoning" in draw_trajectory(episodes, rng).problem
    assert draw_trajectory([], rng).num_reasonings == 0


def test_thinking_rates(episodes) -> None:
    assert thinking_rates(episodes) == {
        "collapse/valid_thinking_rate": 4 / 6,
        "collapse/first_turn_num_total": 4,
        "collapse/first_turn_num_valid": 2,
        "collapse/first_turn_valid_rate": 0.5,
    }
    assert math.isnan(thinking_rates([])["collapse/valid_thinking_rate"])


def test_our_first_turn_scores_serve_as_its_sample() -> None:
    """Whole reasonings and closing tags in, what stands between the tags out."""
    half, tag = math.log(1 / 2), -9.0
    table = np.full((3, 3, 2), half)
    table[:, :, 1] = tag
    table[0, 1, 0] = math.log(1 / 8)
    ours = scores(
        table,
        [2, 2, 2],
        [0, 1, 2],
        inner_M2=np.array([[0, 1], [0, 1], [0, 0]]),  # the third was never closed
    )
    found = as_ragen_first_turn(ours)
    assert (found.family, found.num_reasonings, found.num_prompts) == (FIRST_TURN, 2, 2)
    metrics = ragen_metrics(found)
    # Row 0: 1/2 against (1/2 + 1/8) / 2 = 5/16; row 1: all the same.
    expected = math.log(8 / 5) / 2
    assert metrics[f"{FIRST_TURN}/mi_seq_estimate"] == pytest.approx(expected)
    assert ragen_metrics(as_ragen_first_turn(CrossScores.missing("nothing"))) == {}
