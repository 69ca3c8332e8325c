"""The pictures of docs/metrics-guide.md: each metric of healthy runs beside the collapse it shows.

Everything is read from recorded runs: the curves under `diagnostics/bench/runs` (the seeds of
each recipe, seed 0 drawn bold), and for gradients taken apart two of them trained once more with
`diagnostics.gradient.every=3` (`--record`, some minutes), kept under `benchmarks/guide_runs`.

    python benchmarks/guide_pictures.py [--out docs/pictures] [--record | --numbers]
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import read_options, temporary_folder

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.table import MetricTable, table_of_run

ROOT = Path(__file__).parents[1]
CURVES = ROOT / "diagnostics" / "bench" / "runs"
GRADIENTS = ROOT / "benchmarks" / "guide_runs"
HEALTHY, TEMPLATE = "healthy-frozen-lake", "collapse-template"
BLUE, ORANGE, GREY = "#0b5fa5", "#b5470b", "#8c8c8c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    key: str
    label: str
    colour: str = BLUE
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Two panels with the same axes: a healthy recipe, and the collapse."""

    name: str
    collapse: str
    curves: tuple[Curve, ...]
    unit: str
    healthy: str = HEALTHY
    folder: Path = CURVES
    log: bool = False
    from_zero: bool = True
    is_cut: bool = False
    """The axis fits seed 0; another seed may leave the picture."""


PICTURES = (
    Picture(
        name="reward_spread",
        healthy="healthy-bandit",
        collapse="collapse-echo-trap",
        curves=(
            Curve(key="reward/group_std_mean", label="reward std within groups"),
            Curve(key="reward/zero_std_frac", label="groups without spread", colour=ORANGE),
        ),
        unit="reward; share of groups",
    ),
    Picture(
        name="entropy",
        collapse="collapse-entropy",
        curves=(Curve(key="policy/entropy", label="policy entropy"),),
        unit="nats per token",
        log=True,
    ),
    Picture(
        name="conditional_entropy",
        collapse=TEMPLATE,
        curves=(
            Curve(key="info/first_turn/conditional_entropy_per_token", label="H(Z|X) per token"),
        ),
        unit="nats per token",
        is_cut=True,
    ),
    Picture(
        name="information",
        collapse=TEMPLATE,
        curves=(
            Curve(key="info/first_turn/mutual_information", label="I(X;Z)"),
            Curve(
                key="info/first_turn/conditional_entropy",
                label="H(Z|X)",
                colour=ORANGE,
                dashed=True,
            ),
        ),
        unit="nats per reasoning",
        is_cut=True,
    ),
    Picture(
        name="retrieval",
        collapse=TEMPLATE,
        curves=(
            Curve(key="info/first_turn/retrieval_accuracy@1", label="by the model"),
            Curve(key="text/retrieval_accuracy", label="by text alone", colour=ORANGE),
            Curve(
                key="info/first_turn/retrieval_chance@1",
                label="chance",
                colour=GREY,
                dashed=True,
            ),
        ),
        unit="share retrieved",
    ),
    Picture(
        name="gradient_norm",
        collapse="collapse-format",
        curves=(Curve(key="optim/grad_norm", label="gradient norm before clipping"),),
        unit="norm",
        log=True,
    ),
    Picture(
        name="gradient_terms",
        collapse="collapse-entropy",
        curves=(
            Curve(key="gradient/policy/all/norm", label="task"),
            Curve(key="gradient/entropy/all/norm", label="entropy bonus", colour=ORANGE),
        ),
        unit="gradient norm",
        folder=GRADIENTS,
        log=True,
    ),
    Picture(
        name="gradient_signal",
        collapse="collapse-entropy",
        curves=(
            Curve(key="gradient/policy/all/signal_frac", label="task"),
            Curve(key="gradient/entropy/all/signal_frac", label="entropy bonus", colour=ORANGE),
        ),
        unit="signal, share of squared norm",
        folder=GRADIENTS,
        from_zero=False,
    ),
    Picture(
        name="format",
        collapse="collapse-format",
        curves=(
            Curve(key="rollout/action_valid_frac", label="valid actions"),
            Curve(key="rollout/length_limited_frac", label="cut at the cap", colour=ORANGE),
        ),
        unit="share of replies",
    ),
    Picture(
        name="length",
        collapse="collapse-format",
        curves=(Curve(key="rollout/response_length_mean", label="reply length"),),
        unit="tokens",
    ),
)


def tables(folder: Path, recipe: str) -> list[MetricTable]:
    """Seed 0 first."""
    return [read_metrics(path) for path in sorted((folder / recipe).glob("seed*.csv"))]


def success_of(table: MetricTable) -> tuple[np.ndarray, np.ndarray]:
    """Steps and success of the evaluations on fixed tasks; empty if the table has none."""
    keys = [
        key
        for key in table.keys()  # noqa: SIM118 - no mapping
        if key.startswith("eval/") and key.endswith("/success_rate")
    ]
    values = table.columns[keys[0]] if keys else np.full(table.steps.shape, np.nan)
    is_finite = np.isfinite(values)
    return table.steps[is_finite], values[is_finite]


