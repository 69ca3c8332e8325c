"""The pictures of docs/collapsebench.md: lead against false alarms, kinds, regimes, examples.

python benchmarks/collapsebench_pictures.py [--seeds 20] [--curves DIR] [--out docs/pictures]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import read_options

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tuning import Sweep

from echoscope.diagnostics.bench.baselines import measure
from echoscope.diagnostics.bench.detectors.entry import entries
from echoscope.diagnostics.bench.harness import KINDS, LabelledRun, load_curves
from echoscope.diagnostics.bench.judging import JudgedRun
from echoscope.diagnostics.bench.report import (
    REPORT_SEED,
    BenchReport,
    made_set,
    recorded_set,
    report,
)
from echoscope.diagnostics.bench.scores import Scores, score

FACTORS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3)
"""On all of our distances at once; 1 is what ships."""
NEVER = -40.0
"""Where a median lead stands that is none: half of the collapses or more were never called."""
COLOURS: Mapping[str, str] = {
    "Echoscope": "#0b5fa5",
    "RAGEN: reward variance": "#b5470b",
    "RAGEN: low validation success": "#8a6d00",
    "RAGEN: empty selection": "#7a7a7a",
    "entropy": "#1a7f4b",
    "z-score": "#8e3b8a",
}
REGIMES = ("diverse", "compressed", "template_collapse", "low_entropy_collapse", "undetermined")
SHOWN: Mapping[str, tuple[tuple[str, str], ...]] = {
    "FORMAT_COLLAPSE": (
        ("rollout/action_valid_frac", "valid actions"),
        ("rollout/reasoning_closed_frac", "closed reasoning"),
    ),
    "TEMPLATE_COLLAPSE": (
        ("info/first_turn/dependence", "dependence on the prompt"),
        ("text/template_frac", "template share"),
    ),
    "ENTROPY_EXPLOSION": (("policy/entropy", "entropy, nats per token"),),
    "LOW_ENTROPY_COLLAPSE": (("policy/entropy", "entropy, nats per token"),),
    "ECHO_TRAP": (
        ("reward/group_std_mean", "reward std in groups"),
        ("text/near_duplicate_frac", "equal siblings"),
    ),
}


def style() -> None:
    """A solid light ground, so that the page's own colour does not matter."""
    plt.rcParams.update(
        {
            "figure.facecolor": "#ffffff",
            "axes.facecolor": "#ffffff",
            "savefig.facecolor": "#ffffff",
            "svg.fonttype": "none",
            "svg.hashsalt": "echoscope",
            "font.family": "sans-serif",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 10,
        }
    )


def save(figure: Figure, folder: Path, name: str) -> None:
    path = folder / f"collapsebench_{name}.svg"
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.15)
    plt.close(figure)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def lead_of(scores: Scores) -> float:
    return NEVER if not scores.median_lead > NEVER else scores.median_lead


def lead_picture(sets: Mapping[str, Sequence[LabelledRun]], folder: Path) -> None:
    """Share called in time and median lead against false alarms, one column per set."""
    figure, grid = plt.subplots(
        2, len(sets), figsize=(3.6 * len(sets), 5.6), sharex=True, sharey="row", squeeze=False
    )
    for column, (name, runs) in enumerate(sets.items()):
        top, bottom = grid[0][column], grid[1][column]
        sweep = Sweep(runs)
        ours = [score([j.critical for j in sweep.judged({}, margin=f)]) for f in FACTORS]
        _curve(top, bottom, "Echoscope", ours, ours[FACTORS.index(1.0)])
        for entry in entries():
            if entry.grid:
                sweep_scores = [measure(entry.alert(value), runs) for value in entry.grid]
                _curve(top, bottom, entry.name, sweep_scores, measure(entry.as_used, runs))
        top.set_title(f"{name}: {ours[0].num_collapsed} collapses")
        top.set_ylim(-0.03, 1.05)
        bottom.axhline(0, color="#999999", linewidth=0.8)
        bottom.set_ylim(NEVER - 4, 75)
        bottom.set_yticks([NEVER, -20, 0, 20, 40, 60], ["never", "-20", "0", "20", "40", "60"])
        bottom.set_xscale("symlog", linthresh=1)
        bottom.set_xlim(-0.15, 100)
        bottom.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        bottom.set_xlabel("false alarms per 1,000 healthy steps")
        for axes in (top, bottom):
            axes.axvspan(-0.15, 1, color="#0b5fa5", alpha=0.06, linewidth=0)
    grid[0][0].set_ylabel("collapses called in time")
    grid[1][0].set_ylabel("median lead, steps")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3, frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    save(figure, folder, "lead")


