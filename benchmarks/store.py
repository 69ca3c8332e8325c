"""What the store costs: `python benchmarks/store.py [--json]`, a few minutes on two cores.

1. Acknowledged write of a step of 128 trajectories (five to six turns, about 2,500 tokens each,
   text from the standard library's sources), alone and beside four polling readers.
2. How long after its acknowledgement a step shows up in a reader that polls every 200 ms.
3. Queries on 1,000,000 trajectories in packs. One pack in thirty has text and tokens of full
   length, and the single-trajectory queries ask that one; the others have the same number of
   rows and turns with a few tokens and words each, which keeps the folder at about 1 GB instead
   of 25. A lookup opens the files of its step only, so the short packs do not flatter it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import read_options, seconds_of, temporary_folder

from echoscope.store.log.durable import new_id, sha256_of
from echoscope.store.log.journal import Chain, JournalState, encode_line, read_chunk
from echoscope.store.log.layout import FileEntry, FileGroup, Layout
from echoscope.store.log.packs import Pack, write_pack_json
from echoscope.store.log.parquet import parquet_options
from echoscope.store.query.rows import tokens_table, trajectories_table, turns_table
from echoscope.store.reader import open_run
from echoscope.store.records import (
    Split,
    StepMetrics,
    StopReason,
    Trajectory,
    TrajectoryOutcome,
    Turn,
    prompt_key,
    trajectory_id,
)
from echoscope.store.writer import RunWriter

Result = dict[str, Any]
TRAJECTORIES = 128
GROUP_SIZE = 8
TOKENS_PER_TURN = 440
POLL_S = 0.2
PAGE = (
    "SELECT * FROM steps ORDER BY step DESC LIMIT 1",
    "SELECT step, value FROM metrics WHERE key = 'policy/entropy' ORDER BY step",
    "SELECT id, episode_return, stop_reason FROM trajectories "
    "WHERE step = (SELECT max(step) FROM steps)",
    "SELECT count(*), avg(episode_return) FROM trajectories",
)


def sources() -> str:
    folder = Path(os.__file__).parent
    return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("[a-d]*.py")))


class Steps:
    """Realistic steps: text cut from sources, token ids that repeat as the text does."""

    def __init__(self, tokens_per_turn: int, text: str) -> None:
        self._size = tokens_per_turn
        self._text = text
        self._rng = np.random.default_rng(0)
        # A token stands for a word or a sign, as often as it occurs.
        tokens = text.replace("(", " ( ").replace(".", " . ").split()
        token_ids: dict[str, int] = {}
        self._ids = np.array(
            [token_ids.setdefault(w, len(token_ids)) for w in tokens], dtype=np.int32
        )

    def trajectories(self, step: int, count: int = TRAJECTORIES) -> list[Trajectory]:
        return [self._trajectory(step, index) for index in range(count)]

    def _trajectory(self, step: int, index: int) -> Trajectory:
        rng = self._rng
        size = self._size
        context = self._cut(size // 4)
        turns = []
        for k in range(5 + int(rng.random() < 0.7)):
            response = self._cut(size * 3 // 4)
            start = int(rng.integers(0, len(self._text) - 5 * size))
            reply = self._text[start : start + size * 5 // 2]
            logprobs = -rng.exponential(0.4, len(response)).astype(np.float32)
            turns.append(
                Turn(
                    index=k,
                    observation=self._text[start + size * 3 : start + size * 4],
                    response=reply,
                    reasoning_chars=(0, len(reply) // 2),
                    prompt_tokens=context,
                    response_tokens=response,
                    logprobs=logprobs,
                    entropies=rng.exponential(0.5, len(response)).astype(np.float32),
                    actions=("Up", "Left"),
                    reward=float(rng.random()),
                )
            )
            context = np.concatenate([context, response, self._cut(size // 4)])
        return Trajectory(
            step=step,
            split=Split.TRAIN,
            index=index,
            group_index=index // GROUP_SIZE,
            sibling_index=index % GROUP_SIZE,
            env_id="sokoban",
            tag="bench",
            env_seed=index // GROUP_SIZE,
            noise_seed=index,
            prompt_key=prompt_key(str(index // GROUP_SIZE)),
            turns=tuple(turns),
            stop_reason=StopReason.TERMINATED,
            is_success=bool(rng.random() < 0.5),
            duration_s=1.5,
        )

    def _cut(self, size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        start = int(self._rng.integers(0, len(self._ids) - size))
        return self._ids[start : start + size]

    def outcomes(self, trajectories: Sequence[Trajectory]) -> list[TrajectoryOutcome]:
        """Advantages and the trainer's log-probs, as every step has them."""
        results = []
        for t in trajectories:
            sampled = [turn.logprobs for turn in t.turns if turn.logprobs is not None]
            results.append(
                TrajectoryOutcome(
                    trajectory_id=t.id,
                    advantage=0.5,
                    kept=True,
                    advantages=tuple(np.full_like(values, 0.5) for values in sampled),
                    trainer_logprobs=tuple(
                        values + self._rng.normal(0, 1e-3, len(values)).astype(np.float32)
                        for values in sampled
                    ),
                )
            )
        return results


