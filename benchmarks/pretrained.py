"""Does reinforcement learning teach a pretrained language model something, on this machine?

    python benchmarks/pretrained.py [--root DIR] [--steps 20] [--seed 0]

Warm start, then StarPO, as docs/your-own-model.md has it: 480 expert episodes, 60 iterations of
LoRA on them, the adapters merged, 20 steps of 16 trajectories of the recipe `bandit-llm`. Prints
the reward on 64 reserved tasks before and after, the paired difference with its 95 % interval, the
curve, seconds, and the verdict. What is finished in --root is not done again, so an interrupted
measurement goes on where it was. Needs `echoscope models get smollm2`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import describe_machine, read_options
from scipy import stats

from echoscope import open_run
from echoscope.store.records import FloatArray

RECIPE = "bandit-llm"
EPISODES, ITERATIONS = 480, 60
SAMPLES = 2
"""Of each reserved task, before and after; a task's reward is their mean."""


VERDICT_CODES = (0, 3, 5)
"""What `diagnose` exits with: it says what it found, whatever that is."""


def echoscope(*arguments: str) -> None:
    """Run a command; it must succeed."""
    done = subprocess.run([sys.executable, "-m", "echoscope", *arguments], check=False)
    if done.returncode not in (VERDICT_CODES if arguments[0] == "diagnose" else (0,)):
        sys.exit(done.returncode)


def warm_start(root: Path, dtype: str = "bfloat16") -> Path:
    """The folder of the model that has seen demonstrations; made unless it is there."""
    demos, adapters, warm = root / "demos.jsonl", root / "adapters", root / "warm"
    if not demos.is_file():
        arguments = ("--episodes", str(EPISODES), "--careful", "0.9", "--nonsense", "0")
        narrator = ("--narrator", "examples.narrators:narrator_of")
        echoscope("sft", "generate", RECIPE, *arguments, *narrator, "-o", str(demos))
    if not (adapters / "sft.json").is_file():
        lora = ("--lora", "--lora-rank", "16", "--lora-alpha", "32", "--dtype", dtype)
        length = ("--iterations", str(ITERATIONS), "--batch-episodes", "8", "--prompt-weight", "0")
        rest = ("--lr", "5e-4", "-o", str(adapters))
        began = time.perf_counter()
        resumed = ("--resume",) if adapters.is_dir() else ()
        arguments = ("--model", "smollm2", *lora, *length, *rest, *resumed)
        echoscope("sft", "train", str(demos), *arguments)
        print(f"warm start: {time.perf_counter() - began:.0f} s")
    if not (warm / "config.json").is_file():
        echoscope("sft", "merge", str(adapters), "-o", str(warm))
    return warm


def train(path: Path, overrides: list[str]) -> None:
    """Train, or go on, unless the run is finished."""
    if not (path / "run.json").exists():
        echoscope("train", RECIPE, *overrides, "--headless", "-o", str(path))
    elif open_run(path).info().status != "finished":
        echoscope("train", "--resume", str(path), "--headless")


def returns(path: Path, step: int) -> FloatArray:
    """Mean reward of each different evaluation task at a step, in the order of their keys, (K,).

    Some of the 64 prompts are the same task: an interval over prompts would count it twice.
    """
    rows = open_run(path).sql(
        "select task_key, avg(episode_return) as reward from trajectories "
        f"where split = 'eval' and step = {step} group by task_key order by task_key"
    )
    return np.asarray(rows["reward"], np.float64)


def mean_return(path: Path, step: int) -> tuple[int, float]:
    """Evaluation prompts at a step, and the mean reward of all their episodes."""
    row = open_run(path).sql(
        "select count(distinct env_seed) as prompts, avg(episode_return) as reward "
        f"from trajectories where split = 'eval' and step = {step}"
    )
    return int(row["prompts"][0].as_py()), float(row["reward"][0].as_py())


def curve(path: Path) -> tuple[list[int], list[float]]:
    """Steps, and the mean reward of each one's training trajectories."""
    rows = open_run(path).sql(
        "select step, avg(episode_return) as reward from trajectories where split = 'train' "
        "group by step order by step"
    )
    return [int(step) for step in rows["step"]], [float(reward) for reward in rows["reward"]]


def bars(steps: list[int], rewards: list[float]) -> str:
    """The curve as text: one line a step, forty characters for a reward of 1."""
    return "\n".join(
        f"{step:>4}  {reward:6.3f}  {'#' * round(40 * max(reward, 0.0))}"
        for step, reward in zip(steps, rewards, strict=True)
    )


def main() -> None:
    arguments = read_options(__doc__, root=Path("runs/pretrained"), steps=20, seed=0)
    arguments.root.mkdir(parents=True, exist_ok=True)
    print(describe_machine(), flush=True)
    warm = warm_start(arguments.root)
    path = arguments.root / f"{RECIPE}-seed{arguments.seed}"
    steps = arguments.steps
    overrides = [f"model.path={warm}", f"steps={steps}", f"eval.every={steps}"]
    overrides += [f"envs.eval_group_size={SAMPLES}", "checkpoint.every=5"]
    train(path, [*overrides, f"seed={arguments.seed}"])
    before, after = returns(path, 0), returns(path, steps)
    change = after - before
    interval = stats.t.interval(0.95, len(change) - 1, change.mean(), stats.sem(change))
    prompts, first = mean_return(path, 0)
    print(f"\nreward on {prompts} reserved prompts, {SAMPLES} samples each: ", end="")
    print(f"{first:.3f} -> {mean_return(path, steps)[1]:.3f}")
    print(
        f"paired difference over their {len(change)} different tasks {change.mean():+.3f}, 95 % t "
        f"interval [{interval[0]:+.3f}, {interval[1]:+.3f}]; {int((change > 0).sum())} tasks "
        f"gained, {int((change < 0).sum())} lost, {int((change == 0).sum())} stayed"
    )
    where, rewards = curve(path)
    print(f"\nmean reward of each step's trajectories\n{bars(where, rewards)}")
    _, seconds = open_run(path).metrics("time/step_s")
    print(f"\nseconds a step: median {np.median(seconds):.1f}, all {seconds.sum():.0f}")
    print(flush=True)
    echoscope("diagnose", str(path))
    print(describe_machine())
    if not interval[0] > 0:
        sys.exit("the interval does not exclude zero: the reward did not rise")


if __name__ == "__main__":
    main()
