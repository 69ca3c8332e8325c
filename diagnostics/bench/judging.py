"""The diagnosis of one labelled run: what the verdict and every rule said, and when they began."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from echoscope.store.records import SEVERITY_RANK, AlarmState
from echoscope.text.strict_json import finite_or_none

from ..judge.alarms import RULE_ORDER, RunState
from ..judge.calibration import HORIZON, Calm, Count, kinds_of
from ..judge.courses.channels import CHANNELS, SPECS, ChannelSpec, derived
from ..judge.courses.course import matches
from ..judge.regimes import Regime
from ..judge.verdict import Diagnosis
from .harness import KINDS, LabelledRun
from .scores import Call

Rows = Iterable[tuple[int, Mapping[str, float]]]
Key = TypeVar("Key", bound=Hashable)


WEIGHTS = ("/num_tasks", "/num_episodes", "/num_groups")
_QUIET = (RunState.HEALTHY, RunState.CONVERGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the verdict said at one step of a labelled run."""

    step: int
    what: str
    """`healthy` or `collapse`."""
    confidence: str
    calm: Calm | None = None
    """Of `healthy`."""
    num_kinds: int = 0
    """Kinds of signals that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCalls:
    """What one rule said in one run."""

    warning: Call
    """A warning or worse."""
    critical: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """What the diagnosis said about one labelled run."""

    run: LabelledRun
    state: RunState
    kinds: tuple[str, ...]
    """Rules open in the end, most serious first."""
    regime: Regime
    watch: Call
    critical: Call
    """Of the run: collapsing or collapsed."""
    rules: Mapping[str, RuleCalls]
    said: tuple[Said, ...] = ()
    """What was said step by step, with its confidence."""

    @property
    def is_kind_right(self) -> bool:
        """The most serious rule is the one that the label names."""
        return bool(self.kinds) and KINDS.get(self.run.label) == self.kinds[0]

    @property
    def first_watch_step(self) -> int | None:
        return self.watch.steps[0] if self.watch.steps else None

    @property
    def first_critical_step(self) -> int | None:
        return self.critical.steps[0] if self.critical.steps else None

    def to_json(self) -> dict[str, Any]:
        """What was said about the run, beside its label."""
        run, call = self.run, self.critical
        return {
            "name": run.name,
            "label": run.label,
            "seed": run.seed,
            "counts": run.counts,
            "collapsed": run.is_collapsed,
            "onset_labelled": run.onset_step,
            "halved_step": run.halved_step,
            "state": self.state.value,
            "first_watch_step": self.first_watch_step,
            "first_critical_step": self.first_critical_step,
            "false_critical_steps": list(call.false_steps),
            "detected": run.is_collapsed and call.is_in_time,
            "lead": finite_or_none(call.lead) if run.is_collapsed else None,
            "kinds": list(self.kinds),
            "kind_right": self.is_kind_right,
            "onset_step": call.onset_step,
            "regime_labelled": None if run.regime is None else run.regime.value,
            "regime": self.regime.value,
        }


@dataclass(slots=True)
class _Follower:
    """Collects the steps at which a rank is reached from below."""

    warnings: list[int]
    criticals: list[int]
    onset: int | None = None
    rank: int = 0

    def reach(self, rank: int, step: int, onset: int | None) -> None:
        if rank >= 1 > self.rank:
            self.warnings.append(step)
        if rank >= 2 > self.rank:
            self.criticals.append(step)
        is_first = len(self.criticals) + len(self.warnings) == 1
        if is_first or (rank == 2 and self.rank < 2 and len(self.criticals) == 1):
            self.onset = onset
        self.rank = rank

    def calls(self, run: LabelledRun) -> RuleCalls:
        return RuleCalls(
            warning=Call(run=run, steps=tuple(self.warnings), onset_step=self.onset),
            critical=Call(run=run, steps=tuple(self.criticals), onset_step=self.onset),
        )


def _said(diagnosis: Diagnosis, step: int) -> list[Said]:
    """What the verdict says at this step, if it says that the run is healthy or that it is not."""
    state = diagnosis.engine.run_state
    confidence, _ = diagnosis.confidence()
    if confidence == "none" or not (state.is_collapse or state in _QUIET):
        return []
    is_quiet = state in _QUIET
    return [
        Said(
            step=step,
            what="healthy" if is_quiet else "collapse",
            confidence=confidence,
            calm=diagnosis.calm() if is_quiet else None,
            num_kinds=len(diagnosis.kinds),
        )
    ]


def said_with_less(run: LabelledRun) -> list[Said]:
    """What is said of a run when kinds of signals are left out, down to success alone.

    For each number of kinds one choice of them, the same at each call; all of them is not among it.
    """
    rows = [(step, {**values, **derived(values)}) for step, values in run.table.rows()]
    kinds = {name: _kind_of_metric(name) for _, values in rows for name in values}
    others = sorted({kind for kind in kinds.values() if kind} - {"success"})
    out: list[Said] = []
    for num in range(len(others)):
        kept = {"success", *random.Random(f"{run.name} {num}").sample(others, num)}
        names = {name for name, kind in kinds.items() if kind in kept}
        names |= {name for name in kinds if name.endswith(WEIGHTS)}
        diagnosis = Diagnosis()
        for step, values in rows:
            diagnosis.observe(step, {name: v for name, v in values.items() if name in names})
            out += _said(diagnosis, step)
    return out


def _kind_of_metric(name: str) -> str:
    """The kind of signal that a metric is; empty if no channel follows it."""
    channels = [spec.name for spec in SPECS if any(matches(name, key) for key in spec.keys)]
    return next(iter(kinds_of(channels)), "")


def judge(
    run: LabelledRun, *, rows: Rows | None = None, channels: Sequence[ChannelSpec] = CHANNELS
) -> JudgedRun:
    """The diagnosis of a run, which sees its metrics and not its label.

    Args:
        rows: The run's rows, if they have been read before.
        channels: Other distances than the usual ones.
    """
    diagnosis = Diagnosis(channels=channels)
    rules: dict[str, _Follower] = {name: _Follower([], []) for name in RULE_ORDER}
    whole = _Follower([], [])
    statements: list[Said] = []
    for step, values in run.table.rows() if rows is None else rows:
        for event in diagnosis.observe(step, values):
            is_over = event.state is AlarmState.CLEARED
            rank = 0 if is_over else SEVERITY_RANK[event.severity]
            rules[event.rule].reach(rank, step, event.onset_step)
        state = diagnosis.engine.run_state
        whole.reach(
            2 if state.is_collapse else int(state is RunState.WATCH or state.is_failure), step, None
        )
        statements += _said(diagnosis, step)
    verdict = diagnosis.verdict()
    onset = verdict.onset_step
    return JudgedRun(
        run=run,
        state=verdict.state,
        kinds=verdict.kinds,
        regime=verdict.regime,
        watch=Call(run=run, steps=tuple(whole.warnings), onset_step=onset),
        critical=Call(run=run, steps=tuple(whole.criticals), onset_step=onset),
        rules={name: follower.calls(run) for name, follower in rules.items()},
        said=tuple(statements),
    )


def is_wrong(statement: Said, run: LabelledRun) -> bool:
    """Was it wrong, as the label has it?"""
    if statement.what == "collapse":
        return statement.step < run.healthy_until
    halved = run.halved_step
    return (
        run.is_collapsed
        and halved is not None
        and statement.step < halved <= statement.step + HORIZON
    )


Statements = Iterable[tuple[LabelledRun, Iterable[Said]]]


def calibrated(runs: Statements) -> dict[tuple[str, str], Count]:
    """(what was said, confidence) -> how often it was wrong; runs that count only."""
    return _counted(runs, lambda said: (said.what, said.confidence))


def counted_by_kinds(runs: Statements) -> dict[tuple[Calm, int], Count]:
    """(how calm, kinds of signals) -> how often a collapse followed; runs that count only."""
    counts = _counted(runs, lambda said: (said.calm, said.num_kinds))
    return {(calm, num): count for (calm, num), count in counts.items() if calm is not None}


def _counted(runs: Statements, key_of: Callable[[Said], Key]) -> dict[Key, Count]:
    """How many of the statements of a key were wrong, and how many there are."""
    counts: dict[Key, Count] = {}
    for run, statements in runs:
        for statement in statements if run.counts else ():
            key = key_of(statement)
            wrong, total = counts.get(key, (0, 0))
            counts[key] = (wrong + is_wrong(statement, run), total + 1)
    return counts
