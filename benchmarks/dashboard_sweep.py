"""A sweep with known truth, to try the page Runs on: 3 methods x 2 worlds x 4 learning rates x 5.

    python benchmarks/dashboard_sweep.py ROOT [--seeds 5] [--steps 40] [--ask]

`--ask` asks what differs between two of the runs, in a real browser, as somebody would who knows
W&B: filter, tick both, Compare. It prints how long each click takes and what the page answers.

Every run is written by the `Recorder`, as another trainer's loop would. Episodes of a step succeed
with a probability that depends on method, world, learning rate and step (`level`), each by its own
draw. PPO and REINFORCE fall apart at the highest learning rate from step `FALL` on: the success of
both goes to `FALLEN`, and the replies become one text.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import temporary_folder

from echoscope import Recorder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

from browsing import (
    DashboardProcess,
    find_chromium,
    settle,
    table_rows,
    until,
    visit,
)

ROW, TICK = 35, 16
"""Pixels of the table of runs: height of a row, and where its tick box is."""
PATIENCE_S = 120.0
PAIR = "^ppo-frozen_lake-lr(1e-05|0.0001)-s0$"
"""A filter that finds two runs which differ in their learning rate."""
METHODS = ("ppo", "grpo", "reinforce")
WORLDS = ("frozen_lake", "sokoban")
RATES = (1e-7, 1e-6, 1e-5, 1e-4)
FALL, FALLEN = 20, 0.02
GROUPS, SIBLINGS, TASKS = 6, 4, 64
MIDDLE, SLOPE = 12.0, 4.0
_BEST = {"ppo": 1e-5, "grpo": 1e-6, "reinforce": 1e-6}
_TOP = {"ppo": 0.9, "grpo": 0.8, "reinforce": 0.6}
_WORLD = {"frozen_lake": 1.0, "sokoban": 0.6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One run of the sweep."""

    method: str
    world: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.world}-lr{self.rate:g}-s{self.seed}"

    @property
    def falls(self) -> bool:
        return self.method != "grpo" and self.rate == RATES[-1]

    @property
    def top(self) -> float:
        """The success that it would reach: 10 points less for each decade off the best rate."""
        decades = abs(math.log10(self.rate / _BEST[self.method]))
        return max(0.05, _TOP[self.method] * _WORLD[self.world] - 0.1 * decades)

    def level(self, step: int) -> float:
        """The chance of an episode of a step to succeed."""
        rise = 1 / (1 + math.exp(-(step - MIDDLE) / SLOPE))
        value = 0.05 + (self.top - 0.05) * rise
        return FALLEN if self.falls and step >= FALL else value

    @property
    def config(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "model": "qwen-0.5b",
            "advantage": {"kind": self.method},
            "optim": {"lr": self.rate, "kind": "adam"},
            "kl": {"coefficient": 0.01},
            "envs": {"train": [{"env": self.world, "params": {"size": 4}}], "group_size": SIBLINGS},
        }


def members(seeds: int) -> list[Member]:
    return [
        Member(method=method, world=world, rate=rate, seed=seed)
        for method, world, rate, seed in itertools.product(METHODS, WORLDS, RATES, range(seeds))
    ]


def record(member: Member, root: Path, steps: int) -> None:
    """Write one run, step by step."""
    rng = np.random.default_rng([member.seed, *member.name.encode()])
    recorder = Recorder(root / member.name, config=member.config, total_steps=steps)
    for step in range(1, steps + 1):
        level = member.level(step)
        has_fallen = member.falls and step >= FALL
        for group, sibling in itertools.product(range(GROUPS), range(SIBLINGS)):
            is_success = bool(rng.random() < level)
            plan = "I go on." if has_fallen else f"From row {group} I turn {sibling} times"
            messages = [
                {"role": "user", "content": f"Board {step}-{group}: where do you go?"},
                {"role": "assistant", "content": f"<think>{plan}</think><answer>up</answer>"},
            ]
            recorder.episode(
                messages,
                reward=float(is_success),
                success=is_success,
                group=f"{step}-{group}",
                env=member.world,
            )
        values = {
            "entropy": (0.1 if has_fallen else 1.5 - 0.01 * step) + 0.02 * rng.normal(),
            "grad_norm": (8.0 if has_fallen else 1.0) * float(rng.lognormal(0, 0.2)),
            "optim/lr": member.rate,
        }
        if step % 10 == 0:
            values["eval/all/success_rate"] = float(rng.binomial(TASKS, level)) / TASKS
            values["eval/all/num_tasks"] = float(TASKS)
        recorder.step(step, values)
    recorder.close()


def ask_what_differs(root: Path) -> None:
    """The two runs of `PAIR`, from the list of runs to the setting that differs."""
    from playwright.sync_api import sync_playwright

    began = time.perf_counter()

    def lap(what: str) -> None:
        nonlocal began
        print(f"{time.perf_counter() - began:5.1f} s  {what}")
        began = time.perf_counter()

    with sync_playwright() as playwright, temporary_folder() as folder:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(1000 * PATIENCE_S)
        dashboard = DashboardProcess(root, folder / "log", "--read-only")
        try:
            began = time.perf_counter()
            visit(page, dashboard.url)
            until(lambda: table_rows(page), "runs", page=page, patience_s=PATIENCE_S)
            lap("the list of runs is there")
            search = page.get_by_role("searchbox", name="Filter")
            search.fill(PAIR)
            search.press("Enter")
            until(lambda: len(table_rows(page)) == 3, "two", page=page, patience_s=PATIENCE_S)
            lap("the filter has found two")
            table = page.locator("[data-testid=stDataFrame]").first
            for row, sign in ((1.5, "Untick all"), (2.5, "2 ticked")):
                box = table.bounding_box()
                assert box is not None
                page.mouse.click(box["x"] + TICK, box["y"] + ROW * row)
                page.get_by_text(sign).wait_for()
            lap("both are ticked")
            page.get_by_role("link", name="Compare", exact=True).last.click()
            page.get_by_role("heading", name="Settings that differ").wait_for()
            settle(page)
            lap("Compare is there")
            print(page.locator("[data-testid=stMain] [data-testid=stText]").first.inner_text())
            print(next(rows for n in range(9) if (rows := table_rows(page, n))[0][0] == "setting"))
        finally:
            dashboard.close()
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("root", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ask", action="store_true", help="What differs between two runs?")
    options = parser.parse_args()
    for member in members(options.seeds):
        if not (options.root / member.name / "run.json").is_file():
            record(member, options.root, options.steps)
    print(f"{len(members(options.seeds))} runs under {options.root}")
    if options.ask:
        ask_what_differs(options.root)


if __name__ == "__main__":
    main()
