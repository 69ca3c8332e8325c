"""Train what CureBench compares; `echoscope bench cures` makes the tables from the records.

    PYTHONPATH=benchmarks python -m cures [--seeds 0,1] [--minutes 60] [--only KIND,...]
    PYTHONPATH=benchmarks python -m cures --tables    # train nothing: docs/cures.md, advice, labels

A piece is one run or one continuation of it. Each that is done is one record, and is left alone
from then on; a killed command goes on with the piece that it was at. Every kind is trained
untreated first, then with the placebo and the likeliest treatments, then with all others and the
twins.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import between_marks

os.environ.setdefault("OMP_NUM_THREADS", "1")

from labelling import outcome_of

from echoscope.core.config.loading import ConfigError
from echoscope.diagnostics.bench import harness
from echoscope.diagnostics.bench.cures.kinds import DEVELOP, FURTHER, HERE, Kind, kinds, twins
from echoscope.diagnostics.bench.cures.records import (
    RECORDS,
    RecordError,
    Records,
    TrainedPiece,
    has_collapsed,
    outcome,
)
from echoscope.diagnostics.bench.cures.results import Results
from echoscope.diagnostics.bench.cures.tables import (
    BUILT,
    NOT_RUN,
    missing_words,
    tables,
)
from echoscope.diagnostics.judge.advice.measured import TABLE
from echoscope.diagnostics.judge.advice.treatments import GUARDED, GUARDS, UNTREATED
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.store.errors import StoreError
from echoscope.text.amounts import counted, duration, percent

from .training import (
    Subject,
    forget,
    is_recorded,
    judged_again,
    train_arm,
    train_guarded,
    train_untreated,
)

RUNS = Path("runs/cures")
CURVES = HERE / "curves"
LABELS = (
    "Untreated runs of CureBench. Labels follow from these curves by the rules in "
    "benchmarks/labelling.py."
)
PAGE = Path(__file__).parents[2] / "docs" / "cures.md"
FIRST = 4
"""Arms that are trained before the others: the placebo and the likeliest treatments."""
TWIN_TURN, OTHERS_TURN = 1.5, 2.5
"""How many seeds later twins and other arms have their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece that is wanted."""

    subject: Subject
    seed: int
    arm: str
    turn: float
    """Pieces with a lower number come first."""


def wanted(subjects: Sequence[Subject], seeds: Sequence[int]) -> list[Task]:
    """All pieces in the order in which they are trained."""
    tasks = []
    for index, seed in enumerate(seeds):
        for subject in subjects:
            is_kind = isinstance(subject, Kind)
            first = index + (0 if is_kind else TWIN_TURN)
            tasks.append(Task(subject=subject, seed=seed, arm=UNTREATED, turn=first))
            arms = subject.arms if isinstance(subject, Kind) else _of_twin(subject)
            early, late = (1, OTHERS_TURN) if is_kind else (TWIN_TURN, OTHERS_TURN)
            for rank, arm in enumerate(arms):
                turn = index + (early if rank < FIRST else late)
                tasks.append(Task(subject=subject, seed=seed, arm=arm, turn=turn))
    return sorted(tasks, key=lambda task: task.turn)


def _of_twin(twin: Subject) -> list[str]:
    """Every treatment that a kind of this twin has, most kinds first, and the guard."""
    counts: dict[str, int] = {}
    for kind in kinds().values():
        if kind.twin == twin:
            for name in kind.treatments:
                counts[name] = counts.get(name, 0) + 1
    return [*sorted(counts, key=lambda name: -counts[name]), GUARDED]


def missing(tasks: Sequence[Task], records: Records) -> list[Task]:
    """Those without a record; arms of a run that did not collapse are not wanted."""
    return [
        task
        for task in tasks
        if not is_recorded(records, task.subject, task.seed, task.arm)
        and not _is_moot(task, records)
    ]


def _is_moot(task: Task, records: Records) -> bool:
    untreated = records.pieces.get((task.subject.name, task.seed, UNTREATED))
    if task.arm == UNTREATED or untreated is None or not isinstance(task.subject, Kind):
        return False
    has_checkpoint = untreated.checkpoint is not None or task.arm in GUARDS  # it writes its own
    return not has_checkpoint or not has_collapsed(untreated)


def train(task: Task, records: Records, runs: Path, curves: Path) -> TrainedPiece | None:
    """The piece; None where the treatment changes nothing about this run."""
    if task.arm == UNTREATED:
        return train_untreated(task.subject, task.seed, runs, curves)
    if task.arm in GUARDS:
        return train_guarded(task.subject, task.seed, task.arm, runs)
    untreated = records.pieces.get((task.subject.name, task.seed, UNTREATED))
    if untreated is None:
        return None  # its own training comes earlier, and failed
    return train_arm(task.subject, untreated, task.arm, runs, records)


def words(piece: TrainedPiece, records: Records) -> str:
    """What became of a piece, in one line."""
    untreated = records.pieces.get((piece.of, piece.seed, UNTREATED))
    if piece.arm == UNTREATED:
        if piece.alarm is None:
            return f"no critical alarm in {counted(piece.steps, 'step')}"
        end = "collapsed" if has_collapsed(piece) else "did not end below half of its best"
        return f"alarm at step {piece.alarm} ({', '.join(piece.rules)}), {end}"
    if piece.arm in GUARDS:
        places = ", ".join(f"checkpoint {step}" for step in piece.rewinds) or "never"
        return f"rewound to {places}; {piece.status} after step {piece.steps}"
    judged = None if untreated is None else outcome(piece, untreated)
    if judged is None:
        return "trained"
    alarm = ", with a critical alarm" if judged.has_alarm else ""
    return (
        f"{'cured' if judged.is_cured else 'not cured'}: {percent(judged.share)} of the best{alarm}"
    )


def left(tasks: Sequence[Task], records: Records) -> float:
    """Seconds that the missing pieces may take, from those of the same twin; NaN without any.

    A twin that was not trained yet is taken for as fast as the others.
    """
    speeds: dict[str, list[float]] = {}
    for piece in records.pieces.values():
        kind = kinds().get(piece.of)
        if piece.seconds:
            name = piece.of if kind is None else kind.twin.name
            speeds.setdefault(name, []).append(piece.seconds / max(1, piece.steps - piece.begins))
    if not speeds:
        return math.nan
    by_twin = {name: statistics.fmean(each) for name, each in speeds.items()}
    others = statistics.fmean(by_twin.values())
    total = 0.0
    for task in tasks:
        twin = task.subject.twin if isinstance(task.subject, Kind) else task.subject
        steps = twin.steps if task.arm in (UNTREATED, *GUARDS) else FURTHER
        total += steps * by_twin.get(twin.name, others)
    return total


def run(
    tasks: Sequence[Task], records: Records, runs: Path, curves: Path, *, end: float, most: float
) -> None:
    """Train what is missing, one piece after the other, until the time is over.

    Args:
        end: The time after which no piece is begun, on the monotonic clock.
        most: Pieces in all, those that are recorded already included.
    """
    skipped: set[tuple[str, int, str]] = set()
    while todo := [
        task
        for task in missing(tasks, records)
        if (task.subject.name, task.seed, task.arm) not in skipped
    ]:
        if len(records.pieces) >= most:
            return
        seconds = left(todo, records)
        rest = "" if math.isnan(seconds) else f", about {duration(seconds)}"
        print(f"{counted(len(todo), 'piece')} left{rest}", flush=True)
        if time.monotonic() > end:
            print("the time is over; the same command goes on")
            return
        task = todo[0]
        title = f"{task.subject.name} seed {task.seed} {task.arm}"
        try:
            piece, why = train(task, records, runs, curves), "changes nothing about this run"
        except ConfigError as error:
            piece, why = None, f"cannot be trained: {error}"
        if piece is None:
            skipped.add((task.subject.name, task.seed, task.arm))
            print(f"{title}: {why}", flush=True)
            continue
        records.add(piece)
        for kept in records.pieces.values():
            if kept.key[:2] == piece.key[:2] and kept.arm != UNTREATED:
                forget(kept, runs)
        print(f"{title}: {words(piece, records)}; {duration(piece.seconds)}", flush=True)


def judge_again(tasks: Sequence[Task], records: Records, runs: Path) -> None:
    """Ask today's verdict about every untreated run of a kind that is still there."""
    for task in tasks:
        subject, untreated = (
            task.subject,
            records.pieces.get((task.subject.name, task.seed, UNTREATED)),
        )
        if task.arm != UNTREATED or untreated is None or not isinstance(subject, Kind):
            continue
        try:
            piece = judged_again(subject, untreated, runs)
        except StoreError as error:
            print(f"{subject.name} seed {task.seed}: not judged again: {error}", flush=True)
            continue
        if piece != untreated:
            records.add(piece)
            print(f"{subject.name} seed {task.seed}: checkpoint {piece.checkpoint}, {piece.advice}")


