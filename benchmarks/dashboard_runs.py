"""The made runs that `dashboard.py` looks at: as large as the dashboard promises to bear.

Each is made once and used again when it is there. Packs are written as `echoscope runs pack` writes
them (one row group per step for trajectories, metrics by key, then step), only without a trainer:
step by step through a writer, a hundred million metrics would take an hour.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from made_evaluation import evaluation_config
from made_run import step_metrics
from trajectories import make_trajectory

from echoscope.dashboard.charts.curated import CHARTS
from echoscope.store.log.durable import new_id, read_checked_json, to_checked_json_bytes
from echoscope.store.log.journal import Chain, read_chunk
from echoscope.store.log.layout import FileEntry, Layout
from echoscope.store.log.parquet import write_pack_file
from echoscope.store.records import Split, Trajectory, Turn
from echoscope.store.schema import STEP_METRICS, arrow_schema
from echoscope.store.writer import RunWriter
from store import TRAJECTORIES, Steps, build_large, make_packed_run, sources

RUN_ID = "bench"
"""As `store.py` has it. The dashboard calls a run by its folder."""
PACK_STEPS = 256
STEPS_OF_SMALL = 12
MANY_KEYS = 60
SIBLINGS = 4
Values = np.ndarray[Any, np.dtype[np.float64]]


def config(steps: int) -> dict[str, Any]:
    return {
        "name": "made",
        "steps": steps,
        "advantage": {"kind": "grpo"},
        "loss": {"kind": "clip"},
        "envs": {"train": [{"env": "sokoban", "groups": 16}]},
    }


def metric_keys(count: int) -> list[str]:
    """The metrics of the curated charts and of the table `steps`, and made ones up to `count`."""
    named = {line.key for chart in CHARTS for line in chart.lines} | set(STEP_METRICS.values())
    named |= {"text/retrieval_accuracy", "text/distinct_frac"}
    made = (f"made/metric_{number:04d}" for number in range(count))
    return sorted([*sorted(named)[:count], *list(made)[: max(0, count - len(named))]])


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """What `make` makes at `path`, unless it is there: half of one never is."""
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        make(unfinished)
        unfinished.rename(path)
    return path


def make_million(path: Path, steps: int) -> None:
    """`steps` steps of 128 trajectories, as `store.py` makes them, with metrics beside them."""
    more = partial(_event_files, Layout(path), metric_keys(MANY_KEYS))
    build_large(path, steps, PACK_STEPS, sources(), more=more, config=config(steps))


def make_wide(path: Path, steps: int, keys: int) -> None:
    """`steps` steps of `keys` metrics each, and no trajectories."""
    files = partial(_event_files, Layout(path), metric_keys(keys))
    make_packed_run(path, steps, PACK_STEPS, files, config(steps))


def make_many(root: Path, count: int) -> None:
    """`count` runs with a few steps each: `run.json` and a journal with 60 metrics per step.

    Their learning rates are four, one after the other.
    """
    template = root / "template"
    values = dict.fromkeys(metric_keys(MANY_KEYS), 0.5)
    writer = RunWriter.create(template, run_id="template", config=config(STEPS_OF_SMALL))
    for step in range(STEPS_OF_SMALL):
        writer.commit_step(metrics=[step_metrics("template", step, values)])
    writer.close(status="finished")
    records = read_chunk(Layout(template).journal).records
    run = read_checked_json(Layout(template).run_json)
    for number in range(count):
        name = f"run-{number:05d}"
        layout = Layout(root / name)
        layout.commands.mkdir(parents=True)
        settings = config(STEPS_OF_SMALL) | {"optim": {"lr": 10.0 ** (-7 + number % 4)}}
        mine = {**run, "run_id": name, "name": name, "created_at": 1.7e9 + number}
        mine["config"] = json.dumps(settings)
        header = {**records[0], "run_id": name, "description": mine}
        chain = Chain.of(name)
        with layout.journal.open("xb") as journal:
            for record in (header, *records[1:]):
                chain.add(line := chain.line(record))
                journal.write(line)
        layout.writer_lock.touch()
        shutil.copy(Layout(template).tail, layout.tail)
        layout.run_json.write_bytes(to_checked_json_bytes(mine))
    shutil.rmtree(template)


def make_evaluations(root: Path, count: int, tasks: int) -> None:
    """`count` evaluations of the same tasks, with four episodes of 3 to 6 turns a task."""
    for number in range(count):
        rng = np.random.default_rng(number)
        name = f"evaluation-{number:03d}"
        writer = RunWriter.create(
            root / name,
            run_id=name,
            config=evaluation_config(
                ["frozen_lake"],
                tasks=tasks,
                siblings=SIBLINGS,
                who=f"player {number}",
                temperature=1.0,
                seed=0,
            ),
        )
        skill = 0.2 + 0.6 * number / count
        writer.add_trajectories([_episode(rng, index, skill) for index in range(SIBLINGS * tasks)])
        writer.commit_step(
            metrics=[step_metrics(name, 0, {"eval/all/success_rate": skill}, "eval")]
        )
        writer.close(status="finished")


def _episode(rng: np.random.Generator, index: int, skill: float) -> Trajectory:
    task, sibling = divmod(index, SIBLINGS)
    turns = [
        Turn(
            index=turn,
            observation=f"task {task}, turn {turn}",
            response="I go right, where the goal is.</think><answer>right</answer>",
            actions=("right",),
            is_valid=True,
            is_effective=bool(rng.random() < 0.8),
        )
        for turn in range(int(rng.integers(3, 7)))
    ]
    return make_trajectory(
        *turns,
        step=0,
        index=index,
        group_index=task,
        sibling_index=sibling,
        split=Split.EVAL,
        tag="frozen_lake",
        env_seed=task,
        task_key=f"task {task}",
        is_success=bool(rng.random() < skill),
    )


def _event_files(
    layout: Layout, keys: Sequence[str], number: int, first: int, last: int
) -> list[FileEntry]:
    """The tables `steps` and `metrics` of one pack; values are random walks within 0 and 1."""
    rng = np.random.default_rng(first)
    size = last - first + 1
    walks = np.abs(rng.normal(0, 0.01, (len(keys), size)).cumsum(axis=1) + 0.5) % 1.0
    steps = np.arange(first, last + 1, dtype=np.int32)
    tables = {"metrics": _metrics(keys, steps, walks), "steps": _steps(keys, steps, walks)}
    return [
        write_pack_file(
            layout.pack(number), f"pack/{number:06d}/{name}-1-{new_id()}.parquet", name, [rows]
        )
        for name, rows in tables.items()
    ]


def _metrics(keys: Sequence[str], steps: Any, walks: Values) -> pa.Table:
    rows = walks.size
    columns = {
        "run_id": pa.repeat(RUN_ID, rows),
        "step": np.tile(steps, len(keys)),
        "attempt": np.full(rows, 1, np.int32),
        "phase": pa.repeat("train", rows),
        "key": pa.array(np.repeat(np.array(keys, dtype=object), len(steps))),
        "value": walks.ravel(),
    }
    return pa.table(columns, schema=arrow_schema("metrics"))


def _steps(keys: Sequence[str], steps: Any, walks: Values) -> pa.Table:
    by_key = dict(zip(keys, walks, strict=True))
    columns: dict[str, Any] = {
        "run_id": pa.repeat(RUN_ID, len(steps)),
        "step": steps,
        "attempt": np.full(len(steps), 1, np.int32),
        "policy_version": steps,
        "wall_time": 1.7e9 + steps,
        "num_trajectories": np.full(len(steps), TRAJECTORIES, np.int32),
        "num_kept": np.full(len(steps), TRAJECTORIES, np.int32),
        "return_mean": by_key.get("reward/return_mean", walks[0]),
        "success_rate": by_key.get("rollout/success_rate", walks[0]),
        "num_turns_mean": np.full(len(steps), 5.7),
        "num_sampled_tokens": np.full(len(steps), 2_500 * TRAJECTORIES),
    }
    for column, key in STEP_METRICS.items():
        columns[column] = by_key.get(key, np.full(len(steps), np.nan))
    return pa.table(columns, schema=arrow_schema("steps"))


def write_steps(path: Path, count: int, pause_s: float, out: Any) -> None:
    """A live run in this process: puts (step, when it was acknowledged) for each step, then None.

    Pauses differ, so that steps do not fall into step with what looks at them.
    """
    source = Steps(64, sources())
    rng = np.random.default_rng(0)
    with RunWriter.create(path, run_id=RUN_ID, config=config(count)) as writer:
        for step in range(count):
            values = dict.fromkeys(metric_keys(MANY_KEYS), 0.5 + step / 1_000)
            entry = replace(step_metrics(RUN_ID, step, values), wall_time=time.time())
            trajectories = source.trajectories(step)
            outcomes = source.outcomes(trajectories)
            writer.commit_step(metrics=[entry], trajectories=trajectories, outcomes=outcomes)
            writer.flush()
            out.put((step, time.time()))
            time.sleep(pause_s * rng.uniform(0.7, 1.3))
    out.put(None)
