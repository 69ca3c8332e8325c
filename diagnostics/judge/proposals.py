"""What may cure a collapsed run: settings to go on with from a checkpoint, the best founded first.

The guard takes the first that it has not tried; `echoscope cure` compares up to `MOST` of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .advice.actions import checkpoint_before, good_checkpoint
from .advice.causes import STEP_RULES, treatment_of
from .advice.measured import of_settings, offered
from .advice.situation import Situation
from .advice.treatments import treatment
from .alarms import AlarmEngine, RunState
from .verdict import Diagnosis, judged_again

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

MOST = 4
"""Proposals for one run."""
NEAR = 1.25
"""Factor up to which two values of a setting are the same treatment."""


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
    is_of_task: bool = False
    """It changes what the policy is trained on; only a person may agree to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """What may cure a run, or why nothing can be proposed."""

    state: RunState
    kinds: tuple[str, ...]
    """Rules of the open alarms, the most serious first."""
    treatments: tuple[Proposal, ...]
    why_none: str = ""
    """One sentence; empty where there are treatments."""


def proposals_of(run: RunReader, *, may_change_task: bool = False) -> Proposals:
    """What may cure a stored run, as it stands after its last step.

    Args:
        may_change_task: a person decides, so another task may be proposed too.

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
        why = f"No collapse to cure: the run's state is {state.value}."
        return Proposals(state=state, kinds=kinds, treatments=(), why_none=why)
    step, why = good_checkpoint(engine.open_records(), engine.situation)
    if step is None:
        return Proposals(state=state, kinds=kinds, treatments=(), why_none=why)
    treatments = treatments_of(engine, step, may_change_task=may_change_task)
    why = (
        "" if treatments else "Nothing is known that may cure this; `echoscope diagnose` says more."
    )
    return Proposals(state=state, kinds=kinds, treatments=treatments, why_none=why)


def treatments_of(
    engine: AlarmEngine, checkpoint: int, *, may_change_task: bool = False
) -> tuple[Proposal, ...]:
    """What may cure a run that collapsed, the best founded first; at most `MOST`.

    Args:
        checkpoint: the last from before the change; some causes want an older one.
        may_change_task: as for `proposals_of`.
    """
    candidates = (
        each for each in _candidates(engine, checkpoint) if may_change_task or not each.is_of_task
    )
    return tuple(_each_once(candidates))[:MOST]


def _candidates(engine: AlarmEngine, step: int) -> Iterator[Proposal]:
    """What takes a cause away, the best founded cause first; then what helped such runs.

    Smaller steps come after what was shown to help, and before what else has held one.
    """
    situation = engine.situation
    rules, causes = engine.leading_rules, engine.causes()
    first = next(iter(rules), "")
    for cause in causes:
        if not cause.settings:
            continue
        settings = treatment_of(cause, causes, rules, situation)
        before, _ = checkpoint_before(cause, settings, engine.open_records(), situation)
        if before is not None:
            lead = "It changes the training task. " if cause.is_task else ""
            why = f"{lead}Likely cause: {cause.text}. {cause.why}".strip()
            yield Proposal(
                settings=settings,
                checkpoint=before,
                why=why,
                rate=_rate(first, settings, situation),
                is_of_task=cause.is_task,
            )
    rows = offered(first, situation.setting)
    smaller = [treatment(name) for name in ("lr-third", "lr-tenth")]
    has_step_rule = not STEP_RULES.isdisjoint(rules)
    for each in (
        *(row.treatment for row in rows if row.is_shown),
        *(smaller if has_step_rule else ()),
        *(row.treatment for row in rows if row.rate.held),
    ):
        settings = each.settings(situation.setting)
        if settings:
            yield Proposal(
                settings=settings,
                checkpoint=step,
                why=f"It takes away no known cause. {each.why}",
                rate=_rate(first, settings, situation),
                is_of_task=each.is_of_task,
            )


def _rate(symptom: str, settings: Mapping[str, Any], situation: Situation) -> str:
    """How often the settings held runs with this alarm, as a sentence; empty if not measured."""
    row = of_settings(symptom, settings, situation.setting)
    return "" if row is None else row.words


def _each_once(candidates: Iterator[Proposal]) -> Iterator[Proposal]:
    seen: list[Mapping[str, Any]] = []
    for proposal in candidates:
        if not any(_is_same(proposal.settings, before) for before in seen):
            seen.append(proposal.settings)
            yield proposal


def _is_same(settings: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether two treatments set the same to the same, or to numbers that differ by little.

    >>> _is_same({"optim.lr": 3e-4}, {"optim.lr": 3.3e-4})
    True
    >>> _is_same({"optim.lr": 3e-4}, {"optim.lr": 1e-4})
    False
    """
    return settings.keys() == before.keys() and all(
        _is_near(value, before[key]) for key, value in settings.items()
    )


def _is_near(new: Any, old: Any) -> bool:
    are_numbers = all(isinstance(value, float) and value > 0 for value in (new, old))
    return new == old or (are_numbers and max(new, old) <= NEAR * min(new, old))
