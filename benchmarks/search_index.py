"""How long the index of `search_qa` takes to build and to load, and a search.

    python benchmarks/search_index.py [--passages 100000 500000]

Measures the shipped corpus, and made ones of `--passages` passages with 100 words each, drawn with
Zipf's frequencies from 100,000 words as in running text. Keeps indexes in a temporary folder.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence

import numpy as np

from echoscope.envs.worlds.search.multi_hop import MADE_QUESTIONS, read_questions
from echoscope.envs.worlds.search.passages import (
    MADE_PASSAGES,
    Passage,
    PassageIndex,
    read_passages,
)

VOCABULARY = 100_000
WORDS = 100
SEARCHES = 200


def made_passages(number: int) -> tuple[Passage, ...]:
    rng = np.random.default_rng(0)
    ranks = np.minimum(rng.zipf(1.2, size=(number, WORDS)), VOCABULARY)
    return tuple(
        Passage(str(i), f"title{i}", " ".join(f"w{rank}" for rank in row))
        for i, row in enumerate(ranks)
    )


def measure(name: str, passages: tuple[Passage, ...], queries: list[str]) -> None:
    start = time.perf_counter()
    index = PassageIndex(passages)
    built = time.perf_counter() - start
    start = time.perf_counter()
    for query in queries:
        index.search(query, 3)
    searched = (time.perf_counter() - start) / len(queries)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name}: {len(passages):,} passages, index built in {built:.2f} s, "
        f"{1e3 * searched:.2f} ms a search, {memory:.1f} GiB in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, nargs="*", default=[100_000, 500_000])
    start = time.perf_counter()
    import bm25s  # noqa: F401 - the first import takes a while

    print(f"bm25s imported in {time.perf_counter() - start:.2f} s")
    start = time.perf_counter()
    shipped = read_passages(MADE_PASSAGES)
    print(f"shipped corpus read in {time.perf_counter() - start:.2f} s")
    questions = read_questions(MADE_QUESTIONS, SEARCHES).questions
    measure("shipped", shipped, [hop.query for question in questions for hop in question.hops])
    options = parser.parse_args()
    measure_made(options.passages)


def measure_made(sizes: Sequence[int]) -> None:
    for number in sizes:
        passages = made_passages(number)
        rng = np.random.default_rng(1)
        queries = [
            " ".join(f"w{rank}" for rank in np.minimum(rng.zipf(1.2, 6), VOCABULARY))
            for _ in range(SEARCHES)
        ]
        measure("made", passages, queries)


if __name__ == "__main__":
    main()
