"""Streaming over an engine that has only `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from echoscope.core.engines.base import Sample, SamplingParams, StreamingEngine
from echoscope.core.engines.batching import BatchingStream, as_streaming
from echoscope.store.records import FinishReason, IntArray


class Counting:
    """Answers with the prompt's first token, counted up from the seed; remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int]] = []
        self.is_closed = False

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        self.calls.append(([int(prompt[0]) for prompt in prompts], params.max_new_tokens))
        return [
            Sample(
                tokens=np.arange(params.max_new_tokens) + int(prompt[0]) + seed,
                logprobs=np.zeros(params.max_new_tokens),
                entropies=None,
                finish_reason=FinishReason.STOP,
                policy_version=0,
            )
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def release_memory(self) -> None: ...
    def sync_weights(self, policy: Any) -> None: ...
    def close(self) -> None:
        self.is_closed = True


def ids(*values: int) -> IntArray:
    return np.array(values, np.int32)


def test_what_waits_is_sampled_in_one_call_and_each_sample_is_cut_to_its_own_limit() -> None:
    engine = Counting()
    stream = as_streaming(engine)
    stream.submit(7, ids(10), SamplingParams(max_new_tokens=2), seed=0)
    stream.submit(8, ids(20), SamplingParams(max_new_tokens=4), seed=1)
    assert stream.num_pending == 2
    samples = dict(stream.advance(max_wait_s=0))
    assert samples[7].tokens.tolist() == [10, 11]
    assert samples[7].finish_reason is FinishReason.LENGTH
    assert samples[8].tokens.tolist() == [21, 22, 23, 24]
    assert samples[8].finish_reason is FinishReason.STOP
    assert engine.calls == [([10, 20], 4)]
    assert (stream.num_pending, stream.advance(max_wait_s=0)) == (0, [])


def test_requests_of_different_kinds_go_in_different_calls() -> None:
    engine = Counting()
    stream = BatchingStream(engine)
    for key, temperature in enumerate([1.0, 0.5, 1.0]):
        params = SamplingParams(max_new_tokens=1, temperature=temperature)
        stream.submit(key, ids(key), params, seed=0)
    assert [key for key, _ in stream.advance(max_wait_s=0)] == [0, 2]
    assert [key for key, _ in stream.advance(max_wait_s=0)] == [1]


def test_a_key_is_pending_once_and_canceled_requests_never_come_back() -> None:
    engine = Counting()
    stream = BatchingStream(engine)
    stream.submit(1, ids(5), SamplingParams(max_new_tokens=1), seed=0)
    with pytest.raises(ValueError, match="request 1 is pending already"):
        stream.submit(1, ids(5), SamplingParams(max_new_tokens=1), seed=0)
    stream.cancel()
    assert (stream.num_pending, stream.advance(max_wait_s=0), engine.calls) == (0, [], [])


def test_weights_and_whole_calls_wait_until_nothing_is_pending() -> None:
    stream = BatchingStream(Counting())
    stream.submit(1, ids(5), SamplingParams(max_new_tokens=1), seed=0)
    pending = "was called while 1 requests are pending"
    with pytest.raises(RuntimeError, match=f"generate {pending}"):
        stream.generate([ids(1)], SamplingParams(max_new_tokens=1), seeds=[0])
    with pytest.raises(RuntimeError, match=f"sync_weights {pending}"):
        stream.sync_weights(None)
    stream.close()
    assert stream.num_pending == 0


def test_an_engine_that_streams_is_taken_as_it_is() -> None:
    stream = BatchingStream(Counting())
    assert isinstance(stream, StreamingEngine)
    assert as_streaming(stream) is stream
