"""What may cure a collapsed run: settings to go on with from a checkpoint, the best founded first.

The guard takes the first that it has not tried; `echoscope cure` compares up to `MOST` of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .advice.actions import good_checkpoint
from .advice.causes import STEP_RULES, rounded
from .alarms import AlarmEngine, RunState
from .verdict import Diagnosis, judged_again

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

MOST = 4
"""Proposals for one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One treatment."""

    settings: Mapping[str, Any]
    """Dotted key to the new value."""
    checkpoint: int
    """Step of the checkpoint to go on from."""
    why: str
    """What it rests on and what it does, in sentences."""
    rate: str = ""
    """How often it was measured to cure such runs, in words; empty where nobody measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """What may cure a run, or why nothing can be proposed."""

    state: RunState
    kinds: tuple[str, ...]
    """Rules of the open alarms, the most serious first."""
    treatments: tuple[Proposal, ...]
    why_none: str = ""
    """One sentence; empty where there are treatments."""


def proposals_of(run: RunReader) -> Proposals:
    """What may cure a stored run, as it stands after its last step.

    Raises:
        StoreError: the run cannot be read.
    """
    from ..read.sources import open_source  # reads stores

    opened = open_source(run)
    diagnosis = Diagnosis(run_id=opened.run_id, run=opened.name)
    for _ in judged_again(opened, diagnosis):
        pass
    engine, state = diagnosis.engine, diagnosis.run_state()
    kinds = tuple(alarm.rule for alarm in engine.open_alarms)
    if not state.is_failure:
        why = f"The run is not collapsing: its state is {state.value}."
        return Proposals(state=state, kinds=kinds, treatments=(), why_none=why)
    step, why = good_checkpoint(engine.open_records(), engine.situation)
    if step is None:
        return Proposals(state=state, kinds=kinds, treatments=(), why_none=why)
    treatments = tuple(_each_once(_candidates(engine, step)))[:MOST]
    why = (
        "" if treatments else "Nothing is known that may cure this; `echoscope diagnose` says more."
    )
    return Proposals(state=state, kinds=kinds, treatments=treatments, why_none=why)


def _candidates(engine: AlarmEngine, step: int) -> Iterator[Proposal]:
    """What takes a cause away, the best founded cause first; then smaller steps."""
    for cause in engine.causes():
        if not cause.settings or cause.is_task:
            continue
        before, _ = good_checkpoint(engine.open_records(), engine.situation, before=cause.since)
        if before is not None:
            why = f"Likely cause: {cause.text}. {cause.why}".strip()
            yield Proposal(settings=dict(cause.settings), checkpoint=before, why=why)
    rate = engine.situation.number("optim.lr")
    if rate > 0 and STEP_RULES & {alarm.rule for alarm in engine.open_alarms}:
        why = (
            "No cause is known that this takes away; smaller steps move the policy less at a time."
        )
        for part in (3, 10):
            yield Proposal(settings={"optim.lr": rounded(rate / part)}, checkpoint=step, why=why)


def _each_once(candidates: Iterator[Proposal]) -> Iterator[Proposal]:
    seen: list[Mapping[str, Any]] = []
    for proposal in candidates:
        if proposal.settings not in seen:
            seen.append(proposal.settings)
            yield proposal
