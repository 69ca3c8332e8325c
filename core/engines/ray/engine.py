"""Several engines as actors of Ray behind the one interface of a sampling engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np
from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.store.records import IntArray

from ...config.engine import HfEngineConfig, RayEngineConfig
from ..base import EngineError, ReplyWatch, Sample, SamplingParams
from ..batching import check_idle
from ..hf.model import checked_limits, runnable
from ..hf.prefixes import PrefixIndex, StoredRow
from ..requests import StreamedEngine
from .actor import Answer, Base, EngineActor, Request, trained_weights
from .session import SESSION, first_sentence

SLICE_S = 0.05
"""How long an engine samples before it looks for new requests."""
START_TIMEOUT_S = 600
"""Seconds in which engines must be placed and loaded."""
MAX_REPLACEMENTS = 8
"""Engines that may be lost one after the other before the run stops."""
MAX_KNOWN = 1024
"""Rows whose engine is remembered."""
MAX_MORE = 4
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
    requests: dict[int, Request] = field(default_factory=dict)
    """Submitted and not answered."""
    unsent: list[Request] = field(default_factory=list)
    """Those of them that the actor does not know yet."""
    call: Any = None
    """The answer that is on its way, if the engine has been told to go on."""
    since: float = 0.0
    num_tokens: int = 0
    num_calls: int = 0
    busy_s: float = 0.0


class RayEngine(StreamedEngine):
    """A `StreamingEngine` over actors that each hold an engine with the policy's weights.

    Requests go where their beginning is known or where the fewest are pending. An engine that dies
    or does not answer is replaced by a new one with the same weights, and what it was sampling is
    sampled again with the same seeds, so that the samples are those that it would have given.

    Args:
        policy: sampled from until `sync_weights`.
        more_cpus: what a Ray that is started here shall have besides, for others.
        report: is told in one sentence of a lost engine, and what engines have to say.

    Raises:
        ConfigError: Ray is missing or of another version, or the cluster cannot be reached.
        EngineError: the engines found no place on the cluster.
        ValueError: a model that the built-in engine cannot run.
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
        self._model: PreTrainedModel | PeftModel | None = None
        self._frozen_stamp = 0
        """Changes with every in-place change of a weight that does not train."""
        self._base_names = count()
        self._version = -1
        self._known: list[tuple[StoredRow, int]] = []
        self._index: PrefixIndex | None = None
        """Of `_known`; None after a change."""
        self._pending_prompts: dict[bytes, int] = {}
        self._num_lost = self._num_in_a_row = 0
        self._seats: list[_Seat] = []
        runnable(policy.model)
        num_cpus = config.num_engines * config.cpus_per_engine + more_cpus
        self._ray = SESSION.acquire(config.address, num_cpus=num_cpus)
        self._is_open = True
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
            self._seats = [_Seat(index, self._start()) for index in range(config.num_engines)]
            self.sync_weights(policy)
        except BaseException:
            self.close()
            raise

    # -- the interface --------------------------------------------------------------------------

    @property
    def num_pending(self) -> int:
        return sum(len(seat.requests) for seat in self._seats)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        """See `StreamingEngine`."""
        if any(key in seat.requests for seat in self._seats):
            raise ValueError(f"request {key} is pending already: give each request its own key")
        array = np.ascontiguousarray(prompt, dtype=np.int32)
        checked_limits(self._checked_model(), [array], params, [seed])
        seat = self._seat_for(array)
        if params.watch is not None:  # made here, in the order of the requests
            params = replace(params, watch=partial(_same, params.watch()))
        request = (key, array, params, int(seed))
        seat.requests[key] = request
        seat.unsent.append(request)

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        """See `GenerationEngine`; a wrong prompt is named by its place."""
        check_idle(self.num_pending, "generate")
        arrays = [np.ascontiguousarray(prompt, dtype=np.int32) for prompt in prompts]
        checked_limits(self._checked_model(), arrays, params, seeds)
        return super().generate(arrays, params, seeds=seeds)

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `StreamingEngine`; it waits for the engines at most `max_wait_s`.

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
            if call in ready or now - seat.since > self._config.timeout_s:
                seat.call = None
                answer = self._answer(seat, call, is_late=call not in ready)
                out += [] if answer is None else self._taken(seat, answer)
        if not self.num_pending:
            self._pending_prompts.clear()
        return out

    def cancel(self) -> None:
        """See `StreamingEngine`."""
        self._pending_prompts.clear()
        for seat in self._seats:
            if seat.requests or seat.call is not None:
                seat.requests, seat.unsent, seat.call = {}, [], None
                seat.actor.cancel.remote()

    def release_memory(self) -> None:
        """Forget every engine's caches. A lost engine is noticed at the next call."""
        self._forget()
        for seat in self._seats:
            seat.actor.release_memory.remote()

    def sync_weights(self, policy: SampledPolicy) -> None:
        """Sample from the policy's present weights; what does not train is sent only once."""
        check_idle(self.num_pending, "sync_weights")
        if not self._is_open:
            self._checked_model()
        model = policy.model
        stamp = sum(p._version for p in model.parameters() if not p.requires_grad)
        if model is not self._model or stamp != self._frozen_stamp:
            runnable(model)
            self._base = self._ray.put(Base.of(model, next(self._base_names)))
            self._model, self._frozen_stamp = model, stamp
        self._version = int(policy.version)
        self._trained = self._ray.put(trained_weights(model))
        self._forget()
        for seat, call in [(seat, self._load(seat)) for seat in self._seats]:
            try:
                self._await_load(call)
            except self._losses as error:
                self._replace(seat, error)

    def close(self) -> None:
        """End the engines, and Ray if it was started for them."""
        if not self._is_open:
            return
        self._is_open, self._model = False, None
        for seat in self._seats:
            self._ray.kill(seat.actor)
        self._seats = []
        self._base = self._trained = None
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
        return self._actor_class.options(
            num_cpus=config.cpus_per_engine,
            num_gpus=config.gpus_per_engine,
            scheduling_strategy={"pack": "DEFAULT", "spread": "SPREAD"}[config.placement],
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
            config, there = self._config, self._ray.cluster_resources()
            raise EngineError(
                f"{config.num_engines} engines with {config.cpus_per_engine} CPUs and "
                f"{config.gpus_per_engine:g} GPUs each were not ready within {START_TIMEOUT_S} s; "
                f"the cluster has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs in "
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
        self._num_in_a_row += 1
        self._ray.kill(seat.actor)
        self._known = [(row, index) for row, index in self._known if index != seat.index]
        self._index = None
        if self._num_in_a_row > MAX_REPLACEMENTS:
            raise EngineError(
                f"{self._num_in_a_row} engines were lost one after the other, the last one because "
                f"{reason}: see whether the machines have enough memory, or lower "
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
            _, prompt, _, _ = seat.requests.pop(key)
            tokens = np.concatenate([prompt, sample.tokens])
            self._known.append((StoredRow(tokens=tokens, num_cached=len(tokens)), seat.index))
            self._index = None
            yield key, _held_here(sample)
        del self._known[:-MAX_KNOWN]

    def _seat_for(self, prompt: IntArray) -> _Seat:
        """The seat that has the prompt's beginning, or the one with the fewest requests."""
        if self._index is None:
            self._index = PrefixIndex([row for row, _ in self._known])
        least = min(self._seats, key=lambda seat: (len(seat.requests), seat.index))
        row = self._index.continued_by(prompt)
        index = self._known[row][1] if row >= 0 else self._pending_prompts.get(prompt.tobytes())
        seat = least if index is None else self._seats[index]
        seat = seat if len(seat.requests) <= len(least.requests) + MAX_MORE else least
        self._pending_prompts[prompt.tobytes()] = seat.index
        return seat

    def _forget(self) -> None:
        self._known, self._index = [], None

    def _checked_model(self) -> PreTrainedModel:
        if self._model is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        return runnable(self._model)


def _same(watch: ReplyWatch) -> ReplyWatch:
    return watch


def _held_here(sample: Sample) -> Sample:
    """The sample in memory of this process: Ray's would stay taken as long as it is used."""
    return replace(
        sample,
        tokens=sample.tokens.copy(),
        logprobs=sample.logprobs.copy(),
        entropies=None if sample.entropies is None else sample.entropies.copy(),
    )
