"""RAGEN's numbers, worked by hand, defects included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.measure.information.cross_scores import CrossScores
from echoscope.diagnostics.measure.information.ragen import FAMILY, ragen_metrics, thinking_rates
from echoscope.store.records import Trajectory, Turn


def scores(logprobs, lengths, columns, inner_M2=None) -> CrossScores:
    """All tokens stand between the tags, unless it is said."""
    return CrossScores(
        logprobs_MNR=np.array(logprobs, dtype=float),
        lengths_M=np.array(lengths),
        column_M=np.array(columns),
        inner_M2=np.array([(0, n) for n in lengths]) if inner_M2 is None else np.array(inner_M2),
    )


def metrics_of(*arguments) -> dict[str, float]:
    metrics = ragen_metrics(*arguments)
    return {key.replace(f"{FAMILY}/", "x/"): value for key, value in metrics.items()}


def test_mutual_information_of_length_normalised_and_of_whole_sequences() -> None:
    # Two columns. Row 0: two tokens at 1/2 under its own, 1/8 under the other; row 1: one token at
    # 1/2 under its own, 1/4 under the other.
    half, eighth, quarter = math.log(1 / 2), math.log(1 / 8), math.log(1 / 4)
    metrics = metrics_of(
        scores([[[half, half], [eighth, eighth]], [[quarter, 0], [half, 0]]], [2, 1], [0, 1])
    )
    # Per token: own 1/2 against the mixtures (1/2 + 1/8) / 2 = 5/16 and (1/2 + 1/4) / 2 = 3/8.
    per_token = np.array([math.log(8 / 5), math.log(4 / 3)])
    marginal = np.array([math.log(5 / 16), math.log(3 / 8)])
    assert metrics["x/mi_estimate"] == pytest.approx(per_token.mean())
    assert metrics["x/conditional_entropy_est"] == pytest.approx(math.log(2))
    assert metrics["x/reasoning_entropy_est"] == pytest.approx(-marginal.mean())
    assert metrics["x/marginal_std"] == pytest.approx(marginal.std())
    assert metrics["x/mi_zscore"] == pytest.approx(per_token.mean() / (marginal.std() + 1e-3))
    # Per sequence: row 0 has 1/4 against (1/4 + 1/64) / 2 = 17/128.
    per_sequence = np.array([math.log(32 / 17), math.log(4 / 3)])
    assert metrics["x/mi_seq_estimate"] == pytest.approx(per_sequence.mean())
    assert metrics["x/conditional_entropy_seq_est"] == pytest.approx(1.5 * math.log(2))
    assert metrics["x/mi_upper_bound"] == pytest.approx(math.log(2))
    assert metrics["x/retrieval_accuracy"] == 1
    assert metrics["x/retrieval_chance_level"] == 0.5
    assert metrics["x/retrieval_above_chance@2"] == 0


def test_only_tokens_between_the_tags_count() -> None:
    half, tag = math.log(1 / 2), -9.0
    table = [[[half, tag], [half, 0.0]], [[half, tag], [half, 0.0]]]
    metrics = metrics_of(scores(table, [2, 2], [0, 1], [[0, 1]] * 2))
    assert metrics["x/mi_seq_estimate"] == pytest.approx(0)
    assert metrics["x/conditional_entropy_seq_est"] == pytest.approx(math.log(2))


def test_moving_averages_start_at_the_first_value() -> None:
    scored = scores([[[-1.0], [-3.0]], [[-3.0], [-2.0]]], [1, 1], [0, 1])
    other = scores([[[-1.0], [-3.0]], [[-6.0], [-5.0]]], [1, 1], [0, 1])
    stored = ragen_metrics(scored)
    first = metrics_of(scored)
    assert first["x/marginal_std_ema"] == first["x/marginal_std"]
    second = metrics_of(other, stored)
    expected = 0.9 * first["x/marginal_std"] + 0.1 * second["x/marginal_std"]
    assert second["x/marginal_std_ema"] == pytest.approx(expected)
    assert second["x/mi_zscore_ema"] == pytest.approx(second["x/mi_estimate"] / (expected + 1e-3))


def test_one_column_has_no_metrics() -> None:
    assert ragen_metrics(scores([[[-1.0]]], [1], [0])) == {}


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


def test_thinking_rates(episodes) -> None:
    assert thinking_rates(episodes) == {
        "collapse/valid_thinking_rate": 4 / 6,
        "collapse/first_turn_num_total": 4,
        "collapse/first_turn_num_valid": 2,
        "collapse/first_turn_valid_rate": 0.5,
    }
    assert math.isnan(thinking_rates([])["collapse/valid_thinking_rate"])


def test_only_closed_reasonings_with_words_count() -> None:
    """Whole reasonings and closing tags in, what stands between the tags out."""
    half, tag = math.log(1 / 2), -9.0
    table = np.full((3, 3, 2), half)
    table[:, :, 1] = tag
    table[0, 1, 0] = math.log(1 / 8)
    # The third was never closed: its column goes, too.
    metrics = metrics_of(scores(table, [2, 2, 2], [0, 1, 2], [[0, 1], [0, 1], [0, 0]]))
    # Row 0: 1/2 against (1/2 + 1/8) / 2 = 5/16; row 1: all the same.
    assert metrics["x/mi_seq_estimate"] == pytest.approx(math.log(8 / 5) / 2)
    assert metrics["x/mi_upper_bound"] == pytest.approx(math.log(2))
    assert ragen_metrics(CrossScores(problem="nothing")) == {}
