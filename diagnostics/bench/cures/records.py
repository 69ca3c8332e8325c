"""What CureBench keeps of a trained piece: one line of a file for each kind or twin.

A line is written whole or not at all: one that a crash cut off is ignored, and the next takes its
place.

A *piece* is a kind (or a twin) with a seed and an arm: the untreated run from its first step, or
the continuation of that run from a checkpoint with one treatment.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...judge.advice.treatments import ADVICE, GUARDS, UNTREATED
from ...tools.curing import GRACE_STEPS, HELD
from .kinds import FURTHER, HERE, LAST, LOST

RECORDS = HERE / "records"
DIGITS = 4


class RecordError(ValueError):
    """A file of records holds a line that is none; says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPiece:
    """One trained piece."""

    of: str
    """Name of the kind, or of the twin."""
    seed: int
    arm: str
    setup: str = ""
    """`setup_of` what was trained."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the arm changed."""
    begins: int = 0
    """The step of the checkpoint that it continues; 0 for an untreated run."""
    success: Mapping[int, float] = field(default_factory=dict)
    """Step to success on the evaluation tasks."""
    criticals: tuple[int, ...] = ()
    """Steps at which a critical alarm was raised."""
    alarm: int | None = None
    """Untreated: the step of the first critical alarm, after which treatments begin."""
    rules: tuple[str, ...] = ()
    """Untreated: the alarms that were open then, the most serious first."""
    checkpoint: int | None = None
    """Untreated: the step of the checkpoint that was suggested then; None where there was none."""
    advice: Mapping[str, Any] = field(default_factory=dict)
    """Untreated: the settings that the verdict advised then. Advice: those that were followed."""
    rewinds: tuple[int, ...] = ()
    """Guarded: the step of each checkpoint that the guard went back to."""
    steps: int
    """The last step."""
    seconds: float
    """Training time, on a machine with other work."""
    status: str = "finished"

    @property
    def key(self) -> tuple[str, int, str]:
        return (self.of, self.seed, self.arm)

    def mean_success(self, first: int, last: int) -> float:
        """Mean success of the evaluations after step `first`, up to `last`; NaN without any."""
        values = [rate for step, rate in self.success.items() if first < step <= last]
        return sum(values) / len(values) if values else math.nan

    def best_until(self, step: int) -> float:
        """The best evaluation up to a step; NaN without any."""
        return max((rate for when, rate in self.success.items() if when <= step), default=math.nan)

    def to_line(self) -> str:
        """Without what has its default; numbers with four digits."""
        values = asdict(self)
        values["success"] = {
            str(step): float(f"{rate:.{DIGITS}g}")
            for step, rate in self.success.items()
            if math.isfinite(rate)
        }
        stored = {k: v for k, v in values.items() if v not in (None, (), {}, [])}
        return json.dumps(stored, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> TrainedPiece:
        """Raises ValueError, TypeError or KeyError where the line is no record."""
        values: dict[str, Any] = json.loads(line)
        values["success"] = {int(step): rate for step, rate in values.get("success", {}).items()}
        for name in ("criticals", "rules", "rewinds"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


class Records:
    """All pieces by key, in a folder of files that only grow.

    Raises:
        RecordError: a whole line is no record.
    """

    def __init__(self, folder: Path = RECORDS) -> None:
        self.folder = folder
        self.pieces: dict[tuple[str, int, str], TrainedPiece] = {}
        for path in sorted(folder.glob("*.ndjson")) if folder.is_dir() else ():
            for piece in _read(path):
                self.pieces[piece.key] = piece

    def add(self, piece: TrainedPiece) -> None:
        """Append a piece durably; a line that a crash cut off before is dropped.

        Raises:
            OSError: the disk refuses.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{piece.of}.ndjson"
        with path.open("ab+") as file:
            file.truncate(_whole_bytes(path))
            file.write(piece.to_line().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.pieces[piece.key] = piece


def _whole_bytes(path: Path) -> int:
    """How much of a file is whole lines."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def _read(path: Path) -> Iterable[TrainedPiece]:
    whole = path.read_bytes()[: _whole_bytes(path)]
    for number, line in enumerate(whole.decode("utf-8").splitlines(), start=1):
        try:
            yield TrainedPiece.from_line(line)
        except (ValueError, TypeError, KeyError) as error:
            raise RecordError(
                f"{path}, line {number}, is no record of a trained piece ({error}); delete the "
                "line, and `make cures` trains the piece again"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    """What became of an arm, judged against its untreated run."""

    piece: TrainedPiece
    share: float
    """Mean success over the last third, as a share of the best before the alarm."""
    has_alarm: bool
    """A critical alarm was raised after the first steps."""
    steps_lost: int
    """Steps between the alarm and the checkpoint, which are trained again."""

    @property
    def is_cured(self) -> bool:
        return self.share >= HELD and not self.has_alarm


def follows(arm: TrainedPiece, untreated: TrainedPiece | None) -> bool:
    """Whether an arm of a kind goes on from where the verdict says today, with what it advises."""
    if arm.arm == UNTREATED or arm.arm in GUARDS:
        return True
    if untreated is None or arm.begins != untreated.checkpoint:
        return False
    return arm.arm != ADVICE or arm.advice == untreated.advice


def has_collapsed(untreated: TrainedPiece) -> bool:
    """Whether a run raised a critical alarm and then, left alone, ended below half of its best."""
    if untreated.alarm is None:
        return False
    end = untreated.mean_success(untreated.steps - LAST, untreated.steps)
    return end < LOST * untreated.best_until(untreated.alarm)


def outcome(arm: TrainedPiece, untreated: TrainedPiece, name: str = "") -> ArmOutcome | None:
    """What became of an arm; None where the untreated run raised no alarm or had no checkpoint.

    Args:
        arm: The untreated run itself for `untreated` and `rewound`.
        name: Of the arm, where the piece does not say.
    """
    alarm, checkpoint = untreated.alarm, untreated.checkpoint
    if alarm is None or checkpoint is None:
        return None
    begins = alarm if (name or arm.arm) == UNTREATED else checkpoint
    ends = begins + FURTHER
    best = untreated.best_until(alarm)
    mean = arm.mean_success(ends - LAST, ends)
    if arm.steps < ends and arm.status == "failed":
        mean = 0.0  # the update broke the run: there is nothing to evaluate
    return ArmOutcome(
        piece=arm,
        share=mean / best if best > 0 else math.nan,
        has_alarm=any(begins + GRACE_STEPS < step <= ends for step in arm.criticals),
        steps_lost=0 if begins == alarm else alarm - checkpoint,
    )


def share_of_twin(guarded: TrainedPiece, healthy: TrainedPiece) -> float:
    """Success of a guarded run over the last third, as a share of its healthy twin's."""
    if guarded.status != "finished":
        return 0.0  # the guard gave up, or the update broke the run
    span = (healthy.steps - LAST, healthy.steps)
    mean = healthy.mean_success(*span)
    return guarded.mean_success(*span) / mean if mean > 0 else math.nan


def success_change(treated: TrainedPiece, twin: TrainedPiece, begins: int) -> float:
    """What a treatment changes about a healthy twin's success over the last third; a difference."""
    ends = begins + FURTHER
    span = (ends - LAST, ends)
    return treated.mean_success(*span) - twin.mean_success(*span)
