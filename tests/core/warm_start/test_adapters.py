"""Adapters are folded into the base that they were trained on, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2ForCausalLM

from echoscope.core.config.settings import LoraConfig
from echoscope.core.policy import with_adapters
from echoscope.core.pretrained.base import BASE_FILE, remember_base, weights_digest
from echoscope.core.pretrained.policy_assets import (
    PolicyShape,
    create_policy,
    save_tokenizer,
    train_tokenizer,
)
from echoscope.core.warm_start.adapters import merge_adapters
from echoscope.core.warm_start.demonstrations import SftError

SHAPE = PolicyShape(
    vocab_size=300, hidden_size=32, intermediate_size=32, num_layers=1, num_kv_heads=1
)


def make_base(folder: Path, *, seed: int = 0, layers: int = 1, width: int = 32) -> Path:
    tokenizer = train_tokenizer(["up and down"], 300)
    shape = SHAPE.model_copy(update={"num_layers": layers, "hidden_size": width})
    create_policy(tokenizer, shape, seed=seed).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


def make_adapters(folder: Path, base: Path) -> Path:
    """As `sft train --lora` leaves them, with weights that change something."""
    model = with_adapters(Qwen2ForCausalLM.from_pretrained(base), LoraConfig(rank=2), seed=0)
    model.peft_config["default"].base_model_name_or_path = str(base)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.01)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    remember_base(folder, base)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base")


@pytest.fixture
def adapters(tmp_path: Path, base: Path) -> Path:
    return make_adapters(tmp_path / "adapters", base)


def change(path: Path, **values: Any) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | values))


def test_the_merged_model_is_a_whole_folder_in_the_bases_dtype(
    tmp_path: Path, base: Path, adapters: Path
) -> None:
    before = load_file(base / "model.safetensors")
    merge_adapters(adapters, tmp_path / "merged")
    after = load_file(tmp_path / "merged" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(before[name], after[name])
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    half = {key: weight.bfloat16() for key, weight in before.items()}
    save_file(half, base / "model.safetensors", metadata={"format": "pt"})
    change(base / "config.json", dtype="bfloat16")
    (adapters / BASE_FILE).unlink()
    merge_adapters(adapters, tmp_path / "half")
    halved = load_file(tmp_path / "half" / "model.safetensors")
    assert {weight.dtype for weight in halved.values()} == {torch.bfloat16}
    torch.testing.assert_close(halved[name].float(), after[name], rtol=1e-2, atol=1e-3)


def test_another_base_of_the_same_shape_is_refused(
    tmp_path: Path, base: Path, adapters: Path
) -> None:
    shutil.rmtree(base)
    make_base(base, seed=1)
    with pytest.raises(SftError, match="were trained on other weights than those of"):
        merge_adapters(adapters, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("other", [{"layers": 1}, {"width": 64}], ids=["layers", "width"])
def test_another_base_is_refused_without_a_digest_as_well(
    tmp_path: Path, other: dict[str, int]
) -> None:
    """As of checkpoints from before there was one."""
    base = make_base(tmp_path / "base", layers=2)
    adapters = make_adapters(tmp_path / "adapters", base)
    (adapters / BASE_FILE).unlink()
    shutil.rmtree(base)
    make_base(base, **({"layers": 2} | other))
    with pytest.raises(SftError, match="do not fit") as caught:
        merge_adapters(adapters, tmp_path / "merged")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if "merged" in path.name] == []


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda a: (a / "adapter_config.json").write_text("{"), "holds no adapters"),
        (lambda a: (a / "adapter_config.json").write_text("[]"), "holds no adapters"),
        (lambda a: change(a / "adapter_config.json", peft_type="IA3"), "of the kind 'IA3'"),
        (lambda a: change(a / "adapter_config.json", target_modules=["nowhere"]), "do not fit"),
        (lambda a: (a / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
        (lambda a: (a / "adapter_model.safetensors").write_bytes(b"x" * 99), "do not fit"),
    ],
    ids=["config", "list", "kind", "targets", "missing", "damaged"],
)
def test_damaged_adapters_are_refused_in_one_sentence(
    tmp_path: Path, adapters: Path, damage: Any, sentence: str
) -> None:
    damage(adapters)
    with pytest.raises(SftError, match=sentence) as caught:
        merge_adapters(adapters, tmp_path / "merged")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "merged").exists()


def test_the_digest_reads_little_and_sees_any_shape(tmp_path: Path, base: Path) -> None:
    digest = weights_digest(base)
    assert weights_digest(base) == digest
    assert weights_digest(make_base(tmp_path / "other", seed=1)) != digest
    assert weights_digest(make_base(tmp_path / "deeper", layers=2)) != digest
