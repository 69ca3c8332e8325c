"""Log-probs, entropies and their gradients from hidden states: in one piece and in chunks.

Random hidden states of 1,024 sampled tokens and a random output layer of float32; each case in a
process of its own. The peak is resident memory above the layer, its inputs and their gradients;
seconds are processor time of one thread, the best of `--repeats`.

    python benchmarks/vocabulary_head.py [--tokens 1024] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import alone, describe_machine, forget_peak, memory_of, print_json, read_options

SHAPES = {"SmolLM2-135M": (49_152, 576), "Qwen2.5-0.5B": (151_936, 896)}
WAYS = ("one piece", "2^27, recomputed", "2^24, recomputed", "2^22", "2^24", "2^26")
"""Logits at once; `recomputed`: by torch's checkpointing, as layers other than linear ones are."""


def measure(shape: str, way: str, tokens: int, repeats: int) -> dict[str, float]:
    import torch

    from echoscope.core.update import vocabulary

    torch.set_num_threads(1)
    torch.manual_seed(0)
    num_words, hidden_size = SHAPES[shape]
    head = torch.nn.Linear(hidden_size, num_words, bias=False)
    hidden = torch.randn(tokens, hidden_size, requires_grad=True)
    sampled = vocabulary.SampledTokens(
        targets=torch.randint(0, num_words, (tokens,)),
        temperatures=None,
        support_sizes=None,
        support_tokens=None,
    )
    size, _, recomputed = way.partition(", ")
    other = type("OtherLinear", (torch.nn.Linear,), {})
    limit = 1 << 62 if size == "one piece" else 1 << int(size.removeprefix("2^"))
    vocabulary.LOGITS_AT_ONCE = limit  # type: ignore[misc]
    head.weight.grad, hidden.grad = torch.zeros_like(head.weight), torch.zeros_like(hidden)
    seconds = []
    before = memory_of(is_peak=False)
    forget_peak()
    for _ in range(repeats):
        started = time.process_time()
        head.__class__ = other if recomputed else torch.nn.Linear
        called = vocabulary.VocabularyHead(head, SimpleNamespace())
        logprobs, entropies = called(hidden, sampled)
        (logprobs.mean() + 0.01 * entropies.mean()).backward()
        seconds.append(time.process_time() - started)
    return {"peak_mib": (memory_of() - before) / 2**20, "seconds": min(seconds)}


def main() -> None:
    arguments = read_options(
        __doc__, tokens=1024, repeats=3, json=False, alone={"nargs": 2, "help": argparse.SUPPRESS}
    )
    sizes = arguments.tokens, arguments.repeats
    if arguments.alone:
        print(json.dumps(measure(*arguments.alone, *sizes)))
        return
    rows = []
    for shape in SHAPES:
        for way in WAYS:
            options_of_run = ("--tokens", sizes[0], "--repeats", sizes[1], "--alone", shape, way)
            rows.append({"shape": shape, "way": way, **alone(__file__, *options_of_run)})
            if not arguments.json:
                facts = f"{rows[-1]['peak_mib']:7.0f} MiB  {rows[-1]['seconds']:6.2f} s"
                print(f"{shape:14} {way:18} {facts}", flush=True)
    if arguments.json:
        print_json(rows=rows)
    else:
        print(describe_machine())


if __name__ == "__main__":
    main()
