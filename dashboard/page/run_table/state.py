"""What the address of the page Runs says: filter, order, groups, columns, curves. And the ticks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import streamlit as st

from echoscope.dashboard.data.run_table.columns import RunsColumn
from echoscope.dashboard.data.run_table.saved_views import PARAMS
from echoscope.dashboard.data.run_table.table import RunsTable
from echoscope.store.query.metric_keys import RETURN_MEAN, SUCCESS_RATE

from ...data.run_table.columns import EVALUATED
from ..problems import Problem
from ..ui import ARRIVED, notice
from ..url_state import TICKED, go, list_param, text_param

SEEDS = "seeds"
"""Groups by every setting that differs but the seed."""
NEWEST = "-started"
MAX_GROUPED = 12
MAX_COLUMNS = 40
MAX_CURVES = 4
_GENERATION, _TABLE = "_runs_generation", "_runs_table"
_CHOICES, _ADDRESS = "_runs_choices", "_runs_address"
_KEPT = (*PARAMS, "view", "page", "hide", "solo")
"""What of the address holds until somebody comes back from another page."""
_ALWAYS = ("status", "verdict", "success")
_IF_ANY = ("eval_success", "env", "algo")
_AFTER = ("alarm", "trainer", "branched", "started", "tags", "note")
"""Columns of every run, those that are left out where no run has anything in them, and those of
them that come after the settings."""
_MAX_SETTINGS = 4
"""Settings that differ and are columns unless somebody chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """What of the address the table is drawn by, each checked against the columns there are."""

    filter: str
    order: str
    groups: tuple[str, ...]
    columns: tuple[str, ...]
    curves: tuple[str, ...]
    """Metrics; none where no curves are wanted."""
    open_groups: frozenset[str]
    hidden: frozenset[str]
    solo: str

    def draws(self, digest: str) -> bool:
        """Whether the curve of a run or group is drawn: not hidden, and no other stands alone."""
        return digest == self.solo if self.solo else digest not in self.hidden


def asked(table: RunsTable) -> TableRequest:
    """The address, with a notice about each name in it that does not exist."""
    order = st.query_params.get("sort", "") or NEWEST
    falls, name = order.startswith("-"), order.removeprefix("-")
    ordered = _columns(table, [name])
    order = f"{'-' if falls else ''}{ordered[0].name}" if ordered else NEWEST
    columns = list_param("cols", most=MAX_COLUMNS) or default_columns(table)
    return TableRequest(
        filter=text_param("filter", most=500),
        order=order,
        groups=groups_of(table, list_param("group", most=MAX_GROUPED)),
        columns=tuple(column.name for column in _columns(table, columns)),
        curves=_curves(table),
        open_groups=frozenset(list_param("open", most=50)),
        hidden=frozenset(list_param("hide", most=100)),
        solo=text_param("solo", most=20),
    )


def groups_of(table: RunsTable, names: Iterable[str]) -> tuple[str, ...]:
    """Columns to group by, with `seeds` as the settings that it stands for."""
    whole: list[str] = []
    for name in names:
        whole += table.catalogue.differing if name == SEEDS else [name]
    return tuple(dict.fromkeys(column.name for column in _columns(table, whole)))


def default_columns(table: RunsTable) -> list[str]:
    """What is shown unless somebody chooses: what runs have, and the settings that differ."""
    filled, after = (
        [name for name in names if any(v not in (None, "") for v in table.values(name))]
        for names in (_IF_ANY, _AFTER)
    )
    told = {tuple(table.values(name)) for name in ("env", "algo")}
    settings = [
        name
        for name in table.catalogue.differing
        if tuple(table.values(name)) not in told  # the column of every run says it
    ]
    return [*_ALWAYS, *filled, *settings[:_MAX_SETTINGS], "step", "history", *after]


