"""The two runs of docs/treating.md: how they collapsed, and what the printed advice made of them.

    python -m benchmarks.case_studies FOLDER [--out docs/pictures]

Trains each run into FOLDER if it is not there, and a branch of it with the settings that its
verdict suggests; then it draws a picture of both and prints the figures of the page.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.run.branching import plan_branch, start_branch
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.reader import RunReader

from .common import describe_machine

BLUE, ORANGE, GREY = "#0b5fa5", "#b5470b", "#8c8c8c"
SUCCESS = "eval/frozen_lake/success_rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    recipe: str
    settings: tuple[str, ...]
    steps: int
    cure: tuple[str, ...]
    """The settings of the branch, as the verdict names them."""
    checkpoint: int
    curves: tuple[tuple[str, str, str], ...]
    """Of the lower panel: key, label and colour."""


CASES = (
    Case(
        name="reward_hack",
        recipe="healthy-frozen-lake",
        settings=(
            "reward.shaping=[{name: length, function: length, weight: -1.0, "
            "params: {soft: 14, hard: 40}}]",
            "optim.lr=1e-3",
        ),
        steps=16,
        cure=("reward.shaping=[]", "optim.lr=3e-4"),
        checkpoint=2,
        curves=(
            ("reward/return_mean", "mean return", BLUE),
            ("rollout/success_rate", "training success", ORANGE),
        ),
    ),
    Case(
        name="template_collapse",
        recipe="collapse-template",
        settings=("diagnostics.alarms.actions={}",),
        steps=50,
        cure=("envs.train.0.params.slip=0",),
        checkpoint=2,
        curves=(
            ("info/first_turn/retrieval_accuracy@1", "prompt found from the reasoning", BLUE),
            ("policy/entropy", "entropy, nats per token", ORANGE),
        ),
    ),
)


def series(reader: RunReader, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    steps, values = reader.metrics(key)
    is_finite = ~np.isnan(values)
    return steps[is_finite], values[is_finite]


def trained(case: Case, folder: Path) -> tuple[RunReader, RunReader]:
    """The collapsed run and its branch."""
    run, cured = folder / case.name, folder / f"{case.name}-cured"
    if not run.exists():
        config = load_config(case.recipe, overrides=[*case.settings, f"steps={case.steps}"])
        start(config, run, SilentEvents())
    if not cured.exists():
        plan = plan_branch(run, checkpoint=case.checkpoint, overrides=[*case.cure, "steps=40"])
        start_branch(plan, cured, SilentEvents())
    return open_run(run), open_run(cured)


def drawn(case: Case, run: RunReader, cured: RunReader, target: Path) -> None:
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.4), sharex=True)
    for reader, label, colour in ((run, "collapsed", ORANGE), (cured, "branch", BLUE)):
        steps, values = series(reader, SUCCESS)
        above.plot(steps, 100 * values, "o-", color=colour, label=label, markersize=3)
    above.set_ylabel("evaluation\nsuccess, %")
    above.axvline(case.checkpoint, color=GREY, linewidth=0.8, linestyle=":")
    for key, label, colour in case.curves:
        steps, values = series(run, key)
        below.plot(steps, values, color=colour, label=label)
    below.set_xlabel("step")
    for axes in (above, below):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target / f"case_{case.name}.svg")
    plt.close(figure)


def figures(case: Case, run: RunReader, cured: RunReader) -> Sequence[str]:
    def around(reader: RunReader, key: str) -> str:
        steps, values = series(reader, key)
        best = int(np.argmax(values))
        return (
            f"{values[0]:.3g} (step {steps[0]}), best {values[best]:.3g} (step {steps[best]}), "
            f"last {values[-1]:.3g} (step {steps[-1]})"
        )

    lines = [f"{case.name}: {SUCCESS} {around(run, SUCCESS)}"]
    lines += [f"{case.name}: {key} {around(run, key)}" for key, *_ in case.curves]
    return [*lines, f"{case.name}, branch: {SUCCESS} {around(cured, SUCCESS)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    arguments = parser.parse_args()
    print(describe_machine())
    for case in CASES:
        run, cured = trained(case, arguments.folder)
        drawn(case, run, cured, arguments.out)
        print(*figures(case, run, cured), sep="\n")


if __name__ == "__main__":
    main()
