"""Models as they come: architectures, dtypes, shards, vocabularies; and folders that are none.

Each works, or is refused in one sentence that names the way out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from generating import generate
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import ModelConfig, NoCriticConfig, RunConfig
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import build_policy, load_model
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.chat import ChatFormatError, load_chat
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.batch import credit_rewards, pack
from echoscope.core.warm_start.adapters import merge_adapters
from echoscope.store.reader import open_run
from echoscope.store.records import Split, StopReason, Trajectory, Turn

CPU = ModelConfig(device="cpu")
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 1}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 1, "head_dim": 32}),
    "gpt_neox": ("GPTNeoX", {}),
}


@pytest.fixture(scope="session")
def num_tokens(tiny_model: Path) -> int:
    return len(load_chat(tiny_model).tokenizer)


@pytest.fixture
def make_model(tiny_model: Path, num_tokens: int, tmp_path: Path) -> Callable[..., Path]:
    """A folder with a random model of a family, and the tokenizer of `tiny_model`."""

    def make(
        family: str = "llama",
        *,
        dtype: torch.dtype = torch.float32,
        spare: int = 0,
        shard: str = "1GB",
        **settings: Any,
    ) -> Path:
        name, extra = FAMILIES[family]
        shape = {**SHAPE, **extra, "vocab_size": num_tokens + spare, **settings}
        config = getattr(transformers, f"{name}Config")(**shape)
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForCausalLM")(config).to(dtype)
        folder = tmp_path / "model"
        model.save_pretrained(folder, max_shard_size=shard)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_model / file, folder / file)
        return folder

    return make


def edit(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: v for key, v in values.items() if v is not None}))


WORKS: dict[str, dict[str, Any]] = {
    **{family: {"family": family} for family in FAMILIES},
    "tied": {"tie_word_embeddings": True},
    "untied qwen2": {"family": "qwen2", "tie_word_embeddings": False},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "sharded": {"shard": "100KB"},
    "padded": {"spare": 83},
    "padded and tied": {"spare": 83, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("case", WORKS)
def test_a_model_samples_and_trains_with_the_same_log_probs(
    make_model: Callable[..., Path], case: str
) -> None:
    folder = make_model(**WORKS[case])
    assert len(list(folder.glob("*.safetensors"))) > (3 if case == "sharded" else 0)
    policy = build_policy(ModelConfig(path=str(folder), device="cpu"), NoCriticConfig(), seed=0)
    assert policy.model.dtype == torch.float32
    engine = HfEngine(policy.model, config=HfEngineConfig())
    prompt = np.array([5, 6, 7], np.int32)
    [sample] = generate(engine, [prompt], SamplingParams(max_new_tokens=9), seeds=[1])
    turn = Turn(
        index=0, observation="", response="", prompt_tokens=prompt,
        response_tokens=sample.tokens, logprobs=sample.logprobs,
    )  # fmt: skip
    trajectory = Trajectory(
        step=1, split=Split.TRAIN, index=0, group_index=0, sibling_index=0, env_id="e", tag="t",
        env_seed=0, noise_seed=0, prompt_key="", turns=(turn,), stop_reason=StopReason.TERMINATED,
    )  # fmt: skip
    batch = pack([trajectory], [credit_rewards(trajectory, 1.0, "trajectory")], pad_token_id=0)
    outputs = policy.outputs(batch)
    trained = outputs.logprobs[batch.loss_mask].detach().numpy()
    np.testing.assert_allclose(trained, sample.logprobs, atol=1e-4)
    outputs.logprobs.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in policy.policy_parameters())


def test_ids_beyond_the_tokenizer_are_safe(
    make_model: Callable[..., Path], make_config: Callable[..., RunConfig], num_tokens: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A padded vocabulary: such ids decode to nothing, stay in prompts, and can be learned from."""
    folder = make_model(spare=250)
    settings = (f"model.path={folder}", "steps=1", "eval.every=0", "envs.eval=[]",
                "checkpoint.every=0", "diagnostics.enabled=false")  # fmt: skip
    assert start(make_config(*settings), tmp_path / "run", SilentEvents()) == "finished"
    chat = load_chat(folder)
    turns = [u for t in open_run(tmp_path / "run").trajectories_of_step(1) for u in t.turns]
    beyond = [turn for turn in turns if turn.response_tokens.max() >= num_tokens]
    assert beyond
    for turn in beyond:
        tokens = turn.response_tokens[turn.response_tokens < num_tokens]
        assert chat.decode_response(turn.response_tokens)[0] == turn.response
        assert len(turn.response) <= len(chat.decode(tokens))
    again = make_config(*settings, f"from_run={tmp_path / 'run'}")
    assert start(again, tmp_path / "again", SilentEvents()) == "finished"


