"""A model as arrays that lie in Ray's object store, and a model that reads its weights from there.

On one machine the engines' weights are views of the store's shared memory: several engines hold one
copy between them. What the optimizer moves is sent at every sync; the rest, such as the base of an
adapter, only once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

_AS_INTEGERS = {torch.bfloat16: torch.int16}
"""Types that numpy does not have travel as integers of their size."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """One tensor."""

    values: NDArray[Any]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Packed:
        whole = tensor.detach().cpu().contiguous()
        carrier = _AS_INTEGERS.get(whole.dtype)
        values = (whole if carrier is None else whole.view(carrier)).numpy()
        return cls(values=values, dtype=whole.dtype)

    def tensor(self) -> Tensor:
        """Over the same memory, which may be read-only."""
        with warnings.catch_warnings():  # the memory is never written: the model only samples
            warnings.filterwarnings("ignore", message=".*not writable.*")
            out = torch.from_numpy(np.asarray(self.values))
        return out.view(self.dtype) if self.dtype in _AS_INTEGERS else out


Weights = Mapping[str, Packed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What a model is, without its weights."""

    config: Any
    adapters: Mapping[str, Any]
    """PEFT's settings by adapter; empty without adapters."""

    @classmethod
    def of(cls, model: PreTrainedModel | PeftModel) -> Blueprint:
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        config = type(base.config).from_dict(base.config.to_dict())
        return cls(
            config=config,
            adapters=dict(model.peft_config) if isinstance(model, PeftModel) else {},
        )

    def build(self) -> PreTrainedModel | PeftModel:
        """The model without memory for its weights: `adopt` brings them."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config, attn_implementation="sdpa")
            for name, adapter in self.adapters.items():
                if isinstance(model, PeftModel):
                    model.add_adapter(name, adapter)
                else:
                    model = get_peft_model(model, adapter, adapter_name=name)
        return model.eval()


def trained_weights(model: torch.nn.Module) -> Weights:
    """What the optimizer moves."""
    return _packed((n, p) for n, p in model.named_parameters() if p.requires_grad)


def frozen_weights(model: torch.nn.Module) -> Weights:
    """All else: parameters that do not train, and buffers."""
    frozen = _packed((n, p) for n, p in model.named_parameters() if not p.requires_grad)
    return {**frozen, **_packed(model.named_buffers())}


def frozen_stamp(model: torch.nn.Module) -> int:
    """Changes with every in-place change of a frozen weight that autograd counts."""
    return sum(p._version for p in model.parameters() if not p.requires_grad)


def _packed(tensors: Iterable[tuple[str, Tensor]]) -> Weights:
    return {name: Packed.of(tensor) for name, tensor in tensors}


def adopt(
    model: PreTrainedModel | PeftModel, weights: Weights, device: torch.device, *, trained: bool
) -> PreTrainedModel | PeftModel:
    """Put weights in place of the model's own, without a copy on the CPU.

    Args:
        trained: what `requires_grad` shall say of them, as it does in the trainer: torch chooses
            other kernels by it, whose results differ in the last bit.
    """
    parameters = dict(model.named_parameters())
    state = {name: packed.tensor().to(device) for name, packed in weights.items()}
    named = {name: tensor for name, tensor in state.items() if name in parameters}
    model.load_state_dict(named, strict=False, assign=True)
    for name in named:
        model.get_parameter(name).requires_grad_(trained)
    for name in state.keys() - named.keys():
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path).register_buffer(leaf, state[name], persistent=False)
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    base.tie_weights()
    return model


def missing_weights(model: torch.nn.Module) -> list[str]:
    """Names of what has no memory yet."""
    both = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in both if tensor.is_meta]
