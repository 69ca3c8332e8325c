"""Steps per second of a world here, and over HTTP on loopback: alone, from threads, in batches.

Run: python benchmarks/remote_worlds.py [--env frozen_lake] [--seconds 2] [--rounds 3]

The server is a process of its own. Every number is the median of the rounds, of wall clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from machine import describe_machine

from echoscope.envs import registry
from echoscope.envs.base import TextEnv
from echoscope.envs.worlds.remote.link import link_to

THREADS, BATCH = 8, 64


def steps_of(env: TextEnv, seconds: float) -> int:
    """Steps with legal actions, and a new task whenever one has ended."""
    actions = env.legal_actions()
    end, number, seed = time.perf_counter() + seconds, 0, 0
    env.reset(seed, 0)
    while time.perf_counter() < end:
        if env.step(actions[number % len(actions)]).terminated:
            seed += 1
            env.reset(seed, 0)
        number += 1
    return number


def batched_steps(url: str, env_id: str, seconds: float) -> int:
    """Steps of `BATCH` sessions, all in one request."""
    link = link_to(url, "")
    opening = {"protocol": 1, "env": env_id}
    opened = [json.loads(link.post("/v1/sessions", opening, 60.0)) for _ in range(BATCH)]
    actions = opened[0]["legal_actions"]
    sessions = [each["session"] for each in opened]
    episode, number, total = 0, 0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if number == 0:
            episode += 1
            start = {"episode": episode, "seed": episode, "noise_seed": 0}
            calls = [{"session": each, "verb": "reset", "content": start} for each in sessions]
            link.post("/v1/batch", {"calls": calls}, 60.0)
        step = {"episode": episode, "number": number + 1, "action": actions[number % len(actions)]}
        calls = [{"session": each, "verb": "step", "content": step} for each in sessions]
        link.post("/v1/batch", {"calls": calls}, 60.0)
        total += BATCH
        number = (number + 1) % 8
    for each in sessions:
        link.leave(f"/v1/sessions/{each}", 2.0)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="frozen_lake")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
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
                f"over HTTP, batches of {BATCH}": lambda s: batched_steps(url, args.env, s),
            }
            found = {name: [] for name in ways}
            for _ in range(args.rounds):
                for name, play in ways.items():
                    found[name].append(play(args.seconds) / args.seconds)
        finally:
            server.terminate()
    print(f"{args.env}, steps per second; {describe_machine()}")
    for name, rates in found.items():
        print(f"{name}: {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})")


if __name__ == "__main__":
    main()
