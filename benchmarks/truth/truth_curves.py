"""Keep a run of each family of the truth table as a part of CollapseBench.

    python benchmarks/truth/truth_curves.py [--seed 80] [--output diagnostics/bench/runs/truth]

The labels say what is true of a run, not what its noise looks like: a collapse is one whose true
mean success falls for good, a control one in which nothing critical ever happens. Runs with a dip,
or with a change that deserves no more than a look, count as neither.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from truth_families import FAMILIES, made_run
from truth_runs import EVALUATION, RETURN, SUCCESS, TruthRun

from echoscope.diagnostics.bench.harness import NEEDS_A_LOOK, LabelledRun, save_curves
from echoscope.diagnostics.bench.report import RECORDED

SEED = 80
"""The judge was tuned with the seeds 0 to 19, and tested with 60 to 79."""


def labelled(family: str, seed: int, run: TruthRun) -> LabelledRun:
    """A run with what is true of it as its label."""
    is_collapsed = run.awaited == "critical"
    is_control = not run.awaited and run.healthy_until > run.table.steps[-1]
    label = "healthy" if is_control else NEEDS_A_LOOK
    return LabelledRun(
        name=re.sub(r"\W+", "-", family).strip("-"),
        label="known_collapse" if is_collapsed else label,
        is_collapsed=is_collapsed,
        counts=is_collapsed or is_control,
        halved_step=_halved(run) if is_collapsed else None,
        onset_step=run.healthy_until if is_collapsed else None,
        recorded_stops={},
        table=run.table,
        seed=seed,
    )


def _halved(run: TruthRun) -> int | None:
    """The first step whose true mean is below half of its running peak, for good; None if none."""
    key = next((key for key in (EVALUATION, SUCCESS, RETURN) if key in run.truth), None)
    if key is None:
        return None
    is_high = run.truth[key] >= 0.5 * np.maximum.accumulate(run.truth[key])
    after = int(np.flatnonzero(is_high)[-1]) + 1
    return int(run.table.steps[after]) if after < len(is_high) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, default=RECORDED["truth"])
    arguments = parser.parse_args()
    runs = [labelled(name, arguments.seed, made_run(name, arguments.seed)) for name in FAMILIES]
    note = (
        "Simulated runs whose true means are known at every row; labels say what is true. Made by "
        "benchmarks/truth/truth_curves.py."
    )
    save_curves(arguments.output, runs, note)
    print(f"{len(runs)} runs in {arguments.output}")


if __name__ == "__main__":
    main()
