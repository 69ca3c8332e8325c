"""One engine in a process of its own: what an actor of Ray runs. Imports no Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.store.records import IntArray

from ...config.engine import HfEngineConfig
from ..base import ReplyWatch, Sample, SamplingParams
from ..hf.engine import HfEngine
from .weights import Blueprint, Weights, adopt, missing_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt with how it is to be continued."""

    key: int
    prompt: IntArray
    params: SamplingParams
    """Its `watch` is None: the watch itself comes along."""
    watch: ReplyWatch | None
    seed: int

    @property
    def restored(self) -> SamplingParams:
        watch = self.watch
        return self.params if watch is None else replace(self.params, watch=lambda: watch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine has to say after a call."""

    samples: list[tuple[int, Sample]]
    """With the keys of their requests."""
    busy_s: float
    news: list[str]
    """Sentences for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedPolicy:
    """What an engine reads of a policy."""

    model: PreTrainedModel | PeftModel
    version: int


class EngineActor:
    """An engine with weights from the object store.

    Args:
        config: of the engine that it wraps.
        threads: of torch.
        device: "cpu" or "cuda".
    """

    def __init__(self, config: HfEngineConfig, *, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        self._config = config
        self._device = torch.device(device)
        self._model: PreTrainedModel | PeftModel | None = None
        self._base: int | None = None
        self._engine: HfEngine | None = None
        self._news: list[str] = []

    def pid(self) -> int:
        return os.getpid()

    def load(
        self, base: int, frozen: tuple[Blueprint, Weights] | None, trained: Weights, version: int
    ) -> None:
        """Sample from these weights as `version` from now on.

        Args:
            base: names `frozen`, which is None where this engine has it already.
        """
        if frozen is not None:
            blueprint, weights = frozen
            model = blueprint.build()
            self._model, self._base = adopt(model, weights, self._device, trained=False), base
        if self._model is None or base != self._base:
            raise ValueError(f"weights were sent without what they build on ({base})")
        adopt(self._model, trained, self._device, trained=True)
        if missing := missing_weights(self._model):
            raise ValueError(f"the trainer sent no weights for {missing[0]}")
        policy = SyncedPolicy(model=self._model, version=version)
        if self._engine is None:
            self._engine = HfEngine(
                self._model, config=self._config, policy_version=version, report=self._news.append
            )
        self._engine.sync_weights(policy)

    def generate(self, requests: Sequence[Request]) -> Answer:
        """One call of the engine; the requests' `params` are equal but for the watches."""
        watches = iter([request.watch for request in requests])
        params = requests[0].params
        if requests[0].watch is not None:
            params = replace(params, watch=lambda: _given(next(watches)))
        started = time.perf_counter()
        samples = self._running().generate(
            [request.prompt for request in requests],
            params,
            seeds=[request.seed for request in requests],
        )
        keys = [request.key for request in requests]
        return self._answer(list(zip(keys, samples, strict=True)), started)

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._running().submit(request.key, request.prompt, request.restored, seed=request.seed)

    def advance(self, slice_s: float) -> Answer:
        """Sample on until a request finishes, or for about so long."""
        started = time.perf_counter()
        engine = self._running()
        samples: list[tuple[int, Sample]] = []
        while engine.num_pending and not samples and time.perf_counter() - started < slice_s:
            samples = engine.advance(max_wait_s=slice_s)
        return self._answer(samples, started)

    def cancel(self) -> None:
        if self._engine is not None:
            self._engine.cancel()

    def release_memory(self) -> None:
        self._running().release_memory()

    def _running(self) -> HfEngine:
        if self._engine is None:
            raise RuntimeError("the engine has no weights yet")
        return self._engine

    def _answer(self, samples: list[tuple[int, Sample]], started: float) -> Answer:
        news, self._news[:] = list(self._news), []
        return Answer(samples=samples, busy_s=time.perf_counter() - started, news=news)


def _given(watch: ReplyWatch | None) -> ReplyWatch:
    assert watch is not None
    return watch


def actor_class(ray: Any) -> Any:
    """`EngineActor` for Ray: a lost one is replaced by its caller, who knows what it was doing."""
    return ray.remote(max_restarts=0, max_task_retries=0)(EngineActor)
