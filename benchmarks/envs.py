"""Steps per second of every environment, beside other people's, and of a pool of slow ones.

Run: python benchmarks/envs.py [--seconds 1] [--rounds 5] [--peers build/peers] [--json FILE]

The first table steps every installed world with its expert's actions (random legal ones where there
is no expert). The second plays ours and a peer in turns, `--rounds` times, with the same number of
actions, on processor time, resets included. The peers are not installed with Echoscope; without
their folder the table is left out:

    pip install --no-deps --target build/peers gym_sokoban==0.0.6 gym==0.26.2 gym_notices==0.1.0 \
        setuptools==65.5.0 imageio==2.38.1 gymnasium-2048==0.1.2 pygame magiccube==1.2.0 \
        rapidcube==0.2.1
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from common import describe_machine, markdown_row, markdown_table, read_options
from pools import begin

from echoscope.envs import registry
from echoscope.envs.base import TextEnv
from echoscope.envs.checks.episodes import typical_actions
from echoscope.envs.pool import EnvPool, turns_of
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.turn import TurnEnv
from echoscope.envs.workers.processes import ProcessTurns, WorkerProcesses

NUM_PROCESSES = 16
"""As many as the pool has threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of one world: per second of processor time, and of wall clock (the sandbox is waited for)."""

    env_id: str
    resets_per_cpu_s: float
    steps_per_cpu_s: float
    steps_per_s: float


def speed_of(env_id: str, seconds: float) -> Speed:
    """New tasks at every reset; neither the expert's thinking nor the first episode counts."""
    env = registry.make(env_id)
    reset_cpu = step_cpu = step_wall = 0.0
    num_resets = num_steps = 0
    seed = 0
    while step_wall < seconds and (num_resets < 2000 or step_wall < seconds / 4):
        start = time.process_time()
        env.reset(seed, seed)
        spent = time.process_time() - start
        actions = typical_actions(env, seed)
        start, start_wall = time.process_time(), time.perf_counter()
        done = 0
        for action in actions:
            done += 1
            if env.step(action).terminated:
                break
        if seed:
            reset_cpu, num_resets = reset_cpu + spent, num_resets + 1
            step_cpu += time.process_time() - start
            step_wall += time.perf_counter() - start_wall
            num_steps += done
        seed += 1
    env.close()
    return Speed(
        env_id=env_id,
        resets_per_cpu_s=num_resets / max(reset_cpu, 1e-9),
        steps_per_cpu_s=num_steps / max(step_cpu, 1e-9),
        steps_per_s=num_steps / step_wall,
    )


Play = Callable[[int], None]
"""Plays so many actions, with a reset where an episode ends."""


def playing(step: Callable[[int], bool], reset: Callable[[int], object]) -> Play:
    """`step` takes the number of an action and says whether the episode is over."""
    draws = [int(n) for n in np.random.default_rng(0).integers(1 << 20, size=4096)]
    reset(0)

    def play(num_actions: int) -> None:
        for number in range(num_actions):
            if step(draws[number % len(draws)]):
                reset(number + 1)

    return play


