"""How closely do measures of text alone follow the information that a model measures?

Rank correlation (Spearman) of two text measures, retrieval accuracy above chance and the dependence
that a classifier finds, with I(X;Z) from cross-scoring, over recorded runs: per recipe, per
environment, over all, and inside single runs (the mean of each run's own correlation). Text is
measured at odd steps; where a step has information only, the mean of the steps beside it counts.

    python benchmarks/tiers.py [--curves diagnostics/bench/runs] [--run PATH ...]
        [--picture docs/pictures/tiers.svg] [--json]
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common import markdown_table, read_options

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from echoscope import open_run
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.table import MetricTable, table_of_run

ROOT = Path(__file__).parents[1]
INFORMATION = "info/first_turn/mutual_information"
MEASURES = ("retrieval above chance", "classifier's dependence")
MIN_POINTS, RESAMPLES = 5, 1000
LEVELS = (-1.0, 0.1, 0.3, 0.6, 0.9, 1.3, 1.6, 2.1)
COLOURS = ("#0b5fa5", "#b5470b", "#1a7f4b", "#8e3b8a", "#8a6d00", "#4a4a4a", "#c2185b")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Steps of one run at which both tiers are known."""

    recipe: str
    env: str
    information: Floats
    """Nats, (steps,)."""
    text: Floats
    """(steps, 2): the measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Correlations over some runs."""

    name: str
    num_runs: int
    num_points: int
    information_low: float
    """Nats, 5 % and 95 % quantile: what there is to be ranked."""
    information_high: float
    rho: tuple[float, ...]
    """By measure, over all points."""
    intervals: tuple[tuple[float, float], ...]
    """95 %, runs resampled; NaN with fewer than three."""
    within: tuple[float, ...]
    """By measure: the mean of each run's own."""


def points_of(table: MetricTable, recipe: str) -> Points | None:
    """None where one of the tiers is missing."""
    names = ("text/retrieval_accuracy", "text/retrieval_chance", "text/dependence")
    if not all(name in table.columns for name in (INFORMATION, *names)):
        return None
    accuracy, chance, dependence = (_filled(table.columns[name]) for name in names)
    text = np.stack([accuracy - chance, dependence], axis=1)
    information = np.asarray(table.columns[INFORMATION], dtype=np.float64)
    is_finite = np.isfinite(information) & np.isfinite(text).all(axis=1)
    return Points(
        recipe=recipe,
        env="bandit" if "bandit" in recipe or "echo" in recipe else "frozen_lake",
        information=information[is_finite],
        text=text[is_finite],
    )


def _filled(values: Floats) -> Floats:
    """Gaps of one step become the mean of the known steps beside them."""
    is_finite = np.isfinite(values)
    padded = np.pad(np.where(is_finite, values, 0.0), 1)
    counts = np.pad(is_finite.astype(float), 1)
    sums, sizes = padded[:-2] + padded[2:], counts[:-2] + counts[2:]
    beside = np.divide(sums, sizes, out=np.full(len(values), math.nan), where=sizes > 0)
    return np.where(is_finite, values, beside)


def load(curves: Path, runs: Sequence[Path]) -> list[Points]:
    all_points = [
        points_of(read_metrics(path), path.parent.name) for path in sorted(curves.rglob("*.csv"))
    ]
    all_points += [points_of(table_of_run(open_run(path)), path.name) for path in runs]
    return [
        points
        for points in all_points
        if points is not None and len(points.information) >= MIN_POINTS
    ]


def correlations(runs: Sequence[Points]) -> tuple[float, ...]:
    information = np.concatenate([run.information for run in runs])
    text = np.concatenate([run.text for run in runs])
    return tuple(_spearman(information, text[:, k]) for k in range(len(MEASURES)))


def _spearman(first: Floats, other: Floats) -> float:
    """NaN where one of them is the same everywhere."""
    if np.ptp(first) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(spearmanr(first, other).statistic)


