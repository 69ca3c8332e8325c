"""How soon `echoscope watch` judges a line, and what it costs while nothing comes.

    python benchmarks/watch.py [--megabytes 1000] [--lines 30] [--idle 60]

Each case is a process of `echoscope watch --json` on files that this script writes:

- a log of one line a step;
- a folder of 1,000 files of rollouts that were written before, and a log; each step adds a file;
- a log of `--megabytes` that was there before.

Judged: from the write of a line to the event `step`. Idle: processor
time of the process over `--idle` seconds in which nothing comes.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from common import memory_of, read_options, temporary_folder

NOISE = "INFO 2026-01-01 12:00:00 worker 3: processed a batch of requests without incident ({})\n"


def line(step: int) -> str:
    """As verl prints a step, shortened."""
    names = ("actor/entropy", "critic/score/mean", "actor/grad_norm", "response_length/mean")
    values = (1.0, 0.5, 0.3, 200.0)
    more = " - ".join(f"timing_s/part{i}:{i / 7:.5f}" for i in range(40))
    pairs = " - ".join(f"{n}:{v + step % 7 / 100}" for n, v in zip(names, values, strict=True))
    return f"step:{step} - {pairs} - {more}\n"


class Watched:
    """A process of `echoscope watch` and the times at which it has judged steps."""

    def __init__(self, path: Path, run: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "echoscope", "watch", str(path), "-o", str(run), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._events: queue.Queue[tuple[int, float]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            event = json.loads(text)
            if event["event"] == "step":
                self._events.put((event["step"], time.monotonic()))

    def judged_at(self, step: int, timeout_s: float) -> float:
        """When a step was judged, on the monotonic clock."""
        deadline = time.monotonic() + timeout_s
        while True:
            number, judged_time = self._events.get(timeout=max(0.1, deadline - time.monotonic()))
            if number == step:
                return judged_time

    def processor_s(self) -> float:
        """Processor time so far, user and system."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """The largest resident memory so far."""
        return memory_of(self._process.pid) / 2**20

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def log_of(path: Path, megabytes: int) -> int:
    """Write a log of a training that goes on; its last step."""
    size, step = 0, 0
    with path.open("w") as file:
        while size < megabytes << 20:
            step += 1
            text = NOISE.format(step) * 10_000 + line(step)
            file.write(text)
            size += len(text)
    return step


def write_rollouts(folder: Path, step: int) -> None:
    """A file of eight rollouts, as verl writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "input": f"user\ntask {sample // 4}\nassistant\n",
            "output": f"<think>because of {sample}</think>go {step}",
            "gts": "go",
            "score": float(sample % 2),
            "step": step,
        }
        for sample in range(8)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"{step}.jsonl").write_text(text)


def measure(
    name: str,
    path: Path,
    log: Path,
    last: int,
    arguments: argparse.Namespace,
    rollouts: Path | None = None,
) -> None:
    with temporary_folder() as folder:
        watched = Watched(path, folder / "run")
        started = time.monotonic()
        try:
            watched.judged_at(last, 3600.0)  # starting the program is not measured
            print(f"{name}: {last:,} steps were judged in {time.monotonic() - started:.1f} s")
            judged = []
            for number in range(arguments.lines):
                time.sleep(random.Random(number).uniform(2.0, 4.0))
                last += 1
                if rollouts is not None:
                    write_rollouts(rollouts, last)
                with log.open("a") as file:
                    file.write(line(last))
                written = time.monotonic()
                judged.append(watched.judged_at(last, 60.0) - written)
            time.sleep(5.0)
            before = watched.processor_s()
            time.sleep(arguments.idle)
            share = (watched.processor_s() - before) / arguments.idle
            print(
                f"{name}: judged p50 {statistics.median(judged):.2f} s, max {max(judged):.2f} s; "
                f"idle {100 * share:.2f} % of a core; memory {watched.memory_mib():.0f} MiB; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        finally:
            watched.end()


def main() -> None:
    arguments = read_options(
        __doc__, megabytes=1000, lines=30, idle=60.0, only={"choices": ("log", "folder", "long")}
    )
    with temporary_folder() as root:
        if arguments.only in (None, "log"):
            log = root / "train.log"
            log.write_text(line(1))
            measure("a log", log, log, 1, arguments)
        if arguments.only in (None, "folder"):
            folder = root / "outputs"
            for step in range(1, 1001):
                write_rollouts(folder / "rollouts", step)
            log = folder / "train.log"
            log.write_text("".join(line(step) for step in range(1, 1001)))
            name = "a folder of 1,000 files of rollouts and a log"
            measure(name, folder, log, 1000, arguments, folder / "rollouts")
        if arguments.only in (None, "long"):
            log = root / "long.log"
            last = log_of(log, arguments.megabytes)
            name = f"a log of {arguments.megabytes:,} MB"
            measure(name, log, log, last, arguments)


if __name__ == "__main__":
    main()
