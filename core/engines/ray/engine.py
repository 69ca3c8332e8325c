"""Several engines as actors of Ray behind the one interface of a sampling engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.store.records import IntArray

from ...config.engine import RayEngineConfig
from ..base import EngineError, Sample, SamplingParams
from ..batching import check_idle
from ..hf.model import checked_limits, runnable
from ..hf.prefixes import PrefixIndex, StoredRow
from .actor import Answer, Request, actor_class
from .session import SESSION, first_sentence
from .splitting import split
from .weights import Blueprint, frozen_stamp, frozen_weights, trained_weights

SLICE_S = 0.05
"""How long an engine samples before it looks for new requests."""
MAX_KNOWN = 1024
"""Rows whose engine is remembered while requests come one by one."""
MAX_MORE = 2
"""A request goes to the engine that knows its beginning if so many more are pending there."""


class SampledPolicy(Protocol):
    """What is read of a policy."""

    @property
    def model(self) -> PreTrainedModel | PeftModel: ...
    @property
    def version(self) -> int: ...


@dataclass(slots=True, eq=False)
class _Seat:
    """The place of one engine; the actor in it may be replaced."""

    index: int
    actor: Any
    base: int = -1
    """Which frozen weights the actor has."""
    requests: dict[int, Request] = field(default_factory=dict)
    """Submitted and not answered."""
    advancing: Any = None
    """The answer that is on its way, if the engine has been told to go on."""
    since: float = 0.0
    num_tokens: int = 0
    num_calls: int = 0
    busy_s: float = 0.0


class RayEngine:
    """A `StreamingEngine` over actors that each hold an engine with the policy's weights.

    The prompts of a call are split over the engines. An engine that dies or does not answer is
    replaced by a new one with the same weights, and what it was sampling is sampled again with the
    same seeds, so that the samples are those that it would have given.

    Args:
        policy: sampled from until `sync_weights`.
        more_cpus: what a Ray that is started here shall have besides, for others.
        report: is told in one sentence of a lost engine, and what engines have to say.

    Raises:
        ConfigError: Ray is missing or of another version, or the cluster cannot be reached.
        EngineError: the engines found no place on the cluster.
        ValueError: a model that the wrapped engine cannot run.
    """

    def __init__(
        self,
        policy: SampledPolicy,
        config: RayEngineConfig,
        *,
        more_cpus: int = 0,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = config
        self._report = report
        self._model: PreTrainedModel | PeftModel | None = policy.model
        runnable(policy.model)
        self._version = int(policy.version)
        self._bases = itertools.count()
        self._known: list[tuple[StoredRow, int]] = []
        self._num_lost = self._num_in_a_row = 0
        num_cpus = config.num_engines * config.cpus_per_engine + more_cpus
        self._ray = SESSION.acquire(config.address, num_cpus=num_cpus)
        errors = self._ray.exceptions
        self._losses: tuple[type[BaseException], ...] = (
            errors.RayActorError,
            errors.ObjectLostError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
        )
        self._seats: list[_Seat] = []
        try:
            self._actor_class = actor_class(self._ray)
            self._put_base()
            self._put_trained()
            actors = [self._start() for _ in range(config.num_engines)]
            self._seats = [_Seat(index, actor) for index, actor in enumerate(actors)]
            self._load_all()
        except BaseException:
            self.close()
            raise

    # -- the interface --------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        """See `GenerationEngine`.

        Raises:
            EngineError: engines were lost more often than `engine.max_replacements`.
        """
        check_idle(self.num_pending, "generate")
        arrays = [np.ascontiguousarray(prompt, dtype=np.int32) for prompt in prompts]
        checked_limits(self._checked_model(), arrays, params, seeds)
        rows, engine_of = [row for row, _ in self._known], [seat for _, seat in self._known]
        parts = split(arrays, rows, engine_of, len(self._seats))
        bare = replace(params, watch=None)
        requests = [
            Request(
                key=key,
                prompt=prompt,
                params=bare,
                watch=None if params.watch is None else params.watch(),
                seed=int(seed),
            )
            for key, (prompt, seed) in enumerate(zip(arrays, seeds, strict=True))
        ]
        started = time.monotonic()
        calls = {
            self._generate(seat, [requests[key] for key in part]): (seat, part)
            for seat, part in zip(self._seats, parts, strict=True)
            if part
        }
        samples: dict[int, Sample] = {}
        known: list[tuple[StoredRow, int]] = []
        while calls:
            ready, _ = self._ray.wait(list(calls), timeout=self._left(started))
            for call in ready or list(calls):
                seat, part = calls.pop(call)
                answer = self._answer(seat, call, is_late=not ready)
                if answer is None:
                    started = time.monotonic()
                    again = self._generate(seat, [requests[key] for key in part])
                    calls[again] = (seat, part)
                    continue
                for key, sample in self._taken(seat, answer):
                    samples[key] = sample
                    known.append((_stored(requests[key].prompt, sample), seat.index))
        self._known = known
        return [samples[key] for key in range(len(requests))]

    @property
    def num_pending(self) -> int:
        return sum(len(seat.requests) for seat in self._seats)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        """See `StreamingEngine`; the request goes where the fewest are pending, or its beginning
        is known."""
        if any(key in seat.requests for seat in self._seats):
            raise ValueError(f"request {key} is pending already: give each request its own key")
        array = np.ascontiguousarray(prompt, dtype=np.int32)
        checked_limits(self._checked_model(), [array], params, [seed])
        request = Request(
            key=key,
            prompt=array,
            params=replace(params, watch=None),
            watch=None if params.watch is None else params.watch(),
            seed=int(seed),
        )
        seat = self._seat_for(array)
        seat.requests[key] = request
        seat.actor.submit.remote([request])

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `StreamingEngine`; it waits for the engines at most `max_wait_s`."""
        self._checked_model()
        for seat in self._seats:
            if seat.requests and seat.advancing is None:
                seat.advancing = seat.actor.advance.remote(SLICE_S)
                seat.since = time.monotonic()
        seats = {seat.advancing: seat for seat in self._seats if seat.advancing is not None}
        if not seats:
            return []
        ready, _ = self._ray.wait(list(seats), num_returns=1, timeout=max_wait_s)
        out: list[tuple[int, Sample]] = []
        for call, seat in seats.items():
            is_late = time.monotonic() - seat.since > self._config.timeout_s
            if call not in ready and not is_late:
                continue
            seat.advancing = None
            answer = self._answer(seat, call, is_late=call not in ready)
            if answer is None:
                seat.actor.submit.remote(list(seat.requests.values()))
                continue
            for key, sample in self._taken(seat, answer):
                request = seat.requests.pop(key)
                self._known.append((_stored(request.prompt, sample), seat.index))
                out.append((key, sample))
        del self._known[:-MAX_KNOWN]
        return out

    def cancel(self) -> None:
        """See `StreamingEngine`."""
        for seat in self._seats:
            if seat.requests or seat.advancing is not None:
                seat.requests.clear()
                seat.advancing = None
                seat.actor.cancel.remote()

    def release_memory(self) -> None:
        """Forget every engine's caches. A lost engine is noticed at the next call."""
        self._known = []
        for seat in self._seats:
            seat.actor.release_memory.remote()

    def sync_weights(self, policy: SampledPolicy) -> None:
        """Sample from the policy's present weights; what does not train is sent only once."""
        check_idle(self.num_pending, "sync_weights")
        self._checked_model()
        is_other = policy.model is not self._model
        self._model, self._version = policy.model, int(policy.version)
        self._known = []
        if is_other or self._base_stamp != frozen_stamp(policy.model):
            runnable(policy.model)
            self._put_base()
        self._put_trained()
        self._load_all()

    def close(self) -> None:
        """End the engines, and Ray if it was started for them."""
        if self._model is None:
            return
        self._model = None
        for seat in self._seats:
            self._ray.kill(seat.actor)
        self._seats, self._known = [], []
        self._frozen = self._trained = None
        SESSION.release()

    def take_metrics(self) -> dict[str, float]:
        """What each engine has done since the last call of this, and how many were lost."""
        out = {"ray/num_lost": float(self._num_lost)}
        self._num_lost = 0
        for seat in self._seats:
            out |= {
                f"ray/engine_{seat.index}/num_tokens": float(seat.num_tokens),
                f"ray/engine_{seat.index}/num_calls": float(seat.num_calls),
                f"ray/engine_{seat.index}/busy_s": seat.busy_s,
            }
            seat.num_tokens = seat.num_calls = 0
            seat.busy_s = 0.0
        return out

    def pids(self) -> list[int]:
        """The engines' processes, on whichever machine they are."""
        out: list[int] = self._ray.get([seat.actor.pid.remote() for seat in self._seats])
        return out

    # -- actors ---------------------------------------------------------------------------------

    def _start(self) -> Any:
        config = self._config
        strategy = {"pack": "DEFAULT", "spread": "SPREAD"}[config.placement]
        wrapped = config.wraps.model_copy(
            update={"max_batch_rows": min(config.max_batch_rows, config.wraps.max_batch_rows)}
        )
        return self._actor_class.options(
            num_cpus=config.cpus_per_engine,
            num_gpus=config.gpus_per_engine,
            scheduling_strategy=strategy,
        ).remote(
            wrapped,
            threads=config.cpus_per_engine,
            device="cuda" if config.gpus_per_engine else "cpu",
        )

    def _load(self, seat: _Seat) -> Any:
        frozen = self._frozen if seat.base != self._base else None
        return seat.actor.load.remote(self._base, frozen, self._trained, self._version)

    def _load_all(self) -> None:
        """Give every engine the weights; replace those that are lost."""
        calls = [(seat, self._load(seat)) for seat in self._seats]
        for seat, call in calls:
            try:
                self._get(call)
            except self._losses as error:
                self._replace(seat, error)
            seat.base = self._base

    def _get(self, call: Any) -> None:
        """Wait for an engine that starts or takes weights; an error of its own is raised here."""
        try:
            self._ray.get(call, timeout=self._config.start_timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            raise self._no_place() from None
        except self._losses:
            raise
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def _replace(self, seat: _Seat, error: BaseException | str) -> None:
        """Put a new actor with the present weights into the seat."""
        self._num_lost += 1
        reason = first_sentence(error)
        self._ray.kill(seat.actor)
        self._known = [(row, index) for row, index in self._known if index != seat.index]
        self._num_in_a_row += 1
        if self._num_in_a_row > self._config.max_replacements:
            raise EngineError(
                f"{self._num_in_a_row} engines were lost one after the other, the last one because "
                f"{reason}, and engine.max_replacements is {self._config.max_replacements}: see "
                "whether the machines have enough memory, or lower engine.max_batch_rows"
            )
        seat.actor, seat.base = self._start(), -1
        try:
            self._get(self._load(seat))
        except self._losses as again:
            self._replace(seat, again)
            return
        seat.base = self._base
        self._report(
            f"engine {seat.index} was lost ({reason}); a new one took its place and samples the "
            "same requests again"
        )

    def _no_place(self) -> EngineError:
        config = self._config
        there = self._ray.cluster_resources()
        return EngineError(
            f"{config.num_engines} engines with {config.cpus_per_engine} CPUs and "
            f"{config.gpus_per_engine:g} GPUs each were not ready within "
            f"{config.start_timeout_s:g} s; the cluster has {there.get('CPU', 0):g} CPUs and "
            f"{there.get('GPU', 0):g} GPUs in all: lower engine.num_engines, or raise "
            "engine.start_timeout_s"
        )

    # -- calls ----------------------------------------------------------------------------------

    def _generate(self, seat: _Seat, requests: list[Request]) -> Any:
        return seat.actor.generate.remote(requests)

    def _left(self, started: float) -> float:
        return max(self._config.timeout_s - (time.monotonic() - started), 0.0)

    def _answer(self, seat: _Seat, call: Any, *, is_late: bool) -> Answer | None:
        """What the engine gave; None after its loss, with a new engine in the seat."""
        if is_late:
            self._replace(seat, f"no answer within {self._config.timeout_s:g} s")
            return None
        try:
            answer: Answer = self._ray.get(call)
        except self._losses as error:
            self._replace(seat, error)
            return None
        except self._ray.exceptions.RayTaskError as error:
            self.cancel()
            raise error.cause from None
        self._num_in_a_row = 0
        return answer

    def _taken(self, seat: _Seat, answer: Answer) -> Iterator[tuple[int, Sample]]:
        """The samples, in memory of this process, with the weights' version checked."""
        seat.num_calls += 1
        seat.busy_s += answer.busy_s
        for sentence in answer.news:
            self._report(f"engine {seat.index}: {sentence}")
        for key, sample in answer.samples:
            if sample.policy_version != self._version:
                raise EngineError(
                    f"engine {seat.index} sampled with weights of version "
                    f"{sample.policy_version}, but has been given version {self._version}"
                )
            seat.num_tokens += len(sample.tokens)
            yield (
                key,
                replace(
                    sample,
                    tokens=sample.tokens.copy(),
                    logprobs=sample.logprobs.copy(),
                    entropies=None if sample.entropies is None else sample.entropies.copy(),
                ),
            )

    def _seat_for(self, prompt: IntArray) -> _Seat:
        least = min(self._seats, key=lambda seat: (len(seat.requests), seat.index))
        rows = [row for row, _ in self._known]
        place, _ = PrefixIndex(rows).match(prompt)
        if place < 0 or not rows[place].is_continued_by(prompt):
            return least
        knows = self._seats[self._known[place][1]]
        has_room = len(knows.requests) <= len(least.requests) + MAX_MORE
        return knows if has_room else least

    def _checked_model(self) -> PreTrainedModel:
        if self._model is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        return runnable(self._model)

    # -- weights --------------------------------------------------------------------------------

    def _put_base(self) -> None:
        assert self._model is not None
        self._base = next(self._bases)
        self._base_stamp = frozen_stamp(self._model)
        self._frozen = self._ray.put((Blueprint.of(self._model), frozen_weights(self._model)))

    def _put_trained(self) -> None:
        assert self._model is not None
        self._trained = self._ray.put(trained_weights(self._model))


def _stored(prompt: IntArray, sample: Sample) -> StoredRow:
    tokens = np.concatenate([prompt, sample.tokens])
    return StoredRow(tokens=tokens, num_cached=len(tokens))