def metrics_of(step: int, count: int = 80) -> list[StepMetrics]:
    values = {f"group_{i // 10}/metric_{i}": step + i / 7 for i in range(count - 1)}
    return [
        StepMetrics(
            run_id="bench",
            step=step,
            phase="train",
            policy_version=step,
            wall_time=time.time(),
            values=values | {"policy/entropy": 1.0 / (1 + step)},
            durations_s={"time/step_s": 1.0},
        )
    ]


def poll(path: Path, stop: Any, out: Any) -> None:
    """A reader: the page of four queries every 200 ms, and when it first saw each step."""
    reader = open_run(path)
    seen: dict[int, float] = {}
    pages = []
    while not stop.is_set():
        start = time.perf_counter()
        for query in PAGE:
            rows = reader.sql(query).to_pylist()
            if query is PAGE[0] and rows:
                for step in range(max(seen, default=-1) + 1, rows[0]["step"] + 1):
                    seen[step] = time.time()
        pages.append(time.perf_counter() - start)
        time.sleep(POLL_S)
    out.put((seen, pages))


def measure_writes(folder: Path, readers: int, steps: int, text: str) -> list[Result]:
    """Milliseconds per acknowledged step, and how fresh the readers were."""
    path = folder / f"writes-{readers}"
    source = Steps(TOKENS_PER_TURN, text)
    context = multiprocessing.get_context("spawn")
    stop, out = context.Event(), context.Queue()
    writer = RunWriter.create(path, run_id="bench", config={})
    processes = [context.Process(target=poll, args=(path, stop, out)) for _ in range(readers)]
    for process in processes:
        process.start()
    if readers:
        time.sleep(4.0)  # start-up of the readers is not what is measured
    batches = [source.trajectories(step) for step in range(8)]
    times, acknowledged = [], {}
    for step in range(steps):
        batch = [_moved(t, step) for t in batches[step % len(batches)]]
        outcomes = source.outcomes(batch)
        start = time.perf_counter()
        writer.commit_step(metrics=metrics_of(step), trajectories=batch, outcomes=outcomes)
        writer.flush()
        times.append(time.perf_counter() - start)
        acknowledged[step] = time.time()
        time.sleep(0.05)
    time.sleep(1.0 if readers else 0.0)
    stop.set()
    measured = [out.get() for _ in processes]
    for process in processes:
        process.join()
    writer.close(status="finished")
    size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
    shutil.rmtree(path)
    label = "alone" if not readers else f"beside {readers} polling readers"
    results = [
        _row(f"acknowledged write of {TRAJECTORIES} trajectories, {label}", times)
        | {"megabytes_per_step": round(size / steps / 1e6, 2)}
    ]
    if readers:
        delays = [
            seen[step] - moment
            for seen, _ in measured
            for step, moment in acknowledged.items()
            if step in seen
        ]
        results.append(_row("acknowledged step visible to a reader", delays))
        results.append(
            _row("page of four queries, live", [p for _, pages in measured for p in pages])
        )
    return results


