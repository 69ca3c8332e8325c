"""Several engines as actors of Ray behind the one interface of a sampling engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from echoscope.store.records import IntArray

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
MAX_REPLACEMENTS = 8
"""Engines that may be lost one after the other before the run stops."""


@dataclass(slots=True, eq=False)
class _Seat:
    """The place of one engine; the actor in it may be replaced."""

    index: int
    actor: Any
    requests: dict[int, Request] = field(default_factory=dict)
    """Submitted and not answered."""
    unsent: list[Request] = field(default_factory=list)
    """Those of them that the actor does not know yet."""
    call: Any = None
    """The answer that is on its way, if the engine has been told to go on."""
    since: float = 0.0


class RayEngine(Engine):
    """An engine over actors that each hold a built-in engine with the policy's weights.

    A key goes to the same engine each time, where the keys and values of its conversation are. An
    engine that dies or does not answer is replaced by a new one with the same weights, and what it
    was sampling is sampled again with the same seeds: the samples are those it would have given.

    Args:
        policy: sampled from until `sync_weights`.
        report: is told in one sentence of a lost engine, and what engines have to say.

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
        self._version = -1
        self._num_lost = self._num_lost_in_a_row = 0
        self._seats: list[_Seat] = []
        self._ray, self._is_own_ray = connected(
            config.address, num_cpus=config.num_engines * config.cpus_per_engine
        )
        errors = self._ray.exceptions
        self._losses: tuple[type[BaseException], ...] = (
            errors.RayActorError,
            errors.ObjectLostError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
        )
        try:
            # A lost actor is replaced here, where it is known what it was doing.
            self._actor_class = self._ray.remote(max_restarts=0, max_task_retries=0)(EngineActor)
            self._base = self._ray.put(Base.of(policy.model))
            self._seats = [_Seat(index, self._start()) for index in range(config.num_engines)]
            self.sync_weights(policy)
        except BaseException:
            self.close()
            raise

    @property
    def num_pending(self) -> int:
        return sum(len(seat.requests) for seat in self._seats)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        model = self._open_model()
        seat = self._seats[key % len(self._seats)]
        if key in seat.requests:
            raise ValueError(f"request {key} is pending already: give each request its own key")
        vocab_size = int(model.get_input_embeddings().num_embeddings)
        ids, _ = checked_prompt(
            key, prompt, params, vocab_size=vocab_size, positions=max_positions(model)
        )
        if params.watch is not None:  # made here, in the order of the requests
            params = replace(params, watch=partial(_same, params.watch()))
        request = (key, ids, params, int(seed))
        seat.requests[key] = request
        seat.unsent.append(request)

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `Engine`; it waits for the engines at most `max_wait_s`.

        Raises:
            EngineError: more than `MAX_REPLACEMENTS` engines were lost one after the other.
        """
        for seat in self._seats:
            if seat.requests and seat.call is None:
                seat.call = seat.actor.work.remote(seat.unsent, SLICE_S)
                seat.since, seat.unsent = time.monotonic(), []
        seats = {seat.call: seat for seat in self._seats if seat.call is not None}
        if not seats:
            return []
        self._ray.wait(list(seats), num_returns=1, timeout=max_wait_s)
        ready, _ = self._ray.wait(list(seats), num_returns=len(seats), timeout=0)
        now = time.monotonic()  # before a replacement takes its seconds
        out: list[tuple[int, Sample]] = []
        for call, seat in seats.items():
            if call in ready:
                seat.call = None
                out += self._answered(seat, call)
            elif now - seat.since > ANSWER_TIMEOUT_S:
                seat.call = None
                self._replace(seat, f"no answer within {ANSWER_TIMEOUT_S:g} s")
        return out

    def cancel(self) -> None:
        for seat in self._seats:
            if seat.requests or seat.call is not None:
                seat.requests, seat.unsent, seat.call = {}, [], None
                seat.actor.cancel.remote()

    def release_memory(self) -> None:
        """Forget every engine's caches. A lost engine is noticed at the next call."""
        for seat in self._seats:
            seat.actor.release_memory.remote()

    def sync_weights(self, policy: SyncedPolicy) -> None:
        """Sample from the policy's present weights; what does not train was sent at the start."""
        check_idle(self.num_pending, "sync_weights")
        self._open_model()
        self._version = int(policy.version)
        self._trained = self._ray.put(trained_weights(policy.model))
        for seat, call in [(seat, self._load(seat)) for seat in self._seats]:
            try:
                self._await_load(call)
            except self._losses as error:
                self._replace(seat, error)

    def close(self) -> None:
        """End the engines, and Ray if it was started for them."""
        if self._model is None:
            return
        self._model = None
        for seat in self._seats:
            self._ray.kill(seat.actor)
        self._seats = []
        self._base = self._trained = None
        if self._is_own_ray:
            self._ray.shutdown()

    def take_metrics(self) -> dict[str, float]:
        """How many engines were lost since the last call of this."""
        num_lost, self._num_lost = self._num_lost, 0
        return {"ray/num_lost": float(num_lost)}

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

    def _load(self, seat: _Seat) -> Any:
        return seat.actor.load.remote(self._base, self._trained, self._version)

    def _await_load(self, call: Any) -> None:
        """Wait for an engine that starts or takes weights; an error of its own is raised here."""
        errors = self._ray.exceptions
        try:
            self._ray.get(call, timeout=START_TIMEOUT_S)
        except errors.GetTimeoutError:
            config, total = self._config, self._ray.cluster_resources()
            raise EngineError(
                f"{config.num_engines} engines with {config.cpus_per_engine} CPUs and "
                f"{config.gpus_per_engine:g} GPUs each were not ready within {START_TIMEOUT_S} s; "
                f"the cluster has {total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs in "
                "all: lower engine.num_engines"
            ) from None
        except self._losses:
            raise
        except errors.RayTaskError as error:
            raise error.cause from None

    def _replace(self, seat: _Seat, error: BaseException | str) -> None:
        """Put a new actor with the present weights into the seat."""
        reason = first_sentence(error)
        self._num_lost += 1
        self._num_lost_in_a_row += 1
        self._ray.kill(seat.actor)
        if self._num_lost_in_a_row > MAX_REPLACEMENTS:
            raise EngineError(
                f"{self._num_lost_in_a_row} engines were lost one after the other, the last one "
                f"because {reason}: see whether the machines have enough memory, or lower "
                "engine.max_batch_rows"
            )
        seat.actor, seat.unsent = self._start(), list(seat.requests.values())
        try:
            self._await_load(self._load(seat))
        except self._losses as again:
            self._replace(seat, again)
            return
        self._report(
            f"engine {seat.index} was lost ({reason}); a new one took its place and samples the "
            "same requests again"
        )

    def _answered(self, seat: _Seat, call: Any) -> list[tuple[int, Sample]]:
        """The samples that an engine gave, in memory of this process; none after its loss."""
        try:
            answer: Answer = self._ray.get(call)
        except self._losses as error:
            self._replace(seat, error)
            return []
        except self._ray.exceptions.RayTaskError as error:
            self.cancel()
            raise error.cause from None
        self._num_lost_in_a_row = 0
        for sentence in answer.news:
            self._report(f"engine {seat.index}: {sentence}")
        for key, _ in answer.samples:
            del seat.requests[key]
        return [(key, _held_here(sample)) for key, sample in answer.samples]

    def _open_model(self) -> PreTrainedModel:
        if self._model is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        return self._model


def _same(watch: ReplyWatch) -> ReplyWatch:
    return watch


def _held_here(sample: Sample) -> Sample:
    """The sample in memory of this process: Ray's would stay taken as long as it is used."""
    return replace(
        sample,
        tokens=np.array(sample.tokens),
        logprobs=np.array(sample.logprobs),
        entropies=None if sample.entropies is None else np.array(sample.entropies),
    )
