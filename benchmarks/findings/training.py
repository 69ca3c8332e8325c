"""From an arm and a seed to a result: train it, or go on, and read the run back.

A result is all that the page needs. It is kept as one line of `record.ndjson`, so the page is built
without training, and what is in the record is never trained again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from common import describe_machine
from labelling import outcome_of
from numpy.typing import NDArray

from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.read.table import MetricTable, table_of_run
from echoscope.store.reader import RunReader, open_run

Floats = NDArray[np.float64]

RECORD = Path(__file__).parent / "record.ndjson"

SUCCESS = "success"
"""Evaluation success, whatever the tag of the evaluated world."""
KEPT = (
    "reward/return_mean",
    "reward/group_std_mean",
    "policy/entropy",
    "optim/grad_norm",
    "rollout/format_valid_frac",
    "rollout/reasoning_length_mean",
    "selection/kept_frac",
    "text/near_duplicate_frac",
    "info/first_turn/mutual_information",
    "info/first_turn/conditional_entropy_per_token",
    "info/first_turn/retrieval_accuracy@1",
    "info/first_turn/retrieval_chance@1",
    "info/all_turns/mutual_information",
    "collapse_first_turn_sample/mi_zscore",
)
"""Metrics that a result keeps at every step that measured them, where the run has them."""
DIGITS = 4
MOST_SEEDS = 100

WATCHED = (
    "eval.every=5",
    "diagnostics.information.every=5",
    "diagnostics.information.reasonings=4",
    "diagnostics.text.every=5",
    "diagnostics.gradient.every=0",
    "probe.every=0",
    "checkpoint.every=0",
    "checkpoint.best=false",
)
"""What every arm has: how often it is evaluated and measured."""
QUICK = ("envs.group_size=2", "eval.every=3", "diagnostics.information.every=0")
"""What a training of a few steps has as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to train: a recipe and what differs from it."""

    name: str
    """A short noun, unique."""
    words: str
    """What it is, for the page."""
    recipe: str
    overrides: tuple[str, ...]

    def settings(self, seed: int, steps: int | None = None) -> list[str]:
        """All words after the recipe's name."""
        overrides = [*WATCHED, *self.overrides, f"seed={seed}"]
        return overrides if steps is None else [*overrides, *QUICK, f"steps={steps}"]

    def key(self, seed: int, steps: int | None = None) -> str:
        """Two arms with the same settings are the same arm, whatever they are called."""
        text = json.dumps([self.recipe, self.settings(seed, steps)])
        return sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one arm became with one seed."""

    key: str
    arm: str
    seed: int
    steps: int
    seconds: float
    machine: str
    label: str
    """Kind of collapse, or healthy: `benchmarks/labelling.py`."""
    lost: tuple[int, int] | None
    """Last evaluation before success had halved for good, and the first after."""
    curves: Mapping[str, tuple[list[int] | None, list[float]]]
    """Steps and values by metric; no steps where every step from the first has a value."""

    def curve(self, metric: str) -> tuple[NDArray[np.int64], Floats]:
        """Steps and values; empty where the run has no such metric."""
        steps, values = self.curves.get(metric, ([], []))
        numbers = np.array(values, dtype=np.float64)
        places = np.arange(1, len(numbers) + 1) if steps is None else np.array(steps, dtype=int)
        return places.astype(np.int64), numbers

    def to_line(self) -> str:
        """One line of the record."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> Result:
        fields: dict[str, Any] = json.loads(line)
        fields["lost"] = None if fields["lost"] is None else tuple(fields["lost"])
        fields["curves"] = {name: tuple(pair) for name, pair in fields["curves"].items()}
        return cls(**fields)


class Record:
    """Results by key, in a file of lines that only grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.results = {r.key: r for r in map(Result.from_line, filter(None, lines))}

    def add(self, result: Result) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(result.to_line() + "\n")
        self.results[result.key] = result

    def of(self, arm: Arm, steps: int | None = None) -> dict[int, Result]:
        """By seed, those that there are."""
        seeds = sorted({result.seed for result in self.results.values()})
        results = {seed: self.results.get(arm.key(seed, steps)) for seed in seeds}
        return {seed: result for seed, result in results.items() if result is not None}

    def keep_only(self, keys: Iterable[str]) -> None:
        """Write the file anew without results that no claim asks for."""
        kept_keys = set(keys)
        self.results = {key: r for key, r in self.results.items() if key in kept_keys}
        text = "".join(result.to_line() + "\n" for result in self.results.values())
        self.path.write_text(text, encoding="utf-8")


def train(arm: Arm, seed: int, runs: Path, steps: int | None = None) -> Result:
    """Train an arm in a folder of its own, or go on there, and read it back.

    Raises:
        SystemExit: the run ended early; started again it goes on.
    """
    path = runs / f"{arm.name}-{seed}-{arm.key(seed, steps)[:6]}"
    if not (path / "run.json").exists():
        config = load_config(arm.recipe, overrides=arm.settings(seed, steps))
        start(config, path, SilentEvents())
    elif open_run(path).info().status != "finished":
        resume(path, SilentEvents())
    reader = open_run(path)
    status = reader.info().status
    if status != "finished":
        raise SystemExit(f"{path} is {status}; the same command goes on with it")
    return result_of(reader, arm, seed, steps)


def result_of(reader: RunReader, arm: Arm, seed: int, steps: int | None = None) -> Result:
    """What a finished run became."""
    table = table_of_run(reader)
    outcome = outcome_of(table)
    last = int(table.steps[-1])
    return Result(
        key=arm.key(seed, steps),
        arm=arm.name,
        seed=seed,
        steps=last,
        seconds=round(float(reader.metrics("time/step_s")[1].sum()), 1),
        machine=describe_machine().split(", load")[0],
        label=outcome.label,
        lost=outcome.interval,
        curves=_curves(table, last),
    )


def _curves(table: MetricTable, last: int) -> dict[str, tuple[list[int] | None, list[float]]]:
    success = [k for k in table.columns if k.startswith("eval/") and k.endswith("/success_rate")]
    columns = {SUCCESS: table.columns[min(success)]}
    columns |= {key: table.columns[key] for key in KEPT if key in table.columns}
    out: dict[str, tuple[list[int] | None, list[float]]] = {}
    for key, column in columns.items():
        there = np.isfinite(column)
        steps = [int(step) for step in table.steps[there]]
        is_every = steps == list(range(1, last + 1))
        out[key] = (None if is_every else steps, [_short(v) for v in column[there]])
    return out


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value


def missing(
    arms: Sequence[Arm], seeds: Sequence[int], record: Record, steps: int | None = None
) -> list[tuple[Arm, int]]:
    """Arms and seeds that are not in the record: all arms with one seed, then with the next."""
    return [
        (arm, seed) for seed in seeds for arm in arms if arm.key(seed, steps) not in record.results
    ]
