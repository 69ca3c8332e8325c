// One cursor and one zoom over all charts of a page.
//
// Where the mouse is on one chart, the others get a line and their values at that place; the part of
// the axis that is zoomed into on one chart is told to the page, which shows it on all of them. This
// script draws over the charts and has no content of its own. Values appear as text.

import { DRAWN, ZOOMED } from "./figures.js";

const MARK = "echoscope-cursor";
const charts = () =>
  [...document.querySelectorAll("[class*='st-key-chart_'] .js-plotly-plot")]
    .filter((chart) => chart._fullLayout && chart._fullLayout.xaxis);
const clear = () => document.querySelectorAll("." + MARK).forEach((mark) => mark.remove());
const under = (event) => {
  const at = event.target instanceof Element ? event.target.closest(".js-plotly-plot") : null;
  return at && at.closest("[class*='st-key-chart_']") && at._fullLayout ? at : null;
};
const near = (points, x) => {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle; else high = middle;
  }
  const best = Math.abs(points[low].x - x) <= Math.abs(points[high].x - x) ? low : high;
  return points[best];
};
const isShare = (chart, trace) => {
  const axis = chart._fullLayout["yaxis" + (trace.yaxis || "y").slice(1)];
  return !!axis && (axis.tickformat || "").endsWith("%");
};
const shown = (value, share) =>
  share ? `${+(100 * value).toPrecision(3)} %`
    : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(3))
    : value === 0 ? "0" : value.toExponential(1);
const ground = () => {
  const app = document.querySelector(".stApp");
  return app ? getComputedStyle(app).backgroundColor : "transparent";
};
const values = (chart, x, signs) => (chart.calcdata || []).flatMap((points) => {
  const trace = points[0] && points[0].trace;
  if (!trace || trace.visible !== true || trace.yaxis === signs) return [];
  if (trace.hoverinfo === "skip" || !points.length) return [];
  const point = near(points, x);
  if (!point || typeof point.y !== "number" || !isFinite(point.y)) return [];
  const text = shown(point.y, isShare(chart, trace));
  return [{ text, color: (trace.line || trace.marker).color }];
});
const draw = (chart, x, signs) => {
  const axis = chart._fullLayout.xaxis, side = chart._fullLayout.yaxis;
  const at = axis.d2p(x);
  if (!(at >= 0 && at <= axis._length)) return;
  const line = document.createElement("div");
  line.className = MARK;
  line.style.cssText = "position:absolute;pointer-events:none;width:0;z-index:5;" +
    "border-left:1px solid rgba(128,128,128,0.8);" +
    `left:${axis._offset + at}px;top:${side._offset}px;height:${side._length}px`;
  const box = document.createElement("div");
  const flip = at > axis._length / 2 ? "right:4px" : "left:4px";
  box.style.cssText = "position:absolute;top:14px;font-size:11px;font-weight:600;" +
    `padding:0 2px;background:${ground()};opacity:0.9;` +
    `line-height:1.25;white-space:nowrap;${flip}`;
  for (const value of values(chart, x, signs)) {
    const row = document.createElement("div");
    row.textContent = value.text;
    row.style.color = value.color;
    box.appendChild(row);
  }
  line.appendChild(box);
  chart.style.position = "relative";
  chart.appendChild(line);
};

// Streamlit calls this for the place on the page. `signs`: the axis of the signs of alarms and
// commands, which have no values. State `zoom`: [low, high], or null for all of it.

export default function ({ data, setStateValue }) {
  const { signs } = JSON.parse(data);
  let waiting = null, last = null;
  const paint = () => {
    waiting = null;
    clear();
    const from = last && under(last);
    if (!from) return;
    const axis = from._fullLayout.xaxis;
    const at = last.clientX - from.getBoundingClientRect().left - axis._offset;
    if (!(at >= 0 && at <= axis._length)) return;
    const x = axis.p2d(at);
    charts().filter((chart) => chart !== from).forEach((chart) => draw(chart, x, signs));
  };
  const move = (event) => {
    last = event;
    if (waiting === null) waiting = requestAnimationFrame(paint);
  };
  const zoom = (event) => {
    if (event.target.closest("[class*='st-key-chart_']")) setStateValue("zoom", event.detail);
  };
  const again = () => last && move(last);
  document.addEventListener("mousemove", move, { passive: true });
  document.addEventListener(DRAWN, again);
  document.addEventListener(ZOOMED, zoom);
  return () => {
    document.removeEventListener("mousemove", move);
    document.removeEventListener(DRAWN, again);
    document.removeEventListener(ZOOMED, zoom);
    if (waiting !== null) cancelAnimationFrame(waiting);
    clear();
  };
}
