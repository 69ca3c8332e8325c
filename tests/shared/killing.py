"""Programs that are killed at one call of the file system, begun again, and compared.

    python tests/shared/killing.py 200

A child is forked from a server that has imported everything. It counts its own calls that write,
name or remove something, and at the chosen one it kills itself before the call is made. So half of
the kills fall into the first calls, where a run is begun, and the others anywhere.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from harness_seed import draw, told
from recorded import recorded
from trainer_process import TrainerProcess, train

from echoscope.store.log.verify import verify

CALLS = (
    *("open", "write", "pwrite", "fsync", "ftruncate", "replace", "rename", "mkdir", "rmdir"),
    *("unlink", "link"),
)
EARLY = 60
"""The first calls: a run is begun within them."""
LIMIT_S = 60.0
"""A program that takes longer waits for something."""
OUTCOMES = ("same", "lost", "stuck", "traceback", "waits")
Program = Callable[[Path, str], None]
"""Writes a run to a folder, or goes on with it, from what the text says."""


# -- programs --------------------------------------------------------------------------------------


def write_logs(folder: Path) -> None:
    """Rollouts and metrics of six steps of another trainer."""
    folder.mkdir()
    for step in range(1, 7):
        rows = [
            {"input": f"q{k}", "output": f"r{step}{k}", "gts": "", "score": k % 2, "step": step}
            for k in range(4)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{step}.jsonl").write_text(text, encoding="utf-8")
    lines = [f"step:{step} - actor/entropy:{1 / step}\n" for step in range(1, 7)]
    (folder / "train.log").write_text("".join(lines), encoding="utf-8")


def import_logs(path: Path, logs: str) -> None:
    from echoscope.diagnostics.tools.importing import import_path

    import_path(Path(logs), path, is_packing=False)


def watch_logs(path: Path, logs: str) -> None:
    from echoscope.watch.ledger import Waits
    from echoscope.watch.watching import Watch

    waits = Waits(line_quiet_s=0.0, quiet_s=0.0)
    watch = Watch(Path(logs), path, waits=waits, on_message=lambda text: None)
    for _ in range(4):
        watch.look()
    watch.close()


def record_loop(path: Path, _: str) -> None:
    """Ten steps of a loop that goes on behind the last step that is safe."""
    from echoscope.recorder.recorder import Recorder
    from echoscope.store.reader import open_run

    there = (path / "run.json").exists()
    first = open_run(path).info().last_step + 1 if there else 1
    with Recorder(path, total_steps=10) as recorder:
        for step in range(max(1, first), 11):
            for task, sibling in itertools.product(range(2), range(2)):
                dialogue = [
                    {"role": "user", "content": f"task {task}"},
                    {"role": "assistant", "content": f"reply {step} {sibling}"},
                ]
                recorder.episode(dialogue, reward=float(sibling), group=task)
            recorder.step(step, {"actor/entropy": 1.0 / step})


PROGRAMS: dict[str, Program] = {
    "import": import_logs,
    "watch": watch_logs,
    "recorder": record_loop,
    "trainer": train,
}


# -- kills -----------------------------------------------------------------------------------------


def run_until(number: int, counted: Path, name: str, path: Path, text: str) -> None:
    """In the child: run a program, and be killed at a call; 0 for never. Notes how many it made."""
    counter, made = itertools.count(1), [0]

    def at_each(call: Callable[..., Any]) -> Callable[..., Any]:
        def made_or_killed(*args: Any, **more: Any) -> Any:
            made[0] = next(counter)
            if made[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        return made_or_killed

    for each in CALLS:
        setattr(os, each, at_each(getattr(os, each)))
    PROGRAMS[name](path, text)
    counted.write_text(str(made[0]), encoding="utf-8")


@dataclass(slots=True, kw_only=True)
class Trial:
    """A program, how it ends when nothing disturbs it, and how many calls it makes."""

    name: str
    text: str
    folder: Path
    expected: dict[str, list[str]]
    num_calls: int

    @classmethod
    def of(cls, name: str, text: str, folder: Path) -> Trial:
        folder.mkdir(parents=True)
        path, counted = folder / "whole" / "run", folder / "calls"
        path.parent.mkdir()
        process = TrainerProcess(folder / "log", run_until, 0, counted, name, path, text)
        assert process.join() == 0, process.text
        return cls(
            name=name,
            text=text,
            folder=folder,
            expected=recorded(path),
            num_calls=int(counted.read_text(encoding="utf-8")),
        )

    def kill(self, rng: random.Random, number: int) -> tuple[str, int, str]:
        """Kill once or twice, then let it end; what came of it, and at which calls it died.

        Returns one of `OUTCOMES`, how many kills hit the program, and where they were.
        """
        path = self.folder / f"{number}" / "run"
        path.parent.mkdir()
        places = [self._place(rng) for _ in range(rng.randint(1, 2))]
        where = f"{self.name} killed at calls {places}"
        num_killed = 0
        for turn, start in enumerate([*places, 0]):
            log = path.parent / f"{turn}.log"
            counted = path.parent / "calls"
            process = TrainerProcess(log, run_until, start, counted, self.name, path, self.text)
            began = time.monotonic()
            while process.is_alive and time.monotonic() - began < LIMIT_S:
                time.sleep(0.01)
            if process.is_alive:
                process.kill()
                return "waits", num_killed, where
            code = process.join()
            num_killed += code == -signal.SIGKILL
            if start == 0 and code != 0:
                is_one_line = "Traceback" not in process.text
                outcome = "stuck" if is_one_line else "traceback"
                return outcome, num_killed, f"{where}: {process.text[-300:]}"
        is_same = recorded(path) == self.expected and not verify(path).problems
        return ("same" if is_same else "lost"), num_killed, where

    def _place(self, rng: random.Random) -> int:
        """A call, half of the time one of the first."""
        return rng.randint(1, min(EARLY, self.num_calls) if rng.random() < 0.5 else self.num_calls)


PRELOADED = (
    *("killing", "echoscope.core.run.launch", "echoscope.diagnostics.tools.importing"),
    *("echoscope.watch.watching", "echoscope.recorder.recorder"),
)


def kills(
    folder: Path, numbers: dict[str, int], seed: int, config: str = ""
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Kill each program so often; what came of it, by program, and what was wrong."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
    logs = folder / "logs"
    write_logs(logs)
    table: dict[str, Counter[str]] = {}
    wrong = []
    for name, number in numbers.items():
        text = {"trainer": config, "recorder": ""}.get(name, str(logs))
        trial = Trial.of(name, text, folder / name)
        table[name] = Counter()
        for index in range(number):
            rng = random.Random(f"{seed}/{name}/{index}")
            outcome, num_killed, where = trial.kill(rng, index)
            table[name][outcome] += 1
            table[name]["kills"] += num_killed
            if outcome != "same":
                wrong.append(f"{outcome}: {where}")
    return table, wrong


def lines(table: dict[str, Counter[str]]) -> Iterator[str]:
    headings = ("kills", *OUTCOMES)
    yield f"{'':12}{'tried':>11}" + "".join(f"{name:>11}" for name in headings)
    for name, counts in table.items():
        num_tried = sum(counts[outcome] for outcome in OUTCOMES)
        row = "".join(f"{counts[heading]:>11}" for heading in headings)
        yield f"{name:12}{num_tried:>11}{row}"


def small_config() -> str:
    """A training of four steps of the shipped small policy."""
    from echoscope.core.config.loading import load_config

    overrides = (
        *("steps=4", "envs.train.0.groups=2", "envs.group_size=2", "envs.train.0.max_turns=2"),
        *(
            "eval.every=0",
            "checkpoint.every=2",
            "checkpoint.keep=2",
            "context.max_response_tokens=8",
        ),
        *(f"diagnostics.{name}.every=0" for name in ("text", "information", "gradient")),
    )
    return load_config("demo", overrides=overrides).model_dump_json()


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    numbers = {name: number // len(PROGRAMS) for name in PROGRAMS}
    if len(sys.argv) > 2:
        numbers = dict.fromkeys(sys.argv[2:], number)
    began = time.monotonic()
    sys.stdout.write(f"kills {told()}\n")
    with tempfile.TemporaryDirectory() as folder:
        table, wrong = kills(Path(folder), numbers, draw(), small_config())
    seconds = time.monotonic() - began
    sys.stdout.write("\n".join([*lines(table), *wrong, f"{seconds:.0f} s", ""]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
