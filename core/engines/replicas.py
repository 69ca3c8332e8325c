"""Several engines with the same weights behind one: who samples what, and what a loss costs.

Each prompt goes to the replica that has its beginning in its cache, unless another has far less to
do. A replica that is lost hands its requests to the others and is started again: the same prompt,
weights and seed give the same sample wherever they are, so that nothing of the step is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

import numpy as np

from echoscope.envs.workers.threads import in_thread
from echoscope.store.records import IntArray

from ..config.loading import ConfigError
from .base import Engine, EngineError, Sample, SamplingParams, check_idle

BLOCK_TOKENS = 64
"""Beginnings are compared by blocks of so many tokens."""
MAX_BEGINNINGS = 200_000
"""Blocks that are remembered."""
AHEAD_REQUESTS = 8
"""A replica that has a prompt's beginning may have so much more to do than the least busy one."""
MAX_LOSSES = 5
"""A replica that was lost so often since it last took weights is not started again."""
RESTART_PAUSES_S = (0.0, 5.0, 30.0, 240.0)
"""Before it is started after each loss: a server of somebody else needs time."""
_THREAD = "echoscope-replica"
_SLICE_S = 0.01
"""Between two looks at all replicas."""


class Router:
    """Which replica takes a prompt."""

    def __init__(self) -> None:
        self._replica_of: OrderedDict[bytes, int] = OrderedDict()
        """Digest of all blocks up to one -> the replica that saw them last."""

    def choose(self, prompt: IntArray, num_tokens: int, in_flight: dict[int, int]) -> int:
        """The replica for a prompt; it is taken to have the prompt's beginning from now on.

        Args:
            prompt: token ids, (Lp,).
            num_tokens: what it costs, its reply included.
            in_flight: tokens that each replica has to do.
        """
        digests = _digests(prompt)
        chosen = min(in_flight, key=lambda replica: (in_flight[replica], replica))
        for digest in reversed(digests):
            last_replica = self._replica_of.get(digest)
            if last_replica in in_flight:
                bound = in_flight[chosen] + AHEAD_REQUESTS * num_tokens
                chosen = last_replica if in_flight[last_replica] <= bound else chosen
                break
        for digest in digests:
            self._replica_of[digest] = chosen
            self._replica_of.move_to_end(digest)
        while len(self._replica_of) > MAX_BEGINNINGS:
            self._replica_of.popitem(last=False)
        return chosen

    def forget(self, replica: int) -> None:
        """Its cache is gone."""
        gone = [digest for digest, index in self._replica_of.items() if index == replica]
        for digest in gone:
            del self._replica_of[digest]


def _digests(prompt: IntArray) -> list[bytes]:
    """One for each whole block: of all tokens up to its end."""
    hasher, out = hashlib.blake2b(digest_size=16), []
    ids = np.ascontiguousarray(prompt, dtype=np.int32)
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        hasher.update(ids[end - BLOCK_TOKENS : end].tobytes())
        out.append(hasher.digest())
    return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    prompt: IntArray  # (Lp,)
    params: SamplingParams
    seed: int

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + self.params.max_new_tokens


@dataclass(slots=True, kw_only=True, eq=False)
class _Replica:
    index: int
    engine: Engine | None = None
    pending: dict[int, _Request] = field(default_factory=dict)
    starting: Future[Engine] | None = None
    num_losses: int = 0
    tokens_in_flight: int = 0


