"""How often the 95 % intervals of information estimates hold the true value.

Policies with finitely many reasonings, so that I(X;Z) and H(Z|X) are enumerated: softmax policies
whose prompts differ in sharpness, and the symmetric channel Z = X with probability q. N prompts are
drawn from 3,000 every time, and the truth is that of these prompts.

    python benchmarks/interval_coverage.py [--repetitions 1000] [--json]
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import print_json, read_options
from numpy.typing import NDArray
from sequence_scores import scores_of_sequences

from echoscope.diagnostics.measure.information.cross_scores import CrossScores
from echoscope.diagnostics.measure.information.estimate import estimate

Table = NDArray[np.float64]
NUM_PROMPTS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A policy, and how much of it is seen at a time."""

    name: str
    prompts: int
    reasonings: int
    words: int = 20
    sharpness: float = 1.0
    q: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of repetitions whose interval holds the truth."""

    case: str
    prompts: int
    reasonings: int
    mean_information: float
    """Of the truth, nats."""
    information: float
    entropy: float


CASES = (
    Case(name="softmax, hardly dependent", prompts=8, reasonings=8, sharpness=0.2),
    Case(name="softmax", prompts=8, reasonings=8),
    Case(name="softmax", prompts=8, reasonings=16),
    Case(name="softmax", prompts=16, reasonings=8),
    Case(name="softmax", prompts=32, reasonings=1, words=50, sharpness=1.5),
    Case(name="softmax, sharp", prompts=8, reasonings=8, words=200, sharpness=3.0),
    Case(name="channel q 0.2", prompts=8, reasonings=8, q=0.2),
    Case(name="channel q 0.5", prompts=8, reasonings=8, q=0.5),
    Case(name="channel q 0.8", prompts=8, reasonings=8, q=0.8),
    Case(name="channel q 0.9", prompts=8, reasonings=8, q=0.9),
)


def build_table(case: Case, rng: np.random.Generator) -> Table:
    """log p(z|x), (prompts of the population, reasonings)."""
    if case.q is not None:
        n = case.prompts
        return np.log(np.full((n, n), (1 - case.q) / n) + case.q * np.eye(n))
    sharpness = case.sharpness * rng.uniform(0.2, 1.8, (NUM_PROMPTS, 1))
    logits = rng.normal(size=(NUM_PROMPTS, case.words)) * sharpness
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def truth(table: Table) -> tuple[float, float]:
    """I(X;Z) and H(Z|X) of X uniform on the rows."""
    p = np.exp(table)
    entropy = -float((p * table).sum(axis=1).mean())
    mixture = p.mean(axis=0)
    return -float((mixture * np.log(mixture)).sum()) - entropy, entropy


def draw(table: Table, per_prompt: int, rng: np.random.Generator) -> CrossScores:
    column_M = np.repeat(np.arange(len(table)), per_prompt)
    cumulative = np.exp(table).cumsum(axis=1)[column_M]
    picks = (cumulative < rng.random((len(column_M), 1)) * cumulative[:, -1:]).sum(axis=1)
    return scores_of_sequences(table[:, picks].T, column_M)


def measure(case: Case, repetitions: int, seed: int) -> Coverage:
    rng = np.random.default_rng(seed)
    table = build_table(case, rng)
    size = case.prompts
    truths = np.zeros((repetitions, 2))
    inside = np.zeros((repetitions, 2))
    for r in range(repetitions):
        chosen = table[rng.choice(len(table), size, replace=False)]
        truths[r] = truth(chosen)
        information = estimate(draw(chosen, case.reasonings, rng), num_permutations=19, seed=r)
        for s, name in enumerate(("mutual_information", "conditional_entropy")):
            low, high = information.intervals[name]
            inside[r, s] = low - 1e-9 <= truths[r, s] <= high + 1e-9
    shares = [round(float(share), 4) for share in inside.mean(axis=0)]
    return Coverage(
        case=case.name,
        prompts=size,
        reasonings=case.reasonings,
        mean_information=round(float(truths[:, 0].mean()), 3),
        information=shares[0],
        entropy=shares[1],
    )


def main() -> None:
    arguments = read_options(__doc__, repetitions=1000, json=False)
    rows = [measure(case, arguments.repetitions, seed) for seed, case in enumerate(CASES)]
    if arguments.json:
        print_json(rows=[asdict(row) for row in rows])
        return
    error = math.sqrt(0.95 * 0.05 / arguments.repetitions)
    print(f"{arguments.repetitions} repetitions: standard error of a share {error:.3f}")
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in asdict(row).items()))


if __name__ == "__main__":
    main()
