"""Damages files of every kind and looks at what is made of them.

    python tests/store/log/fuzzing.py 1000 [TARGET]

The seed is new each time and told; ECHOSCOPE_SEED repeats one.

Each damage must be refused in one line, or read without loss or with a warning that says what is
missing; and a run that can be read must be resumed, or refused in one line. A value that was not
written must never be shown. Files that people or other trainers write (configuration, metrics)
carry no checksum: any content that is valid is a value somebody may have meant, so of these only
errors that are not one line count.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "shared"))
from alarm_events import alarm_event
from harness_seed import draw, told
from stored_steps import build_trajectory, write_steps

from echoscope.store.checkpoints import (
    MANIFEST_NAME,
    checkpoint_damage,
    checkpoint_folders,
    write_checkpoint_manifest,
)
from echoscope.store.errors import StoreError
from echoscope.store.log.durable import read_checked_json
from echoscope.store.log.packing import pack
from echoscope.store.reader import RunReader, open_run
from echoscope.store.schema import TABLES
from echoscope.store.steer.commands import Mailbox, new_command, post
from echoscope.store.writer import RunWriter

Values = dict[str, Counter[str]]
OUTCOMES = ("refused", "said", "whole", "silent", "traceback", "waits")
HEADINGS = ("refused", "read in part", "without loss", "silently accepted", "traceback", "waits")
LIMIT_S = 30.0
"""What takes longer waits for something."""
DAMAGES = ("bit", "bits", "truncate", "zero", "duplicate", "swap", "delete", "other run")


# -- damages -------------------------------------------------------------------------------------


def damage(path: Path, kind: str, rng: random.Random, other: Path | None) -> bool:
    """Damage one file; False where that kind changes nothing."""
    data = bytearray(path.read_bytes())
    before = bytes(data)
    size = len(data)
    path.unlink()  # hard links of it stay as they are
    if kind == "delete":
        return True
    if kind == "other run" and other is not None:
        data = bytearray(other.read_bytes())
    elif kind in ("bit", "bits") and size:
        for _ in range(1 if kind == "bit" else rng.randrange(2, 9)):
            data[rng.randrange(size)] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        lines = [number + 1 for number, value in enumerate(data) if value == 10]
        at_line = lines and rng.random() < 0.5
        del data[rng.choice(lines) if at_line else rng.randrange(size + 1) :]
    elif kind == "zero":
        start, length = rng.randrange(size + 1), rng.choice((1, 16, 512, 4096))
        data[start : start + length] = bytes(min(length, size - start))
    elif kind == "duplicate":
        start, end = _span(data, rng)
        data[end:end] = data[start:end]
    elif kind == "swap":
        start, middle = _span(data, rng)
        _, end = _span(data, rng, start=middle)
        data[start:end] = data[middle:end] + data[start:middle]
    path.write_bytes(data)
    return bytes(data) != before


def _span(data: bytearray, rng: random.Random, start: int | None = None) -> tuple[int, int]:
    """A record where the file has lines, else some bytes."""
    lines = [0, *(number + 1 for number, value in enumerate(data) if value == 10)]
    if len(lines) > 2 and rng.random() < 0.7:
        index = rng.randrange(len(lines) - 1)
        if start is None:
            return lines[index], lines[index + 1]
        later = [line for line in lines if line > start]
        return start, later[0] if later else len(data)
    first = rng.randrange(len(data) + 1) if start is None else start
    return first, min(len(data), first + rng.randrange(1, 600))


# -- targets -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Target:
    """One kind of file: which files, and what becomes of a damaged one."""

    name: str
    files: Callable[[Path], list[Path]]
    judge: Callable[[Path, Path], str]
    """One of `OUTCOMES`, from the folder and the damaged file."""
    table: Counter[str] = field(default_factory=Counter)


def is_one_line(error: BaseException) -> bool:
    return bool(str(error)) and "\n" not in str(error)


class Runs:
    """A run with files of every kind, another one with other values, and what is in the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.good, self.other = folder / "good", folder / "other"
        for path, seed in ((self.good, 1), (self.other, 2)):
            make_run(path, f"run-{seed}", seed)
        self.truth = values(open_run(self.good))
        self.everything = values(open_run(self.good, all_attempts=True))
        self.command = Mailbox(self.good).drain()

    def copy(self) -> Path:
        """The good run once more, its files shared: a damaged one is replaced, never changed."""
        path = self.folder / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.good, path, copy_function=os.link)
        return path

    def judge_run(self, path: Path, damaged: Path) -> str:
        """What a reader, and after it a writer that goes on, make of a damaged run."""
        outcome = self._read(path)
        if outcome in ("said", "whole"):
            resumed = self._resumed(path)
            return resumed if resumed in ("silent", "traceback") else outcome
        return outcome

    def _read(self, path: Path) -> str:
        try:
            reader = open_run(path)
            read = values(reader)
        except (StoreError, ValueError) as error:
            return "refused" if is_one_line(error) else "traceback"
        except Exception:  # noqa: BLE001 - that is what is looked for
            return "traceback"
        if is_wrong(read, self.everything):
            return "silent"
        if read == self.truth:
            return "whole"
        return "said" if reader.warnings else "silent"

    def _resumed(self, path: Path) -> str:
        """What becomes of it when the run goes on: what is lost is still told, nothing is wrong."""
        copy = path.with_name("resumed")  # of its own: a writer changes files in place
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        try:
            before = values(open_run(copy, all_attempts=True))
            writer = RunWriter.resume(copy, from_step=-1, is_packing=False)
            writer.close(status="stopped")
            pack(copy)
            reader = open_run(copy, all_attempts=True)
            read = values(reader)
        except StoreError as error:
            return "refused" if is_one_line(error) else "traceback"
        except Exception:  # noqa: BLE001 - that is what is looked for
            return "traceback"
        # Trajectories of a step that is not over are dropped by a resume.
        is_less = any(before[name] - read[name] for name in ("steps", "metrics", "alarms"))
        lost = (text for name in read for text in self.everything[name] - read[name])
        is_untold = not reader.warnings and any('"step": 10,' not in text for text in lost)
        return "silent" if is_wrong(read, self.everything) or is_less or is_untold else "said"

    def judge_checkpoint(self, path: Path, damaged: Path) -> str:
        folder = damaged
        while folder.parent != path / "checkpoints":
            folder = folder.parent
        if folder not in checkpoint_folders(path / "checkpoints"):
            return "refused"  # it is no checkpoint any more
        why = checkpoint_damage(folder, run_id="run-1")
        if why:
            return "refused" if "\n" not in why else "traceback"
        good = self.good / folder.relative_to(path)
        names = [file.relative_to(good) for file in good.rglob("*") if file.is_file()]
        same = all(_content(folder / name) == _content(good / name) for name in names)
        return "whole" if same else "silent"

    def judge_mailbox(self, path: Path, damaged: Path) -> str:
        try:
            mailbox = Mailbox(path)
            fresh = mailbox.drain()
            refusals = mailbox.take_refusals(0)
            open_run(path).commands()
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return "refused" if isinstance(error, StoreError) else "traceback"
        if fresh == self.command:
            return "whole"
        if fresh:
            return "silent"
        is_gone = not damaged.exists()
        return "refused" if refusals or is_gone else "silent"


