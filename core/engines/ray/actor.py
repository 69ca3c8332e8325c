"""One engine in a process of its own: what an actor of Ray runs, and the weights that it is sent.

Weights travel as arrays through Ray's object store. On one machine the engines' weights are views
of its shared memory: several engines hold one copy between them. Imports no Ray.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from echoscope.store.records import IntArray

from ...config.engine import HfEngineConfig, RayEngineConfig
from ..base import Engine, Sample, SamplingParams
from ..hf.engine import HfEngine

Request = tuple[int, IntArray, SamplingParams, int]
"""Key, prompt (Lp,), parameters, seed."""
Weights = Mapping[str, tuple[NDArray[Any], torch.dtype]]
"""Values and type by name; a type that numpy does not have travels as integers of its size."""
_AS_INTEGERS = {torch.bfloat16: torch.int16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine has to say after a call."""

    samples: list[tuple[int, Sample]]
    """With the keys of their requests."""
    news: list[str]
    """Sentences for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A model without what the optimizer moves."""

    config: Any
    adapters: Mapping[str, Any]
    """PEFT's settings by adapter; empty without adapters."""
    weights: Weights

    @classmethod
    def of(cls, model: PreTrainedModel | PeftModel) -> Base:
        inner = model.get_base_model() if isinstance(model, PeftModel) else model
        frozen = [(n, p) for n, p in model.named_parameters() if not p.requires_grad]
        return cls(
            config=type(inner.config).from_dict(inner.config.to_dict()),
            adapters=dict(model.peft_config) if isinstance(model, PeftModel) else {},
            weights=_packed([*frozen, *model.named_buffers()]),
        )

    def build(self, device: torch.device) -> PreTrainedModel | PeftModel:
        """The model; what trains has no memory yet."""
        with torch.device("meta"):
            model: PreTrainedModel | PeftModel = AutoModelForCausalLM.from_config(
                self.config, attn_implementation="sdpa"
            )
            for name, adapter in self.adapters.items():
                if isinstance(model, PeftModel):
                    model.add_adapter(name, adapter)
                else:
                    model = get_peft_model(model, adapter, adapter_name=name)
        adopt(model, self.weights, device, trained=False)
        return model.eval()


def trained_weights(model: nn.Module) -> Weights:
    """What the optimizer moves."""
    return _packed((n, p) for n, p in model.named_parameters() if p.requires_grad)


def _packed(tensors: Iterable[tuple[str, Tensor]]) -> Weights:
    out = {}
    for name, tensor in tensors:
        whole = tensor.detach().cpu().contiguous()
        carrier = _AS_INTEGERS.get(whole.dtype, whole.dtype)
        out[name] = whole.view(carrier).numpy(), whole.dtype
    return out


def adopt(
    model: PreTrainedModel | PeftModel, weights: Weights, device: torch.device, *, trained: bool
) -> None:
    """Put weights in place of the model's own, without a copy on the CPU.

    Args:
        trained: what `requires_grad` shall say of them, as it does in the trainer: torch chooses
            other kernels by it, whose results differ in the last bit.
    """
    parameters = {name for name, _ in model.named_parameters()}
    for name, (values, dtype) in weights.items():
        with warnings.catch_warnings():  # the memory is never written: the model only samples
            warnings.filterwarnings("ignore", message=".*not writable.*")
            tensor = torch.from_numpy(np.asarray(values)).view(dtype).to(device)
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if name in parameters:
            setattr(module, leaf, nn.Parameter(tensor, requires_grad=trained))
        else:
            module.register_buffer(leaf, tensor, persistent=False)
    (model.get_base_model() if isinstance(model, PeftModel) else model).tie_weights()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedPolicy:
    """What an engine reads of a policy."""

    model: PreTrainedModel | PeftModel
    version: int


class EngineActor:
    """An engine with weights from the object store: the built-in one, or vLLM on this node.

    Args:
        positions: longest prompt and reply together; None for what the model allows.
    """

    def __init__(self, config: RayEngineConfig, *, positions: int | None = None) -> None:
        torch.set_num_threads(config.cpus_per_engine)
        self._config, self._positions = config, positions
        on_gpu = bool(config.gpus_per_engine) and config.vllm is None
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._model: PreTrainedModel | PeftModel | None = None
        self._engine: Engine | None = None
        self._news: list[str] = []

    def load(self, base: Base, trained: Weights, version: int) -> None:
        """Sample from these weights as `version` from now on."""
        if self._model is None:
            self._model = base.build(self._device)
        adopt(self._model, trained, self._device, trained=True)
        tensors = (*self._model.named_parameters(), *self._model.named_buffers())
        missing = [name for name, tensor in tensors if tensor.is_meta]
        if missing:
            raise ValueError(f"the trainer sent no weights for {missing[0]}")
        if self._engine is None:
            self._engine = self._started(self._model)
        self._engine.sync_weights(SyncedPolicy(model=self._model, version=version))

    def _started(self, model: PreTrainedModel | PeftModel) -> Engine:
        vllm = self._config.vllm
        if vllm is None:
            settings = HfEngineConfig(max_batch_rows=self._config.max_batch_rows)
            return HfEngine(model, config=settings, report=self._news.append)
        from ..vllm.server import VllmEngine, base_of

        with tempfile.TemporaryDirectory() as folder:  # this node need not have the model's own
            base_of(model).save_pretrained(folder)
            return VllmEngine(
                model, folder, config=vllm, positions=self._positions, report=self._news.append
            )

    def work(self, requests: Sequence[Request], slice_s: float) -> Answer:
        """Take in requests, and sample until one finishes, or for about so long."""
        engine = self._running()
        started = time.perf_counter()
        for key, prompt, params, seed in requests:
            engine.submit(key, prompt, params, seed=seed)
        samples: list[tuple[int, Sample]] = []
        while engine.num_pending and not samples and time.perf_counter() - started < slice_s:
            samples = engine.advance(max_wait_s=slice_s)
        news, self._news[:] = list(self._news), []
        return Answer(samples=samples, news=news)

    def cancel(self) -> None:
        self._running().cancel()

    def release_memory(self) -> None:
        self._running().release_memory()

    def _running(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the engine has no weights yet")
        return self._engine