def _curve(top: Axes, bottom: Axes, name: str, sweep: Sequence[Scores], used: Scores) -> None:
    colour, width = COLOURS[name], 2.2 if name == "Echoscope" else 1.2
    by_false_alarms = sorted(sweep, key=lambda scores: scores.false_per_1000)
    x = [scores.false_per_1000 for scores in by_false_alarms]
    # of several thresholds with as many false alarms, the best one counts
    best = np.maximum.accumulate([scores.detection for scores in by_false_alarms])
    lead = np.maximum.accumulate([lead_of(scores) for scores in by_false_alarms])
    top.step(x, best, where="post", color=colour, linewidth=width, label=name)
    bottom.step(x, lead, where="post", color=colour, linewidth=width)
    for axes, y in ((top, used.detection), (bottom, lead_of(used))):
        axes.plot([used.false_per_1000], [y], "o", color=colour, markersize=7 if width > 2 else 5)


def kinds_picture(reports: Mapping[str, BenchReport], folder: Path) -> None:
    """Share of each kind called in time: ours, and each alert at no more false alarms."""
    figure, row = plt.subplots(
        1, len(reports), figsize=(4.6 * len(reports), 3.6), sharey=True, squeeze=False
    )
    for axes, (name, kind_report) in zip(row[0], reports.items(), strict=True):
        labels = [
            label for label, kind in kind_report.by_label.items() if kind.critical.num_collapsed
        ]
        bars = {"Echoscope": [kind_report.by_label[label].critical.detection for label in labels]}
        for other in kind_report.beside:
            entry = next((each for each in entries() if each.name == other.name), None)
            if entry is None or other.matched_scores is None:
                continue
            alert = entry.alert(other.matched)
            runs = [
                [r.run for r in kind_report.results if r.run.label == label] for label in labels
            ]
            bars[other.name] = [measure(alert, some).detection for some in runs]
        width = 0.8 / len(bars)
        for n, (who, values) in enumerate(bars.items()):
            centres = np.arange(len(labels)) + (n - (len(bars) - 1) / 2) * width
            axes.bar(centres, values, width * 0.9, color=COLOURS[who], label=who)
        tick_labels = [label.replace("_", "\n") for label in labels]
        axes.set_xticks(range(len(labels)), tick_labels, fontsize=8)
        axes.set_title(name)
    row[0][0].set_ylabel("called in time")
    handles, names = row[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncol=3, frameon=False)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    save(figure, folder, "kinds")


def regimes_picture(reports: Mapping[str, BenchReport], folder: Path) -> None:
    """Regime labelled against regime named, in runs."""
    with_regimes = {name: set_report for name, set_report in reports.items() if set_report.regimes}
    figure, row = plt.subplots(
        1, len(with_regimes), figsize=(4.6 * len(with_regimes), 3.8), squeeze=False
    )
    tick_labels = [regime.replace("_", "\n", 1).replace("_", " ") for regime in REGIMES]
    for axes, (name, set_report) in zip(row[0], with_regimes.items(), strict=True):
        counts = np.array(
            [[set_report.regimes.get((a, b), 0) for b in REGIMES] for a in REGIMES[:-1]],
            dtype=float,
        )
        share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for i, j in np.argwhere(counts > 0):
            colour = "white" if share[i, j] > 0.7 else "black"
            axes.text(j, i, f"{counts[i, j]:.0f}", ha="center", va="center", color=colour)
        axes.set_xticks(range(len(REGIMES)), tick_labels, fontsize=7.5)
        axes.set_yticks(range(len(REGIMES) - 1), tick_labels[:-1], fontsize=7.5)
        axes.set_xlabel("named")
        axes.set_title(f"{name}: {set_report.regimes_right:.0%} right")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    row[0][0].set_ylabel("labelled")
    figure.tight_layout()
    save(figure, folder, "regimes")


