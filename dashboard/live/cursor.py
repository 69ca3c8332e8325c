"""One cursor and one zoom over all charts.

Where the mouse is on one chart, the others have a line and their values; what is zoomed into on
one is shown by all, and the address keeps it, so that a link shows the same. Plotly cannot do this
across figures; `cursor.js` does.
"""

from __future__ import annotations

import functools
import json
import math

import streamlit as st

from ..charts.marks import MARK_AXIS
from ..data.curves import Zoom
from ..escaping import component_key
from ..page import ui, url_state
from .scripts import component

PARAM = "zoom"
"""In the address: `zoom=LOW,HIGH`, in the unit of the axis."""
_SHOWN_AXIS = "_zoom_axis"


def synchronise(axis: str) -> Zoom | None:
    """Follow the mouse over every chart whose key begins with `chart_`, while the page is shown.

    Args:
        axis: Another one begins without zoom: whatever it is that the axis stands for is in it.

    Returns:
        The part of the horizontal axis that the address names; None for all of it.
    """
    before = st.session_state.get(_SHOWN_AXIS, axis)
    st.session_state[_SHOWN_AXIS] = axis
    if before != axis:
        st.query_params.pop(PARAM, None)
    key = component_key(f"cursor:{axis}")
    component("cursor.js")(
        key=key,
        data=json.dumps({"signs": MARK_AXIS}),
        height=0,
        on_zoom_change=functools.partial(_keep, key),
    )
    text = st.query_params.get(PARAM, "")
    zoom = read_zoom(text)
    if text and zoom is None:
        ui.notice(f"{PARAM}={text[:40]!r} in the address is no range LOW,HIGH; all is shown")
    return zoom


def _keep(key: str) -> None:
    """What was zoomed into goes to the address, and from there to all charts."""
    zoom = checked_zoom(st.session_state[key].get(PARAM))
    url_state.go(**{PARAM: None if zoom is None else f"{zoom[0]:.7g},{zoom[1]:.7g}"})


def read_zoom(text: str) -> Zoom | None:
    """A range as the address has it.

    >>> read_zoom("3,10.5"), read_zoom("10,3"), read_zoom("nan,1"), read_zoom("3")
    ((3.0, 10.5), None, None, None)
    """
    try:
        return checked_zoom([float(part) for part in text[:80].split(",")])
    except ValueError:
        return None


def checked_zoom(value: object) -> Zoom | None:
    """What a browser sent, if it is a range: two finite numbers, the lower one first."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = value
    numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not numbers or not (math.isfinite(low) and math.isfinite(high) and low < high):
        return None
    return float(low), float(high)
