"""One cursor and one zoom over all charts.

Where the mouse is on one chart, the others have a line and their values; what is zoomed into on
one is shown by all, and stays when they are drawn again (Streamlit builds a chart anew whenever its
data change). Plotly cannot do this across figures. This component has no content: it listens on the
page, asks the charts for their own scales, and draws over them. Its script is fixed text; nothing
of a run goes into it, and values appear as text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import streamlit as st

from .curves import Zoom
from .marks import MARK_AXIS

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
const shown = (value) =>
  Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(3))
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
  return [{{ text: shown(point.y), color: trace.line.color }}];
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
const RANGE = "zoom";
export default function ({{ setStateValue }}) {{
  let waiting = null, last = null, pressed = null;
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
  // The chart may be built anew while the mouse is down: its scale is taken at the start.
  const press = (event) => {{
    const chart = event.target.closest && event.target.closest(".nsewdrag") && under(event);
    pressed = chart && chart._fullLayout.dragmode === "zoom"
      ? {{ axis: chart._fullLayout.xaxis, left: chart.getBoundingClientRect().left,
           x: event.clientX }}
      : null;
  }};
  const release = (event) => {{
    const from = pressed;
    pressed = null;
    if (!from || Math.abs(event.clientX - from.x) < 8) return;
    const at = (x) => from.axis.p2d(
      Math.min(from.axis._length, Math.max(0, x - from.left - from.axis._offset)));
    const ends = [at(from.x), at(event.clientX)].sort((one, other) => one - other);
    setStateValue(RANGE, ends);
  }};
  const back = (event) => {{
    const button = event.target.closest && event.target.closest(".modebar-btn[data-val='auto']");
    const twice = event.type === "dblclick" && event.target.closest(".nsewdrag");
    if ((button || twice) && under(event)) setStateValue(RANGE, null);
  }};
  document.addEventListener("mousemove", move, {{ passive: true }});
  document.addEventListener("mousedown", press, true);
  document.addEventListener("mouseup", release, true);
  document.addEventListener("click", back, true);
  document.addEventListener("dblclick", back, true);
  return () => {{
    document.removeEventListener("mousemove", move);
    document.removeEventListener("mousedown", press, true);
    document.removeEventListener("mouseup", release, true);
    document.removeEventListener("click", back, true);
    document.removeEventListener("dblclick", back, true);
    if (waiting !== null) cancelAnimationFrame(waiting);
    clear();
  }};
}}
"""


@functools.cache
def _component() -> Callable[..., Any]:
    return st.components.v2.component("echoscope_cursor", js=_SCRIPT)


def synchronise(key: str) -> Zoom | None:
    """Follow the mouse over every chart whose key begins with `chart_`, while the page is shown.

    Args:
        key: Another key begins without zoom: whatever it is that the axis stands for belongs in it.

    Returns:
        The part of the horizontal axis that was zoomed into; None for all of it.
    """
    found = _component()(key=f"cursor:{key}", height=0, on_zoom_change=_nothing)
    return checked_zoom(found.get("zoom"))


def checked_zoom(value: object) -> Zoom | None:
    """What a browser sent, if it is a range: two finite numbers, the lower one first."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = value
    numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not numbers or not (math.isfinite(low) and math.isfinite(high) and low < high):
        return None
    return float(low), float(high)


def _nothing() -> None:
    """Drawing the charts again is all that a change of zoom does."""
