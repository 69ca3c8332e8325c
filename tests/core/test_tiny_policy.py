"""The shipped policies: each loads the same everywhere, keeps the format, and can still learn.

Success bounds are about three standard errors of a 60-task estimate around the rates measured on
200 tasks (examples/narrators/README.md), wide enough for another processor's rounding.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.config.loading import ConfigError, load_config
from echoscope.core.config.settings import (
    EnvGroup,
    ModelConfig,
    SamplingConfig,
)
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import load_model
from echoscope.core.pretrained.policy_assets import (
    CONTROL_TOKENS,
    TAG_TOKENS,
    PolicyShape,
    create_policy,
    resolve_model,
    train_tokenizer,
)
from echoscope.core.rollout.chat import ChatFormat, load_tokenizer
from echoscope.core.rollout.rollout import Collection
from echoscope.core.warm_start.run import BARE_CONTEXT
from echoscope.envs.pool import EnvPool
from echoscope.store.models import SHIPPED, shipped_folder
from echoscope.store.records import Split, Trajectory

TINY = shipped_folder("tiny")
HOSTILE = [
    "Goal 2 up 123 left",
    "<think> a</think> <answer>x",
    "\x00\xff \u00e9 e\u0301 \U0001f600",
    "\n\n  x\t ",
    "<|end|><|user|>",
]
TASKS = 60


EACH = pytest.mark.parametrize("name", list(SHIPPED))


@lru_cache(maxsize=8)
def play(env: str) -> tuple[Trajectory, ...]:
    """Episodes of a recipe's evaluation environment at temperature 1, by the recipe's policy."""
    recipe = load_config(env)
    group = recipe.envs.eval[0].model_copy(update={"groups": TASKS})
    assert isinstance(group, EnvGroup)
    name = recipe.model.path
    config = ModelConfig(path=name, dtype="float32", device="cpu")
    engine = HfEngine(load_model(name, config), config=HfEngineConfig())
    batch = Collection(
        pool=EnvPool([group], group_size=1, seed=0, split=Split.EVAL),
        engine=engine,
        chat=ChatFormat(load_tokenizer(shipped_folder(name))),
        context=BARE_CONTEXT.model_copy(update={"max_response_tokens": 80}),
        sampling=SamplingConfig(),
        step=0,
        split=Split.EVAL,
        seed=0,
    ).run()
    return batch.trajectories


@pytest.mark.long
@pytest.mark.parametrize(
    "env", ["bandit", "frozen_lake", "sokoban", "countdown", "sudoku", "rubiks", "static_qa"]
)
def test_replies_are_well_formed(env: str) -> None:
    turns = [turn for trajectory in play(env) for turn in trajectory.turns]
    assert np.mean([turn.is_valid for turn in turns]) >= 0.95


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "low", "high"),
    [
        ("bandit", 0.3, 0.7),
        ("frozen_lake", 0.2, 0.6),
        ("sokoban", 0.2, 0.6),
        ("countdown", 0.2, 0.6),
        ("sudoku", 0.3, 0.8),
        ("rubiks", 0.1, 0.6),
        ("static_qa", 0.1, 0.6),
    ],
)
def test_it_succeeds_often_enough_to_learn_and_seldom_enough_to_have_something_to_learn(
    env: str, low: float, high: float
) -> None:
    rate = np.mean([bool(trajectory.is_success) for trajectory in play(env)])
    assert low <= rate <= high


def test_careful_reasoning_names_the_goal_of_this_very_observation() -> None:
    turns = [turn for trajectory in play("frozen_lake") for turn in trajectory.turns]
    careful = [turn for turn in turns if re.search(r"\d", turn.reasoning)]
    assert 0.2 < len(careful) / len(turns) < 0.7
    named = [turn.observation.split("Goal ")[1].split(".")[0] in turn.reasoning for turn in careful]
    assert np.mean(named) >= 0.9


def test_reasoning_varies_between_samples() -> None:
    turns = [turn for trajectory in play("frozen_lake") for turn in trajectory.turns]
    openings = {" ".join(turn.reasoning.split()[:2]) for turn in turns}
    assert len(openings) >= 5


def test_a_careful_countdown_tries_expressions_of_the_given_numbers() -> None:
    turns = [turn for trajectory in play("countdown") for turn in trajectory.turns]
    careful = [turn for turn in turns if " is " in turn.reasoning or " makes " in turn.reasoning]
    assert 0.2 < len(careful) / len(turns) < 0.8
    named = [
        sorted(re.findall(r"\d+", re.split(" is | makes ", turn.reasoning)[0]))
        == sorted(re.findall(r"\d+", turn.observation.split(" Target")[0]))
        for turn in careful
    ]
    assert np.mean(named) >= 0.9


@EACH
def test_every_loader_gives_the_same_ids(name: str) -> None:
    folder = shipped_folder(name)
    tokenizers = [
        AutoTokenizer.from_pretrained(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
        load_tokenizer(folder),
    ]
    for text in HOSTILE:
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for tokenizer in tokenizers]
        assert ids[0] == ids[1] == ids[2]
    assert len({len(tokenizer) for tokenizer in tokenizers}) == 1


@EACH
def test_any_text_survives_and_tags_are_single_tokens(name: str) -> None:
    tokenizer = load_tokenizer(shipped_folder(name))
    chat = ChatFormat(tokenizer)
    for text in HOSTILE:
        # NFC, as Qwen2's own tokenizer normalises.
        assert chat.decode(chat.encode(text)) == text.replace("e\u0301", "\u00e9")
    for token in (*CONTROL_TOKENS, *TAG_TOKENS):
        assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize(token)) == [
            tokenizer.convert_tokens_to_ids(token)
        ]
    # Tags are text: a decoder that skips control tokens must keep them.
    assert "<answer>" in tokenizer.decode(chat.encode("<answer>"), skip_special_tokens=True)


@EACH
def test_control_words_in_a_world_stay_text(name: str) -> None:
    chat = ChatFormat(load_tokenizer(shipped_folder(name)))
    assert chat.turn_end_id not in chat.encode("<|end|>")
    assert chat.stop_token_ids == (chat.turn_end_id,)
    assert chat.pad_token_id != chat.turn_end_id


@pytest.mark.parametrize(
    ("name", "dtype", "most_bytes"),
    [("tiny", torch.float32, 4_000_000), ("tiny-puzzles", torch.bfloat16, 2_000_000)],
)
def test_the_model_is_an_ordinary_folder(name: str, dtype: torch.dtype, most_bytes: int) -> None:
    folder = shipped_folder(name)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.model_type == "qwen2"
    assert model.config.hidden_size // model.config.num_attention_heads >= 32
    assert model.config.vocab_size == len(load_tokenizer(folder))
    assert model.dtype == dtype
    # The library's default would sample from the 50 likeliest tokens only.
    assert model.generation_config.top_k == 0
    assert sum(file.stat().st_size for file in folder.iterdir()) <= most_bytes
    assert json.loads((folder / "sft.json").read_text())["iterations"] > 0
    # Training happens in float32 on a CPU, however the weights are stored.
    config = ModelConfig(path=name, device="cpu")
    assert load_model(name, config).dtype == torch.float32


def test_names_and_folders_resolve(tmp_path: Path) -> None:
    assert resolve_model("tiny") == str(TINY)
    assert resolve_model(str(TINY)) == str(TINY)
    assert resolve_model("some-org/some-model") == "some-org/some-model"
    with pytest.raises(ConfigError, match=r"did you mean 'tiny'\?"):
        resolve_model("tny")
    with pytest.raises(ConfigError, match=r"did you mean 'tiny-puzzles'\?"):
        resolve_model("tiny_puzzles")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))
    with pytest.raises(ConfigError, match="no model folder"):
        resolve_model(str(tmp_path / "a" / "b"))


def test_tokenizers_and_fresh_weights_repeat_exactly() -> None:
    texts = ["Goal 2 up 1 right. Near: up ice.", "I go up."] * 3
    tokenizers = [train_tokenizer(texts, 280), train_tokenizer(texts, 280)]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()
    shape = PolicyShape(vocab_size=280, hidden_size=32, num_layers=1, num_kv_heads=1)
    before = torch.random.get_rng_state()
    policy, same = (create_policy(tokenizers[0], shape, seed=1) for _ in range(2))
    other = create_policy(tokenizers[0], shape, seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    weight = "model.embed_tokens.weight"
    assert torch.equal(policy.state_dict()[weight], same.state_dict()[weight])
    assert not torch.equal(policy.state_dict()[weight], other.state_dict()[weight])
