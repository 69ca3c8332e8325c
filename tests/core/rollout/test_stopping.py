"""Where a reply ends: stop strings across tokens, extra stop ids, and replies in a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_templates import QWEN2_5

from echoscope.core.config.context import ContextConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig, SamplingConfig
from echoscope.core.rollout.chat import ChatFormat, ChatFormatError, load_tokenizer
from echoscope.core.rollout.context import Conversation
from echoscope.core.rollout.stopping import MAX_PERIOD, ReplyWatch, Stopping
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.reader import open_run
from echoscope.store.records import FinishReason

STOP, REPETITION = FinishReason.STOP, FinishReason.REPETITION


def followed(watch: ReplyWatch, tokens: list[int]) -> tuple[int, FinishReason | None]:
    """How many tokens a reply has in the end, and why it ended."""
    for number, token in enumerate(tokens, start=1):
        reason = watch.ends(token)
        if reason is not None:
            return number, reason
    return len(tokens), None


def repeats_naively(tokens: list[int], most: int) -> bool:
    """Some piece of at most MAX_PERIOD tokens stands `most` times in a row at the end."""
    return any(
        len(tokens) >= size * most and tokens[-size * most :] == tokens[-size:] * most
        for size in range(1, MAX_PERIOD + 1)
    )


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(3, 6))
def test_a_repetition_is_found_where_the_naive_search_finds_it(tokens, most) -> None:
    watch = ReplyWatch(None, (), most)  # type: ignore[arg-type]
    wanted = next((n for n in range(1, len(tokens) + 1) if repeats_naively(tokens[:n], most)), None)
    number, reason = followed(watch, tokens)
    assert (number if reason else None) == wanted


@pytest.mark.parametrize("size", [1, 7, MAX_PERIOD, MAX_PERIOD + 1])
def test_a_piece_of_up_to_32_tokens_counts(size: int) -> None:
    watch = ReplyWatch(None, (), 4)  # type: ignore[arg-type]
    number, reason = followed(watch, [9, 9, *list(range(100, 100 + size)) * 6])
    assert (number, reason) == ((2 + 4 * size, REPETITION) if size <= MAX_PERIOD else (200, None))


@pytest.mark.parametrize("stop", ["</answer>", "wer>", "> ", "é", "\U0001f600!"])
def test_a_stop_string_ends_a_reply_with_the_token_that_completes_it(any_tokenizer, stop) -> None:
    chat = ChatFormat(any_tokenizer)
    tokens = chat.encode(f"I go <up> héé </answer> \U0001f600! and {stop} more")
    number, reason = followed(ReplyWatch(chat, (stop, "never"), None), tokens)
    assert reason is STOP
    assert stop in chat.decode(tokens[:number])
    assert stop not in chat.decode(tokens[: number - 1])


def test_words_of_the_prompt_are_no_part_of_a_stop_string(any_tokenizer) -> None:
    chat = ChatFormat(any_tokenizer)
    assert followed(ReplyWatch(chat, ("ab",), None), chat.encode("b a c"))[1] is None


def test_stop_ids_join_those_of_the_model(shipped_tokenizer) -> None:
    chat = ChatFormat(shipped_tokenizer)
    stopping = Stopping(chat, SamplingConfig(stop_token_ids=[7, chat.turn_end_id]))
    assert stopping.token_ids == (*chat.stop_token_ids, 7)
    assert not stopping.watches
    size = len(shipped_tokenizer)
    with pytest.raises(ConfigError, match=f"names {size}, but the tokenizer has {size} tokens"):
        Stopping(chat, SamplingConfig(stop_token_ids=[size]))


def test_a_run_stops_replies_and_trains_on_the_tokens_that_stopped_them(
    make_config: Callable[..., RunConfig], tiny_model: Path, tmp_path: Path
) -> None:
    """Training, evaluation and probe alike; log-probs stay those of the trainer."""
    config = make_config("steps=1", "sampling.stop=[a, b]", "probe.every=1", "checkpoint.every=0")
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    reader = open_run(tmp_path / "run")
    chat = ChatFormat(load_tokenizer(tiny_model))
    splits = set()
    stopped = 0
    for row in reader.sql("SELECT id, split FROM trajectories").to_pylist():
        trajectory, outcome = reader.trajectory(row["id"]), reader.outcome(row["id"])
        for turn in trajectory.turns:
            has_stop = "a" in turn.response or "b" in turn.response
            assert not has_stop or turn.finish_reason is STOP
            assert not {"a", "b"} & set(chat.decode(turn.response_tokens[:-1]))
            if has_stop:
                splits.add(row["split"])
                stopped += 1
        if outcome is not None and outcome.trainer_logprobs is not None:
            for turn, logprobs in zip(trajectory.turns, outcome.trainer_logprobs, strict=True):
                assert len(logprobs) == len(turn.response_tokens)
                np.testing.assert_allclose(logprobs, turn.logprobs, atol=1e-5)
    assert splits == {"train", "eval", "probe"}
    assert stopped > 5


def test_a_reply_in_a_loop_says_so(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = make_config(
        "steps=1", "sampling.max_repeats=3", "sampling.top_k=1", "eval.every=0",
        "eval.before=false", "checkpoint.every=0", "context.max_response_tokens=80",
        "diagnostics.enabled=false",
    )  # fmt: skip
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    turns = [turn for t in open_run(tmp_path / "run").trajectories_of_step(1) for turn in t.turns]
    looped = [turn for turn in turns if turn.finish_reason is REPETITION]
    assert looped
    for turn in looped:
        assert repeats_naively(turn.response_tokens.tolist(), 3)
        assert turn.finish_reason.is_cut


class TestTemplateArguments:
    def chat(self, tokenizer, **arguments: object) -> ChatFormat:
        tokenizer.chat_template = QWEN2_5
        return ChatFormat(tokenizer, template_args=arguments)

    def test_an_argument_reaches_the_template(self, chatml_tokenizer) -> None:
        plain = self.chat(chatml_tokenizer)
        off = self.chat(chatml_tokenizer, enable_thinking=False)
        assert off.template_closes_think
        assert not plain.template_closes_think
        closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        assert off.decode(off.to_assistant(False)).endswith(closed)

    def test_without_thinking_there_is_no_reasoning_to_ask_for(self, chatml_tokenizer) -> None:
        off = self.chat(chatml_tokenizer, enable_thinking=False)
        Conversation(off, ContextConfig(reasoning=False, force_think=False))
        with pytest.raises(ChatFormatError, match=r"set context\.reasoning=false"):
            Conversation(off, ContextConfig())

    @pytest.mark.parametrize(
        "name", ["enable_thinkin", "messages", "tools", "add_generation_prompt"]
    )
    def test_a_name_that_the_template_does_not_read_is_refused(
        self, chatml_tokenizer, name
    ) -> None:
        with pytest.raises(ChatFormatError, match="no argument of this model's chat template"):
            self.chat(chatml_tokenizer, **{name: False})

    def test_the_refusal_names_what_could_be_meant(self, chatml_tokenizer) -> None:
        with pytest.raises(ChatFormatError, match="enable_thinking"):
            self.chat(chatml_tokenizer, enable_thinkin=False)