def test_without_pad_and_end_of_text_the_turns_end_stands_in(
    make_model: Callable[..., Path],
) -> None:
    folder = make_model(eos_token_id=None, pad_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None, pad_token=None)
    chat = load_chat(folder)
    assert chat.tokenizer.eos_token_id is None
    assert chat.pad_token_id == chat.turn_end_id
    assert chat.stop_token_ids == (chat.turn_end_id,)


def no_template(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", chat_template=None)


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def gguf_inside(folder: Path) -> None:
    no_weights(folder)
    (folder / "model.gguf").write_bytes(b"GGUF")


def gguf_alone(folder: Path) -> None:
    gguf_inside(folder)
    (folder / "config.json").unlink()


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    no_weights(folder)


def quantised(folder: Path) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})


def other_shape(folder: Path) -> None:
    edit(folder / "config.json", hidden_size=128)


def other_depth(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=3)


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def unknown_type(folder: Path) -> None:
    edit(folder / "config.json", model_type="nonesuch", architectures=["Nonesuch"])


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def adapters(folder: Path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder)
    (folder / "config.json").unlink()


def adapters_beside_it(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def encoder_and_decoder(folder: Path) -> None:
    edit(folder / "config.json", model_type="t5", architectures=["T5ForConditionalGeneration"])


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no template": (no_template, "name the chat model of the same family, or set `chat_template`"),
    "no tokenizer": (no_tokenizer, "has no tokenizer.json; copy the tokenizer's files"),
    "no weights": (no_weights, "there is no .safetensors file in it"),
    "gguf beside a config": (gguf_inside, "name the folder with the safetensors"),
    "gguf alone": (gguf_alone, "name the folder with the safetensors"),
    "pickled": (pickled, r"pickled weights \(pytorch_model.bin\), which may run code"),
    "quantised": (quantised, r"quantised weights \(gptq in config.json\), which cannot be trained"),
    "other shape": (other_shape, "is .* x 64 where .* x 128 is due; copy both from one model"),
    "other depth": (other_depth, "has no weights for model.layers.2"),
    "truncated": (truncated, "cannot be loaded: .*"),
    "unknown type": (unknown_type, "model type `nonesuch`"),
    "broken config": (broken_config, "not a valid JSON file"),
    "adapters beside it": (adapters_beside_it, "adapters beside a model .*; move them to a folder"),
    "not causal": (encoder_and_decoder, "is not a causal language model; name one that continues"),
    "adapters": (adapters, "sft merge .* -o MERGED` and name the merged folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_model_is_refused_in_one_sentence(
    make_model: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    tmp_path: Path,
    case: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = make_model()
    spoil, sentence = REFUSED[case]
    spoil(folder)
    capfd.readouterr()
    with pytest.raises((ConfigError, ChatFormatError), match=sentence) as caught:
        start(make_config(f"model.path={folder}"), tmp_path / "run", SilentEvents())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    printed = capfd.readouterr()
    assert "MISMATCH" not in printed.out + printed.err


def test_a_missing_shard_is_named(make_model: Callable[..., Path]) -> None:
    folder = make_model(shard="100KB")
    sorted(folder.glob("model-*"))[1].unlink()
    with pytest.raises(ConfigError, match=r"lacks model-00002-of-.*; copy the folder again"):
        load_model(str(folder), CPU)


def test_a_tokenizer_with_more_ids_than_the_model_has_is_refused(
    make_model: Callable[..., Path], make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    folder = make_model(spare=-5)
    with pytest.raises(ChatFormatError, match="the tokenizer belongs to another model"):
        start(make_config(f"model.path={folder}"), tmp_path / "run", SilentEvents())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("weights.gguf", "is a GGUF file, which is made for sampling"),
        ("model.safetensors", "is a file; name the folder that holds config.json"),
    ],
)
def test_a_file_in_place_of_a_folder(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=sentence):
        resolve_model(str(tmp_path / name))


def test_adapters_without_a_tokenizer_merge_with_that_of_their_base(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """The way out that the refusal names."""
    folder = make_model()
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path / "adapters")
    merge_adapters(tmp_path / "adapters", tmp_path / "merged")
    assert load_model(str(tmp_path / "merged"), CPU).config.hidden_size == 64
    load_chat(tmp_path / "merged")
