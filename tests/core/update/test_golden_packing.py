"""Every id, mask, log-prob and reward of packed multi-turn trajectories, by hand-written tables.

Letters of the column labels: P prompt, aK token sampled in turn K, EK feedback before turn K, C the
turn's end that the prompt supplies after a cut reply, . padding.

The trajectories come from a real conversation: the shipped chat template over a vocabulary of whole
words, scripted replies, and the windows of `ContextConfig`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from trajectories import make_trajectory
from transformers import PreTrainedTokenizerFast

from echoscope.core.config.context import ContextConfig
from echoscope.core.rollout.chat import ChatFormat
from echoscope.core.rollout.context import Conversation
from echoscope.core.update.batch import TokenBatch, credit_rewards, pack
from echoscope.store.records import FinishReason, StopReason, Trajectory, Turn, prompt_key

# One character is one token, except for control tokens and tags.
PAD, END, USER, BOT = 0, 1, 2, 3
THINK, CLOSE, ANS, DONE = 4, 5, 6, 7
S, T, V, G, U = 8, 9, 10, 11, 12  # observations S, T, V; words g and u of the policy
UNKNOWN = 13
CONTROL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
TAGS = ["<think>", "</think>", "<ans>", "</ans>"]

TEMPLATE = (
    "{%- for m in messages -%}{{- '<|' + m['role'] + '|>' + m['content'] + '<|end|>' -}}"
    "{%- endfor -%}{{- '<|assistant|>' -}}"
)
BARE = {"system": "", "instructions": False, "format_hint": False, "force_think": True}


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    vocab = {token: index for index, token in enumerate([*CONTROL, *TAGS, "S", "T", "V", "g", "u"])}
    vocab["?"] = UNKNOWN
    backend = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(CONTROL)
    backend.add_tokens(TAGS)
    return ChatFormat(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="<|end|>",
            pad_token="<|pad|>",
            chat_template=TEMPLATE,
        )
    )


def trajectory(
    chat: ChatFormat,
    config: ContextConfig,
    turns: list[tuple[str, list[int], list[float], float, float]],
    *,
    index: int = 0,
    group_index: int = 0,
) -> Trajectory:
    """Plays scripted turns: (observation, sampled ids, log-probs, reward, format penalty)."""
    conversation = Conversation(chat, config)
    recorded: list[Turn] = []
    for observation, tokens, logprobs, reward, penalty in turns:
        prompt = conversation.prompt(observation)
        reading = conversation.respond(np.array(tokens, np.int32))
        recorded.append(
            Turn(
                index=len(recorded),
                observation=observation,
                response=reading.text,
                reasoning_chars=reading.parsed.reasoning_chars,
                answer_chars=reading.parsed.answer_chars,
                prompt_tokens=prompt.tokens,
                response_tokens=np.array(tokens),
                logprobs=np.array(logprobs),
                reasoning_span=reading.reasoning_span,
                actions=reading.parsed.actions,
                reward=reward,
                format_penalty=penalty,
                is_valid=reading.parsed.is_well_formed,
                finish_reason=FinishReason.STOP if tokens[-1] == END else FinishReason.LENGTH,
            )
        )
    return make_trajectory(
        *recorded,
        index=index,
        group_index=group_index,
        tag="scripted",
        prompt_key=prompt_key(np.array([0])),
        stop_reason=StopReason.MAX_TURNS,
    )


# Turn 0 is well formed and stops. Turn 1 is cut inside its reasoning. Turn 2 breaks the format.
TURNS = [
    ("S", [G, CLOSE, ANS, U, DONE, END], [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6], 1.0, 0.0),
    ("T", [G, G], [-1.1, -1.2], 0.0, -0.25),
    ("V", [U, END], [-2.1, -2.2], 0.5, -0.25),
]


def assert_rows(batch: TokenBatch, name: str, expected: list[list[float]]) -> None:
    array = getattr(batch, name)
    torch.testing.assert_close(
        array,
        torch.tensor(expected, dtype=array.dtype),
        rtol=0,
        atol=0,
        msg=lambda m: f"{name} {m}",
    )


def test_the_recorded_spans_and_actions(chat):
    turns = trajectory(chat, ContextConfig(**BARE), TURNS).turns
    assert [turn.response for turn in turns] == ["g</think><ans>u</ans>", "gg", "u"]
    assert [turn.reasoning_span for turn in turns] == [(0, 1), (0, 2), (0, 1)]
    assert [turn.actions for turn in turns] == [("u",), (), ()]
    assert [turn.is_valid for turn in turns] == [True, False, False]


def test_whole_history_is_one_row(chat):
    played = trajectory(chat, ContextConfig(**BARE), TURNS, index=3, group_index=1)
    rewards = credit_rewards(played, played.episode_return, "turn")
    batch = pack([played], [rewards], pad_token_id=PAD)
    # fmt: off
    # P     P  P    P    P      a0 a0     a0   a0 a0    a0
    # E1    E1 E1   E1   E1     a1 a1
    # C  E2    E2 E2   E2   E2     a2 a2
    assert_rows(batch, "input_ids", [[
        USER, S, END, BOT, THINK, G, CLOSE, ANS, U, DONE, END,
        USER, T, END, BOT, THINK, G, G,
        END, USER, V, END, BOT, THINK, U, END,
    ]])
    assert_rows(batch, "loss_mask", [[
        0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1,
        0, 0, 0, 0, 0, 1, 1,
        0, 0, 0, 0, 0, 0, 1, 1,
    ]])
    assert_rows(batch, "turn_index", [[
        -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0,
        -1, -1, -1, -1, -1, 1, 1,
        -1, -1, -1, -1, -1, -1, 2, 2,
    ]])
    assert_rows(batch, "behaviour_logprobs", [[
        0, 0, 0, 0, 0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.6,
        0, 0, 0, 0, 0, -1.1, -1.2,
        0, 0, 0, 0, 0, 0, -2.1, -2.2,
    ]])
    assert_rows(batch, "token_rewards", [[
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0,
        0, 0, 0, 0, 0, 0, -0.25,
        0, 0, 0, 0, 0, 0, 0, 0.25,
    ]])
    # fmt: on
    assert batch.attention_mask.all()
    assert batch.trajectory_index.tolist() == [0]
    assert batch.group_index.tolist() == [1]
    assert batch.trajectory_num_tokens.tolist() == [10]
    assert batch.num_loss_tokens == 10


def test_a_window_of_two_turns_starts_a_row_where_it_forgets(chat):
    played = trajectory(chat, ContextConfig(**BARE, history_turns=2), TURNS)
    batch = pack(
        [played], [credit_rewards(played, played.episode_return, "turn")], pad_token_id=PAD
    )
    # fmt: off
    # row 0: turns 0 and 1            row 1: turn 1 as history, turn 2 sampled
    # P     P  P    P    P      a0 a0     a0   a0 a0    a0   E1    E1 E1   E1   E1     a1 a1
    # P     P  P    P    P      P  P  C    E2    E2 E2   E2   E2     a2 a2    .    .    .
    assert_rows(batch, "input_ids", [
        [USER, S, END, BOT, THINK, G, CLOSE, ANS, U, DONE, END, USER, T, END, BOT, THINK, G, G],
        [USER, T, END, BOT, THINK, G, G, END, USER, V, END, BOT, THINK, U, END, PAD, PAD, PAD],
    ])
    assert_rows(batch, "attention_mask", [[1] * 18, [1] * 15 + [0] * 3])
    assert_rows(batch, "loss_mask", [
        [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0],
    ])
    assert_rows(batch, "turn_index", [
        [-1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, 1, 1],
        [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 2, -1, -1, -1],
    ])
    assert_rows(batch, "behaviour_logprobs", [
        [0, 0, 0, 0, 0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.6, 0, 0, 0, 0, 0, -1.1, -1.2],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -2.1, -2.2, 0, 0, 0],
    ])
    assert_rows(batch, "token_rewards", [
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0, -0.25],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.25, 0, 0, 0],
    ])
    # fmt: on
    assert batch.trajectory_index.tolist() == [0, 0]
    assert batch.trajectory_num_tokens.tolist() == [10, 10]


def test_a_window_of_one_turn_gives_a_row_per_turn(chat):
    played = trajectory(chat, ContextConfig(**BARE, history_turns=1), TURNS)
    batch = pack(
        [played], [credit_rewards(played, played.episode_return, "trajectory")], pad_token_id=PAD
    )
    # fmt: off
    # P     P  P    P    P      aK aK     aK   aK aK    aK
    assert_rows(batch, "input_ids", [
        [USER, S, END, BOT, THINK, G, CLOSE, ANS, U, DONE, END],
        [USER, T, END, BOT, THINK, G, G, PAD, PAD, PAD, PAD],
        [USER, V, END, BOT, THINK, U, END, PAD, PAD, PAD, PAD],
    ])
    assert_rows(batch, "loss_mask", [
        [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0],
    ])
    # The whole return, 1 + (0 - 0.25) + (0.5 - 0.25) = 1, on the last sampled token of all.
    assert_rows(batch, "token_rewards", [
        [0] * 11,
        [0] * 11,
        [0, 0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0],
    ])
    # fmt: on


def test_dropping_the_oldest_turns_breaks_the_row_at_the_same_place(chat):
    # The prompts have 5, 16 and 24 tokens. At most 20: turn 2 forgets turn 0, and has 13.
    config = ContextConfig(**BARE, max_prompt_tokens=20, on_long_prompt="drop_oldest")
    played = trajectory(chat, config, TURNS)
    window = trajectory(chat, ContextConfig(**BARE, history_turns=2), TURNS)
    assert [len(turn.prompt_tokens) for turn in played.turns] == [5, 16, 13]
    for dropped, windowed in zip(played.turns, window.turns, strict=True):
        assert dropped.prompt_tokens.tolist() == windowed.prompt_tokens.tolist()


def test_trajectories_stand_together_and_an_empty_one_keeps_its_index(chat):
    config = ContextConfig(**BARE, history_turns=1)
    first = trajectory(chat, config, TURNS[:2], index=0, group_index=0)
    empty = trajectory(chat, config, [], index=1, group_index=0)
    last = trajectory(chat, config, TURNS[2:], index=2, group_index=1)
    batch = pack(
        [first, empty, last],
        [credit_rewards(t, t.episode_return, "trajectory") for t in (first, empty, last)],
        pad_token_id=PAD,
    )
    assert batch.trajectory_index.tolist() == [0, 0, 2]
    assert batch.group_index.tolist() == [0, 0, 1]
    assert batch.trajectory_num_tokens.tolist() == [8, 8, 2]
    # first: 1 + (0 - 0.25) = 0.75 on turn 1; last: 0.5 - 0.25.
    assert_rows(
        batch,
        "token_rewards",
        [[0] * 11, [0, 0, 0, 0, 0, 0, 0.75, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0.25, 0, 0, 0, 0]],
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(
        st.tuples(st.text("STV", max_size=3), st.lists(st.integers(0, U), min_size=1, max_size=4)),
        max_size=6,
    ),
    history_turns=st.none() | st.integers(1, 3),
)
def test_every_sampled_token_stands_once_after_exactly_what_it_was_sampled_after(
    chat, turns, history_turns
):
    scripted = [(text, ids, [-float(x) for x in ids], 0.0, 0.0) for text, ids in turns]
    played = trajectory(chat, ContextConfig(**BARE, history_turns=history_turns), scripted)
    batch = pack([played], [np.zeros(len(turns))], pad_token_id=PAD)
    seen = []
    for row, column in batch.loss_mask.nonzero().tolist():
        turn = int(batch.turn_index[row, column])
        seen.append((turn, batch.input_ids[row, : column + 1].tolist()))
        assert batch.behaviour_logprobs[row, column] == -batch.input_ids[row, column]
    assert seen == [
        (turn.index, [*turn.prompt_tokens.tolist(), *turn.response_tokens[: k + 1].tolist()])
        for turn in played.turns
        for k in range(len(turn.response_tokens))
    ]
