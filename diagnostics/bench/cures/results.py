"""What the records of CureBench say: which kinds collapse, what holds them, what it costs.

Only pieces that were trained with the present setup count, and only arms of runs that collapsed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...judge.advice.measured import Measured, Rate
from ...judge.advice.treatments import (
    ADVICE,
    ASKED,
    GUARDED,
    GUARDS,
    PLACEBO,
    REWOUND,
    TREATMENTS,
    UNTREATED,
    Treatment,
    treatment,
)
from ...tools.curing import HELD
from .kinds import (
    ALL_SEEDS,
    DEVELOP,
    LEAST_COLLAPSES,
    OUT_OF,
    Kind,
    Twin,
    kinds,
    setup_of,
    twins,
)
from .records import (
    ArmOutcome,
    Records,
    TrainedPiece,
    follows,
    has_collapsed,
    outcome,
    share_of_twin,
    success_change,
)

Run = tuple[str, int]
"""Kind and seed of a run that collapsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindResult:
    """What became of the untreated runs of a kind."""

    kind: Kind
    collapsed: Rate
    symptoms: Mapping[str, int]
    """Alarm that stood first -> runs."""
    alarms: tuple[int, ...]
    """The step of the first critical alarm of each run that collapsed."""
    untreated: Rate
    """As `collapsed`, over every seed that was run."""

    @property
    def counts(self) -> bool | None:
        """Whether enough seeds collapse; None while the seeds that are missing decide."""
        of = max(self.untreated.of, OUT_OF)
        if OUT_OF * self.untreated.held >= LEAST_COLLAPSES * of:
            return True
        most = self.untreated.held + of - self.untreated.of
        return None if OUT_OF * most >= LEAST_COLLAPSES * of else False


@dataclass(frozen=True, slots=True, kw_only=True)
class SideEffect:
    """What a treatment changes about a healthy twin."""

    twin: Twin
    treatment: Treatment
    changes: tuple[float, ...]
    """Of success, a difference for each seed."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult:
    """What guarded runs of a kind, or of a healthy twin, became."""

    subject: Kind | Twin
    arm: str
    rewinds: tuple[int, ...]
    """How often each run was rewound."""
    held: Rate
    """Runs that ended with at least 80 % of the twin's success."""
    share: float
    """Median of the success over the last third, as a share of the twin's; NaN without a twin."""
    untouched: Rate
    """Runs that the guard left alone: it neither treated nor ended them."""