def row(name: str, runs: Sequence[Points]) -> Row:
    rng = np.random.default_rng(0)
    information = np.concatenate([run.information for run in runs])
    low, high = np.quantile(information, [0.05, 0.95]).tolist()
    intervals = ((math.nan, math.nan),) * len(MEASURES)
    if len(runs) > 2:
        draws = rng.integers(len(runs), size=(RESAMPLES, len(runs)))
        resampled = np.array([correlations([runs[k] for k in draw]) for draw in draws])
        bounds = np.nanquantile(resampled, [0.025, 0.975], axis=0)
        intervals = tuple((float(a), float(b)) for a, b in bounds.T)
    alone = np.array([correlations([run]) for run in runs])
    return Row(
        name=name,
        num_runs=len(runs),
        num_points=len(information),
        information_low=low,
        information_high=high,
        rho=correlations(runs),
        intervals=intervals,
        within=tuple(float(np.nanmean(alone[:, k])) for k in range(len(MEASURES))),
    )


def rows_of(runs: Sequence[Points]) -> list[Row]:
    out = []
    keys: tuple[Callable[[Points], str], ...] = (lambda r: r.recipe, lambda r: f"all of {r.env}")
    for key in keys:
        for name in dict.fromkeys(key(run) for run in runs):
            out.append(row(name, [run for run in runs if key(run) == name]))
    return [*out, row("all", runs)]


def levels(runs: Sequence[Points], env: str) -> str:
    """Markdown: what text says where the model says so much, over one environment."""
    mine = [run for run in runs if run.env == env]
    information = np.concatenate([run.information for run in mine])
    text = np.concatenate([run.text for run in mine])
    rows = []
    for low, high in itertools.pairwise(LEVELS):
        inside = text[(information >= low) & (information < high)]
        if len(inside):
            cells = [f"{v.mean():.2f} [{v.min():.2f}, {v.max():.2f}]" for v in inside.T]
            name = f"below {high}" if low < 0 else f"{low} to {high}"
            rows.append([name, len(inside), *cells])
    return markdown_table((f"I(X;Z) on {env}, nats", "points", *MEASURES), rows)


def draw(runs: Sequence[Points], path: Path) -> None:
    """Both measures against I(X;Z), a colour for each recipe."""
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "echoscope", "font.size": 9}
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), facecolor="white")
    recipes = list(dict.fromkeys(run.recipe for run in runs))
    for k, axis in enumerate(axes):
        for recipe, colour in zip(recipes, COLOURS, strict=False):
            mine = [run for run in runs if run.recipe == recipe]
            axis.scatter(
                np.concatenate([run.information for run in mine]),
                np.concatenate([run.text[:, k] for run in mine]),
                s=9,
                color=colour,
                alpha=0.65,
                linewidths=0,
                label=recipe,
            )
        axis.axhline(0, color="#999999", linewidth=0.7)
        axis.set_xlabel("I(X;Z) from cross-scoring, nats")
        axis.set_title(f"text: {MEASURES[k]}")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    arguments = read_options(
        __doc__,
        curves=ROOT / "diagnostics" / "bench" / "runs",
        run={"type": Path, "nargs": "*", "default": []},
        picture=ROOT / "docs" / "pictures" / "tiers.svg",
        json=False,
    )
    runs = load(arguments.curves, arguments.run)
    rows = rows_of(runs)
    draw(runs, arguments.picture)
    if arguments.json:
        print(json.dumps([asdict(line) for line in rows]))
        return
    head = (
        "runs",
        "number, points",
        "I(X;Z), 5 to 95 %",
        "retrieval",
        "classifier",
        "within a run",
    )
    print(markdown_table(head))
    for line in rows:
        cells = [
            f"{r:.2f} [{a:.2f}, {b:.2f}]"
            for r, (a, b) in zip(line.rho, line.intervals, strict=True)
        ]
        within = ", ".join(f"{value:.2f}" for value in line.within)
        print(
            f"| {line.name} | {line.num_runs}, {line.num_points} | {line.information_low:.2f} to "
            f"{line.information_high:.2f} | {cells[0]} | {cells[1]} | {within} |"
        )
    print("\n" + levels(runs, "frozen_lake"))


if __name__ == "__main__":
    main()