def draw(picture: Picture, folder: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 2.9), sharey=True)
    for axis, recipe in zip(axes, (picture.healthy, picture.collapse), strict=True):
        panel(axis, picture, tables(picture.folder, recipe))
        axis.set_title(recipe, fontsize=10)
        axis.set_xlabel("step")
    axes[0].set_ylabel(picture.unit)
    if picture.is_cut:
        axes[0].set_ylim(bottom=0, top=1.15 * highest(picture))
    elif not picture.log and picture.from_zero:
        axes[0].set_ylim(bottom=0)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(folder / f"guide_{picture.name}.svg", metadata={"Date": None})
    plt.close(figure)


def highest(picture: Picture) -> float:
    """The highest value of seed 0 in either panel."""
    return max(
        float(np.nanmax(tables(picture.folder, recipe)[0].columns[curve.key]))
        for recipe in (picture.healthy, picture.collapse)
        for curve in picture.curves
    )


def panel(axis: Axes, picture: Picture, tables: Sequence[MetricTable]) -> None:
    """The metric of every seed, and success of seed 0, if recorded, as a grey ground."""
    ground = axis.twinx()
    steps, success = success_of(tables[0])
    ground.fill_between(steps, success, color="#000000", alpha=0.07, linewidth=0)
    ground.set_ylim(0, 1)
    ground.set_yticks([0, 0.5, 1] if len(steps) else [], ["0", "", "1"][: 3 * bool(len(steps))])
    ground.tick_params(length=0, labelcolor=GREY)
    ground.spines[["top", "right"]].set_visible(False)
    for curve in picture.curves:
        for number, table in enumerate(tables):
            if curve.key not in table.columns:
                continue
            values = table.columns[curve.key]
            is_finite = np.isfinite(values)
            shown_values = values[is_finite]
            if picture.log:  # no gradient at all is a gap
                shown_values = np.where(shown_values > 0, shown_values, np.nan)
            axis.plot(
                table.steps[is_finite],
                shown_values,
                marker="." if picture.log and number == 0 else None,
                markersize=3.5,
                color=curve.colour,
                linestyle="--" if curve.dashed else "-",
                linewidth=1.9 if number == 0 else 0.7,
                alpha=1.0 if number == 0 else 0.45,
                label=curve.label if number == 0 else None,
            )
    if len(steps):
        axis.fill_between([], [], color="#000000", alpha=0.07, label="success (right, 0 to 1)")
    if picture.log:
        axis.set_yscale("log")
    elif not picture.from_zero:
        axis.axhline(0, color=GREY, linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_zorder(ground.get_zorder() + 1)
    axis.patch.set_visible(False)


def numbers(picture: Picture) -> list[str]:
    """First, least, largest value and end (mean of three) of each run's curve.

    Each with its median over the seeds and [smallest, largest].
    """
    lines = []
    for recipe in (picture.healthy, picture.collapse):
        for curve in picture.curves:
            rows = [
                values[np.isfinite(values)]
                for table in tables(picture.folder, recipe)
                for values in [table.columns.get(curve.key, np.zeros(0))]
            ]
            ends = [(row[0], row.min(), row.max(), row[-3:].mean()) for row in rows if len(row)]
            if ends:
                texts = [
                    f"{np.median(v):.3g} [{min(v):.3g}, {max(v):.3g}]"
                    for v in zip(*ends, strict=True)
                ]
                lines.append(f"{picture.name:20} {recipe:20} {curve.label:28} {'; '.join(texts)}")
    return lines


def record(recipe: str) -> None:
    """Train seed 0 of a recipe once more, its gradients taken apart every third step."""
    overrides = [
        "seed=0",
        "diagnostics.gradient.every=3",
        "diagnostics.budget_frac=1",
        "diagnostics.information.every=0",
        "diagnostics.text.every=0",
        "diagnostics.alarms.actions={}",
    ]
    with temporary_folder() as name:
        start(load_config(recipe, overrides=overrides), name / "run", SilentEvents())
        table = table_of_run(open_run(name / "run"))
    keys = [key for key in table.columns if key.startswith("gradient/")]
    path = GRADIENTS / recipe / "seed0.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *keys])
        for step, values in table.rows():
            cells = [values.get(key, float("nan")) for key in keys]
            if any(cell == cell for cell in cells):
                writer.writerow([step, *("" if c != c else f"{c:.4g}" for c in cells)])


def main() -> None:
    arguments = read_options(
        __doc__,
        out=ROOT / "docs" / "pictures",
        record=(False, "train the runs of the gradients"),
        numbers=(False, "print starts and ends, draw nothing"),
    )
    if arguments.numbers:
        print("\n".join(line for picture in PICTURES for line in numbers(picture)))
        return
    if arguments.record:
        for recipe in (HEALTHY, "collapse-entropy"):
            record(recipe)
    plt.rcParams |= {
        "figure.facecolor": "#ffffff",
        "axes.facecolor": "#ffffff",
        "savefig.facecolor": "#ffffff",
        "svg.fonttype": "none",
        "svg.hashsalt": "echoscope",
        "font.size": 9,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        draw(picture, arguments.out)


if __name__ == "__main__":
    main()
