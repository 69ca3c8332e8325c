"""Several engines as actors of Ray behind the one interface of a sampling engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from echoscope.store.records import IntArray, Support

from ...config.engine import HfEngineConfig, RayEngineConfig
from ..base import (
    Engine,
    EngineError,
    ReplyWatch,
    Sample,
    SamplingParams,
    check_idle,
    checked_prompt,
)
from ..hf.model import max_positions, runnable
from .actor import Answer, Base, EngineActor, Request, SyncedPolicy, trained_weights
from .session import connected, first_sentence

SLICE_S = 0.05
"""How long an engine samples before it looks for new requests."""
START_TIMEOUT_S = 600
"""Seconds in which engines must be placed and loaded."""
ANSWER_TIMEOUT_S = 3600
"""Seconds after which an engine that is sampling counts as lost."""


@dataclass(slots=True, eq=False)
class _Seat:
    """One engine and what it was asked."""

    index: int
    actor: Any
    pending: set[int] = field(default_factory=set)
    """Keys that were submitted and not answered."""
    unsent: list[Request] = field(default_factory=list)
    """Requests that the actor does not know yet."""
    call: Any = None
    """The answer that is on its way, if the engine has been told to go on."""
    since: float = 0.0


class RayEngine(Engine):
    """An engine over actors that each hold a built-in engine with the policy's weights.

    A key goes to the same engine each time, where the keys and values of its conversation are. An
    engine that dies or does not answer ends the run, which resumes from its checkpoint.

    Args:
        policy: sampled from until `sync_weights`.
        report: is told in one sentence what engines have to say.

    Raises:
        ConfigError: Ray is missing or of another version, or the cluster cannot be reached.
        EngineError: the engines found no place on the cluster.
        ValueError: a model that the built-in engine cannot run.
    """

    def __init__(
        self,
        policy: Any,
        config: RayEngineConfig,
        *,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = config
        self._report = report
        self._model: PreTrainedModel | None = runnable(policy.model)
        self._seats: list[_Seat] = []
        self._ray, self._is_own_ray = connected(
            config.address, num_cpus=config.num_engines * config.cpus_per_engine
        )
        try:
            self._actor_class = self._ray.remote(max_restarts=0, max_task_retries=0)(EngineActor)
            self._base = self._ray.put(Base.of(policy.model))
            self._seats = [_Seat(index, self._start()) for index in range(config.num_engines)]
            self.sync_weights(policy)
        except BaseException:
            self.close()
            raise

    @property
    def num_pending(self) -> int:
        return sum(len(seat.pending) for seat in self._seats)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        model = self._open_model()
        seat = self._seats[key % len(self._seats)]
        if key in seat.pending:
            raise ValueError(f"request {key} is pending already: give each request its own key")
        vocab_size = int(model.get_input_embeddings().num_embeddings)
        ids, _ = checked_prompt(
            key, prompt, params, vocab_size=vocab_size, positions=max_positions(model)
        )
        if params.watch is not None:  # made here, in the order of the requests
            params = replace(params, watch=partial(_same, params.watch()))
        seat.pending.add(key)
        seat.unsent.append((key, ids, params, int(seed)))

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `Engine`; it waits for the engines at most `max_wait_s`.

        Raises:
            EngineError: an engine died, or did not answer.
        """
        for seat in self._seats:
            if seat.pending and seat.call is None:
                seat.call = seat.actor.work.remote(seat.unsent, SLICE_S)
                seat.since, seat.unsent = time.monotonic(), []
        seats = {seat.call: seat for seat in self._seats if seat.call is not None}
        if not seats:
            return []
        self._ray.wait(list(seats), num_returns=1, timeout=max_wait_s)
        ready, _ = self._ray.wait(list(seats), num_returns=len(seats), timeout=0)
        out: list[tuple[int, Sample]] = []
        for call, seat in seats.items():
            if call in ready:
                seat.call = None
                out += self._answered(seat, call)
            elif time.monotonic() - seat.since > ANSWER_TIMEOUT_S:
                raise _lost(seat, f"no answer within {ANSWER_TIMEOUT_S:g} s")
        return out

    def cancel(self) -> None:
        for seat in self._seats:
            if seat.pending or seat.call is not None:
                seat.pending, seat.unsent, seat.call = set(), [], None
                seat.actor.cancel.remote()

    def release_memory(self) -> None:
        """Forget every engine's caches. A lost engine is noticed at the next call."""
        for seat in self._seats:
            seat.actor.release_memory.remote()

    def sync_weights(self, policy: SyncedPolicy) -> None:
        """Sample from the policy's present weights; what does not train was sent at the start."""
        check_idle(self.num_pending, "sync_weights")
        self._open_model()
        version = int(policy.version)
        trained = self._ray.put(trained_weights(policy.model))
        calls = [seat.actor.load.remote(self._base, trained, version) for seat in self._seats]
        for seat, call in zip(self._seats, calls, strict=True):
            self._got(seat, call, timeout=START_TIMEOUT_S)

    def close(self) -> None:
        """End the engines, and Ray if it was started for them."""
        if self._model is None:
            return
        self._model = None
        for seat in self._seats:
            self._ray.kill(seat.actor)
        self._seats = []
        self._base = None
        if self._is_own_ray:
            self._ray.shutdown()

    # -- actors ---------------------------------------------------------------------------------

    def _start(self) -> Any:
        config = self._config
        return self._actor_class.options(
            num_cpus=config.cpus_per_engine, num_gpus=config.gpus_per_engine
        ).remote(
            HfEngineConfig(max_batch_rows=config.max_batch_rows),
            threads=config.cpus_per_engine,
            device="cuda" if config.gpus_per_engine else "cpu",
        )

    def _got(self, seat: _Seat, call: Any, *, timeout: float | None = None) -> Any:
        """What a call returned; an error of the engine's own is raised here.

        Raises:
            EngineError: the engine was lost, or found no place in `timeout` seconds.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=timeout)
        except errors.GetTimeoutError:
            config, total = self._config, self._ray.cluster_resources()
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
            raise _lost(seat, error) from None

    def _answered(self, seat: _Seat, call: Any) -> list[tuple[int, Sample]]:
        """The samples that an engine gave, in memory of this process."""
        answer: Answer = self._got(seat, call)
        for sentence in answer.news:
            self._report(f"engine {seat.index}: {sentence}")
        seat.pending -= {key for key, _ in answer.samples}
        return [(key, _held_here(sample)) for key, sample in answer.samples]

    def _open_model(self) -> PreTrainedModel:
        if self._model is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        return self._model


def _lost(seat: _Seat, reason: BaseException | str) -> EngineError:
    return EngineError(
        f"engine {seat.index} was lost ({first_sentence(reason)}): see whether its machine has "
        "enough memory, or lower engine.max_batch_rows; then resume the run"
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
