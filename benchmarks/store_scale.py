"""What many runs cost: `python benchmarks/store_scale.py [--trajectories N] [--json]`.

1. Sixteen writers at once, each a process with a run of its own, write ten million trajectories of
   one turn (a prompt of 60 characters, a reply of 120, no token ids), 1,024 a step, and pack them.
2. Questions over all runs at once: the list, one trajectory, group-by over every trajectory.
3. With `--bucket s3://...`: every run is copied there, a fresh machine opens the root, and fifty
   small runs are listed. AWS_ENDPOINT_URL names another server than Amazon's.

About an hour on two cores for ten million, and 3 GB of disk. Times of the first part depend on the
disk; it is named as a rate, with the processor beside it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import describe_machine, read_options, seconds_of
from made_run import step_metrics
from trajectories import make_trajectory

from echoscope.store.log.remote.pulling import local_folder
from echoscope.store.log.remote.pushing import EVERY_S, Pushing
from echoscope.store.query.listing import RunList
from echoscope.store.reader import RunsReader, open_run, open_runs
from echoscope.store.records import (
    Split,
    Trajectory,
    Turn,
    prompt_key,
    trajectory_id,
)
from echoscope.store.writer import RunWriter

WRITERS = 16
PER_STEP = 1_024
GROUP = 8
SMALL_RUNS = 50
REPEATS = 5
QUESTIONS = {
    "success by run": "SELECT run_id, avg(is_success::INT) FROM trajectories GROUP BY ALL",
    "return by world and 100 steps": "SELECT env_id, step // 100 AS part, avg(episode_return) "
    "FROM trajectories GROUP BY ALL ORDER BY ALL",
    "the ten longest prompts' replies": "SELECT run_id, step, response FROM turns "
    "WHERE step = 7 ORDER BY length(response) DESC LIMIT 10",
}


def made(step: int, index: int) -> Trajectory:
    prompt = f"You stand at {index % 97}, {step % 89}; the goal is at {index % 31}, 4. Where to?"
    reply = f"I compare columns {index % 97} and {index % 31}, then rows: {'right ' * (index % 9)}"
    turn = Turn(
        index=0,
        observation=prompt,
        response=f"{reply}</think><answer>up</answer>",
        reasoning_chars=(0, len(reply)),
        actions=("up",),
        reward=float(index % 3 == 0),
    )
    return make_trajectory(
        turn,
        step=step,
        index=index,
        group_index=index // GROUP,
        sibling_index=index % GROUP,
        env_id=("frozen_lake", "sokoban", "bandit")[index % 3],
        tag="",
        env_seed=index // GROUP,
        noise_seed=index,
        prompt_key=prompt_key(prompt),
        is_success=index % 3 == 0,
    )


def write(path: Path, num_steps: int) -> None:
    os.nice(5)
    writer = RunWriter.create(
        path, run_id=path.name, config={"name": path.name, "steps": num_steps}
    )
    for step in range(num_steps):
        rows = [made(step, index) for index in range(PER_STEP)]
        values = {"policy/entropy": 1.0 / (step + 1), "reward/success_rate": 0.33}
        metrics = [step_metrics(path.name, step, values)]
        writer.commit_step(metrics=metrics, trajectories=rows, outcomes=[])
    writer.close(status="finished")


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of the first call, and the median of those after it."""
    seconds = [seconds_of(work) for _ in range(repeats + 1)]
    return {"first_s": seconds[0], "then_s": statistics.median(seconds[1:])}


