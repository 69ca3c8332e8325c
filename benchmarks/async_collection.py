"""Trajectories per second with slow environments: in lock-step, and each at its own pace.

Every reset and every turn of a frozen lake sleeps for a log-normal time (median 30 ms, sigma 1),
drawn from the episode's noise, so that both ways wait for the same answers. In lock-step a turn
takes as long as its slowest environment; environments run in threads in both cases.

Run: python benchmarks/async_collection.py [--groups 8] [--group-size 8] [--turns 5] [--steps 3]
    [--policy tiny|small]
The policy samples on the CPU: the shipped tiny one (0.87 million parameters), or an untrained one
of two layers (0.1 million), which stands for an engine that is fast beside its environments.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import describe_machine, read_options, temporary_folder

from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.build import build_engine
from echoscope.core.policy import build_policy
from echoscope.core.pretrained.policy_assets import (
    PolicyShape,
    create_policy,
    resolve_model,
    save_tokenizer,
    train_tokenizer,
)
from echoscope.core.rollout.chat import load_chat
from echoscope.core.rollout.sources import EnvSource
from echoscope.envs import registry
from echoscope.envs.base import Observation
from echoscope.envs.pool import EnvPool
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import TurnResult
from echoscope.store.records import Split

MEDIAN_S = 0.030
SIGMA = 1.0


class SlowTurns(TurnRunner):
    """Sleeps before each reset and each turn."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._pauses = np.random.default_rng(noise_seed)
        self._sleep()
        return super().reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        self._sleep()
        return super().step_turn(actions, is_well_formed)

    def _sleep(self) -> None:
        time.sleep(MEDIAN_S * float(np.exp(SIGMA * self._pauses.normal())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way to play, over all steps but the first, which warms up."""

    mode: str
    trajectories_per_s: float
    seconds_per_step: float
    cpu_s_per_step: float
    """Processor time: what a machine that is busy otherwise makes longer."""
    num_turns_mean: float
    engine_wait_frac: float | None
    """Share of the time in which the engine had nothing to sample."""


def small_policy(folder: Path) -> str:
    """An untrained policy of two layers, width 64, with a byte-level tokenizer."""
    tokenizer = train_tokenizer(["the goal lies up and to the right of you"], vocab_size=300)
    shape = PolicyShape(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_layers=2, num_kv_heads=1
    )
    create_policy(tokenizer, shape, seed=1).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return str(folder)


def configured(options: argparse.Namespace, mode: str) -> RunConfig:
    group = {
        "env": "frozen_lake",
        "params": {"size": 4},
        "groups": options.groups,
        "max_turns": options.turns,
        "max_actions_per_turn": 1,
    }
    return load_config(
        overrides=[
            f"envs.train=[{json.dumps(group)}]",
            f"envs.group_size={options.group_size}",
            f"model.path={options.model}",
            "model.device=cpu",
            f"threads={options.threads}",
            f"context.max_response_tokens={options.tokens}",
            "context.instructions=false",
            "context.format_hint=false",
            f"collection.mode={mode}",
        ]
    )


def measure(options: argparse.Namespace, mode: str) -> Measured:
    config = configured(options, mode)
    torch.set_num_threads(options.threads)
    policy = build_policy(config.model, config.critic, seed=0)
    pool = EnvPool(
        config.envs.train,
        group_size=config.envs.group_size,
        seed=0,
        split=Split.TRAIN,
        make_turns=lambda group: SlowTurns(
            partial(registry.make, group.env, **group.params), group.settings()
        ),
    )
    source = EnvSource(
        pool,
        build_engine(config, policy),
        load_chat(config.model.path),
        config,
        Split.TRAIN,
        on_finished=lambda ended: None,
        should_abort=lambda: False,
    )
    seconds, cpu, turns = [], [], []
    for step in range(options.steps + 1):
        if step == 1:
            source.take_metrics()
        started, cpu_started = time.perf_counter(), time.process_time()
        batch = source.collect(step, config)
        if step:
            seconds.append(time.perf_counter() - started)
            cpu.append(time.process_time() - cpu_started)
            turns += [each.num_turns for each in batch.trajectories]
    metrics = source.take_metrics()
    waited_s, all_s = (
        metrics.get("collection/engine_wait_s"),
        metrics.get("collection/update_wait_s"),
    )
    source.close()
    return Measured(
        mode=mode,
        trajectories_per_s=options.groups * options.group_size / statistics.median(seconds),
        seconds_per_step=statistics.median(seconds),
        cpu_s_per_step=statistics.median(cpu),
        num_turns_mean=statistics.mean(turns),
        engine_wait_frac=waited_s / all_s if waited_s is not None and all_s else None,
    )


def main() -> None:

    options = read_options(
        __doc__,
        groups=8,
        group_size=8,
        turns=5,
        tokens=(32, "longest reply"),
        policy={"choices": ["tiny", "small"], "default": "tiny"},
        steps=3,
        threads=1,
        json=Path,
    )
    print(describe_machine())
    with temporary_folder() as folder:
        small = options.policy == "small"
        options.model = small_policy(folder) if small else resolve_model("tiny")
        rows = [measure(options, mode) for mode in ("lockstep", "async")]
    for row in rows:
        waits = "" if row.engine_wait_frac is None else f", engine idle {row.engine_wait_frac:.0%}"
        print(
            f"{row.mode:9} {row.trajectories_per_s:6.1f} trajectories/s, "
            f"{row.seconds_per_step:.2f} s a step "
            f"({row.cpu_s_per_step:.2f} s of processor time), {row.num_turns_mean:.1f} turns{waits}"
        )
    ratio = rows[1].trajectories_per_s / rows[0].trajectories_per_s
    print(f"async over lockstep: {ratio:.2f} times the trajectories per second (goal: 2)")
    if options.json is not None:
        result = {"ratio": ratio, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
