"""Token batches: credit, packing's errors, micro- and minibatches, values back to their turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import make_trajectory

from echoscope.core.update.batch import (
    TokenBatch,
    credit_rewards,
    microbatches,
    minibatches,
    pack,
    scatter_to_turns,
    select_rows,
)
from echoscope.store.records import Support, Trajectory, Turn


def turn(prompt: Sequence[int], response: Sequence[int], **fields: object) -> Turn:
    """A sampled turn; the log-prob of token x is -x / 10."""
    return Turn(
        **{
            "index": 0,
            "observation": "",
            "response": "",
            "prompt_tokens": np.array(prompt, np.int32),
            "response_tokens": np.array(response, np.int32),
            "logprobs": -np.array(response, np.float32) / 10,
        }
        | fields
    )


def trajectory(*turns: Turn, index: int = 0, group_index: int = 0) -> Trajectory:
    return make_trajectory(
        *(replace(item, index=k) for k, item in enumerate(turns)),
        index=index,
        group_index=group_index,
        tag="e",
    )


def packed(*trajectories: Trajectory) -> TokenBatch:
    return pack(trajectories, [np.zeros(t.num_turns) for t in trajectories])


def of_lengths(*lengths: int) -> TokenBatch:
    """One trajectory per length: a prompt of one token, the rest sampled."""
    return packed(*(trajectory(turn([9], [1] * (length - 1))) for length in lengths))


# -- credit ----------------------------------------------------------------------------------------


def test_trajectory_credit_puts_the_normalised_return_on_the_last_turn():
    played = trajectory(turn([1], [2], reward=5.0), turn([1, 2], [3], reward=7.0))
    assert credit_rewards(played, 0.5, "trajectory").tolist() == [0, 0.5]


def test_turn_credit_is_each_turns_total_reward():
    played = trajectory(
        turn([1], [2], reward=1.0, shaping={"length": 0.25}),
        turn([1, 2], [3], reward=0.0, format_penalty=-0.5),
    )
    assert credit_rewards(played, 99.0, "turn").tolist() == [1.25, -0.5]


@pytest.mark.parametrize(
    ("responses", "trajectory_credit", "turn_credit"),
    [
        # The reward of a turn without tokens belongs to the last token sampled before it.
        ([[2], [], [3], []], [0, 0, 9, 0], [1 + 2, 0, 3 + 4, 0]),
        ([[], [2]], [0, 9], [0, 1 + 2]),
        ([[], []], [0, 0], [0, 0]),
        ([], [], []),
    ],
)
def test_no_reward_is_lost_to_turns_without_tokens(responses, trajectory_credit, turn_credit):
    played = trajectory(
        *(turn([1], response, reward=k + 1.0) for k, response in enumerate(responses))
    )
    assert credit_rewards(played, 9.0, "trajectory").tolist() == trajectory_credit
    assert credit_rewards(played, 9.0, "turn").tolist() == turn_credit


# -- packing ---------------------------------------------------------------------------------------


def test_a_prompt_that_only_resembles_the_row_starts_a_new_one():
    # Turn 1's prompt has the right length, but one sampled token differs.
    batch = packed(trajectory(turn([1, 2], [3, 4]), turn([1, 2, 3, 5], [6])))
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 0], [1, 2, 3, 5, 6]]


def test_a_prompt_that_adds_nothing_continues_the_row():
    batch = packed(trajectory(turn([1], [2]), turn([1, 2], [3])))
    assert batch.input_ids.tolist() == [[1, 2, 3]]
    assert batch.turn_index.tolist() == [[-1, 0, 1]]


def test_a_turn_without_sampled_tokens_leaves_no_trace():
    batch = packed(trajectory(turn([1], [2]), turn([1, 2, 7], []), turn([1, 2, 7, 8], [3])))
    assert batch.input_ids.tolist() == [[1, 2, 7, 8, 3]]
    assert batch.turn_index.tolist() == [[-1, 0, -1, -1, 2]]


def test_nothing_to_train_is_a_batch_without_rows():
    batch = packed(trajectory(), trajectory())
    assert (batch.num_rows, batch.width, batch.num_loss_tokens) == (0, 0, 0)
    assert microbatches(batch, 10) == []
    assert minibatches(batch, 2) == []
    assert scatter_to_turns(batch, batch.behaviour_logprobs, [trajectory()]) == [()]


def test_minibatches_are_balanced_by_sampled_tokens_and_not_by_rows():
    # Trajectory 0 has two rows, as its second prompt does not continue the first: 1 + 1 tokens.
    # The others have one row each of 6, 3 and 1 tokens. Dealt out from the largest: 6 | 3, 2, 1.
    batch = packed(
        trajectory(turn([9], [1]), turn([8], [1])),
        *(trajectory(turn([9], [1] * size), index=k) for k, size in ((1, 6), (2, 3), (3, 1))),
    )
    assert [rows.tolist() for _, rows in minibatches(batch, 2)] == [[2], [0, 1, 3, 4]]
    assert [part.num_loss_tokens for part, _ in minibatches(batch, 2)] == [6, 6]


@pytest.mark.parametrize(
    ("played", "rewards", "message"),
    [
        (
            turn([1], [2], prompt_tokens=None, response_tokens=None, logprobs=None),
            [0],
            "no sampled",
        ),
        (turn([1], [2], logprobs=None), [0], "no sampled token ids and log-probs"),
    ],
)
def test_what_cannot_train_is_refused(played, rewards, message):
    with pytest.raises(ValueError, match=message):
        pack([trajectory(played)], [np.array(rewards, np.float64)])


def test_temperature_and_support_stand_with_the_tokens():
    support = Support(sizes=np.array([2, 1]), tokens=np.array([5, 6, 5]))
    cut = trajectory(turn([1, 2], [5, 5], temperature=0.5, support=support))
    whole = trajectory(turn([1], [7]), index=1)
    batch = packed(cut, whole)
    assert batch.temperatures is not None
    assert batch.temperatures.tolist() == [[1, 1, 0.5, 0.5], [1, 1, 1, 1]]
    assert batch.supports is not None
    assert batch.supports.sizes.tolist() == [[0, 0, 2, 1], [0, 0, 0, 0]]
    assert batch.supports.tokens.tolist() == [5, 6, 5]
    swapped = select_rows(batch, [1, 0, 0]).supports
    assert swapped is not None
    assert swapped.sizes.tolist() == [[0, 0, 0, 0], [0, 0, 2, 1], [0, 0, 2, 1]]
    assert swapped.tokens.tolist() == [5, 6, 5, 5, 6, 5]
    assert packed(whole).supports is None
    assert packed(whole).temperatures is None


def test_padding_takes_the_given_id_and_only_there():
    batch = pack(
        [trajectory(turn([5], [5])), trajectory(turn([5, 5], [5]))],
        [np.zeros(1)] * 2,
        pad_token_id=5,
    )
    assert batch.input_ids.unique().tolist() == [5]
    assert batch.attention_mask.sum(1).tolist() == [2, 3]
    assert batch.loss_mask.tolist() == [[False, True, False], [False, False, True]]


# -- parts of a batch ------------------------------------------------------------------------------


def test_selected_rows_are_trimmed_to_the_longest_of_them():
    batch = replace(of_lengths(5, 2, 3), values=torch.arange(15.0).reshape(3, 5))
    part = select_rows(batch, [2, 1])
    assert part.width == 3
    assert part.trajectory_index.tolist() == [2, 1]
    assert part.values.tolist() == [[10, 11, 12], [5, 6, 7]]
    assert part.ref_logprobs is None
    assert select_rows(batch, []).num_rows == 0


def test_microbatches_group_like_lengths_within_the_budget():
    batch = of_lengths(3, 8, 4, 3, 20)
    # By length: 20 | 8 4 -> 16 > 12, so 8 | 4 3 3 -> 12.
    parts = microbatches(batch, 12)
    assert [rows.tolist() for _, rows in parts] == [[4], [1], [2, 0, 3]]
    assert [part.width for part, _ in parts] == [20, 8, 4]


def test_minibatches_balance_tokens_over_whole_trajectories():
    windowed = trajectory(turn([1], [2] * 3), turn([8], [3] * 3))  # two rows, 6 tokens
    batch = packed(
        trajectory(turn([1], [2] * 2)),
        windowed,
        trajectory(turn([1], [2] * 5)),
        trajectory(turn([1], [2])),
    )
    # 6 tokens -> part 0, 5 -> part 1, 2 -> part 1 (7), 1 -> part 0 (7).
    parts = minibatches(batch, 2)
    assert [rows.tolist() for _, rows in parts] == [[1, 2, 4], [0, 3]]
    assert [part.num_loss_tokens for part, _ in parts] == [7, 7]
    assert [rows.tolist() for _, rows in minibatches(batch, 99)] == [[1, 2], [3], [0], [4]]


@settings(deadline=None)
@given(st.lists(st.integers(2, 12), min_size=1, max_size=12), st.integers(1, 40), st.integers(1, 5))
def test_parts_hold_every_row_once_and_values_find_their_way_back(lengths, max_tokens, num_parts):
    batch = of_lengths(*lengths)
    for parts in (microbatches(batch, max_tokens), minibatches(batch, num_parts)):
        assert sorted(row for _, rows in parts for row in rows.tolist()) == list(
            range(len(lengths))
        )
        back = torch.zeros_like(batch.behaviour_logprobs)
        for part, rows in parts:
            back[rows, : part.width] = part.behaviour_logprobs
        assert torch.equal(back, batch.behaviour_logprobs)
    for part, _ in microbatches(batch, max_tokens):
        assert part.num_rows == 1 or part.input_ids.numel() <= max_tokens


def test_a_batch_moves_with_all_its_columns():
    batch = replace(of_lengths(3), advantages=torch.zeros(1, 3)).to("meta")
    assert batch.input_ids.is_meta
    assert batch.advantages.is_meta
    assert batch.trajectory_index.is_meta
    assert batch.values is None


# -- values back to turns --------------------------------------------------------------------------


def test_values_go_back_to_the_turns_that_sampled_them():
    trajectories = [
        trajectory(turn([1], [2, 3]), turn([1, 2, 3, 9], [4])),  # one row
        trajectory(),
        trajectory(turn([1], [5]), turn([7], []), turn([8], [6, 7])),  # two rows
    ]
    batch = packed(*trajectories)
    per_turn = scatter_to_turns(batch, batch.behaviour_logprobs * -10, trajectories)
    assert [[part.round().tolist() for part in turns] for turns in per_turn] == [
        [[2, 3], [4]],
        [],
        [[5], [], [6, 7]],
    ]
    assert per_turn[0][0].dtype == np.float32
