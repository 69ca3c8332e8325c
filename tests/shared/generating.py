"""What an engine samples after some prompts, all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from echoscope.core.engines.base import Engine, Sample, SamplingParams, check_idle
from echoscope.store.records import IntArray


def generate(
    engine: Engine, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
) -> list[Sample]:
    """One sample per prompt, in order. Nothing stays pending where a prompt is refused.

    Raises:
        ValueError: a prompt that cannot be sampled from, or a different number of seeds.
        RuntimeError: the engine is closed, or has requests pending.
    """
    check_idle(engine.num_pending, "generate")
    if len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts with {len(seeds)} seeds: give one per prompt")
    samples: dict[int, Sample] = {}
    try:
        for key, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            engine.submit(key, prompt, params, seed=seed)
        while engine.num_pending:
            samples.update(engine.advance(max_wait_s=1.0))
    except BaseException:
        engine.cancel()
        raise
    return [samples[key] for key in range(len(prompts))]
