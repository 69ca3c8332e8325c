"""What came before a branch: its parent's metrics up to the step it took over at.

A branch without its parent's history has no best to fall from and no lost success to win back. So
it is judged after the rows of its parent, the monitor of a live branch included. What the branch
changed about the tasks makes older numbers of those tasks another quantity: such channels begin
anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoscope.store.log.layout import Layout

from ..read.table import table_of_run

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

_TRAINED = ("success_train", "reward", "spread", "zero_spread")
_PROBED = ("success_probe",)
_EVALUATED = ("success_eval", "eval_action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """One ancestor's part of the history."""

    rows: tuple[tuple[int, Mapping[str, float]], ...]
    """Of the ancestor, up to the step at which the next one took over."""
    restarted: tuple[str, ...]
    """Channels that begin anew after these rows."""


def restarted_channels(changed: Collection[str]) -> tuple[str, ...]:
    """The channels whose tasks or rewards a branch changed, from the dotted keys it changed.

    >>> restarted_channels(["optim.lr"])
    ()
    >>> "success_train" in restarted_channels(["envs.train.0.params.slip"])
    True
    """
    out: tuple[str, ...] = ()
    if any(key.startswith(("envs.train", "envs.group_size", "reward.")) for key in changed):
        out += _TRAINED
    if any(key.startswith(("envs.probe", "probe.", "envs.train")) for key in changed):
        out += _PROBED
    if any(key.startswith(("envs.eval", "eval.temp", "eval.top")) for key in changed):
        out += _EVALUATED
    return out


def history_of(run: RunReader) -> tuple[list[Before], str]:
    """What came before a run, the eldest first, and a note where a parent is gone."""
    from echoscope.store.errors import StoreError
    from echoscope.store.reader import open_run

    info = run.info()
    origin = _mapping(info.config).get("branched_from")
    if not isinstance(origin, Mapping) or not isinstance(origin.get("step"), int):
        return [], ""
    name = str(origin.get("run_id", ""))
    folder = info.path.parent / name
    if not name or folder.parent != info.path.parent or not Layout(folder).run_json.is_file():
        return [], f"the parent run {name} is not beside this one: judged without its history"
    try:
        parent = open_run(folder)
        rows = tuple(
            (step, values) for step, values in table_of_run(parent).rows() if step <= origin["step"]
        )
        elder, note = history_of(parent)
    except StoreError as error:
        return [], f"the parent run {name} cannot be read, judged without its history: {error}"
    changed = _changed(parent.info().config, info.config)
    own = {step for step, _ in table_of_run(run).rows()}
    kept = tuple(row for row in rows if row[0] not in own)
    return [*elder, Before(rows=kept, restarted=restarted_channels(changed))], note


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
        value = {str(index): one for index, one in enumerate(value)}
    if not isinstance(value, Mapping) or not value:
        yield prefix, value
        return
    for key, below in value.items():
        yield from _leaves(below, f"{prefix}.{key}" if prefix else str(key))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