def _curves(table: RunsTable) -> tuple[str, ...]:
    """Metrics: those that somebody chose, or one."""
    if st.query_params.get("curves") == "0":
        return ()
    chosen = list_param("curve", most=MAX_CURVES)
    metrics = table.catalogue.metrics
    known = {*metrics, EVALUATED}
    for key in chosen:
        if key not in known and table.num_read == len(table.rows):
            notice(f"no run has the metric {key!r}; its curves are not drawn")
    usual = [key for key in (SUCCESS_RATE, RETURN_MEAN, *metrics[:1]) if key in metrics][:1]
    return tuple(key for key in chosen if key in known) or tuple(usual)


def _columns(table: RunsTable, names: Sequence[str]) -> list[RunsColumn]:
    columns = []
    for name in names:
        try:
            columns.append(table.column(name))
        except Problem as problem:
            if table.num_read == len(table.rows):  # else it may come with a run that is being read
                notice(f"{problem.text}; it is left out")
    return columns


def sort_by_heading(name: str, *, is_number: bool) -> None:
    """A heading was clicked: by its column, then the other way round, then the newest first."""
    now = st.query_params.get("sort", "")
    first, second = (f"-{name}", name) if is_number else (name, f"-{name}")
    go(sort={first: second, second: None}.get(now, first), page=None)


def restore_address() -> None:
    """Whoever comes back from another page finds the table as it was left."""
    has_come = st.session_state.pop(ARRIVED, False)
    if has_come and not any(param in st.query_params for param in _KEPT):
        go(**st.session_state.get(_ADDRESS, {}))


def keep_address() -> None:
    st.session_state[_ADDRESS] = {p: st.query_params[p] for p in _KEPT if p in st.query_params}


def widget_key(name: str, value: object) -> str:
    """Key of a menu that shows a value of the address.

    A closed menu sends along what it showed when it was open. So where anything else has changed
    the value, the menu is another one.
    """
    choices = st.session_state.setdefault(_CHOICES, {})
    shown, number = choices.get(name, (value, 0))
    if shown != value:
        number += 1
    choices[name] = value, number
    return _menu_key(name, number)


def _menu_key(name: str, number: int) -> str:
    return f"_runs_{name}_{number}"


def note_choice(name: str, key: str) -> bool:
    """Somebody chose a value in the menu itself, which goes on.

    Returns:
        False where the menu has been replaced and its value does not count. A browser that has not
        yet drawn the page again sends what its old widgets hold with whatever it asks for next, and
        Streamlit, which has forgotten them, takes that for a change.
    """
    choices = st.session_state[_CHOICES]
    number = choices[name][1]
    is_shown = key == _menu_key(name, number)
    if is_shown:
        choices[name] = st.session_state[key], number
    return is_shown


def toggle(param: str, digest: str) -> None:
    """Put one entry into a list of the address, or take it out."""
    entries = list_param(param, most=200)
    others = [entry for entry in entries if entry != digest]
    go(**{param: ",".join(others if digest in entries else [*entries, digest])})


def ticked() -> tuple[str, ...]:
    """Names of the runs that are ticked, shown or not."""
    return tuple(st.session_state.get(TICKED, ()))


def tick(run_ids: Iterable[str], *, is_on: bool) -> None:
    given = dict.fromkeys(run_ids)
    others = [run_id for run_id in ticked() if run_id not in given]
    now = [*ticked(), *given] if is_on else others
    st.session_state[TICKED] = tuple(dict.fromkeys(now))


def untick_all() -> None:
    st.session_state[TICKED] = ()
    new_generation()


def show_table(key: str) -> None:
    """Note which table is drawn: a selection in another one is of a page that is no more."""
    st.session_state[_TABLE] = key


def is_table_shown(key: str) -> bool:
    return bool(st.session_state.get(_TABLE) == key)


def generation() -> int:
    """Of the table: another one forgets what the browser has selected in it."""
    return int(st.session_state.get(_GENERATION, 0))


def new_generation() -> None:
    st.session_state[_GENERATION] = generation() + 1
