"""Where a reply ends: stop strings across tokens, and extra stop ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tool_templates import QWEN2_5

from echoscope.core.config.context import ContextConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig, SamplingConfig
from echoscope.core.rollout.chat import ChatFormat, ChatFormatError, load_tokenizer
from echoscope.core.rollout.context import Conversation
from echoscope.core.rollout.stop_strings import Stopping, StopStringWatch
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.reader import open_run
from echoscope.store.records import FinishReason

STOP = FinishReason.STOP


def followed(watch: StopStringWatch, tokens: list[int]) -> tuple[int, FinishReason | None]:
    """How many tokens a reply has in the end, and why it ended."""
    for number, token in enumerate(tokens, start=1):
        reason = watch.ends(token)
        if reason is not None:
            return number, reason
    return len(tokens), None


@pytest.mark.parametrize("stop", ["</answer>", "wer>", "> ", "é", "\U0001f600!"])
def test_a_stop_string_ends_a_reply_with_the_token_that_completes_it(any_tokenizer, stop) -> None:
    chat = ChatFormat(any_tokenizer)
    tokens = chat.encode(f"I go <up> héé </answer> \U0001f600! and {stop} more")
    number, reason = followed(StopStringWatch(chat, (stop, "never")), tokens)
    assert reason is STOP
    assert stop in chat.decode(tokens[:number])
    assert stop not in chat.decode(tokens[: number - 1])


def test_words_of_the_prompt_are_no_part_of_a_stop_string(any_tokenizer) -> None:
    chat = ChatFormat(any_tokenizer)
    assert followed(StopStringWatch(chat, ("ab",)), chat.encode("b a c"))[1] is None


def test_stop_ids_join_those_of_the_model(shipped_tokenizer) -> None:
    chat = ChatFormat(shipped_tokenizer)
    stopping = Stopping(chat, SamplingConfig(stop_token_ids=[7, chat.turn_end_id]))
    assert stopping.token_ids == (*chat.stop_token_ids, 7)
    assert stopping.watch is None
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
