"""Models that go through a store as arrays and come out the same. No Ray is needed."""

from __future__ import annotations

import pickle

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.engine import RayEngineConfig
from echoscope.core.engines.ray.engine import Base, EngineActor, adopt, trained_weights

CPU = torch.device("cpu")
IDS = torch.tensor([[1, 5, 2, 8]])


def qwen(seed: int, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    shape = Qwen2Config(
        vocab_size=31,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(shape).to(dtype).eval()


def with_adapter(seed: int) -> PeftModel:
    model = get_peft_model(qwen(seed), LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def rebuilt(model: PreTrainedModel | PeftModel) -> PreTrainedModel | PeftModel:
    """Through bytes, as to another process."""
    base, trained = pickle.loads(pickle.dumps((Base.of(model), trained_weights(model))))
    copy = base.build(CPU)
    adopt(copy, trained, CPU, trained=True)
    return copy


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(IDS).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rebuilt_model_gives_the_same_logits_to_the_bit(dtype: torch.dtype) -> None:
    model = qwen(0, dtype)
    copy = rebuilt(model)
    assert torch.equal(logits(copy), logits(model))


def test_the_tied_head_follows_the_embeddings_at_every_sync() -> None:
    copy, other = rebuilt(qwen(0)), qwen(1)
    adopt(copy, trained_weights(other), CPU, trained=True)
    assert torch.equal(logits(copy), logits(other))


def test_of_adapters_only_the_adapters_are_sent_again() -> None:
    model = with_adapter(0)
    copy = rebuilt(model)
    assert torch.equal(logits(copy), logits(model))
    assert all("lora_" in name for name in trained_weights(model))
    assert [p.requires_grad for p in copy.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(2)
    adopt(copy, trained_weights(model), CPU, trained=True)
    assert torch.equal(logits(copy), logits(model))


def test_a_weight_that_was_not_sent_is_named() -> None:
    model = qwen(0)
    name = "model.layers.1.mlp.up_proj.weight"
    some = {key: value for key, value in trained_weights(model).items() if key != name}
    actor = EngineActor(RayEngineConfig())
    with pytest.raises(ValueError, match=f"sent no weights for {name}"):
        actor.load(Base.of(model), some, 0)