class Results:
    """Everything that tables and advice are made from.

    Args:
        records: As they were read.
        seeds: Those that count: the ones to develop on, or the ones set aside.
    """

    def __init__(self, records: Records, seeds: Sequence[int] = DEVELOP) -> None:
        self._records, self.seeds = records, tuple(seeds)

    def piece(self, subject: Kind | Twin, seed: int, arm: str) -> TrainedPiece | None:
        """A piece of the present setup; to rewind alone is the untreated run, if nothing was live.

        A branch without changed settings trains bit for bit as its parent went on.
        """
        is_replay = arm == REWOUND and not (isinstance(subject, Kind) and subject.live)
        trained = UNTREATED if is_replay else arm
        piece = self._records.pieces.get((subject.name, seed, trained))
        if piece is None or piece.setup != setup_of(subject, trained):
            return None
        untreated = self._records.pieces.get((subject.name, seed, UNTREATED))
        return piece if isinstance(subject, Twin) or follows(piece, untreated) else None

    def collapsed(self, kind: Kind) -> list[TrainedPiece]:
        """The untreated runs of a kind that collapsed and had a checkpoint to go back to."""
        runs = (self.piece(kind, seed, UNTREATED) for seed in self.seeds)
        return [
            run
            for run in runs
            if run is not None and has_collapsed(run) and run.checkpoint is not None
        ]

    def kinds(self) -> list[KindResult]:
        """Every kind, in the order of `kinds.toml`."""
        out = []
        for kind in kinds().values():
            every = [r for seed in ALL_SEEDS if (r := self.piece(kind, seed, UNTREATED))]
            runs = [run for run in every if run.seed in self.seeds]
            fallen = [run for run in runs if has_collapsed(run)]
            out.append(
                KindResult(
                    kind=kind,
                    collapsed=Rate(held=len(fallen), of=len(runs)),
                    symptoms=Counter(run.rules[0] for run in fallen if run.rules),
                    alarms=tuple(run.alarm for run in fallen if run.alarm is not None),
                    untreated=Rate(held=sum(map(has_collapsed, every)), of=len(every)),
                )
            )
        return out

    def outcomes(self, kind: Kind, arm: str) -> list[tuple[TrainedPiece, ArmOutcome]]:
        """(untreated run, what became of the arm) for every collapsed run that has the arm."""
        out = []
        for untreated in self.collapsed(kind):
            piece = self.piece(kind, untreated.seed, arm)
            judged = None if piece is None else outcome(piece, untreated, arm)
            if judged is not None:
                out.append((untreated, judged))
        return out

    def arms(self) -> Iterator[tuple[Kind, str, list[ArmOutcome]]]:
        """Every arm of every kind that was trained at least once, the controls first."""
        for kind in kinds().values():
            for arm in dict.fromkeys((UNTREATED, REWOUND, *kind.arms)):
                judged = [outcome_ for _, outcome_ in self.outcomes(kind, arm)]
                if judged and arm not in GUARDS:  # judged against the twin: see `guards`
                    yield kind, arm, judged

    def guards(self) -> list[GuardResult]:
        """Guarded runs of every kind that counts and collapsed untreated, then the twins'."""
        out = []
        counting = [each.kind for each in self.kinds() if each.counts is not False]
        subjects: list[Kind | Twin] = [*counting, *twins().values()]
        alone = [(subject, GUARDED) for subject in subjects]
        asking = [(subject, ASKED) for subject in counting if subject.is_of_task]
        for subject, arm in (*alone, *asking):
            twin = subject.twin if isinstance(subject, Kind) else subject
            rewinds, shares, num_untouched = [], [], 0
            for seed in self.seeds:
                guarded = self.piece(subject, seed, arm)
                if guarded is None or not self._is_wanted(subject, seed):
                    continue
                rewinds.append(len(guarded.rewinds))
                num_untouched += not guarded.rewinds and guarded.status == "finished"
                healthy = self._healthy(twin, seed)
                if healthy is not None:
                    shares.append(share_of_twin(guarded, healthy))
            if rewinds:
                out.append(
                    GuardResult(
                        subject=subject,
                        arm=arm,
                        rewinds=tuple(rewinds),
                        untouched=Rate(held=num_untouched, of=len(rewinds)),
                        held=Rate(held=sum(share >= HELD for share in shares), of=len(shares)),
                        share=statistics.median(shares) if shares else math.nan,
                    )
                )
        return out

    def _is_wanted(self, subject: Kind | Twin, seed: int) -> bool:
        """Whether a guarded run shows something: a twin, or one that collapses untreated."""
        untreated = self.piece(subject, seed, UNTREATED)
        is_fallen = untreated is not None and has_collapsed(untreated)
        return is_fallen or isinstance(subject, Twin)

    def _healthy(self, twin: Twin, seed: int) -> TrainedPiece | None:
        """The twin itself; a guard that does nothing changes nothing, so that run is the same."""
        guarded = self.piece(twin, seed, GUARDED)
        is_same = guarded is not None and not guarded.rewinds and guarded.status == "finished"
        return self.piece(twin, seed, UNTREATED) or (guarded if is_same else None)

    def side_effects(self) -> list[SideEffect]:
        """Every treatment that was given to a healthy twin."""
        out = []
        for twin in twins().values():
            for each in TREATMENTS:
                changes = []
                for seed in self.seeds:
                    healthy = self.piece(twin, seed, UNTREATED)
                    treated = self.piece(twin, seed, each.name)
                    if healthy is not None and treated is not None:
                        changes.append(success_change(treated, healthy, twin.begins))
                if changes:
                    out.append(SideEffect(twin=twin, treatment=each, changes=tuple(changes)))
        return out

    def measured(self) -> list[Measured]:
        """The table of advice: symptom by symptom, what helped most first.

        Kinds of which too few seeds collapse are left out.
        """
        effects = self.side_effects()
        rows = [
            _measured(symptom, name, by_arm, effects)
            for symptom, by_arm in self._by_symptom().items()
            for name in by_arm
            if name not in (REWOUND, PLACEBO, ADVICE, *GUARDS)
        ]
        return sorted(
            rows, key=lambda row: (row.symptom, not row.is_shown, -row.rate.low, -row.rate.of)
        )

    def _by_symptom(self) -> dict[str, dict[str, dict[Run, ArmOutcome]]]:
        """First alarm -> arm -> (kind, seed) -> what became of it."""
        out: dict[str, dict[str, dict[Run, ArmOutcome]]] = {}
        for result in self.kinds():
            if result.counts is False:
                continue
            for arm in dict.fromkeys((REWOUND, *result.kind.arms)):
                for untreated, judged in self.outcomes(result.kind, arm):
                    for symptom in untreated.rules[:1]:
                        runs = out.setdefault(symptom, {}).setdefault(arm, {})
                        runs[(untreated.of, untreated.seed)] = judged
        return out

    def wanted(self) -> Iterator[tuple[Kind | Twin, int, str]]:
        """Every piece that the tables need, as far as is known by now."""
        for kind in kinds().values():
            for seed in self.seeds:
                yield kind, seed, UNTREATED
            for untreated in self.collapsed(kind):
                for arm in kind.arms:
                    yield kind, untreated.seed, arm
        for twin in twins().values():
            names = {n for kind in kinds().values() if kind.twin == twin for n in kind.treatments}
            for seed in self.seeds:
                for arm in (UNTREATED, *sorted(names), GUARDED):
                    yield twin, seed, arm

    def missing(self) -> tuple[int, int]:
        """How many pieces are not trained, and of how many."""
        pieces = [self.piece(*each) is not None for each in self.wanted()]
        return pieces.count(False), len(pieces)


def rate_of(judged: Iterable[ArmOutcome]) -> Rate:
    """How many of them are cured."""
    held = [each.is_cured for each in judged]
    return Rate(held=sum(held), of=len(held))


def _measured(
    symptom: str,
    name: str,
    by_arm: Mapping[str, Mapping[Run, ArmOutcome]],
    effects: Sequence[SideEffect],
) -> Measured:
    """A treatment beside the better control over the same runs."""
    runs = by_arm[name]
    controls = [
        rate_of(outcome_ for run, outcome_ in by_arm.get(arm, {}).items() if run in runs)
        for arm in (REWOUND, PLACEBO)
    ]
    changes = [c for e in effects if e.treatment.name == name for c in e.changes]
    finite = [change for change in changes if math.isfinite(change)]
    return Measured(
        symptom=symptom,
        treatment=treatment(name),
        rate=rate_of(runs.values()),
        control=max(controls, key=lambda rate: (rate.of > 0, rate.share if rate.of else 0)),
        twin_change=statistics.fmean(finite) if finite else None,
        twin_runs=len(finite),
    )
