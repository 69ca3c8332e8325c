"""One engine in an actor of Ray, and what all actors of a run share.

Weights travel as arrays through Ray's object store. On one machine the engines' weights are views
of its shared memory: several engines hold one copy between them.
"""

from __future__ import annotations

import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from echoscope.store.records import IntArray, Support

from ...config.engine import HfEngineConfig, RayEngineConfig
from ...policy import causal_model
from ..base import (
    Engine,
    EngineError,
    ReplyWatch,
    Sample,
    SamplingParams,
    check_idle,
)
from ..hf.engine import HfEngine
from ..hf.model import limits_of, runnable
from .session import connected, first_sentence

Request = tuple[int, IntArray, SamplingParams, int]
"""Key, prompt (Lp,), parameters, seed."""
Weights = Mapping[str, tuple[NDArray[Any], torch.dtype]]
"""Values and type by name; a type that numpy does not have travels as integers of its size."""
_AS_INTEGERS = {torch.bfloat16: torch.int16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A model without what the optimizer moves."""

    config: Any
    adapters: Mapping[str, Any]
    """PEFT's settings by adapter; empty without adapters."""
    weights: Weights

    @classmethod
    def of(cls, model: PreTrainedModel | PeftModel) -> Base:
        inner = causal_model(model)
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
    causal_model(model).tie_weights()


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
        self._engine.sync_weights(SimpleNamespace(model=self._model, version=version))

    def _started(self, model: PreTrainedModel | PeftModel) -> Engine:
        vllm = self._config.vllm
        if vllm is None:
            settings = HfEngineConfig(max_batch_rows=self._config.max_batch_rows)
            return HfEngine(model, config=settings, report=self._news.append)
        from ..vllm.server import VllmEngine

        with tempfile.TemporaryDirectory() as folder:  # this node need not have the model's own
            causal_model(model).save_pretrained(folder)
            return VllmEngine(
                model, folder, config=vllm, positions=self._positions, report=self._news.append
            )

    def work(
        self, requests: Sequence[Request], slice_s: float
    ) -> tuple[list[tuple[int, Sample]], list[str]]:
        """Take in requests, and sample until one finishes, or for about so long.

        Returns:
            samples with the keys of their requests, and sentences for people.
        """
        engine = self._running()
        started = time.perf_counter()
        for key, prompt, params, seed in requests:
            engine.submit(key, prompt, params, seed=seed)
        samples: list[tuple[int, Sample]] = []
        while engine.num_pending and not samples and time.perf_counter() - started < slice_s:
            samples = engine.advance(max_wait_s=slice_s)
        news, self._news[:] = list(self._news), []
        return samples, news

    def cancel(self) -> None:
        self._running().cancel()

    def release_memory(self) -> None:
        self._running().release_memory()

    def _running(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the engine has no weights yet")
        return self._engine


SLICE_S = 0.05
"""How long an engine samples before it looks for new requests."""
START_TIMEOUT_S = 600
"""Seconds in which an engine must be placed and loaded."""
ANSWER_TIMEOUT_S = 3600
"""Seconds after which an engine that is sampling counts as lost."""


class RayFleet:
    """The connection to Ray, and the weights in its object store, for all engines of a run.

    Args:
        policy: its frozen weights are sent once.
        positions: longest prompt and reply together; None for what the model allows.
        report: is told in one sentence what engines have to say.

    Raises:
        ConfigError: Ray is missing or of another version, or the cluster cannot be reached.
        ValueError: a model that the engine cannot run.
    """

    def __init__(
        self,
        policy: Any,
        config: RayEngineConfig,
        *,
        positions: int | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.report = config, report
        self._positions = positions
        self.model: PreTrainedModel = runnable(policy.model)
        self.ray, self._is_own_ray = connected(
            config.address, num_cpus=config.num_engines * config.cpus_per_engine
        )
        self._actor_class = self.ray.remote(max_restarts=0, max_task_retries=0)(EngineActor)
        # All places at once: no two runs on one cluster wait for each other with half of it each.
        reserved = {"CPU": config.cpus_per_engine, "GPU": config.gpus_per_engine}
        bundle = {resource: amount for resource, amount in reserved.items() if amount}
        self._places = self.ray.util.placement_group(
            [bundle] * config.num_engines, strategy="SPREAD"
        )
        self.base = self.ray.put(Base.of(policy.model))
        self._weights: Any = None
        self._lock = threading.Lock()

    def weights(self, policy: Any) -> Any:
        """What trains, in the object store: put there once for all engines that ask."""
        with self._lock:
            if self._weights is None:
                self._weights = self.ray.put(trained_weights(policy.model))
            return self._weights

    def forget_weights(self) -> None:
        """All engines have them: the next that asks gets the weights of then."""
        with self._lock:
            self._weights = None

    def actor(self) -> Any:
        """A new actor at one of the run's places; Ray reserves another for one that was lost."""
        config = self.config
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._places
        )
        return self._actor_class.options(
            num_cpus=config.cpus_per_engine,
            num_gpus=config.gpus_per_engine,
            scheduling_strategy=strategy,
        ).remote(config, positions=self._positions)

    def close(self) -> None:
        """Give the places back, and end Ray if it was started for these engines."""
        self._weights = self.base = None
        self.ray.util.remove_placement_group(self._places)
        if self._is_own_ray:
            self.ray.shutdown()


class RayEngine(Engine):
    """One actor, which samples with the built-in engine or with vLLM on whichever node it is.

    Args:
        policy: sampled from until `sync_weights`.

    Raises:
        EngineError: the actor found no place on the cluster, or its engine does not start.
    """

    def __init__(self, policy: Any, fleet: RayFleet) -> None:
        self._fleet = fleet
        self._ray = fleet.ray
        self._limits = limits_of(fleet.model)
        self._pending: set[int] = set()
        """Keys that were submitted and not answered."""
        self._unsent: list[Request] = []
        """Requests that the actor does not know yet."""
        self._call: Any = None
        """The answer that is on its way, if the engine has been told to go on."""
        self._since = 0.0
        self._actor: Any = fleet.actor()
        try:
            self.sync_weights(policy)
        except BaseException:
            self.close()
            raise

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        self._open_actor()
        ids, _ = self._limits.checked(key, prompt, params, self._pending)
        if params.watch is not None:  # made here, in the order of the requests
            params = replace(params, watch=partial(_same, params.watch()))
        self._pending.add(key)
        self._unsent.append((key, ids, params, int(seed)))

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `Engine`; it waits for the actor at most `max_wait_s`.

        Raises:
            EngineError: the actor died, or did not answer.
        """
        if not self._pending:
            return []
        if self._call is None:
            self._call = self._open_actor().work.remote(self._unsent, SLICE_S)
            self._since, self._unsent = time.monotonic(), []
        ready, _ = self._ray.wait([self._call], timeout=max_wait_s)
        if not ready:
            if time.monotonic() - self._since > ANSWER_TIMEOUT_S:
                raise _lost(f"no answer within {ANSWER_TIMEOUT_S:g} s")
            return []
        call, self._call = self._call, None
        samples, news = self._got(call)
        for sentence in news:
            self._fleet.report(sentence)
        self._pending -= {key for key, _ in samples}
        return [(key, _held_here(sample)) for key, sample in samples]

    def cancel(self) -> None:
        if self._pending or self._call is not None:
            self._pending, self._unsent, self._call = set(), [], None
            self._actor.cancel.remote()

    def release_memory(self) -> None:
        """Forget the actor's caches. A lost one is noticed at the next call."""
        self._open_actor().release_memory.remote()

    def sync_weights(self, policy: Any) -> None:
        """Sample from the policy's present weights; what does not train was sent at the start."""
        check_idle(self.num_pending, "sync_weights")
        weights = self._fleet.weights(policy)
        call = self._open_actor().load.remote(self._fleet.base, weights, int(policy.version))
        self._got(call, timeout=START_TIMEOUT_S)

    def close(self) -> None:
        """End the actor, and what it has started."""
        actor, self._actor = self._actor, None
        if actor is not None:
            self._ray.kill(actor)

    def _got(self, call: Any, *, timeout: float | None = None) -> Any:
        """What a call returned; an error of the engine's own is raised here.

        Raises:
            EngineError: the engine was lost, or found no place in `timeout` seconds.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=timeout)
        except errors.GetTimeoutError:
            config, total = self._fleet.config, self._ray.cluster_resources()
            raise EngineError(
                f"{config.num_engines} engines with {config.cpus_per_engine} CPUs and "
                f"{config.gpus_per_engine:g} GPUs each were not ready within {timeout} s; "
                f"the cluster has {total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs in "
                "all: lower engine.num_engines"
            ) from None
        except errors.RayTaskError as error:
            self.cancel()
            raise error.cause from None
        except errors.RayError as error:
            raise _lost(error) from None

    def _open_actor(self) -> Any:
        if self._actor is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        return self._actor


def _lost(reason: BaseException | str) -> EngineError:
    return EngineError(
        f"its actor is gone: {first_sentence(reason)}; see whether its machine has enough memory, "
        "or lower engine.max_batch_rows"
    )


def _same(watch: ReplyWatch) -> ReplyWatch:
    return watch


def _held_here(sample: Sample) -> Sample:
    """The sample in memory of this process: Ray's would stay taken as long as it is used."""
    support = sample.support
    return replace(
        sample,
        tokens=np.array(sample.tokens),
        logprobs=np.array(sample.logprobs),
        entropies=None if sample.entropies is None else np.array(sample.entropies),
        support=support and Support(sizes=np.array(support.sizes), tokens=np.array(support.tokens)),
    )
