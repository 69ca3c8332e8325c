"""The URL is the state of a page: widgets that show a parameter and write it when they change.

A value is read from the URL on every run of the script, and checked there. Callbacks (`go`) write
the URL; nothing is remembered anywhere else, so a link restores exactly what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from . import ui

MAX_TEXT = 300


def go(**changes: object) -> None:
    """Write URL parameters; None and "" remove one. For callbacks."""
    for name, value in changes.items():
        if value is None or value == "":
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)


def _store(param: str, key: str, default: str, clears: tuple[str, ...]) -> None:
    value = st.session_state[key]
    go(**{param: None if value in (default, None) else value}, **dict.fromkeys(clears))


def choose(
    param: str,
    label: str,
    options: Sequence[str],
    *,
    default: str,
    words: Callable[[str], str] = str,
    clears: tuple[str, ...] = (),
    is_segmented: bool = False,
    hides_label: bool = False,
    help_text: str | None = None,
) -> str:
    """A select box (or a row of buttons) for one of `options`; returns the chosen one.

    A value in the URL that is none of them makes a notice and counts as the default. A choice
    removes the parameters in `clears`.
    """
    key = f"url_{param}"
    st.session_state[key] = ui.choice_param(param, options, default)
    box: Any = st.segmented_control if is_segmented else st.selectbox
    chosen = box(
        label,
        options,
        key=key,
        format_func=words,
        on_change=_store,
        args=(param, key, default, clears),
        label_visibility="collapsed" if hides_label else "visible",
        help=help_text,
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
) -> None:
    """A search field that holds `now`, and writes to the URL what is typed."""
    st.session_state[key] = now
    st.text_input(
        label,
        key=key,
        type="search",
        max_chars=MAX_TEXT,
        placeholder=placeholder,
        on_change=_store,
        args=(param, key, "", clears),
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
    key = f"url_{param}"
    if now is None:
        now = ui.int_param(param, default, least=least, most=most)
    st.session_state[key] = default if now is None else now
    chosen = st.number_input(
        label,
        min_value=least,
        max_value=most,
        step=1,
        key=key,
        on_change=_store,
        args=(param, key, "", clears),
        label_visibility="collapsed" if hides_label else "visible",
    )
    return int(chosen)


def flag(param: str, label: str) -> bool:
    """A switch that is off unless the URL says 1."""
    key = f"url_{param}"
    st.session_state[key] = ui.choice_param(param, ("0", "1"), "0") == "1"
    return bool(st.toggle(label, key=key, on_change=_store_flag, args=(param, key)))


def _store_flag(param: str, key: str) -> None:
    go(**{param: "1" if st.session_state[key] else None})