def advice_file(results: Results) -> str:
    """`measured.toml`: the counts that `judge/advice/measured.py` reads."""
    lines = [
        "# Made by `make cures-tables` from diagnostics/bench/cures/records; do not edit.",
        "# Runs with this first alarm that held with the treatment, and with the better control.",
    ]
    for row in results.measured():
        lines += [
            "",
            "[[treatments]]",
            f'symptom = "{row.symptom}"',
            f'treatment = "{row.treatment.name}"',
            f"held = {row.rate.held}",
            f"of = {row.rate.of}",
            f"control_held = {row.control.held}",
            f"control_of = {row.control.of}",
        ]
        if row.twin_change is not None:
            lines += [f"twin_change = {row.twin_change:.3f}", f"twin_runs = {row.twin_runs}"]
    return "\n".join(lines) + "\n"


def write_labels(curves: Path) -> None:
    """Label the curve of every untreated run by what became of it."""
    names = sorted(str(path.relative_to(curves).with_suffix("")) for path in curves.glob("*/*.csv"))
    outcomes = {name: outcome_of(read_metrics(curves / f"{name}.csv")) for name in names}
    entries = {name: outcome.to_json() for name, outcome in outcomes.items()}
    harness.write_labels(curves, LABELS, entries)


def write_tables(records: Records, page: Path, advice: Path) -> None:
    """Write the tables between the markers of the page, and the counts that advice reads."""
    results = Results(records)
    text = page.read_text(encoding="utf-8")
    blocks = {
        name: grid.markdown() if grid.rows else NOT_RUN
        for name, grid in tables(records).items()
        if name not in BUILT
    }
    blocks["missing"] = missing_words(results)
    for name, block in blocks.items():
        text = between_marks(text, f"<!-- {name}: begin -->", f"<!-- {name}: end -->", block)
    page.write_text(text, encoding="utf-8")
    advice.write_text(advice_file(results), encoding="utf-8")


