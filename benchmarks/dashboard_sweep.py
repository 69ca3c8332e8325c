"""A sweep with known truth, to try the page Runs on: 3 methods x 2 worlds x 4 learning rates x 5.

    python benchmarks/dashboard_sweep.py ROOT [--seeds 5] [--steps 40]

Every run is written by the `Recorder`, as another trainer's loop would. Episodes of a step succeed
with a probability that depends on method, world, learning rate and step (`level`), each by its own
draw. PPO and REINFORCE fall apart at the highest learning rate from step `FALL` on: the success of
both goes to `FALLEN`, and the replies become one text.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from echoscope import Recorder

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("root", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    for member in members(options.seeds):
        if not (options.root / member.name / "run.json").is_file():
            record(member, options.root, options.steps)
    print(f"{len(members(options.seeds))} runs under {options.root}")


if __name__ == "__main__":
    main()
