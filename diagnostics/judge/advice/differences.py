"""Settings that differ: changed shortly before, changed by a branch, or other than the recipe's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from echoscope.store.status import after_step

from .situation import SettingsChange, Situation

SHORTLY = 10
"""Steps before an onset within which a change may have caused it."""
_NO_CAUSE = (
    "seed",
    "steps",
    "threads",
    "engine",
    "eval.before",
    "eval.every",
    "probe.every",
    "checkpoint",
    "diagnostics",
    "sinks",
    "observers",
    "model.packing",
    "model.gradient_checkpointing",
    "optim.max_microbatch_tokens",
    "optim.offload",
)
"""Settings that change nothing of what is learned or measured."""
_TRAINS = (
    "optim.",
    "loss.",
    "advantage",
    "reward.",
    "selection.",
    "off_policy.",
    "sampling.",
    "critic.",
    "dynamic_sampling.",
    "envs.group_size",
)
"""Settings whose difference from a recipe may let a run collapse, the likeliest first."""
_SHOWS_TASK = ("context.", "sampling.", "model.")
"""... may keep a run from learning at all."""
_RISING = ("optim.lr", "optim.epochs", "loss.entropy_coef")
_FALLING = ("loss.kl_coef", "optim.warmup_steps", "envs.group_size")
"""Settings that do harm in one direction only."""

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting that was changed before what an alarm reports."""

    key: str
    change: SettingsChange
    near: Interval | None
    """The onset that it shortly precedes; None for an earlier change of a branch."""

    @property
    def old(self) -> Any:
        return self.change.values[self.key][0]

    @property
    def new(self) -> Any:
        return self.change.values[self.key][1]


def changes_before(onsets: Mapping[str, Interval], situation: Situation) -> list[Difference]:
    """What was changed before what the alarms report: of each setting the last change.

    What the worst alarm reports began before a later change, which is no cause of it. A change
    shortly before it comes first, then those before what lesser alarms report. Setting something
    back to what it was is no change.

    Args:
        onsets: Alarm to the first and last step at which what it reports may have begun, the worst
            first.
    """
    _, latest = next(iter(onsets.values()))
    differences: dict[str, Difference] = {}
    olds: dict[str, list[Any]] = {}
    for change in situation.changes:
        near = next((o for o in onsets.values() if o[0] - SHORTLY <= change.step <= o[1]), None)
        if change.step > latest or (near is None and not change.is_branch):
            continue
        for key, (old, new) in change.values.items():
            is_back = new in olds.setdefault(key, [])
            olds[key].append(old)
            if not is_back and _may_cause(key, old, new, onsets):
                differences[key] = Difference(key=key, change=change, near=near)
    places: list[Interval | None] = [*onsets.values(), None]
    return sorted(differences.values(), key=lambda difference: places.index(difference.near))


def change_words(difference: Difference, situation: Situation) -> str:
    """`optim.lr was set to 0.004 after step 33 (before: 0.0003)`, and when it was set back."""
    when, old, new = (
        after_step(difference.change.step - 1),
        *map(setting_words, (difference.old, difference.new)),
    )
    if difference.change.is_branch:
        sentence = f"the branch {when} set {difference.key} to {new} (its parent: {old})"
    else:
        sentence = f"{difference.key} was set to {new} {when} (before: {old})"
    back = set_back(difference, situation)
    return sentence if back is None else f"{sentence}, and set back {after_step(back - 1)}"


def set_back(difference: Difference, situation: Situation) -> int | None:
    """The first step that trained with the earlier value again; None where it does not hold."""
    changes = [c for c in situation.changes if difference.key in c.values]
    if changes[-1].values[difference.key][1] != difference.old:
        return None
    later = (c.step for c in changes if c.step > difference.change.step)
    return next((step for step in later), None)


def recipe_differences(
    names: Collection[str], situation: Situation
) -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value of this run, the recipe's value) of what may be why, likeliest first."""
    _, values = situation.recipe
    starts = _SHOWS_TASK if "NOT_LEARNING" in names else _TRAINS
    for start in starts:
        for key, base in values.items():
            own = situation.setting(key)
            if key.startswith(start) and own != base and _may_cause(key, base, own, names):
                yield key, own, base
    if "FORMAT_COLLAPSE" in names:
        for key, base in values.items():
            if key.startswith("envs.train.") and key.endswith(".format_penalty"):
                yield key, situation.setting(key), base


def _may_cause(key: str, old: Any, new: Any, names: Collection[str]) -> bool:
    if key.startswith(_NO_CAUSE):
        return False
    if key == "loss.entropy_coef" and "LOW_ENTROPY_COLLAPSE" in names:
        return "ENTROPY_EXPLOSION" in names
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return True
    return not (key in _RISING and new < old) and not (key in _FALLING and new > old)


def setting_words(value: Any) -> str:
    """A value as a sentence shows it.

    >>> setting_words(0.0003), setting_words([{"name": "length"}]), setting_words([])
    ('0.0003', '[length]', '[]')
    """
    if isinstance(value, list):
        names = [v.get("name", "...") if isinstance(v, Mapping) else v for v in value]
        return f"[{', '.join(map(str, names))}]"
    return "{...}" if isinstance(value, Mapping) else shown(value)


def shown(value: Any) -> str:
    """A value as it is typed: short, and read back as the same.

    >>> shown(True), shown(1e-6), shown(0.0), shown("rloo"), shown(None)
    ('true', '1e-06', '0', 'rloo', 'null')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)