def _content(path: Path) -> object:
    """What a file of a checkpoint says: of its manifest the values, whose order says nothing."""
    return read_checked_json(path) if path.name == MANIFEST_NAME else path.read_bytes()


def values(reader: RunReader) -> Values:
    """Every visible row of every table. How the run stands is not a value that was written."""
    read: Values = {}
    for name in TABLES:
        rows = reader.sql(f"FROM {name}").to_pylist()
        for row in rows:
            for state in ("status", "ended_at", "attempt", "last_step", "path"):
                if name == "runs":
                    row.pop(state, None)
        read[name] = Counter(json.dumps(row, default=str, sort_keys=True) for row in rows)
    return read


def is_wrong(read: Values, everything: Values) -> bool:
    """Whether there is a row that was never written, or one more often than it was."""
    return any(rows - everything[name] for name, rows in read.items())


def make_run(path: Path, run_id: str, seed: int) -> None:
    """Packs, pieces, a live piece, segments, a rewind, unfinished work, alarms, a checkpoint."""
    options: dict[str, Any] = {"rotate_every": 2, "is_packing": False}
    first = RunWriter.create(
        path, run_id=run_id, config={"lr": seed / 1000}, name=run_id, **options
    )
    write_steps(first, range(4), count=1 + seed, run_id=run_id)
    pack(path, grace_s=0)
    write_steps(first, range(4, 8), count=1 + seed, run_id=run_id)
    first.close(status="interrupted")
    again = RunWriter.resume(path, from_step=6, **options)
    write_steps(again, range(7, 10), count=1 + seed, run_id=run_id)
    alarm = alarm_event(
        "a-1",
        9,
        rule="rule",
        onset_step=8,
        metric="policy/entropy",
        value=float(seed),
        threshold=0.5,
        window=3,
        message="text",
    )
    again.record_alarms([alarm])
    again.add_trajectories([build_trajectory(10, 0)])
    again.close(status="finished")
    post(path, new_command(run_id, "set", settings={"optim.lr": seed / 100}, ttl_s=None))
    for step in (4, 8):
        make_checkpoint(path / "checkpoints" / f"step_{step:06d}", step, run_id, seed)


def make_checkpoint(folder: Path, step: int, run_id: str, seed: int) -> None:
    rng = random.Random(seed * 100 + step)
    (folder / "model").mkdir(parents=True)
    state = {"format_version": 2, "step": step, "policy_version": step, "config": {}}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "model" / "config.json").write_text(json.dumps({"size": seed}), encoding="utf-8")
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        (folder / name).write_bytes(rng.randbytes(3000))
    write_checkpoint_manifest(folder, step=step, run_id=run_id)


def judge_configuration(path: Path, damaged: Path) -> str:
    """A person wrote the file: what is valid may be meant, what is not is one line."""
    from echoscope.core.config.loading import ConfigError, load_config

    try:
        load_config(None, file=damaged, overrides=())
    except (ConfigError, OSError) as error:
        return "refused" if is_one_line(error) else "traceback"
    except Exception:  # noqa: BLE001 - that is what is looked for
        return "traceback"
    return "whole"


