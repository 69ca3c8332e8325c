"""Collection: the turn loop over scripted policies and worlds, and the real ones together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from batch_engine import BatchEngine
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.config.settings import (
    ContextConfig,
    ModelConfig,
    SamplingConfig,
)
from echoscope.core.engines.base import Sample, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import Policy
from echoscope.core.rollout.chat import ChatFormat
from echoscope.core.rollout.episode import sampling_seed
from echoscope.core.rollout.rollout import Collection
from echoscope.core.update.batch import credit_rewards, pack
from echoscope.envs.base import Observation
from echoscope.envs.pool import EnvPool, Leader, Slot
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.turn import Opening, TurnResult
from echoscope.store.records import (
    FinishReason,
    IntArray,
    RolloutBatch,
    Split,
    StopReason,
    Trajectory,
    prompt_key,
)

START = Observation(text="S0", frame="{}")
GOOD = "I go.</think><answer>Up</answer>"
BARE = {"system": "", "instructions": False, "format_hint": False}


@dataclass(kw_only=True)
class ScriptedEngine(BatchEngine):
    """Answers prompt i of a call with `replies[call][i]`, cut at the call's limit."""

    chat: ChatFormat
    replies: list[list[str]]
    aborts: bool = False
    calls: list[tuple[Sequence[IntArray], SamplingParams, Sequence[int]]] = field(
        default_factory=list
    )

    def answer(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        texts = self.replies[len(self.calls)]
        self.calls.append((prompts, params, seeds))
        return [self._sample(text, params) for text, _ in zip(texts, prompts, strict=True)]

    def _sample(self, text: str, params: SamplingParams) -> Sample:
        whole = self.chat.encode_response(text)
        tokens = whole[: params.max_new_tokens]
        finish = FinishReason.STOP if len(tokens) == len(whole) else FinishReason.LENGTH
        return Sample(
            tokens=tokens,
            logprobs=-np.arange(1, len(tokens) + 1, dtype=np.float32),
            entropies=np.full(len(tokens), 0.5, np.float32),
            finish_reason=FinishReason.ABORT if self.aborts else finish,
            policy_version=len(self.calls),
        )


@dataclass(kw_only=True)
class ScriptedPool:
    """P x G worlds; `results[turn][slot]` overrides what a turn gives, which is "go on"."""

    num_groups: int = 1
    group_size: int = 1
    results: list[dict[int, dict[str, Any]]] = field(default_factory=list)
    steps: list[dict[int, tuple[Sequence[str], bool]]] = field(default_factory=list)

    def check_step(self, step: int, draw_round: int = 0) -> int:
        return 0

    def lead(self, step: int, p: int, first_group: int) -> Leader:
        seen = {p * self.group_size: Opening(observation=START)}
        return Leader(first_group=first_group, env_seed=10 + step, seen=seen)

    def slots_of(self, p: int) -> range:
        return range(p * self.group_size, (p + 1) * self.group_size)

    def start(self, index: int, leader: Leader) -> Slot:
        return Slot(
            index=index,
            episode_index=index,
            group_index=index // self.group_size,
            sibling_index=index % self.group_size,
            env_id="scripted",
            tag="tagged",
            env_seed=leader.env_seed,
            noise_seed=20 + index,
            task_key="0123456789abcdef",
            observation=START,
            instructions="Rules.",
        )

    def step_one(self, index: int, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        moves = (actions, is_well_formed)
        turn = sum(index in of_turn for of_turn in self.steps)
        if turn == len(self.steps):
            self.steps.append({})
        self.steps[turn][index] = moves
        scripted = self.results[turn] if turn < len(self.results) else {}
        return self._result(turn, moves, scripted.get(index, {}))

    def is_threaded(self, index: int) -> bool:
        return False

    def check_group(self, slots: Sequence[Slot]) -> None: ...

    def check_started(self, slots: Sequence[Slot]) -> None: ...

    @staticmethod
    def _result(turn: int, moves: tuple[Sequence[str], bool], fields: dict[str, Any]) -> TurnResult:
        stop = fields.get("stop_reason")
        return TurnResult(
            **{
                "observation": Observation(text=f"S{turn + 1}"),
                "actions": tuple(moves[0]),
                "reward": 0.0,
                "format_penalty": 0.0,
                "is_valid": moves[1],
                "is_effective": True,
                "terminated": stop == "terminated",
                "stop_reason": None,
                "success": False,
            }
            | fields
        )


WIN = {"stop_reason": "terminated", "success": True, "reward": 1.0}


@pytest.fixture
def chat(shipped_tokenizer) -> ChatFormat:
    return ChatFormat(shipped_tokenizer)


def play(
    chat: ChatFormat,
    replies: list[list[str]],
    pool: ScriptedPool,
    *,
    aborts: bool = False,
    **settings: Any,
) -> tuple[RolloutBatch, ScriptedEngine]:
    engine = ScriptedEngine(chat=chat, replies=replies, aborts=aborts)
    context = ContextConfig(**BARE | settings.pop("context", {}))
    arguments = {"sampling": SamplingConfig(), "step": 3, "split": Split.TRAIN, "seed": 7}
    batch = Collection(
        pool=pool, engine=engine, chat=chat, context=context, **arguments | settings
    ).run()
    return batch, engine


def only(batch: RolloutBatch) -> Trajectory:
    (trajectory,) = batch.trajectories
    return trajectory


def test_a_turn_is_recorded_as_it_was_sampled(chat):
    pool = ScriptedPool(results=[{0: WIN | {"info": {"moves": 1.0}}}])
    batch, engine = play(chat, [[GOOD]], pool)
    trajectory = only(batch)
    (turn,) = trajectory.turns
    assert turn.observation == "S0"
    assert turn.frame == "{}"
    assert chat.decode(turn.prompt_tokens) == "<|user|>S0<|end|><|assistant|><think>"
    assert turn.response_tokens.tolist() == chat.encode_response(GOOD).tolist()
    assert turn.response == GOOD
    assert turn.reasoning == "I go."
    assert turn.answer == "Up"
    assert turn.logprobs.tolist() == [-k for k in range(1, len(turn.response_tokens) + 1)]
    assert set(turn.entropies.tolist()) == {0.5}
    assert turn.reasoning_span[0] == 0
    assert turn.actions == ("Up",)
    assert (turn.reward, turn.is_valid, turn.is_effective) == (1.0, True, True)
    assert turn.info == {"moves": 1.0}
    assert turn.finish_reason is FinishReason.STOP
    assert turn.policy_version == 1
    assert trajectory.id == "t00000003-00000"
    assert (trajectory.env_seed, trajectory.noise_seed) == (13, 20)
    assert (trajectory.env_id, trajectory.tag) == ("scripted", "tagged")
    assert trajectory.prompt_key == prompt_key(turn.prompt_tokens)
    assert trajectory.final_observation == "S1"
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.is_success is True
    assert trajectory.duration_s >= 0
    params = engine.calls[0][1]
    assert params.stop_token_ids == chat.stop_token_ids
    assert (params.max_new_tokens, params.temperature) == (400, 1.0)


def test_episodes_that_ended_leave_the_calls(chat):
    pool = ScriptedPool(num_groups=2, group_size=2, results=[{1: WIN}, {0: WIN, 2: WIN}, {3: WIN}])
    reported: list[list[str]] = []
    batch, engine = play(
        chat,
        [[GOOD] * 4, [GOOD] * 3, [GOOD]],
        pool,
        on_finished=lambda ended: reported.append([t.id[-1] for t in ended]),
    )
    assert [len(prompts) for prompts, _, _ in engine.calls] == [4, 3, 1]
    assert [sorted(moves) for moves in pool.steps] == [[0, 1, 2, 3], [0, 2, 3], [3]]
    assert reported == [["1"], ["0", "2"], ["3"]]
    # Back in their places: groups of siblings, in order.
    assert [[t.index for t in group] for group in batch.groups] == [[0, 1], [2, 3]]
    assert [[t.num_turns for t in group] for group in batch.groups] == [[2, 1], [2, 3]]


def test_each_prompt_extends_the_last_with_what_was_sampled(chat):
    batch, _ = play(chat, [[GOOD], [GOOD]], ScriptedPool(results=[{}, {0: WIN}]))
    first, second = only(batch).turns
    so_far = [*first.prompt_tokens.tolist(), *first.response_tokens.tolist()]
    assert second.prompt_tokens[: len(so_far)].tolist() == so_far


def test_a_malformed_reply_is_stepped_as_one(chat):
    result = {"format_penalty": -0.1, "stop_reason": "max_actions", "is_effective": False}
    pool = ScriptedPool(results=[{0: result}])
    trajectory = only(play(chat, [["Up, I say"]], pool)[0])
    assert pool.steps == [{0: ((), False)}]
    assert trajectory.stop_reason is StopReason.MAX_ACTIONS
    assert trajectory.turns[0].format_penalty == -0.1
    assert trajectory.turns[0].is_valid is False


@pytest.mark.parametrize("reason", ["max_turns", "max_actions", "env_error", "timeout"])
def test_the_worlds_reasons_are_the_trajectorys(chat, reason):
    pool = ScriptedPool(results=[{0: {"stop_reason": reason, "success": None}}])
    trajectory = only(play(chat, [[GOOD]], pool)[0])
    assert trajectory.stop_reason == StopReason(reason)
    assert trajectory.is_success is None


def test_a_spent_token_budget_ends_the_episode(chat):
    size = len(chat.encode_response(GOOD))
    budget = {"max_response_tokens": size + 5, "max_episode_tokens": size + 3}
    pool = ScriptedPool()
    batch, engine = play(chat, [[GOOD], [GOOD]], pool, context=budget)
    trajectory = only(batch)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert trajectory.is_success is False
    # The second reply may have what is left, 3 tokens, and is played as far as it got.
    assert [call[1].max_new_tokens for call in engine.calls] == [size + 3, 3]
    assert trajectory.num_sampled_tokens == size + 3
    assert trajectory.turns[1].finish_reason is FinishReason.LENGTH
    assert pool.steps[1] == {0: ((), False)}
    assert trajectory.final_observation == "S2"


def test_a_call_with_several_budgets_gives_each_episode_its_own(chat):
    long, short = "I think.</think><answer>Up</answer>", GOOD
    spent = [len(chat.encode_response(long)), len(chat.encode_response(short))]
    limit = spent[0] + 2
    pool = ScriptedPool(num_groups=2)
    batch, engine = play(
        chat, [[long, short], [GOOD, GOOD]], pool, context={"max_episode_tokens": limit}
    )
    second = [trajectory.turns[1] for trajectory in batch.trajectories]
    assert engine.calls[1][1].max_new_tokens == limit - spent[1]
    assert [len(turn.response_tokens) for turn in second] == [2, limit - spent[1]]
    assert len(second[0].logprobs) == len(second[0].entropies) == 2
    assert {turn.finish_reason for turn in second} == {FinishReason.LENGTH}


def test_a_budget_spent_on_a_winning_reply_does_not_hide_the_win(chat):
    budget = {"max_episode_tokens": len(chat.encode_response(GOOD))}
    trajectory = only(play(chat, [[GOOD]], ScriptedPool(results=[{0: WIN}]), context=budget)[0])
    assert trajectory.stop_reason is StopReason.TERMINATED


def test_a_prompt_too_long_at_the_start_is_a_trajectory_without_turns(chat):
    engine_replies: list[list[str]] = []
    pool = ScriptedPool()
    long = {"system": "You play many games on many lakes.", "max_prompt_tokens": 8}
    trajectory = only(play(chat, engine_replies, pool, context=long)[0])
    assert trajectory.stop_reason is StopReason.PROMPT_TOO_LONG
    assert trajectory.turns == ()
    assert trajectory.is_success is False
    assert trajectory.final_observation == "S0"
    assert len(trajectory.prompt_key) == 16
    assert pool.steps == []


def test_a_prompt_that_grows_too_long_ends_the_episode_before_its_turn(chat):
    trajectory = only(play(chat, [[GOOD]], ScriptedPool(), context={"max_prompt_tokens": 12})[0])
    assert trajectory.stop_reason is StopReason.PROMPT_TOO_LONG
    assert trajectory.num_turns == 1
    assert trajectory.is_success is False
    assert trajectory.final_observation == "S1"


def test_an_abort_ends_what_still_goes_on(chat):
    pool = ScriptedPool(group_size=2, results=[{0: WIN}])
    asked = iter([False, True])
    batch, engine = play(chat, [[GOOD] * 2], pool, should_abort=lambda: next(asked))
    finished, dropped = batch.trajectories
    assert finished.stop_reason is StopReason.TERMINATED
    assert dropped.stop_reason is StopReason.ABORTED
    assert dropped.num_turns == 1
    assert dropped.is_success is None
    assert len(engine.calls) == 1
    assert batch.trainable_PG.tolist() == [[True, False]]


def test_a_response_the_engine_aborted_is_kept_and_never_played(chat):
    pool = ScriptedPool()
    trajectory = only(play(chat, [[GOOD]], pool, aborts=True)[0])
    assert trajectory.stop_reason is StopReason.ABORTED
    assert trajectory.turns[0].finish_reason is FinishReason.ABORT
    assert trajectory.turns[0].actions == ()
    assert pool.steps == []


def test_shaping_sees_the_finished_turn_and_stays_apart(chat):
    pool = ScriptedPool(results=[{0: WIN}])
    batch, _ = play(
        chat, [[GOOD]], pool, shaping=lambda turn: {"brevity": -0.5 * len(turn.actions)}
    )
    trajectory = only(batch)
    assert trajectory.turns[0].shaping == {"brevity": -0.5}
    assert trajectory.env_return == 1.0
    assert trajectory.episode_return == 0.5


def test_the_policy_is_told_its_reward_and_penalty_where_asked(chat):
    pool = ScriptedPool(results=[{0: {"reward": 0.5, "format_penalty": -0.25}}, {0: WIN}])
    batch, _ = play(chat, [[GOOD], [GOOD]], pool, context={"show_reward": True})
    assert "Reward: 0.25\nS1" in chat.decode(only(batch).turns[1].prompt_tokens)


def test_every_response_has_a_seed_of_its_own_that_only_its_place_decides(chat):
    pool = ScriptedPool(group_size=2, results=[{0: WIN}, {1: WIN}])
    _, engine = play(chat, [[GOOD] * 2, [GOOD]], pool)
    assert [list(seeds) for _, _, seeds in engine.calls] == [
        [sampling_seed(7, Split.TRAIN, 3, 0, 0), sampling_seed(7, Split.TRAIN, 3, 1, 0)],
        [sampling_seed(7, Split.TRAIN, 3, 1, 1)],
    ]
    places = [
        (7, Split.TRAIN, 3, 0, 0),
        (8, Split.TRAIN, 3, 0, 0),
        (7, Split.EVAL, 3, 0, 0),
        (7, Split.TRAIN, 4, 0, 0),
        (7, Split.TRAIN, 3, 1, 0),
        (7, Split.TRAIN, 3, 0, 1),
    ]
    seeds = [sampling_seed(*key) for key in places]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_evaluation_may_be_greedy(chat):
    greedy = SamplingParams(max_new_tokens=1, temperature=0.0)
    batch, engine = play(
        chat, [[GOOD]], ScriptedPool(results=[{0: WIN}]), sampling=greedy, split=Split.EVAL
    )
    assert engine.calls[0][1].temperature == 0
    assert only(batch).id == "e00000003-00000"


# -- the real policy, engine and worlds ------------------------------------------------------------


@pytest.fixture
def policy(shipped_tokenizer) -> Policy:
    config = Qwen2Config(
        vocab_size=len(shipped_tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,  # far from uniform, so that equal log-probs mean something
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    return Policy(model.float().eval(), ModelConfig(), None)


def lake_pool(split: str = "train") -> EnvPool:
    lake = EnvGroup(
        tag="lake",
        env="frozen_lake",
        groups=2,
        params={"size": 3, "observation": "relative"},
        max_turns=3,
    )
    return EnvPool([lake], group_size=2, seed=5, split=split)


def real_rollouts(policy: Policy, chat: ChatFormat, **context: Any) -> RolloutBatch:
    engine = HfEngine(policy.model, config=HfEngineConfig())
    with lake_pool() as pool:
        return Collection(
            pool=pool,
            engine=engine,
            chat=chat,
            context=ContextConfig(max_response_tokens=12, **context),
            sampling=SamplingConfig(temperature=0.8),
            step=1,
            split=Split.TRAIN,
            seed=9,
        ).run()


@pytest.mark.parametrize("history_turns", [None, 1, 2])
def test_on_policy_ratio_is_one_on_exactly_what_was_sampled(policy, chat, history_turns):
    batch = real_rollouts(policy, chat, history_turns=history_turns)
    trajectories = batch.trajectories
    assert {trajectory.num_turns for trajectory in trajectories} == {3}
    packed = pack(
        trajectories,
        [credit_rewards(t, t.episode_return, "trajectory") for t in trajectories],
        pad_token_id=chat.pad_token_id,
    )
    assert packed.num_rows == {None: 4, 1: 12, 2: 8}[history_turns]
    assert packed.num_loss_tokens == sum(t.num_sampled_tokens for t in trajectories)
    with torch.no_grad():
        outputs = policy.outputs(packed)
    log_ratio = (outputs.logprobs - packed.behaviour_logprobs)[packed.loss_mask].double()
    assert float((log_ratio.exp() - 1).abs().max()) < 1e-5
    # k3 of KL(sampler || trainer): E[expm1(d) - d] with d = log trainer - log sampler.
    assert float((torch.expm1(log_ratio) - log_ratio).mean()) < 1e-10
    recorded = np.concatenate([turn.entropies for t in trajectories for turn in t.turns])
    np.testing.assert_allclose(
        recorded, outputs.entropies[packed.loss_mask].numpy(), rtol=1e-4, atol=1e-5
    )


def test_the_same_seeds_give_the_same_rollouts(policy, chat):
    first, second = real_rollouts(policy, chat), real_rollouts(policy, chat)
    for left, other in zip(first.trajectories, second.trajectories, strict=True):
        assert left.prompt_key == other.prompt_key
        for turn, again in zip(left.turns, other.turns, strict=True):
            assert turn.response_tokens.tolist() == again.response_tokens.tolist()
            assert turn.logprobs.tolist() == again.logprobs.tolist()


def test_siblings_share_the_prompt_and_sample_for_themselves(policy, chat):
    for group in real_rollouts(policy, chat).groups:
        assert len({trajectory.prompt_key for trajectory in group}) == 1
        assert len({tuple(t.turns[0].response_tokens.tolist()) for t in group}) == len(group)
