"""The controls beside the title of the page Runs: filter, groups, order, columns, curves, views.

The address is their state. They are drawn with the whole page, so that the list, which draws itself
again while runs are read, closes no menu that somebody has open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.data.run_table import condition, saved_views
from echoscope.dashboard.data.run_table.columns import NOT_SORTED, OF_EVERY_RUN
from echoscope.dashboard.data.run_table.saved_views import PARAMS
from echoscope.dashboard.data.run_table.table import RunsTable
from echoscope.diagnostics.catalogue import metric
from echoscope.store.errors import StoreError

from ...data.run_table.columns import EVALUATED
from ...escaping import visible
from ...web.settings import settings
from ...words import plain
from .. import ui
from ..url_state import go, list_param, type_in
from . import state

_LABELS = {name: column.label for name, column in OF_EVERY_RUN.items()}
_HELP = """
A word or a regular expression finds runs by name, environment, algorithm, status, tags and note.
A condition compares columns:

- `lr > 1e-6 and success < 50 % and algo = 'ppo'`: settings by their name, short if it is clear
- `max(success) < 0.5`: the highest value of a metric; also `min`, `best`, `recent` (mean of 10) and
  `last`, as in `recent(policy/entropy) < 0.2`
- `verdict like 'collaps%' and since < 30`, `status in ('failed', 'crashed')`, `tags like '%paper%'`
- `"a name with spaces" > 3`: in double quotes
"""


def draw(line: DeltaGenerator, table: RunsTable, asked: state.TableRequest) -> None:
    """Draw them in a line; what changes writes the address."""
    with line:
        type_in(
            "filter",
            "Filter",
            now=asked.filter,
            key="_runs_filter",
            placeholder="A word, or a condition: lr > 1e-6 and success < 50 % and algo = 'ppo'",
            clears=("page",),
            most=condition.MAX_CHARS,
        )
    with line.popover("Help", key="runs_help", type="tertiary"):
        st.markdown(_HELP)
    num_groups = len(list_param("group", most=state.MAX_GROUPED))
    with line.popover(f"Group ({num_groups})" if num_groups else "Group", key="runs_group"):
        _groups(table)
    with line.popover("Sort", key="runs_sort"):
        _order(table, asked)
    with line.popover("Columns", key="runs_columns"):
        _columns(table, asked)
    with line.popover("Curves", key="runs_curves"):
        _curves(table, asked)
    with line.popover("Views", key="runs_views"):
        _views()


def _groups(table: RunsTable) -> None:
    fixed = (
        "env",
        "algo",
        "verdict",
        "status",
        "tags",
        "trainer",
        "origin",
        "base_model",
    )
    catalogue = table.catalogue
    options = [state.SEEDS, *fixed, *catalogue.differing, *catalogue.other_settings]
    _several(
        "group",
        "Group by",
        options,
        list_param("group", most=state.MAX_GROUPED),
        labels={state.SEEDS: "all settings but the seed"} | _LABELS,
        placeholder="No groups",
        most=state.MAX_GROUPED,
        clears=("page", "open", "hide", "solo"),
        help_text="One row for runs with equal values: mean, 95 % interval, number of runs.",
    )


def _order(table: RunsTable, asked: state.TableRequest) -> None:
    names = dict.fromkeys([*OF_EVERY_RUN, *asked.columns, *table.catalogue.differing])
    options, labels = [], {}
    for name in names:
        if name in NOT_SORTED:
            continue
        column = table.column(name)
        label = column.label if column.source == "run" else column.label or name
        up, down = (
            ("lowest first", "highest first") if column.kind == "number" else ("A to Z", "Z to A")
        )
        if column.kind == "moment":
            up, down = "oldest first", "newest first"
        pair = [(f"-{name}", down), (name, up)]
        for option, way in pair if column.kind != "text" else pair[::-1]:
            options.append(option)
            labels[option] = f"{label}, {way}"
    if asked.order not in options:
        options.append(asked.order)
    key = state.widget_key("order", asked.order)
    st.session_state[key] = asked.order

    def changed() -> None:
        if state.note_choice("order", key):
            go(sort=st.session_state[key], page=None)

    st.selectbox(
        "Sort by",
        options,
        key=key,
        format_func=lambda option: visible(str(labels.get(option, option)), 80),
        on_change=changed,
        help="A click on a heading of the table sorts by that column.",
    )


def _curves(table: RunsTable, asked: state.TableRequest) -> None:
    options = [*table.catalogue.metrics]
    if any(key.startswith("eval/") for key in options):
        options = [EVALUATED, *options]
    labels = {key: f"{metric(key).name}  ({key})" for key in table.catalogue.metrics}
    _several(
        "curve",
        "Curves",
        options,
        asked.curves,
        labels=labels | {EVALUATED: OF_EVERY_RUN["eval_success"].label},
        placeholder="No curves",
        most=state.MAX_CURVES,
        empty={"curves": "0"},
        help_text="Metrics whose curves stand beside the table, of the runs or groups on the page.",
    )


def _columns(table: RunsTable, asked: state.TableRequest) -> None:
    names = [name for name in table.catalogue.names() if name != "run"]
    _several(
        "cols",
        "Columns",
        names,
        [name for name in asked.columns if name != "run"],
        labels=_LABELS,
        placeholder="The usual ones",
        most=state.MAX_COLUMNS,
        takes_new=True,
        help_text="Settings and metrics by their name; best(KEY), recent(KEY), max(KEY), min(KEY) "
        "are numbers of a metric.",
    )
    if list_param("cols", most=state.MAX_COLUMNS):
        st.button("The usual columns", on_click=lambda: go(cols=None), type="tertiary")


def _several(
    param: str,
    label: str,
    options: Sequence[str],
    chosen: Sequence[str],
    *,
    labels: Mapping[str, str],
    placeholder: str,
    most: int,
    help_text: str,
    clears: Sequence[str] = (),
    empty: Mapping[str, str] | None = None,
    takes_new: bool = False,
) -> None:
    """A menu of several entries, which stand in the address with commas.

    Args:
        empty: What the address says instead where none is chosen.
    """
    key = state.widget_key(param, [*chosen])
    st.session_state[key] = [*chosen]
    other = dict.fromkeys(empty or {})

    def changed() -> None:
        if not state.note_choice(param, key):
            return
        now = st.session_state[key]
        go(**{param: ",".join(now)} | other | dict.fromkeys(clears))
        if not now and empty:
            go(**empty)

    st.multiselect(
        label,
        [*dict.fromkeys([*options, *chosen])],
        key=key,
        format_func=lambda option: visible(labels.get(option, option), 100),
        on_change=changed,
        max_selections=most,
        placeholder=placeholder,
        accept_new_options=takes_new,
        select_all=False,  # it would come before the name that was typed
        help=help_text,
    )


def apply_view() -> None:
    """Let an address that names a view and nothing else say what the view says."""
    name = st.query_params.get("view")
    if not name or any(param in st.query_params for param in PARAMS):
        return
    try:
        views = saved_views.read_views(settings().root)
    except StoreError as error:
        ui.notice(str(error))
        return
    if name in views:
        _show(name, views[name])
    else:
        ui.notice(f"there is no saved view {name!r}")
        go(view=None)


def _show(name: str, params: Mapping[str, str]) -> None:
    """Have the page show a view."""
    given = dict.fromkeys((*PARAMS, "page", "hide", "solo"))
    go(**given | dict(params) | {"view": name})


def _views() -> None:
    root = settings().root
    try:
        views = saved_views.read_views(root)
    except StoreError as error:
        st.text(visible(str(error), 400))
        return
    now = {p: st.query_params[p] for p in PARAMS if st.query_params.get(p)}
    name = st.query_params.get("view", "")
    for other, params in views.items():
        is_shown = other == name and params == now
        st.button(
            plain(f"{other}{' (shown)' if is_shown else ''}", 80),
            key=f"view:{other}",
            on_click=_show,
            args=(other, params),
            type="tertiary",
        )
    if not views:
        st.caption("No saved views yet. A view keeps filter, order, groups, columns and curves.")
    if settings().is_read_only:
        return
    with st.form("save_view", border=False):
        new_name = st.text_input("Name", value=name, max_chars=saved_views.MAX_NAME)
        if st.form_submit_button("Save what is shown") and ui.noting(
            lambda: saved_views.save_view(root, new_name, now)
        ):
            go(view=new_name.strip())
            st.rerun()
    if name in views:
        if st.button("Delete", key="delete_view") and ui.noting(
            lambda: saved_views.delete_view(root, name)
        ):
            go(view=None)
            st.rerun()
        st.caption(f"Link: /?{plain(urlencode({'view': name}), 200)}")