def judge_metrics(path: Path, damaged: Path) -> str:
    """Another trainer wrote the file: what is valid may be meant, what is not is one line."""
    from echoscope.diagnostics.read.sources import open_source

    try:
        open_source(damaged)
    except (OSError, ValueError) as error:
        return "refused" if str(error) else "traceback"
    except Exception:  # noqa: BLE001 - that is what is looked for
        return "traceback"
    return "whole"


def _glob(pattern: str) -> Callable[[Path], list[Path]]:
    return lambda path: sorted(file for file in path.glob(pattern) if file.is_file())


def targets(runs: Runs) -> list[Target]:
    run, checkpoint = runs.judge_run, runs.judge_checkpoint
    return [
        Target("journal", _glob("journal.ndjson"), run),
        Target("journal.tail", _glob("journal.tail"), run),
        Target("pieces", _glob("journal/*.ndjson"), run),
        Target("pack.json", _glob("pack/*/pack.json"), run),
        Target("run.json", _glob("run.json"), run),
        Target("segments", _glob("seg/*/*.parquet"), run),
        Target("packs", _glob("pack/*/*.parquet"), run),
        Target("checkpoints", _glob("checkpoints/**/*"), checkpoint),
        Target("mailbox", _glob("commands/*.json"), runs.judge_mailbox),
        Target("configuration", _glob("settings.yaml"), judge_configuration),
        Target("metrics files", _glob("metrics.*"), judge_metrics),
    ]


def write_foreign_files(path: Path, seed: int) -> None:
    """A configuration, and the metrics files of other trainers."""
    from echoscope.core.config.loading import load_config

    config = load_config("demo", overrides=[f"seed={seed}"]).model_dump(mode="json")
    (path / "settings.yaml").write_text(json.dumps(config, indent=1), encoding="utf-8")
    rows = [{"step": s, "reward": s / (10 + seed), "entropy": 1 / (1 + s)} for s in range(30)]
    lines = ["step,reward,entropy", *(f"{r['step']},{r['reward']},{r['entropy']}" for r in rows)]
    (path / "metrics.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    (path / "metrics.jsonl").write_text(text, encoding="utf-8")


# -- the run of it -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """One damage that was not answered as it must be."""

    target: str
    file: str
    kind: str
    number: int
    outcome: str


def fuzz(
    folder: Path, num_damages: int, seed: int = 0, *, only: str = ""
) -> tuple[list[Target], list[Failure]]:
    """Damage `num_damages` files, evenly over the targets; the table, and what was wrong."""
    logging.getLogger("echoscope.store").setLevel(logging.CRITICAL)
    runs = Runs(folder)
    for path, number in ((runs.good, 1), (runs.other, 2)):
        write_foreign_files(path, number)
    chosen = [target for target in targets(runs) if only in ("", target.name)]
    failures = []
    for number in range(num_damages):
        target = chosen[number % len(chosen)]
        rng = random.Random(f"{seed}/{target.name}/{number}")
        copy = runs.copy()
        file = rng.choice(target.files(copy))
        kind = DAMAGES[(number // len(chosen)) % len(DAMAGES)]
        if not damage(file, kind, rng, _other(runs, copy, file, rng)):
            target.table["unchanged"] += 1
            continue
        began = time.monotonic()
        outcome = target.judge(copy, file)
        outcome = "waits" if time.monotonic() - began > LIMIT_S else outcome
        target.table[outcome] += 1
        if outcome in ("silent", "traceback", "waits"):
            name = str(file.relative_to(copy))
            failures.append(Failure(target.name, name, kind, number, outcome))
    return chosen, failures


def _other(runs: Runs, copy: Path, file: Path, rng: random.Random) -> Path | None:
    """The other run's file of the same kind."""
    relative = file.relative_to(copy)
    same = runs.other / relative
    if same.is_file():
        return same
    beside = sorted((runs.other / relative.parent).glob(f"*{file.suffix}"))
    return rng.choice(beside) if beside else None


def table(chosen: list[Target]) -> Iterator[str]:
    """The lines of the table."""
    yield f"{'':16}{'tried':>8}" + "".join(f"{name:>19}" for name in HEADINGS)
    total: Counter[str] = Counter()
    for target in chosen:
        yield _line(target.name, target.table)
        total += target.table
    yield _line("all", total)


def _line(name: str, counts: Counter[str]) -> str:
    tried = sum(counts[outcome] for outcome in OUTCOMES)
    return f"{name:16}{tried:>8}" + "".join(f"{counts[outcome]:>19}" for outcome in OUTCOMES)


def main() -> None:
    sys.stdout.write(f"damages {told()}\n")
    with tempfile.TemporaryDirectory() as folder:
        only = " ".join(sys.argv[2:])
        chosen, failures = fuzz(Path(folder), int(sys.argv[1]), draw(), only=only)
    sys.stdout.write("\n".join([*table(chosen), *map(str, failures), ""]))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
