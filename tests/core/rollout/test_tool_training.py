"""Training on tool calls: what a tool says is prompt, and what the policy says is learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_engine import BatchEngine
from generating import generate
from tool_templates import FAMILIES

from echoscope.core.config.context import ContextConfig
from echoscope.core.config.loss import NoCriticConfig
from echoscope.core.config.settings import ModelConfig, RunConfig, SamplingConfig
from echoscope.core.engines import build
from echoscope.core.engines.base import Sample, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import build_policy
from echoscope.core.rollout.chat import ChatFormat, load_tokenizer
from echoscope.core.rollout.context import Conversation
from echoscope.core.rollout.rollout import Collection
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.batch import credit_rewards, pack
from echoscope.core.warm_start.demonstrations import Lesson, demonstrate, encode
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import FinishReason, IntArray, RolloutBatch, Split
from echoscope.text.tool_calls import read_call, spell_call

SHOP = EnvGroup(env="price_list", groups=1, max_turns=3)
CALL = ("lookup", {"item": "tea"})
BARE = ContextConfig(system="", instructions=False, format_hint=False)


class Caller(BatchEngine):
    """Looks up tea twice in one reply, then sends a broken call, then answers."""

    def __init__(self, chat: ChatFormat, tool_format: Any) -> None:
        spelled = spell_call(*CALL, tool_format)
        self.chat = chat
        joint = ";" if tool_format == "llama" else "\n"
        broken = '{"name": "lookup", ' if tool_format == "llama" else "<tool_call>{</tool_call>"
        self.replies = [
            f"I look.</think>{spelled}{joint}{spelled}",
            f"Again.</think>{broken}",
            "So.</think><answer>4</answer>",
        ]
        self.num_calls = 0

    def answer(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        tokens = self.chat.encode_response(self.replies[self.num_calls])
        self.num_calls += 1
        return [
            Sample(
                tokens=tokens,
                logprobs=np.full(len(tokens), -1.0, np.float32),
                entropies=None,
                finish_reason=FinishReason.STOP,
                policy_version=0,
            )
            for _ in prompts
        ]


@pytest.fixture(params=["shipped", *FAMILIES])
def chat(request: pytest.FixtureRequest, tokenizer_of) -> ChatFormat:
    """The shipped template, which knows no tools, and those that do."""
    if request.param == "shipped":
        return ChatFormat(tokenizer_of("shipped"))
    vocabulary, template = FAMILIES[request.param]
    tokenizer = tokenizer_of(vocabulary)
    tokenizer.chat_template = template
    return ChatFormat(tokenizer)


def played(chat: ChatFormat) -> tuple[RolloutBatch, list[str]]:
    """An episode of three turns, and what the policy said."""
    is_llama = "<|eot_id|>" in chat.tokenizer.get_vocab()
    caller = Caller(chat, "llama" if is_llama else "hermes")
    with EnvPool([SHOP], group_size=1, seed=0, split="train") as pool:
        rollouts = Collection(
            pool=pool,
            engine=caller,  # type: ignore[arg-type]
            chat=chat,
            context=BARE,
            sampling=SamplingConfig(),
            step=1,
            split=Split.TRAIN,
            seed=0,
        ).run()
    return rollouts, caller.replies


def test_tool_results_carry_no_loss(chat: ChatFormat) -> None:
    rollouts, replies = played(chat)
    (trajectory,) = rollouts.trajectories
    batch = pack([trajectory], [credit_rewards(trajectory, 1.0, "trajectory")], pad_token_id=0)
    assert len(batch.input_ids) == 1  # every prompt extends the one before it: one row
    ids, mask = batch.input_ids[0].numpy(), batch.loss_mask[0].numpy()
    end = chat.decode([chat.turn_end_id])
    assert chat.decode(ids[mask]) == "".join(reply + end for reply in replies)
    prompt = chat.decode(ids[~mask])
    first, second, third = trajectory.turns
    prices = [call.result for call in first.calls]
    assert prices == [prices[0]] * 2
    assert prompt.count(prices[0]) == 2
    assert prompt.count("Error: the call is not JSON") == 1
    assert (second.is_valid, second.format_penalty) == (False, -0.1)
    assert second.observation == f"{prices[0]}\n{prices[0]}"
    assert third.actions == ("answer 4",)
    assert third.calls == ()
    # Whatever loss is put on the row, its gradient meets sampled tokens alone.
    assert (batch.token_rewards[0].numpy() != 0).sum() == 1
    assert mask.sum() == trajectory.num_sampled_tokens


def test_the_log_probs_of_a_row_with_results_are_those_of_its_sampled_tokens(
    tiny_model: Path,
) -> None:
    """Against a plain forward pass: results condition the replies and are not scored."""
    import torch

    chat = ChatFormat(load_tokenizer(tiny_model))
    rollouts, _ = played(chat)
    (trajectory,) = rollouts.trajectories
    batch = pack([trajectory], [credit_rewards(trajectory, 1.0, "trajectory")], pad_token_id=0)
    model = ModelConfig(path=str(tiny_model), device="cpu")
    policy = build_policy(model, NoCriticConfig(), seed=0)
    row = batch.input_ids[0].tolist()
    with torch.no_grad():
        outputs = policy.outputs(batch)
        logprobs = policy.model(batch.input_ids).logits[0].float().log_softmax(-1)
    for column, is_sampled in enumerate(batch.loss_mask[0].tolist()):
        expected = float(logprobs[column - 1, row[column]]) if is_sampled else 0.0
        assert float(outputs.logprobs[0, column]) == pytest.approx(expected, abs=1e-4)


class HalfCaller(BatchEngine):
    """The real engine, but every second reply calls a tool."""

    chat: ChatFormat

    def __init__(self, model: Any, **options: Any) -> None:
        self._inner = HfEngine(model, **options)

    def sync_weights(self, policy: Any) -> None:
        self._inner.sync_weights(policy)

    def answer(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        samples = generate(self._inner, prompts, params, seeds=seeds)
        spelled = f"</think>{spell_call(*CALL, 'hermes')}"
        tokens = self.chat.encode_response(spelled)
        return [
            sample
            if index % 2
            else Sample(
                tokens=tokens,
                logprobs=np.full(len(tokens), -5.0, np.float32),
                entropies=np.zeros(len(tokens), np.float32),
                finish_reason=FinishReason.STOP,
                policy_version=sample.policy_version,
            )
            for index, sample in enumerate(samples)
        ]


@pytest.mark.long
def test_the_tool_environment_trains_three_steps(
    make_config: Callable[..., RunConfig],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    HalfCaller.chat = ChatFormat(load_tokenizer(tiny_model))
    monkeypatch.setattr(build, "HfEngine", HalfCaller)
    shop = "[{env: price_list, groups: 1, max_turns: 2}]"
    config = make_config(
        "steps=3", f"envs.train={shop}", "envs.eval=[]", "eval.every=0", "checkpoint.every=0",
        "context.max_prompt_tokens=1200", "context.max_response_tokens=100",
        "diagnostics.enabled=false",
    )  # fmt: skip
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    reader = open_run(tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()
    for step in (1, 2, 3):
        for trajectory in reader.trajectories_of_step(step):
            outcome = reader.outcome(trajectory.id)
            assert outcome is not None
            for turn in trajectory.turns:
                expected = () if trajectory.sibling_index % 2 else ("lookup",)
                assert tuple(call.name for call in turn.calls) == expected
                if turn.calls:
                    assert turn.calls[0].result.startswith("tea: ")
                    assert turn.answer.startswith("<tool_call>")


def test_a_demonstration_is_token_for_token_what_a_rollout_would_record(chat: ChatFormat) -> None:
    """Teacher's episodes with tools, for every template."""
    lesson = Lesson(group=SHOP, context=BARE, episodes=4, careful=0.8, nonsense=0.2)
    for demo in demonstrate(lesson, seed=1):
        row = encode(demo, chat, force_think=True, prompt_weight=0.0)
        trained = np.flatnonzero(row.weights)
        end = chat.decode([chat.turn_end_id])
        responses = [
            reply.content.removeprefix("<think>")
            + "".join(
                spell_call(*call, Conversation(chat, BARE, tools=demo.tools).tool_format)
                for call in reply.calls
            )
            + end
            for _, reply in demo.exchanges
            if reply.train
        ]
        assert chat.decode(row.tokens[trained]) == "".join(responses)
        prompt = chat.decode(row.tokens)
        for asked, _ in demo.exchanges[1:]:
            assert all(message.role == "tool" for message in asked)
            assert all(message.content.split(":")[0] in prompt for message in asked)


def test_a_broken_call_is_not_what_a_later_reader_takes_for_a_call(chat: ChatFormat) -> None:
    rollouts, _ = played(chat)
    calls = [call for turn in rollouts.trajectories[0].turns for call in turn.calls]
    assert [bool(call.problem) for call in calls] == [False, False, True]
    assert [read_call(f"{call.name} {call.arguments}") for call in calls] == [CALL, CALL, None]
