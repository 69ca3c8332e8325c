"""What the recipes learn: success before and after RL on unseen tasks, three seeds each.

    python benchmarks/recipes.py [--recipes bandit,frozen_lake,sokoban] [--seeds 0,1,2] [--root DIR]

Prints a Markdown table (the one in docs/recipes.md). Runs that are already in --root are not
trained again, so an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from machine import describe_machine

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Success rates in percent with their 95 % Wilson intervals."""

    recipe: str
    seed: int
    tag: str
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    steps: int
    minutes: float

    @property
    def rises(self) -> bool:
        """The intervals before and after do not touch."""
        return self.after[1] > self.before[2]

    def row(self) -> str:
        cells = (
            self.recipe,
            self.tag,
            str(self.seed),
            str(self.steps),
            _cell(self.before),
            _cell(self.after),
            "yes" if self.rises else "no",
            f"{self.minutes:.1f}",
        )
        return f"| {' | '.join(cells)} |"


def _cell(rate: tuple[float, float, float]) -> str:
    return f"{rate[0]:.1f} % [{rate[1]:.1f}, {rate[2]:.1f}]"


def train(recipe: str, seed: int, path: Path) -> None:
    """Train, or go on, unless the run is finished."""
    if not (path / "run.json").exists():
        start(load_config(recipe, overrides=[f"seed={seed}"]), path, SilentEvents())
    elif open_run(path).info().status != "finished":
        resume(path, SilentEvents())


def results(recipe: str, seed: int, path: Path) -> list[Result]:
    """One for each evaluated tag of the run."""
    reader = open_run(path)
    _, seconds = reader.metrics("time/step_s")
    keys = [key for key in reader.metric_keys() if key.endswith("/success_rate")]
    out = []
    for key in sorted(key for key in keys if key.startswith("eval/")):
        steps, _ = reader.metrics(key)
        columns = [100 * reader.metrics(f"{key}{end}")[1] for end in ("", "_low", "_high")]
        out.append(
            Result(
                recipe=recipe,
                seed=seed,
                tag=key.split("/")[1],
                before=(float(columns[0][0]), float(columns[1][0]), float(columns[2][0])),
                after=(float(columns[0][-1]), float(columns[1][-1]), float(columns[2][-1])),
                steps=int(steps[-1]),
                minutes=float(seconds.sum()) / 60,
            )
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", default="bandit,frozen_lake,sokoban")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--root", type=Path, default=Path("runs/recipes"))
    arguments = parser.parse_args()
    rows = []
    for recipe in arguments.recipes.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            path = arguments.root / f"{recipe}-seed{seed}"
            train(recipe, seed, path)
            rows += results(recipe, seed, path)
    print(f"{describe_machine()}, one thread\n")
    print("| recipe | evaluated | seed | steps | before | after | beyond intervals | minutes |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for result in rows:
        print(result.row())


if __name__ == "__main__":
    main()
