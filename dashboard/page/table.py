"""A table of a few dozen rows that is there at once: rows to pick, to tick, and links to open.

`st.dataframe` makes a browser read 1.7 MB of scripts and draw on a canvas before its first row is
seen, and draw again at every step through it. This one is an ordinary table: it can be searched
with the browser, selected, and read aloud. Cells are texts, and stay that: the script below writes
them with `textContent` only, and nothing of a run goes into the script.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import streamlit as st

from ..words import NONE

Cell = str | Sequence[float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its key in each row's cells, and how it looks."""

    name: str
    label: str
    kind: Literal["text", "number", "link", "spark"] = "text"
    """Links lead to the row's `href`; a spark line takes numbers from 0 to 1."""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row: texts by column name; spark lines are numbers. All of it may be hostile."""

    id: str
    cells: Mapping[str, Cell]
    href: str = ""
    """Where its link leads; made by us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person did with the table."""

    ticked: tuple[str, ...] = ()
    """Ids, of the rows that are shown."""
    opened: str = ""
    """The id of a row whose link was clicked just now."""


def pick_table(
    rows: Sequence[Row],
    columns: Sequence[Column],
    *,
    key: str,
    label: str,
    picked: str | None,
    on_pick: Callable[[str], None],
) -> None:
    """A table of which one row is picked; `on_pick` is called with the id of another one."""
    ids = {row.id for row in rows}

    def take() -> None:
        found = st.session_state[key].picked
        if found in ids:
            on_pick(found)

    data = _data(rows, columns, label) | {"mode": "pick", "picked": picked or ""}
    _component()(key=key, data=data, on_picked_change=take, on_ticked_change=_nothing)


def tick_table(rows: Sequence[Row], columns: Sequence[Column], *, key: str, label: str) -> Answer:
    """A table whose rows are ticked and opened. A tick stays with its row, wherever that goes."""
    data = _data(rows, columns, label) | {"mode": "tick"}
    found = _component()(key=key, data=data, on_ticked_change=_nothing, on_opened_change=_nothing)
    ids = [row.id for row in rows]
    ticked = found.ticked if isinstance(found.ticked, list) else []
    return Answer(
        ticked=tuple(one for one in ids if one in ticked),
        opened=found.opened if found.opened in ids else "",
    )


def _nothing() -> None:
    """Streamlit knows a value by its callback."""


def _data(rows: Sequence[Row], columns: Sequence[Column], label: str) -> dict[str, Any]:
    return {
        "label": label,
        "columns": [asdict(column) for column in columns],
        "rows": [
            {
                "id": row.id,
                "href": row.href,
                "cells": [_cell(row.cells.get(column.name)) for column in columns],
            }
            for row in rows
        ],
    }


def _cell(cell: Cell) -> str | list[float]:
    if cell is None:
        return NONE
    return cell if isinstance(cell, str) else list(cell)


@functools.cache
def _component() -> Callable[..., Any]:
    # In the page's own tree: the browser's search and screen readers find their way.
    return st.components.v2.component(
        "echoscope_table", js=_SCRIPT, css=_STYLE, isolate_styles=False
    )


_STYLE = """
.es-table { overflow-x: auto; border: 1px solid var(--st-dataframe-border-color);
  border-radius: var(--st-base-radius); }
.es-table table { border-collapse: collapse; width: 100%; margin: 0; font-size: .875rem;
  line-height: 1.3; }
.es-table th { text-align: left; font-weight: 400; white-space: nowrap; padding: .45rem .65rem;
  color: var(--st-dataframe-header-text-color);
  background: var(--st-dataframe-header-background-color); }
.es-table td { padding: .42rem .65rem; white-space: nowrap; max-width: 22rem; overflow: hidden;
  text-overflow: ellipsis; border-top: 1px solid var(--st-dataframe-border-color-light,
  var(--st-dataframe-border-color)); font-variant-numeric: tabular-nums; }
.es-table .es-number { text-align: right; }
.es-table .es-tick { width: 1.5rem; padding-right: 0; }
.es-table input { accent-color: var(--st-primary-color); margin: 0; width: 1rem; height: 1rem;
  vertical-align: -.15rem; cursor: pointer; }
.es-table a { color: var(--st-link-color); text-decoration: none; }
.es-table a:hover { text-decoration: underline; }
.es-table tr.es-pick { cursor: pointer; }
.es-table tbody tr:hover { background: var(--st-secondary-background-color); }
.es-table tr[aria-selected="true"], .es-table tr.es-ticked {
  background: color-mix(in srgb, var(--st-primary-color) 14%, transparent); }