def ours(env: TextEnv, *, same_task: bool = False, max_steps: int = 0) -> Play:
    """Random legal actions. `same_task`: as siblings of one group do; else every episode is new."""
    legal = env.legal_actions()
    count = 0

    def reset(seed: int) -> None:
        nonlocal count
        count = 0
        env.reset(0 if same_task else seed, seed)

    def step(draw: int) -> bool:
        nonlocal count
        count += 1
        return env.step(legal[draw % len(legal)]).terminated or count == max_steps

    return playing(step, reset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Ours against a peer: actions per second of processor time, medians over the rounds."""

    ours: str
    peer: str
    ours_per_s: float
    peer_per_s: float
    ratio: float
    """Median over the rounds of the ratio within a round."""


def race(ours_name: str, mine: Play, peer_name: str, peer: Play, actions: int, rounds: int) -> Race:
    """Both in turns, so that a busy machine slows both."""
    rates: tuple[list[float], list[float]] = ([], [])
    for round_number in range(rounds + 1):  # the first one warms up
        for play, rates_of in zip((mine, peer), rates, strict=True):
            start = time.process_time()
            play(actions)
            spent = time.process_time() - start
            if round_number:
                rates_of.append(actions / spent)
    ratios = [a / b for a, b in zip(*rates, strict=True)]
    return Race(
        ours=ours_name,
        peer=peer_name,
        ours_per_s=statistics.median(rates[0]),
        peer_per_s=statistics.median(rates[1]),
        ratio=statistics.median(ratios),
    )


def races(rounds: int) -> Iterator[Race]:
    """The peers' folder is on the path."""
    yield from lake_races(rounds)
    yield from sokoban_races(rounds)
    yield from puzzle_races(rounds)


def lake_races(rounds: int) -> Iterator[Race]:
    """Gymnasium's lake keeps one map for ever; ours draws one for each task."""
    import gymnasium

    lake = registry.make("frozen_lake")
    for name, mode in (
        ("gymnasium FrozenLake-v1, a number for an observation", None),
        ("gymnasium FrozenLake-v1, render_mode=ansi", "ansi"),
    ):
        world = gymnasium.make("FrozenLake-v1", render_mode=mode)

        def step(draw: int, world: gymnasium.Env = world, mode: str | None = mode) -> bool:
            _, _, terminated, truncated, _ = world.step(draw % 4)
            if mode:
                world.render()
            return bool(terminated or truncated)

        peer = playing(step, lambda seed, world=world: world.reset(seed=seed))
        mine = ours(lake, same_task=True)
        yield race("frozen_lake, one task", mine, name, peer, 20_000, rounds)
    yield race("frozen_lake, new tasks", ours(lake), name, peer, 20_000, rounds)


def sokoban_races(rounds: int) -> Iterator[Race]:
    from gym_sokoban.envs.sokoban_env import SokobanEnv

    world = SokobanEnv(dim_room=(6, 6), num_boxes=1, max_steps=100)
    for name, mode in (("RGB", "rgb_array"), ("one pixel a cell", "tiny_rgb_array")):
        peer = playing(
            lambda draw, mode=mode: bool(world.step(1 + draw % 8, observation_mode=mode)[2]),
            lambda seed: (world.seed(seed), world.reset()),
        )
        mine = ours(registry.make("sokoban"), max_steps=100)
        yield race("sokoban 6x6, 1 box", mine, f"gym-sokoban 0.0.6, {name}", peer, 3_000, rounds)
    room = registry.make("sokoban")

    def drawn(num_levels: int) -> None:
        """New levels at every call: drawn ones are kept."""
        drawn.seed += num_levels  # type: ignore[attr-defined]
        for seed in range(drawn.seed, drawn.seed + num_levels):  # type: ignore[attr-defined]
            room.reset(seed, 0)

    def generated(num_levels: int) -> None:
        for seed in range(num_levels):
            world.seed(seed)
            world.reset(render_mode="tiny_rgb_array")

    drawn.seed = 10**6  # type: ignore[attr-defined]
    yield race("levels of 6x6, 1 box", drawn, "gym-sokoban 0.0.6, levels", generated, 100, rounds)


def puzzle_races(rounds: int) -> Iterator[Race]:
    import magiccube
    import rapidcube
    from gymnasium_2048.envs.twenty_forty_eight import TwentyFortyEightEnv

    board = TwentyFortyEightEnv()

    def slide(draw: int) -> bool:
        _, _, terminated, truncated, _ = board.step(draw % 4)
        return bool(terminated or truncated)

    yield race(
        "game_2048, goal 2048",
        ours(registry.make("game_2048", goal=2048)),
        "gymnasium-2048 0.1.2, an array for an observation",
        playing(slide, lambda seed: board.reset(seed=seed)),
        5_000,
        rounds,
    )
    cube, compiled = magiccube.Cube(2), rapidcube.Cube2x2()
    turns = ["U", "U'", "D", "D'", "L", "L'", "R", "R'", "F", "F'", "B", "B'"]

    def turn(draw: int) -> bool:
        cube.rotate(turns[draw % 12])
        cube.get()
        return bool(cube.is_done())

    methods = [
        getattr(compiled, f"do_{name[0].lower()}{'_prime' if name[1:] else ''}_move")
        for name in turns
    ]

    def turn_compiled(draw: int) -> bool:
        methods[draw % 12]()
        compiled.to_sticker_array()
        return bool(compiled.is_solved())

    peers = {
        "magiccube 1.2.0, the stickers as text": playing(turn, lambda seed: cube.reset()),
        "rapidcube 0.2.1 (compiled), an array of stickers": playing(
            turn_compiled, lambda seed: compiled.scramble(4)
        ),
    }
    for name, peer in peers.items():
        mine = ours(registry.make("rubiks", depth=4), max_steps=20)
        yield race("rubiks, depth 4, up to 20 turns", mine, name, peer, 5_000, rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Steps per second of a pool whose world waits `wait_s` at each action."""

    how: str
    steps_per_s: float


def pool_scaling(wait_s: float, num_groups: int, group_size: int) -> list[Scaling]:
    """The same episodes in the same order: each way must give the same results."""
    rows, seen = [], []
    for how in ("serial", "processes"):
        group = EnvGroup(
            env="slow_lake:SlowLake",
            groups=num_groups,
            params={"wait_s": wait_s},
            max_turns=5,
            max_actions_per_turn=1,
        )
        with worlds(how) as make_turns:
            results, rate = played(group, group_size, make_turns)
        rows.append(Scaling(how=how, steps_per_s=rate))
        seen.append(results)
    assert seen[0] == seen[1], "the results depend on how the worlds are stepped"
    return rows


@contextmanager
def worlds(how: str) -> Iterator[Callable[[EnvGroup], TurnEnv]]:
    if how != "processes":
        yield turns_of
        return
    processes = WorkerProcesses(NUM_PROCESSES)
    try:
        yield partial(ProcessTurns, limit_s=60.0, processes=processes)
    finally:
        processes.close()


def played(
    group: EnvGroup, group_size: int, make_turns: Callable[[EnvGroup], TurnEnv]
) -> tuple[list[object], float]:
    """(everything that was seen, steps per second); the first round warms up."""
    moves = ("down", "right", "up", "left")
    seen: list[object] = []
    with EnvPool(
        [group], group_size=group_size, seed=0, split="train", make_turns=make_turns
    ) as pool:
        for step in range(2):
            running = [slot.index for slot in begin(pool, step)]
            num_steps, start = 0, time.perf_counter()
            while running:
                results = {i: pool.step_one(i, [moves[i % 4]], True) for i in running}
                num_steps += len(results)
                seen.append({i: (r.observation, r.reward) for i, r in results.items()})
                running = [i for i in running if results[i].stop_reason is None]
            rate = num_steps / (time.perf_counter() - start)
    return seen, rate


def main() -> None:

    options = read_options(
        __doc__,
        seconds=(1.0, "of stepping, for each world"),
        rounds=5,
        peers=Path("build/peers"),
        json=Path,
    )
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    # The workers import the slow lake, too.
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    print(describe_machine(), "\n")

    missing = registry.unavailable()
    speeds = [speed_of(i, options.seconds) for i in registry.known_ids() if i not in missing]
    print(markdown_table(("environment", "resets/s", "steps/s", "steps/s of wall clock")))
    for row in speeds:
        rates = (row.resets_per_cpu_s, row.steps_per_cpu_s, row.steps_per_s)
        print(markdown_row([f"`{row.env_id}`", *(f"{rate:,.0f}" for rate in rates)]))
    for env_id, reason in missing.items():
        print(f"\n{env_id}: {reason}")

    pairs: list[Race] = []
    if options.peers.is_dir():
        sys.path.append(str(options.peers))
        print("\n" + markdown_table(("ours", "actions/s", "peer", "actions/s", "ratio")))
        for pair in races(options.rounds):
            pairs.append(pair)
            mine, peer = f"{pair.ours_per_s:,.0f}", f"{pair.peer_per_s:,.0f}"
            print(f"| {pair.ours} | {mine} | {pair.peer} | {peer} | {pair.ratio:.2f} |", flush=True)
    else:
        print(f"\nno peers: there is no folder {options.peers}")

    scaling = pool_scaling(wait_s=0.02, num_groups=8, group_size=8)
    print("\n" + markdown_table(("64 worlds that wait 20 ms", "steps/s")))
    for entry in scaling:
        print(f"| {entry.how} | {entry.steps_per_s:,.0f} |")
    print(describe_machine())
    if options.json is not None:
        rows = {"speeds": speeds, "races": pairs, "pool": scaling}
        plain = {name: [asdict(row) for row in table] for name, table in rows.items()}
        options.json.write_text(json.dumps(plain, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