@dataclass(eq=False)
class Replicas(Engine):
    """An engine over several of one kind.

    Args:
        policy: sampled from until `sync_weights`.
        start: makes the replica of an index, with the policy's present weights.
        weights_rest: the policy's weights do not change while something is sampled, so that a
            replica which was started again may join at once. Else it joins at the next sync.
        report: is told in one sentence when a replica was lost or is back.
        forget_weights: called before and after the policy's weights are sent. What replicas that
            started meanwhile have been sent may be older.
        after_close: called when all replicas are closed, or one of them did not start.

    Raises:
        ConfigError, EngineError: whatever `start` raises.
    """

    policy: Any
    start: Callable[[int], Engine]
    number: InitVar[int]
    _: KW_ONLY
    weights_rest: bool = True
    report: Callable[[str], None] = lambda text: None
    forget_weights: Callable[[], None] = lambda: None
    after_close: Callable[[], None] = lambda: None

    def __post_init__(self, number: int) -> None:
        self._version = int(self.policy.version)
        self._router = Router()
        self._waiting: dict[int, _Request] = {}
        """Requests for which no replica is there at the moment."""
        self._num_lost = 0
        self._ends = threading.Event()
        self._replicas = [_Replica(index=index) for index in range(number)]
        starts = [in_thread(_THREAD, self.start, replica.index) for replica in self._replicas]
        try:
            for replica, begun in zip(self._replicas, starts, strict=True):
                replica.engine = begun.result()
        except BaseException:
            for begun in starts:
                begun.add_done_callback(_close_engine)
            self.after_close()
            raise
        self.forget_weights()

    @property
    def num_pending(self) -> int:
        return len(self._waiting) + sum(len(replica.pending) for replica in self._replicas)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        self._check_open()
        if key in self._waiting or any(key in replica.pending for replica in self._replicas):
            raise ValueError(f"request {key} is pending already: give each request its own key")
        self._place(key, _Request(prompt=prompt, params=params, seed=seed))

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `Engine`.

        Raises:
            EngineError: all replicas are lost, and none can be started again.
        """
        deadline = time.monotonic() + max_wait_s
        finished: list[tuple[int, Sample]] = []
        while self.num_pending and not finished:
            self._take_back()
            busy = [replica for replica in self._replicas if replica.pending]
            for replica in busy:
                finished += self._advanced(replica)
            remaining = deadline - time.monotonic()
            if finished or remaining <= 0:
                break
            time.sleep(min(_SLICE_S, remaining))
        return finished

    def cancel(self) -> None:
        self._waiting.clear()
        for replica in self._replicas:
            if replica.pending and replica.engine is not None:
                replica.engine.cancel()
            replica.pending, replica.tokens_in_flight = {}, 0

    def take_metrics(self) -> dict[str, float]:
        """Times of the slowest replica, counts of all, and how many were lost."""
        out: dict[str, float] = {}
        for replica in self._replicas:
            values = {} if replica.engine is None else replica.engine.take_metrics()
            for key, value in values.items():
                before = out.get(key, 0.0)
                out[key] = max(before, value) if key.endswith("_s") else before + value
        if self._num_lost:
            out["engine/num_lost"], self._num_lost = float(self._num_lost), 0
        return out

    def sync_weights(self, policy: Any) -> None:
        """Give every replica the weights at once; one that does not take them is lost.

        Raises:
            RuntimeError: requests are pending, or the engine is closed.
            EngineError: no replica took them.
        """
        check_idle(self.num_pending, "sync_weights")
        self._check_open()
        self.policy, self._version = policy, int(policy.version)
        self._take_back(is_syncing=True)
        self.forget_weights()
        self._on_all(lambda engine: engine.sync_weights(policy))
        for replica in self._replicas:
            replica.num_losses = replica.num_losses if replica.engine is None else 0
        self.forget_weights()

    def release_memory(self) -> None:
        self._on_all(lambda engine: engine.release_memory())

    def close(self) -> None:
        if self._ends.is_set():
            return
        self.cancel()
        self._ends.set()
        for replica in self._replicas:
            if replica.starting is not None:
                replica.starting.add_done_callback(_close_engine)
        running = [replica.engine for replica in self._replicas if replica.engine is not None]
        with ThreadPoolExecutor(max(len(running), 1)) as threads:
            for ended in [threads.submit(engine.close) for engine in running]:
                ended.result()
        self.after_close()

    # -- replicas --------------------------------------------------------------------------------

    def _place(self, key: int, request: _Request) -> None:
        while True:
            in_flight = {
                replica.index: replica.tokens_in_flight
                for replica in self._replicas
                if replica.engine is not None
            }
            if not in_flight:
                self._waiting[key] = request
                return
            index = self._router.choose(request.prompt, request.num_tokens, in_flight)
            replica = self._replicas[index]
            assert replica.engine is not None
            try:
                replica.engine.submit(key, request.prompt, request.params, seed=request.seed)
            except EngineError as error:
                self._lose(replica, error)
            else:
                replica.pending[key] = request
                replica.tokens_in_flight += request.num_tokens
                return

    def _advanced(self, replica: _Replica) -> list[tuple[int, Sample]]:
        if replica.engine is None:  # lost by what another's loss brought
            return []
        try:
            finished = replica.engine.advance(max_wait_s=0.0)
            for _, sample in finished:
                if sample.policy_version > self._version:
                    raise EngineError(
                        f"it sampled from version {sample.policy_version} of the policy, but "
                        f"version {self._version} was sent"
                    )
        except EngineError as error:
            self._lose(replica, error)
            return []
        for key, _ in finished:
            replica.tokens_in_flight -= replica.pending.pop(key).num_tokens
        return finished

    def _on_all(self, call: Callable[[Engine], None]) -> None:
        """Call all replicas at once."""
        running = [replica for replica in self._replicas if replica.engine is not None]
        with ThreadPoolExecutor(max(len(running), 1)) as threads:
            calls = [threads.submit(call, replica.engine) for replica in running if replica.engine]
        for replica, called in zip(running, calls, strict=True):
            try:
                called.result()
            except EngineError as error:
                self._lose(replica, error)

    def _lose(self, replica: _Replica, error: EngineError) -> None:
        """Start it again, and give its requests to the others.

        Raises:
            EngineError: no other is there, and it may not be started again.
        """
        engine, replica.engine = replica.engine, None
        requests, replica.pending, replica.tokens_in_flight = replica.pending, {}, 0
        replica.num_losses += 1
        self._num_lost += 1
        self._router.forget(replica.index)
        may_start = replica.num_losses < MAX_LOSSES
        if may_start:
            replica.starting = in_thread(_THREAD, self._restarted, engine, replica)
        elif engine is not None:
            in_thread(_THREAD, _closed, engine)
        may_come = [r.starting is not None and self.weights_rest for r in self._replicas]
        if not any(may_come) and all(r.engine is None for r in self._replicas):
            raise EngineError(f"all replicas of the engine are lost; the last: {error}")
        self.report(
            f"replica {replica.index} of the engine was lost ({error}); "
            + ("it is started again" if may_start else "it is not started again")
            + (f", and its {len(requests)} requests go to the others" if requests else "")
        )
        for key, request in requests.items():
            self._place(key, request)

    def _restarted(self, engine: Engine | None, replica: _Replica) -> Engine:
        if engine is not None:
            _closed(engine)
        self._ends.wait(RESTART_PAUSES_S[replica.num_losses - 1])
        if self._ends.is_set():
            raise EngineError("the engine is closed")
        return self.start(replica.index)

    def _take_back(self, *, is_syncing: bool = False) -> None:
        """Let replicas that are up again join, and give them what waits."""
        for replica in self._replicas:
            begun = replica.starting
            if begun is None or not begun.done() or not (is_syncing or self.weights_rest):
                continue
            replica.starting = None
            try:
                engine = begun.result()
                if not is_syncing:  # it may have started from weights that were being trained
                    self.forget_weights()
                    engine.sync_weights(self.policy)
                    self.forget_weights()
            except (EngineError, ConfigError, OSError) as error:
                self._lose(replica, EngineError(str(error)))
                continue
            replica.engine = engine
            self.report(f"replica {replica.index} of the engine is back")
        if self._waiting and any(replica.engine is not None for replica in self._replicas):
            waiting, self._waiting = self._waiting, {}
            for key, request in waiting.items():
                self._place(key, request)

    def _check_open(self) -> None:
        if self._ends.is_set():
            raise RuntimeError("the engine is closed: make a new one to sample again")


def _closed(engine: Engine) -> None:
    with contextlib.suppress(Exception):  # it is lost already
        engine.close()


def _close_engine(begun: Future[Engine]) -> None:
    """A replica that is up after nobody needs it any more."""
    if begun.exception() is None:
        _closed(begun.result())
