"""The URL is the state of a page: widgets that show a parameter and write it when they change.

A value is read from the URL on every run of the script, and checked there. Callbacks (`go`) write
the URL; nothing is remembered anywhere else, so a link restores exactly what was seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.store.status import Origin, origin_of
from echoscope.text.amounts import bounds, counted, listed

from ..data import queries
from ..escaping import visible
from . import links, ui

MAX_TEXT = 300
TICKED = "_runs_ticked"
"""Session state: names of the runs that are ticked on the page Runs."""


def go(**changes: object) -> None:
    """Write URL parameters; None and "" remove one. For callbacks."""
    for name, value in changes.items():
        if value is None or value == "":
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)


def _store(param: str, key: str, default: str, clears: tuple[str, ...]) -> None:
    value = st.session_state[key]
    if isinstance(value, bool):
        value = "1" if value else None
    go(**{param: None if value in (default, None) else value}, **dict.fromkeys(clears))


def _bound(
    param: str, now: object, *, key: str = "", default: str = "", clears: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What makes a widget show `now`, and write to the URL what is chosen."""
    key = key or f"url_{param}"
    st.session_state[key] = now
    return {"key": key, "on_change": _store, "args": (param, key, default, clears)}


def choose(
    param: str,
    label: str,
    options: Sequence[str],
    *,
    default: str,
    label_of: Callable[[str], str] = str,
    clears: tuple[str, ...] = (),
    hides_label: bool = False,
) -> str:
    """A select box for one of `options`; returns the chosen one.

    A value in the URL that is none of them makes a notice and counts as the default. A choice
    removes the parameters in `clears`.
    """
    now = choice_param(param, options, default)
    chosen = st.selectbox(
        label,
        options,
        format_func=label_of,
        **_bound(param, now, default=default, clears=clears),
        label_visibility="collapsed" if hides_label else "visible",
    )
    return default if chosen is None else str(chosen)


def type_in(
    param: str,
    label: str,
    *,
    now: str,
    key: str,
    placeholder: str = "",
    clears: tuple[str, ...] = (),
    most: int = MAX_TEXT,
) -> None:
    """A search field that holds `now`, and writes to the URL what is typed."""
    st.text_input(
        label,
        type="search",
        max_chars=most,
        placeholder=placeholder,
        **_bound(param, now, key=key, clears=clears),
        label_visibility="collapsed",
    )


def number(
    param: str,
    label: str,
    *,
    default: int,
    least: int,
    most: int,
    clears: tuple[str, ...] = (),
    hides_label: bool = False,
    now: int | None = None,
) -> int:
    """A whole number within bounds; `now` is its value if the URL was read already."""
    if now is None:
        now = int_param(param, default, least=least, most=most)
    chosen = st.number_input(
        label,
        min_value=least,
        max_value=most,
        step=1,
        **_bound(param, default if now is None else now, clears=clears),
        label_visibility="collapsed" if hides_label else "visible",
    )
    return int(chosen)


def flag(param: str, label: str) -> bool:
    """A switch that is off unless the URL says 1."""
    is_on = choice_param(param, ("0", "1"), "0") == "1"
    return bool(st.toggle(label, **_bound(param, is_on)))


def text_param(name: str, *, most: int = 2_000) -> str:
    """A URL parameter that is free text."""
    value = st.query_params.get(name, "")
    if len(value) > most:
        ui.notice(f"{name} in the address has {len(value)} characters, more than {most}; left out")
        return ""
    return value


def int_param(
    name: str, default: int | None = None, *, least: int = 0, most: int | None = None
) -> int | None:
    """A URL parameter that is a whole number within bounds; a notice and the default otherwise."""
    text = st.query_params.get(name)
    if text is None or text == "":
        return default
    is_number = re.fullmatch(r"-?[0-9]{1,12}", text) is not None
    value = int(text) if is_number else 0
    if is_number and value >= least and (most is None or value <= most):
        return value
    fallback = "the default" if default is None else str(default)
    ui.notice(
        f"{name} in the address is {text[:40]!r}, but must be a whole number, "
        f"{bounds(least, most)}; {fallback} is used"
    )
    return default


def choice_param(name: str, choices: Sequence[str], default: str) -> str:
    """A URL parameter that is one of some words; a notice and the default otherwise."""
    text = st.query_params.get(name)
    if text is None or text in choices:
        return text if text is not None else default
    choices_text = ", ".join(choices)
    ui.notice(f"{name}={text[:40]!r} in the address is none of {choices_text}; {default} is used")
    return default


def list_param(name: str, *, most: int = 32) -> list[str]:
    """A URL parameter that is a list with commas, each entry once."""
    text = st.query_params.get(name, "")
    entries = list(dict.fromkeys(entry for entry in text.split(",") if entry))
    if len(entries) > most:
        left_out = listed(entries[most:], 8)
        ui.notice(f"at most {most} {name} can be shown at once; not shown: {left_out}")
    return entries[:most]


def pick_runs(line: DeltaGenerator, *, most: int, key: str) -> list[str]:
    """The trained runs that the address names, in `runs` or `run`, or those that are ticked on the
    page Runs; their picker stands in a line.

    Those that are not there, and evaluations, which have no curves, are named in a notice.
    """
    rows = [row for row in queries.runs(most=ui.MAX_PICKED) if not row.problem]
    ids = [row.run_id for row in rows[: ui.MAX_PICKED] if row.origin is not Origin.EVALUATED]
    asked, evaluated = [], []
    ticked = st.session_state.get(TICKED, ())
    if ticked and not {"runs", "run"} & set(st.query_params):
        go(runs=",".join(ticked[:most]))
        if len(ticked) > most:
            ui.notice(f"{most} of {len(ticked)} ticked runs are shown, the most that fit")
    named = list_param("runs", most=most)
    for run in named or [*filter(None, [st.query_params.get("run")])]:
        if not ui.exists(run):
            ui.notice(f"there is no run {run!r}; it is not shown")
        elif origin_of(queries.info(run).config) is Origin.EVALUATED:
            evaluated.append(run)
        else:
            asked.append(run)
    ids += [run for run in asked if run not in ids]

    def changed() -> None:
        st.query_params["runs"] = ",".join(st.session_state[key])

    st.session_state[key] = asked
    with line.popover(counted(len(asked), "run"), key=f"{key}_box"):
        chosen = st.multiselect(
            "Runs",
            ids,
            key=key,
            on_change=changed,
            max_selections=most,
            format_func=lambda run: visible(run, 80),
        )
    if evaluated:
        names = ", ".join(evaluated[:3]) + (" and more" if len(evaluated) > 3 else "")
        verb = "is an evaluation" if len(evaluated) == 1 else "are evaluations"
        ui.notice(
            f"{names} {verb}: nothing was trained, so there is no curve. The page Evaluations "
            "compares evaluations task by task."
        )
        links.link("Evaluations", "evaluations", run=evaluated[0])
    return list(chosen)
