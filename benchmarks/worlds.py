"""Every environment: what its expert solves, and the shipped policy before and after 40 steps.

    python benchmarks/worlds.py [--only countdown,sudoku] [--seeds 0,1] [--root DIR]

Prints the table of worlds of docs/recipes.md. Each finished measurement is a line of
ROOT/rows.jsonl and is not made again, so an interrupted measurement continues where it stopped, and
a world that is added later adds its row.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import describe_machine, markdown_row, markdown_table, read_options
from outside_parts import real_lean_server

from echoscope import open_run
from echoscope.core.config.loading import load_config, recipe_names
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.envs import registry
from echoscope.envs.checks.episodes import noise_seed_of
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.runner import TurnRunner

EXPERT_SEEDS = 200
TASKS = 100
STEPS = 40
SERVED = ("frozen_lake", "size=4", "slip=0.0", "holes=2", "min_distance=2", "max_distance=5",
          "observation=relative")  # fmt: skip
"""What the recipe `remote` plays, as its first lines say."""
QUIET = ("checkpoint.every=0", "probe.every=0", "diagnostics.enabled=false")
"""What costs time and changes nothing of what is learned."""
Row = dict[str, Any]


def play_expert(group: EnvGroup) -> Row:
    """Share of seeds that the expert solves within the recipe's limits; None without an expert."""
    world = TurnRunner(lambda: registry.make(group.env, **group.params), group.settings())
    solved = 0
    try:
        for seed in range(EXPERT_SEEDS):
            world.reset(seed, noise_seed_of(seed))
            env = world.env
            if seed == 0 and env.solve() is None:
                return {"expert": None}
            result = None
            while result is None or result.stop_reason is None:
                plan = env.solve()
                if not plan:
                    break
                result = world.step_turn(plan[: group.max_actions_per_turn], is_well_formed=True)
            solved += result is not None and bool(result.success)
    finally:
        world.close()
    return {"expert": solved / EXPERT_SEEDS}


def train(recipe: str, seed: int, path: Path) -> Row:
    """Success on the evaluation tasks before and after, and the processor time in seconds."""
    shutil.rmtree(path, ignore_errors=True)
    config = load_config(recipe)
    tasks = [min(group.groups, TASKS) for group in config.envs.eval]
    overrides = [f"envs.eval.{i}.groups={number}" for i, number in enumerate(tasks)]
    overrides += [f"seed={seed}", f"steps={STEPS}", f"eval.every={STEPS}", *QUIET]
    config = load_config(recipe, overrides=overrides)
    before = os.times()
    status = start(config, path, SilentEvents())
    after = os.times()
    if status != "finished":
        raise SystemExit(f"the run in {path} is {status}: nothing is recorded of it")
    reader = open_run(path)
    tag = config.envs.eval[0].name
    _, rates = reader.metrics(f"eval/{tag}/success_rate")
    return {
        "model": config.model.path,
        "steps": STEPS,
        "tasks": tasks[0],
        "before": float(rates[0]),
        "after": float(rates[-1]),
        "seconds": round(sum(after[:4]) - sum(before[:4]), 1),
        "load": round(os.getloadavg()[0], 1),
    }


def measure(env_id: str, seeds: list[int], root: Path) -> None:
    """Add what is missing of a world to rows.jsonl."""
    if not_run(env_id) or env_id not in recipe_names():
        return
    done = {(row["env"], row.get("seed")) for row in read_rows(root)}
    if (env_id, None) not in done:
        expert = play_expert(load_config(env_id).envs.eval[0])
        write_row(root, {"env": env_id, **expert})
    for seed in seeds:
        if (env_id, seed) not in done:
            row = train(env_id, seed, root / f"{env_id}-seed{seed}")
            write_row(root, {"env": env_id, "seed": seed, **row})


def not_run(env_id: str) -> str:
    """Why a world cannot run here; "" if it can. `remote` gets a server of this script's own."""
    return "" if env_id == "remote" else registry.unavailable().get(env_id, "")


@contextmanager
def server() -> Iterator[None]:
    """What `remote` plays, in a process beside."""
    env_id, *params = SERVED
    command = [sys.executable, "-u", "-m", "echoscope", "envs", "serve", env_id, *params]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if not child.stdout.readline().startswith("serving "):
            raise SystemExit(f"the server of {env_id} did not start: nothing is recorded of it")
        yield
    finally:
        child.terminate()
        child.wait(timeout=30)


def beside(env_id: str) -> AbstractContextManager[None]:
    """What a world needs in a process beside."""
    if env_id == "remote":
        return server()
    return real_lean_server() if env_id == "lean" else nullcontext()


def read_rows(root: Path) -> list[Row]:
    file = root / "rows.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_row(root: Path, row: Row) -> None:
    root.mkdir(parents=True, exist_ok=True)
    with (root / "rows.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def table_row(env_id: str, rows: list[Row]) -> str:
    """One line of the table."""
    lack = not_run(env_id)
    if lack and not rows:
        return f"| `{env_id}` | not run: {lack.split(':')[0].split(',')[0]} | | | | | |"
    experts = [row["expert"] for row in rows if "expert" in row]
    expert = "" if not experts else "none" if experts[0] is None else f"{100 * experts[0]:.1f} %"
    runs = sorted((row for row in rows if "seed" in row), key=lambda row: int(row["seed"]))
    if not runs:
        return f"| `{env_id}` | {expert} | | | not measured | | |"
    cells = (
        f"`{env_id}`",
        expert,
        f"`{runs[0]['model']}`",
        "; ".join(f"{100 * run['before']:.0f} % -> {100 * run['after']:.0f} %" for run in runs),
        verdict(runs),
        str(runs[0]["steps"]),
        ", ".join(f"{run['seconds']:.0f}" for run in runs),
    )
    return markdown_row(cells)


def verdict(runs: list[Row]) -> str:
    """Whether the intervals of all runs' tasks together, before and after, do not touch."""
    tasks = sum(run["tasks"] for run in runs)
    before, after = (
        wilson_interval(sum(run[when] * run["tasks"] for run in runs) / tasks, tasks)
        for when in ("before", "after")
    )
    if after[0] > before[1]:
        return "learns"
    return "gets worse" if after[1] < before[0] else "does not learn it"


def main() -> None:
    arguments = read_options(
        __doc__,
        only=(str, "Comma-separated ids; all by default."),
        seeds="0,1",
        root=Path("runs/worlds"),
    )
    ids = arguments.only.split(",") if arguments.only else list(registry.known_ids())
    for env_id in ids:
        with beside(env_id):
            measure(env_id, [int(seed) for seed in arguments.seeds.split(",")], arguments.root)
    rows = read_rows(arguments.root)
    loads = [row["load"] for row in rows if "load" in row]
    print(f"\n{describe_machine()}, one thread; load {min(loads)} to {max(loads)}\n")
    ends = ("before -> after, by seed", "verdict", "steps", "seconds")
    print(markdown_table(("environment", "expert", "policy", *ends)))
    for env_id in registry.known_ids():
        print(table_row(env_id, [row for row in rows if row["env"] == env_id]))


if __name__ == "__main__":
    main()