def _names(text: str) -> Iterator[str]:
    return filter(None, text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(prog="cures", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", default=",".join(map(str, DEVELOP)))
    parser.add_argument("--only", default="", help="Names of kinds and twins, with commas between.")
    parser.add_argument("--arms", default="", help="Names of arms, with commas between.")
    parser.add_argument("--minutes", type=float, default=math.inf, help="Begin nothing after it.")
    parser.add_argument("--most", type=float, default=math.inf, help="Records at most, in all.")
    parser.add_argument("--runs", type=Path, default=RUNS, help="Folder of the trainings.")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--curves", type=Path, default=CURVES)
    parser.add_argument(
        "--judge", action="store_true", help="Ask today's verdict about the untreated runs first."
    )
    parser.add_argument("--tables", action="store_true", help="Train nothing, write the tables.")
    arguments = parser.parse_args()
    if arguments.tables:
        write_tables(Records(arguments.records), PAGE, TABLE)
        write_labels(arguments.curves)
        return
    subjects: dict[str, Subject] = {**kinds(), **twins()}
    only = list(_names(arguments.only)) or list(subjects)
    unknown = [name for name in only if name not in subjects]
    if unknown:
        parser.error(f"--only names {unknown[0]!r}, but there are: {', '.join(subjects)}")
    seeds = [int(seed) for seed in _names(arguments.seeds)]
    tasks, arms = wanted([subjects[name] for name in only], seeds), set(_names(arguments.arms))
    unknown = sorted(arms - {task.arm for task in tasks})
    if unknown:
        parser.error(f"--arms names {unknown[0]!r}, which none of these kinds and twins has")
    arguments.runs.mkdir(parents=True, exist_ok=True)
    with (arguments.runs / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            parser.error(f"another command trains in {arguments.runs}; wait for it, or give --runs")
        try:
            records = Records(arguments.records)
            if arguments.judge:
                judge_again(tasks, records, arguments.runs)
            run(
                [task for task in tasks if not arms or task.arm in arms],
                records,
                arguments.runs,
                arguments.curves,
                end=time.monotonic() + 60 * arguments.minutes,
                most=arguments.most,
            )
        except (OSError, RecordError) as error:
            raise SystemExit(
                f"{error}\nwhat is recorded is kept; the same command goes on"
            ) from None


if __name__ == "__main__":
    main()
