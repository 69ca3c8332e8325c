"""One cursor and one zoom over all charts.

Where the mouse is on one chart, the others have a line and their values; what is zoomed into on
one is shown by all, and the address keeps it, so that a link shows the same. Plotly cannot do this
across figures. This component has no content: it listens on the page, asks the charts for their own
scales, and draws over them. Its script is fixed text; nothing of a run goes into it, and values
appear as text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import streamlit as st

from ..charts.marks import MARK_AXIS
from ..data.curves import Zoom
from ..escaping import component_key
from ..page import ui, url_state

PARAM = "zoom"
"""In the address: `zoom=LOW,HIGH`, in the unit of the axis."""
DRAWN, ZOOMED = "echoscope-drawn", "echoscope-zoomed"
"""Events of charts (`figures.js`): drawn; zoomed by the mouse, with the range or null."""
_SHOWN_AXIS = "_zoom_axis"

_SCRIPT = f"""
const MARK = "echoscope-cursor";
const charts = () =>
  [...document.querySelectorAll("[class*='st-key-chart_'] .js-plotly-plot")]
    .filter((chart) => chart._fullLayout && chart._fullLayout.xaxis);
const clear = () => document.querySelectorAll("." + MARK).forEach((mark) => mark.remove());
const under = (event) => {{
  const at = event.target instanceof Element ? event.target.closest(".js-plotly-plot") : null;
  return at && at.closest("[class*='st-key-chart_']") && at._fullLayout ? at : null;
}};
const near = (points, x) => {{
  let low = 0, high = points.length - 1;
  while (high - low > 1) {{
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle; else high = middle;
  }}
  const best = Math.abs(points[low].x - x) <= Math.abs(points[high].x - x) ? low : high;
  return points[best];
}};
const isShare = (chart, trace) => {{
  const axis = chart._fullLayout["yaxis" + (trace.yaxis || "y").slice(1)];
  return !!axis && (axis.tickformat || "").endsWith("%");
}};
const shown = (value, share) =>
  share ? `${{+(100 * value).toPrecision(3)}} %`
    : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(3))
    : value === 0 ? "0" : value.toExponential(1);
const ground = () => {{
  const app = document.querySelector(".stApp");
  return app ? getComputedStyle(app).backgroundColor : "transparent";
}};
const values = (chart, x) => (chart.calcdata || []).flatMap((points) => {{
  const trace = points[0] && points[0].trace;
  if (!trace || trace.visible !== true || trace.yaxis === "{MARK_AXIS}") return [];
  if (trace.hoverinfo === "skip" || !points.length) return [];
  const point = near(points, x);
  if (!point || typeof point.y !== "number" || !isFinite(point.y)) return [];
  const text = shown(point.y, isShare(chart, trace));
  return [{{ text, color: (trace.line || trace.marker).color }}];
}});
const draw = (chart, x) => {{
  const axis = chart._fullLayout.xaxis, side = chart._fullLayout.yaxis;
  const at = axis.d2p(x);
  if (!(at >= 0 && at <= axis._length)) return;
  const line = document.createElement("div");
  line.className = MARK;
  line.style.cssText = "position:absolute;pointer-events:none;width:0;z-index:5;" +
    "border-left:1px solid rgba(128,128,128,0.8);" +
    `left:${{axis._offset + at}}px;top:${{side._offset}}px;height:${{side._length}}px`;
  const box = document.createElement("div");
  const flip = at > axis._length / 2 ? "right:4px" : "left:4px";
  box.style.cssText = "position:absolute;top:14px;font-size:11px;font-weight:600;" +
    `padding:0 2px;background:${{ground()}};opacity:0.9;` +
    `line-height:1.25;white-space:nowrap;${{flip}}`;
  for (const value of values(chart, x)) {{
    const row = document.createElement("div");
    row.textContent = value.text;
    row.style.color = value.color;
    box.appendChild(row);
  }}
  line.appendChild(box);
  chart.style.position = "relative";
  chart.appendChild(line);
}};
export default function ({{ setStateValue }}) {{
  let waiting = null, last = null;
  const paint = () => {{
    waiting = null;
    clear();
    const from = last && under(last);
    if (!from) return;
    const axis = from._fullLayout.xaxis;
    const at = last.clientX - from.getBoundingClientRect().left - axis._offset;
    if (!(at >= 0 && at <= axis._length)) return;
    const x = axis.p2d(at);
    charts().filter((chart) => chart !== from).forEach((chart) => draw(chart, x));
  }};
  const move = (event) => {{
    last = event;
    if (waiting === null) waiting = requestAnimationFrame(paint);
  }};
  const zoom = (event) => {{
    if (event.target.closest("[class*='st-key-chart_']")) setStateValue("{PARAM}", event.detail);
  }};
  const again = () => last && move(last);
  document.addEventListener("mousemove", move, {{ passive: true }});
  document.addEventListener("{DRAWN}", again);
  document.addEventListener("{ZOOMED}", zoom);
  return () => {{
    document.removeEventListener("mousemove", move);
    document.removeEventListener("{DRAWN}", again);
    document.removeEventListener("{ZOOMED}", zoom);
    if (waiting !== null) cancelAnimationFrame(waiting);
    clear();
  }};
}}
"""


@functools.cache
def _component() -> Callable[..., Any]:
    return st.components.v2.component("echoscope_cursor", js=_SCRIPT)


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
    _component()(key=key, height=0, on_zoom_change=functools.partial(_keep, key))
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
