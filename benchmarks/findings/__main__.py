"""Train what the claims need, and write docs/findings.md from the record.

    PYTHONPATH=benchmarks python -m findings [--seeds 3] [--minutes 75] [--runs DIR]
    PYTHONPATH=benchmarks python -m findings --table    # train nothing, write the page anew
    PYTHONPATH=benchmarks python -m findings --quick    # two arms, three steps, a folder of its own

A seed of all arms comes before the next seed, and every arm and seed that is in the record is left
alone, so the command can be stopped and started again. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from common import read_options

os.environ.setdefault("OMP_NUM_THREADS", "1")

from .arms import KEEP_50, STARPO
from .claims import CLAIMS, arms_of
from .page import PAGE, write_page
from .training import MOST_SEEDS, RECORD, Record, missing, train

RUNS = Path(__file__).parent / "runs"
QUICK_ARMS, QUICK_STEPS = (STARPO, KEEP_50), 3


def train_missing(
    record: Record, runs: Path, *, seeds: int, minutes: float, only: tuple[str, ...] = ()
) -> None:
    """All arms with the first seed, then with the next, until the time is over."""
    arms = [arm for arm in arms_of() if not only or arm.name in only]
    todo = missing(arms, range(seeds), record)
    end = time.monotonic() + 60 * minutes
    for number, (arm, seed) in enumerate(todo, start=1):
        if time.monotonic() > end:
            print(f"{len(todo) - number + 1} trainings are left; the same command goes on")
            return
        result = train(arm, seed, runs)
        record.add(result)
        values = " ".join(f"{100 * v:.0f}" for v in result.curve("success")[1])
        print(
            f"{number}/{len(todo)} {arm.name} seed {seed}: success {values} %, {result.label}, "
            f"{result.seconds:.0f} s",
            flush=True,
        )


def quick(folder: Path) -> Path:
    """Two arms for three steps, and a page of the claims that compare them, all in one folder."""
    record = Record(folder / "record.ndjson")
    claims = tuple(claim for claim in CLAIMS if set(claim.figure.arms) <= set(QUICK_ARMS))
    for arm, seed in missing(QUICK_ARMS, [0], record, QUICK_STEPS):
        record.add(train(arm, seed, folder / "runs", QUICK_STEPS))
    page = folder / "findings.md"
    write_page(record, page, claims=claims, steps=QUICK_STEPS)
    return page


def main() -> None:
    arguments = read_options(
        __doc__,
        seeds=(3, "Seeds of each arm: 0, 1, ..."),
        minutes=(1e6, "Begin no training after it."),
        runs=(RUNS, "Folder of the trainings."),
        record=(RECORD, "File of the results."),
        page=(PAGE, "Page to write."),
        only=("", "Names of arms, with commas between."),
        table=(False, "Train nothing."),
        prune=(False, "Drop results no claim asks for."),
        quick=(False, "Two arms for three steps."),
    )
    if arguments.quick:
        print(quick(Path(tempfile.mkdtemp(prefix="findings-"))))
        return
    record = Record(arguments.record)
    if arguments.prune:
        record.keep_only(arm.key(seed) for arm in arms_of() for seed in range(MOST_SEEDS))
    if not arguments.table:
        only = tuple(filter(None, arguments.only.split(",")))
        train_missing(
            record, arguments.runs, seeds=arguments.seeds, minutes=arguments.minutes, only=only
        )
    write_page(record, arguments.page)
    print(arguments.page)


if __name__ == "__main__":
    main()