def _moved(trajectory: Trajectory, step: int) -> Trajectory:
    import dataclasses

    return dataclasses.replace(trajectory, step=step)


MakeFiles = Callable[[int, int, int], Sequence[FileEntry]]
"""Given the number of a pack, its first and its last step: makes its files."""


def build_large(
    path: Path,
    steps: int,
    pack_steps: int,
    text: str,
    *,
    more: MakeFiles = lambda number, first, last: (),
    config: Mapping[str, Any] | None = None,
) -> int:
    """A run with `steps` packed steps of 128 trajectories; returns the step to look up."""
    full_pack = (steps // pack_steps) // 2 + 1

    def files(number: int, first: int, last: int) -> list[FileEntry]:
        source = Steps(TOKENS_PER_TURN if number == full_pack else 8, text)
        made = _pack_files(path, number, source, first, last)
        return [*made, *more(number, first, last)]

    make_packed_run(path, steps, pack_steps, files, config)
    return (full_pack - 1) * pack_steps + pack_steps // 2


def make_packed_run(
    path: Path,
    steps: int,
    pack_steps: int,
    files: MakeFiles,
    config: Mapping[str, Any] | None = None,
) -> None:
    """A finished run whose steps are in packs that are made without a trainer."""
    RunWriter.create(path, run_id="bench", config=config or {}).close(status="finished")
    layout = Layout(path)
    header, *rest = read_chunk(layout.journal).records
    for number, first in enumerate(range(0, steps, pack_steps), 1):
        last = min(first + pack_steps, steps) - 1
        layout.pack(number).mkdir()
        entries = tuple(files(number, first, last))
        group = FileGroup(id=new_id(), attempt=1, first_step=first, last_step=last, files=entries)
        state = {name: header[name] for name in JournalState("").header(0.0)} | {"last_step": last}
        chain = replace(Chain.of("bench"), seq=number)
        pack = Pack(groups=(group,), first_seq=number - 1, chain=chain, state=state)
        write_pack_json(layout.pack(number), pack)
    chain, lines = replace(Chain.of("bench"), seq=number), []
    for record in (header | {"piece": number + 1, "last_step": steps - 1}, *rest):
        lines.append(chain.line(record))
        chain.add(lines[-1])
    layout.journal.write_bytes(b"".join(lines))
    layout.tail.write_bytes(encode_line({"kind": "tail", "seq": chain.seq}))


def _pack_files(path: Path, number: int, source: Steps, first: int, last: int) -> list[FileEntry]:
    identity = new_id()
    batch = source.trajectories(0)
    outcomes = {o.trajectory_id: o for o in source.outcomes(batch)}
    templates = {
        "tokens": tokens_table("bench", 1, batch, outcomes),
        "turns": turns_table("bench", 1, batch),
        "trajectories": trajectories_table("bench", 1, batch, outcomes),
    }
    entries = []
    for table, rows in templates.items():
        column = "id" if table == "trajectories" else "trajectory_id"
        indices = [int(value[-5:]) for value in rows.column(column).to_pylist()]
        relative = f"pack/{number:06d}/{table}-1-{identity}.parquet"
        with pq.ParquetWriter(
            path / relative, rows.schema, **parquet_options(table, packed=True)
        ) as writer:
            for step in range(first, last + 1):
                names = [trajectory_id(Split.TRAIN, step, i) for i in range(TRAJECTORIES)]
                moved = rows.set_column(
                    rows.schema.get_field_index("step"),
                    rows.schema.field("step"),
                    pa.repeat(pa.scalar(step, pa.int32()), rows.num_rows),
                ).set_column(
                    rows.schema.get_field_index(column),
                    rows.schema.field(column),
                    pa.array([names[i] for i in indices]),
                )
                writer.write_table(moved)
        size = (path / relative).stat().st_size
        entries.append(
            FileEntry(
                table=table,
                path=relative,
                num_rows=rows.num_rows * (last - first + 1),
                num_bytes=size,
                sha256=sha256_of(path / relative),
            )
        )
    return entries


def measure_large(folder: Path, steps: int, text: str) -> list[Result]:
    path = folder / "large"
    start = time.perf_counter()
    step = build_large(path, steps, 256, text)
    built = time.perf_counter() - start
    start = time.perf_counter()
    reader = open_run(path)
    opened = time.perf_counter() - start
    total = reader.sql("SELECT count(*) n FROM trajectories").to_pylist()[0]["n"]
    rng = np.random.default_rng(1)

    def identity() -> str:
        nearby = step + int(rng.integers(-100, 100))
        return trajectory_id(Split.TRAIN, nearby, int(rng.integers(0, TRAJECTORIES)))

    def sql_by_id() -> object:
        return reader.sql("SELECT * FROM trajectories WHERE id = ?", [identity()])

    by_env = "SELECT step // 100 b, avg(episode_return) FROM trajectories GROUP BY b"
    where = f"{total:,} trajectories"
    results = [
        {"what": f"open a run of {where}", "p50_ms": round(opened * 1e3, 1), "runs": 1},
        _repeat(f"listing of a step, {where}", lambda: reader.listing(step)),
        _repeat(f"one trajectory with its tokens, {where}", lambda: reader.trajectory(identity())),
        _repeat(f"SQL by id alone, {where}", sql_by_id),
        _repeat(f"group by step over all, {where}", lambda: reader.sql(by_env)),
    ]
    size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
    results[0] |= {"megabytes": round(size / 1e6), "built_in_s": round(built)}
    return results


def _repeat(what: str, call: Callable[[], object], runs: int = 30) -> Result:
    times = [seconds_of(call) for _ in range(runs + 2)]
    return _row(what, times[2:])


def _row(what: str, seconds: Sequence[float]) -> Result:
    ordered = sorted(seconds)
    return {
        "what": what,
        "p50_ms": round(statistics.median(ordered) * 1e3, 1),
        "p95_ms": round(ordered[int(0.95 * (len(ordered) - 1))] * 1e3, 1),
        "max_ms": round(ordered[-1] * 1e3, 1),
        "runs": len(ordered),
    }


def main() -> None:
    options = read_options(
        __doc__,
        json=(False, "print JSON instead of a table"),
        steps=(60, "steps written per measurement"),
        large=(7813, "packed steps of 128; 0 for none"),
        folder=({"type": Path, "default": None}, "where to write; else temporary"),
    )
    text = sources()
    load_before = round(os.getloadavg()[0], 2)
    with temporary_folder() as folder:
        results = measure_writes(folder, 0, options.steps, text)
        results += measure_writes(folder, 4, options.steps, text)
        if options.large:
            results += measure_large(folder, options.large, text)
    machine = {
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_before": load_before,
        "load_after": round(os.getloadavg()[0], 2),
    }
    if options.json:
        print(json.dumps({"machine": machine, "results": results}, indent=1))
        return
    print(
        f"{machine['cpu_count']} cores, load {machine['load_before']} before and "
        f"{machine['load_after']} after, Python {machine['python']}"
    )
    for row in results:
        extra = {k: v for k, v in row.items() if k not in ("what", "p50_ms", "p95_ms", "max_ms")}
        print(
            f"{row['what']:72} p50 {row['p50_ms']:8} p95 {row.get('p95_ms', ''):8} "
            f"max {row.get('max_ms', ''):8} ms  {extra}"
        )


if __name__ == "__main__":
    main()