.es-table tr[aria-selected="true"] td:first-child {
  box-shadow: inset 3px 0 var(--st-primary-color); }
.es-table tr:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: -2px; }
.es-table polyline { fill: none; stroke: var(--st-primary-color); stroke-width: 1.5; }
.es-table svg { display: block; }
"""

_SCRIPT = """
const WIDTH = 96, HEIGHT = 20;
const make = (tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
};
function spark(values) {
  const space = "http://www.w3.org/2000/svg";
  const image = document.createElementNS(space, "svg");
  image.setAttribute("width", WIDTH);
  image.setAttribute("height", HEIGHT);
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", values.length ? "to " + values.at(-1).toFixed(2) : "none");
  const line = document.createElementNS(space, "polyline");
  const across = WIDTH / Math.max(values.length - 1, 1);
  const height = (value) => 1 + (HEIGHT - 2) * (1 - Math.min(Math.max(value, 0), 1));
  const points = values.length === 1 ? [values[0], values[0]] : values;
  const at = (value, place) => `${(place * (values.length === 1 ? WIDTH : across)).toFixed(1)},`
    + height(value).toFixed(1);
  line.setAttribute("points", points.map(at).join(" "));
  image.append(line);
  return image;
}
function cellOf(value, column, href) {
  const cell = make("td", column.kind === "number" ? "es-number" : "");
  if (column.kind === "spark") cell.append(Array.isArray(value) ? spark(value) : "");
  else if (column.kind === "link") {
    const link = make("a", "", value);
    link.href = href;
    cell.append(link);
  } else cell.textContent = value;
  if (typeof value === "string" && value.length > 24) cell.title = value;
  return cell;
}
function rowOf(row, data) {
  const line = make("tr", data.mode === "pick" ? "es-pick" : "");
  line.dataset.id = row.id;
  if (data.mode === "pick") line.tabIndex = 0;
  else {
    const box = make("input");
    box.type = "checkbox";
    box.setAttribute("aria-label", "tick " + row.id);
    const cell = make("td", "es-tick");
    cell.append(box);
    line.append(cell);
  }
  data.columns.forEach((column, at) => line.append(cellOf(row.cells[at], column, row.href)));
  return line;
}
function draw(place, data) {
  const table = make("table");
  table.setAttribute("aria-label", data.label);
  const head = make("tr");
  if (data.mode === "tick") head.append(make("th", "es-tick"));
  for (const column of data.columns) {
    const cell = make("th", column.kind === "number" ? "es-number" : "", column.label);
    if (column.hint) cell.title = column.hint;
    head.append(cell);
  }
  const top = make("thead"), body = make("tbody");
  top.append(head);
  body.append(...data.rows.map((row) => rowOf(row, data)));
  table.append(top, body);
  place.replaceChildren(table);
}
export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  let place = parentElement.querySelector(".es-table");
  if (!place) {
    place = make("div", "es-table");
    parentElement.append(place);
    place.ticked = [];
  }
  const content = JSON.stringify([data.mode, data.columns, data.rows]);
  if (place.content !== content) {
    draw(place, data);
    place.content = content;
  }
  const lines = [...place.querySelectorAll("tbody tr")];
  const lineOf = (event) => event.target.closest("tbody tr");
  if (data.mode === "pick") {
    for (const line of lines)
      line.setAttribute("aria-selected", String(line.dataset.id === data.picked));
    const pick = (line) => line && setTriggerValue("picked", line.dataset.id);
    place.onclick = (event) => getSelection().isCollapsed && pick(lineOf(event));
    place.onkeydown = (event) => {
      if (event.key !== "Enter" || event.target !== lineOf(event)) return;
      event.preventDefault();
      pick(event.target);
    };
    return;
  }
  const boxes = () => lines.map((line) => [line, line.querySelector("input")]);
  for (const [line, box] of boxes()) {
    box.checked = place.ticked.includes(line.dataset.id);
    line.classList.toggle("es-ticked", box.checked);
  }
  place.onchange = () => {
    place.ticked = boxes().filter(([, box]) => box.checked).map(([line]) => line.dataset.id);
    for (const [line, box] of boxes()) line.classList.toggle("es-ticked", box.checked);
    setStateValue("ticked", place.ticked);
  };
  place.onclick = (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    setTriggerValue("opened", lineOf(event).dataset.id);
  };
}
"""