def written(root: Path, num_trajectories: int) -> dict[str, Any]:
    steps = num_trajectories // (WRITERS * PER_STEP)
    began = time.perf_counter()
    processes = [
        multiprocessing.Process(target=write, args=(root / f"writer-{index:02d}", steps))
        for index in range(WRITERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    files = [path for path in root.rglob("*") if path.is_file()]
    num_bytes = sum(path.stat().st_size for path in files)
    total = steps * WRITERS * PER_STEP
    return {
        "trajectories": total,
        "seconds": seconds,
        "trajectories_per_s": total / seconds,
        "bytes_per_trajectory": num_bytes / total,
        "files": len(files),
    }


def asked(root: Path) -> dict[str, Any]:
    def listed() -> None:
        assert len(RunList(root).rows()) == WRITERS

    name = f"writer-{WRITERS // 2:02d}"
    runs: RunsReader = open_runs(root)
    run = open_run(root / name)
    last = run.info().last_step
    out: dict[str, Any] = {
        "list": timed(listed),
        "open all": timed(lambda: open_runs(root), 2),
        "one trajectory": timed(lambda: run.trajectory(trajectory_id(Split.TRAIN, last // 2, 700))),
    }
    for label, sql in QUESTIONS.items():
        out[label] = timed(lambda sql=sql: runs.sql(sql), 2)
    return out


def copied(root: Path, url: str) -> dict[str, Any]:
    """One large run to the bucket and fifty small ones, opened as on a machine that has none."""
    began = time.perf_counter()
    pushing = Pushing(root / "writer-00", url)
    num_objects = pushing.push()
    push_s = time.perf_counter() - began
    for index in range(SMALL_RUNS):
        path = root.parent / "small" / f"small-{index:02d}"
        write(path, 20)
        Pushing(path, url).push()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ECHOSCOPE_CACHE"] = cache
        began = time.perf_counter()
        folder = local_folder(url)
        open_s = time.perf_counter() - began
        rows = len(RunList(folder).rows())
        began = time.perf_counter()
        run = open_run(f"{url}/writer-00")
        run.trajectory(trajectory_id(Split.TRAIN, run.info().last_step // 2, 700))
        one_s = time.perf_counter() - began
        again = timed(lambda: local_folder(url), 3)
    return {
        "objects": num_objects,
        "copy_s": push_s,
        "runs": rows,
        "open_the_root_s": open_s,
        "open_again": again,
        "one_trajectory_s": one_s,
    }


def priced(num_gpus: int = 1_000, gpus_per_run: int = 16) -> dict[str, Any]:
    """What a day of a thousand GPUs puts on object storage; arithmetic, nothing is measured.

    A step of a run takes a minute and has 1,024 episodes of 2,500 tokens: eight times what
    `benchmarks/store.py` measures at 3.1 MB. Prices are Amazon's list prices of S3 Standard in
    us-east-1: a month of a GB, a thousand writes or listings, a thousand reads.
    """
    per_gb_month, per_1000_writes, per_1000_reads = 0.023, 0.005, 0.0004
    runs, steps = num_gpus // gpus_per_run, 24 * 60
    gigabytes = runs * steps * 8 * 3.1 / 1_000
    data_files, parts = 3, 2  # trajectories, turns, tokens; the journal's end and its tail
    manifests = steps + 24 * 3600 / 60  # with every step, and a sign of life between two
    looks = 24 * 3600 / EVERY_S  # for commands
    writes = runs * (steps * (data_files + parts) + manifests + looks)
    reads = runs * manifests * 2  # who else writes? its size, then its bytes
    viewer = 24 * 3600 / EVERY_S  # one listing of the root
    return {
        "runs": runs,
        "GB a day": round(gigabytes),
        "writes and listings a day": round(writes),
        "reads a day": round(reads),
        "requests, dollars a day": round(
            writes / 1_000 * per_1000_writes + reads / 1_000 * per_1000_reads, 2
        ),
        "keeping a day's data, dollars a month": round(gigabytes * per_gb_month, 2),
        "one open dashboard, dollars a day": round(viewer / 1_000 * per_1000_writes, 2),
    }


def main() -> None:
    args = read_options(
        __doc__,
        trajectories=10_000_000,
        bucket=(str, "root on object storage, such as s3://team/scale"),
        folder=(Path, "where to write; kept afterwards"),
        priced=(False, "only the price of a day"),
        json=False,
    )
    if args.priced:
        print(json.dumps(priced(), indent=1))
        return
    folder = args.folder or Path(tempfile.mkdtemp(prefix="echoscope-scale-"))
    root = folder / "runs"
    result: dict[str, Any] = {"machine": describe_machine()}
    try:
        if not root.exists():
            root.mkdir(parents=True)
            result["write"] = written(root, args.trajectories)
        result["ask"] = asked(root)
        if args.bucket:
            result["bucket"] = copied(root, args.bucket)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    print(json.dumps(result, indent=None if args.json else 1))


if __name__ == "__main__":
    main()