def examples_picture(results: Sequence[JudgedRun], folder: Path) -> None:
    """One collapse of each kind: what the rule saw, when we spoke, and when success halved."""
    chosen: dict[str, JudgedRun] = {}
    for result in results:
        kind = KINDS.get(result.run.label)
        if kind and result.run.is_collapsed and result.critical.is_in_time and result.is_kind_right:
            chosen.setdefault(kind, result)
    figure, grid = plt.subplots(len(chosen), 1, figsize=(8, 1.9 * len(chosen)), squeeze=False)
    for axes, (kind, result) in zip(grid[:, 0], chosen.items(), strict=True):
        _example(axes, kind, result)
    grid[-1, 0].set_xlabel("step")
    figure.tight_layout()
    save(figure, folder, "examples")


def _example(axes: Axes, kind: str, result: JudgedRun) -> None:
    table, run = result.run.table, result.run
    evals = [k for k in table.columns if k.startswith("eval/") and k.endswith("/success_rate")]
    success = np.mean([table.columns[key] for key in evals], axis=0)
    lines = [(success, "success in evaluation", "#333333")]
    colours = iter(("#b5470b", "#1a7f4b"))
    lines += [
        (table.columns[key], label, next(colours))
        for key, label in SHOWN[kind]
        if key in table.columns
    ]
    for values, label, colour in lines:
        there = np.isfinite(values)
        axes.plot(table.steps[there], values[there], color=colour, linewidth=1.2, label=label)
    marks = (
        (run.onset_step, "first sign", "#888888", ":"),
        (result.watch.step, "watch", "#c98a00", "-"),
        (result.critical.step, "critical", "#c0182b", "-"),
        (run.halved_step, "success halved", "#333333", "--"),
    )
    top = 1.1 * axes.get_ylim()[1]
    for n, (step, label, colour, line) in enumerate(marks):
        if step is None:
            continue
        axes.axvline(step, color=colour, linestyle=line, linewidth=1.4)
        axes.annotate(
            f"{label} {step}",
            (1.01, 0.52 - 0.16 * n),
            xycoords="axes fraction",
            color=colour,
            fontsize=8,
        )
    axes.set_title(f"{kind} in {run.name}", loc="left", fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.15), frameon=False, fontsize=8)
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), top)


def main() -> None:
    args = read_options(
        __doc__,
        seeds=20,
        curves=(Path, "labelled runs of others, as one more column"),
        out=Path("docs/pictures"),
    )
    style()
    args.out.mkdir(parents=True, exist_ok=True)
    sets: dict[str, list[LabelledRun]] = {
        "synthetic runs": made_set(range(REPORT_SEED, REPORT_SEED + args.seeds)),
        "recorded runs": recorded_set("small"),
    }
    if args.curves:
        sets["public runs"] = load_curves(args.curves)
    sets = {name: runs for name, runs in sets.items() if runs}
    reports = {name: report(name, runs) for name, runs in sets.items()}
    lead_picture(sets, args.out)
    kinds_picture(reports, args.out)
    regimes_picture(reports, args.out)
    real_first = [r for set_report in reversed(reports.values()) for r in set_report.results]
    examples_picture(real_first, args.out)


if __name__ == "__main__":
    main()
