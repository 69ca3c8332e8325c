"""What the recipes learn: success before and after RL on unseen tasks, three seeds each.

    python benchmarks/recipes.py [--recipes bandit,frozen_lake,sokoban] [--seeds 0,1,2] [--root DIR]

Prints a Markdown table (the one in docs/recipes.md). Runs that are already in --root are not
trained again, so an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import describe_machine, markdown_table, read_options

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

    def cells(self) -> tuple[object, ...]:
        changed = (_cell(self.before), _cell(self.after), "yes" if self.rises else "no")
        return (self.recipe, self.tag, self.seed, self.steps, *changed, f"{self.minutes:.1f}")


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
    arguments = read_options(
        __doc__, recipes="bandit,frozen_lake,sokoban", seeds="0,1,2", root=Path("runs/recipes")
    )
    rows = []
    for recipe in arguments.recipes.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            path = arguments.root / f"{recipe}-seed{seed}"
            train(recipe, seed, path)
            rows += results(recipe, seed, path)
    print(f"{describe_machine()}, one thread\n")
    head = (
        "recipe",
        "evaluated",
        "seed",
        "steps",
        "before",
        "after",
        "beyond intervals",
        "minutes",
    )
    print(markdown_table(head, [result.cells() for result in rows]))


if __name__ == "__main__":
    main()
