"""What pictures of turns cost: bytes in the store, and time to draw them.

Random players with legal actions play each world with `render: none` and `render: rgb`; the same
turns, without tokens, are written as a run of 10 steps, packed, and their files are measured.

    python benchmarks/images.py [--turns 1000] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import describe_machine

from echoscope.envs import registry
from echoscope.envs.frames import to_png
from echoscope.envs.turns.turn import TurnSettings
from echoscope.envs.turns.wrappers import runner_of, wrap
from echoscope.store.log.packing import pack
from echoscope.store.log.verify import verify
from echoscope.store.records import Split, StepMetrics, StopReason, Trajectory, Turn, prompt_key
from echoscope.store.writer import RunWriter

WORLDS = ("frozen_lake", "sokoban", "sudoku", "game_2048", "countdown")
STEPS = 10
TURNS = 10
"""Of an episode, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one world."""

    world: str
    turns: int
    pictures: int
    """Different ones."""
    without_bytes: int
    """Packed files of all tables."""
    with_bytes: int
    draw_ms: float
    """Median of drawing one picture that was not drawn before."""


def play(world: str, render: Literal["none", "rgb"], num_turns: int) -> list[Trajectory]:
    """Episodes of random legal actions, dealt out to the steps."""
    settings = TurnSettings(max_turns=TURNS, max_actions_per_turn=1, render=render)
    stack = wrap(lambda: registry.make(world), settings)
    rng = np.random.default_rng(0)
    found: list[Trajectory] = []
    total = 0
    while total < num_turns:
        number = len(found)
        seen = stack.reset(number, number)
        turns: list[Turn] = []
        for index in range(TURNS):
            legal = runner_of(stack).env.legal_actions() or ("1",)
            action = str(rng.choice(np.array(legal)))
            result = stack.step_turn([action], True)
            response = f"<answer>{action}</answer>"
            turns.append(
                Turn(
                    index=index,
                    observation=seen.text,
                    frame=seen.frame,
                    image=seen.image,
                    response=response,
                    actions=result.actions,
                    reward=result.reward,
                )
            )
            seen = result.observation
            if result.stop_reason is not None:
                break
        total += len(turns)
        found.append(
            Trajectory(
                step=1 + number % STEPS,
                split=Split.TRAIN,
                index=number // STEPS,
                group_index=number // STEPS,
                sibling_index=0,
                env_id=world,
                tag=world,
                env_seed=number,
                noise_seed=number,
                prompt_key=prompt_key(turns[0].observation),
                turns=tuple(turns),
                final_observation=seen.text,
                final_frame=seen.frame,
                final_image=seen.image,
                stop_reason=StopReason.MAX_TURNS,
            )
        )
    stack.close()
    return found


def stored_bytes(trajectories: list[Trajectory], folder: Path) -> int:
    """Bytes of the packed tables."""
    with RunWriter.create(folder, run_id=folder.name, config={}, is_packing=False) as writer:
        for step in range(1, STEPS + 1):
            metrics = StepMetrics(
                run_id=folder.name,
                step=step,
                phase="train",
                policy_version=0,
                wall_time=0.0,
                values={},
            )
            chosen = [t for t in trajectories if t.step == step]
            writer.commit_step(metrics=[metrics], trajectories=chosen, outcomes=[])
    pack(folder)
    assert verify(folder).problems == ()
    return sum(path.stat().st_size for path in (folder / "pack").rglob("*.parquet"))


def draw_times(trajectories: list[Trajectory]) -> list[float]:
    """Milliseconds of each picture that was not drawn before."""
    frames = {turn.frame for t in trajectories for turn in t.turns if turn.frame is not None}
    to_png.cache_clear()
    times = []
    for frame in sorted(frames)[:200]:
        started = time.perf_counter()
        to_png(frame)
        times.append(1e3 * (time.perf_counter() - started))
    return times


def measure(world: str, num_turns: int, folder: Path) -> Cost:
    without, drawn = (play(world, render, num_turns) for render in ("none", "rgb"))
    pictures = {turn.image for t in drawn for turn in t.turns} | {t.final_image for t in drawn}
    return Cost(
        world=world,
        turns=sum(t.num_turns for t in drawn),
        pictures=len(pictures),
        without_bytes=stored_bytes(without, folder / f"{world}-none"),
        with_bytes=stored_bytes(drawn, folder / f"{world}-rgb"),
        draw_ms=float(np.median(draw_times(drawn))),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        costs = [measure(world, arguments.turns, Path(folder)) for world in WORLDS]
    if arguments.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=1))
        return
    print(describe_machine())
    print("| world | different pictures in 1,000 turns | without | with pictures | one picture |")
    print("| --- | --- | --- | --- | --- |")
    for cost in costs:
        scale = 1000 / cost.turns
        print(
            f"| {cost.world} | {cost.pictures * scale:,.0f} | "
            f"{cost.without_bytes * scale / 1e3:,.0f} kB | {cost.with_bytes * scale / 1e3:,.0f} kB "
            f"| {cost.draw_ms:.1f} ms |"
        )


if __name__ == "__main__":
    main()
