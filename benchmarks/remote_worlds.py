"""Steps per second of a world here, and over HTTP on loopback: alone and from threads.

Run: python benchmarks/remote_worlds.py [--env frozen_lake] [--seconds 2] [--rounds 3]

The server is a process of its own. Every number is the median of the rounds, of wall clock.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from common import describe_machine, read_options

from echoscope.envs import registry
from echoscope.envs.base import TextEnv

THREADS = 8


def steps_of(env: TextEnv, seconds: float) -> int:
    """Steps with legal actions, and a new task whenever one has ended."""
    env.reset(0, 0)
    actions = env.legal_actions()
    end, number, seed = time.perf_counter() + seconds, 0, 0
    while time.perf_counter() < end:
        if env.step(actions[number % len(actions)]).terminated:
            seed += 1
            env.reset(seed, 0)
        number += 1
    return number


def main() -> None:
    args = read_options(__doc__, env="frozen_lake", seconds=2.0, rounds=3)
    code = "from echoscope.cli import main; main()"
    command = [sys.executable, "-c", code, "envs", "serve", args.env, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split(" at ")[1].split(" ")[0]

            def remote() -> TextEnv:
                return registry.make("remote", url=url)

            def threaded(seconds: float) -> int:
                worlds = [remote() for _ in range(THREADS)]
                with ThreadPoolExecutor(THREADS) as threads:
                    steps = sum(threads.map(lambda world: steps_of(world, seconds), worlds))
                for world in worlds:
                    world.close()
                return steps

            ways: dict[str, Callable[[float], int]] = {
                "here": lambda seconds: steps_of(registry.make(args.env), seconds),
                "over HTTP, one client": lambda seconds: steps_of(remote(), seconds),
                f"over HTTP, {THREADS} threads": threaded,
            }
            by_way = {name: [] for name in ways}
            for _ in range(args.rounds):
                for name, play in ways.items():
                    by_way[name].append(play(args.seconds) / args.seconds)
        finally:
            server.terminate()
    print(f"{args.env}, steps per second; {describe_machine()}")
    for name, rates in by_way.items():
        print(f"{name}: {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})")


if __name__ == "__main__":
    main()
