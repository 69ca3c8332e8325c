"""Figures on a page: `show(figure, "Entropy over the steps", key="entropy")`.

Streamlit's own chart is built anew whenever its data change; this one keeps its element, and with
it zoom, legend and hover. Its script (`figures.js`) and plotly's are fetched from this server.
A chart of a live run fetches itself anew when the run has moved: no script is run for that.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..charts.theme import as_text
from ..escaping import component_key
from .pulses import EVERY_S
from .scripts import component

DEFAULT_HEIGHT = 450
"""Pixels, for a figure that says nothing."""


def _words(spec: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The colours in which a figure writes, and how a light and a dark page write in them."""
    fonts = [note.get("font") for note in spec["layout"].get("annotations") or ()]
    fonts += [trace.get("textfont") for trace in spec["data"]]
    colors = {str(font["color"]) for font in fonts if font and "color" in font}
    return {color: as_text(color) for color in sorted(colors) if color.startswith("#")}


def _packed(value: object) -> object:
    """Arrays of numbers as plotly's script takes them, which keeps what is not finite a gap."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        packed = {"dtype": "f8", "bdata": base64.b64encode(value.tobytes()).decode("ascii")}
        return packed | ({"shape": ", ".join(map(str, value.shape))} if value.ndim > 1 else {})
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not belong into a figure")


def sent(
    figure: Mapping[str, Any],
    *,
    alt: str,
    name: str,
    revision: str = "",
    source: Mapping[str, str] | None = None,
) -> bytes:
    """What the browser gets: one line of JSON about the chart, and the figure as JSON below it.

    Args:
        figure: Its `data` and `layout`. Plotly's template is left out: the browser puts the page's
            own in its place.
        alt: The chart in words, for those who cannot see it.
        name: Of the file that somebody keeps the chart in.
        revision: Another one begins without the zoom and the hidden curves of the one before.
        source: Where the chart fetches itself when its run has moved, so that the page need not be
            drawn: the `address` that answers with this as it is then, the `pulse` of the run, and
            what that called `position` before the chart was made.
    """
    layout = {key: value for key, value in figure["layout"].items() if key != "template"}
    height = layout.pop("height", DEFAULT_HEIGHT)
    if texts := _words(figure):
        layout["meta"] = {**layout.get("meta", {}), "words": texts}
    head = {
        "height": int(height),
        "alt": alt,
        "revision": revision,
        "config": export_config(name),
        "source": None if source is None else {**source, "every": EVERY_S},
    }
    drawn = {"data": figure["data"], "layout": layout}
    text = json.dumps(drawn, default=_packed, allow_nan=False)
    return f"{json.dumps(head)}\n{text}".encode()


def export_config(file_name: str) -> dict[str, Any]:
    """Plotly's own toolbar: SVG instead of PNG, nothing that leaves the page."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", file_name)[:80] or "chart"
    return {
        "displaylogo": False,
        "toImageButtonOptions": {"format": "svg", "filename": safe},
        # Dragging zooms and a double click goes back: more buttons would cover the title.
        "modeBarButtons": [["toImage"]],
        "scrollZoom": False,
        "doubleClick": "autosize",
    }


def show(figure: Mapping[str, Any], alt: str, *, key: str, revision: str = "") -> None:
    """Draw a figure here, in the colours and the width of the page.

    Args:
        key: Names the place, and the file that somebody keeps the chart in: figures with the same
            key are one chart whose data change.
        alt, revision: As `sent` has them.
    """
    show_sent(sent(figure, alt=alt, name=key, revision=revision), key=key)


def show_sent(data: bytes, *, key: str) -> None:
    """Draw what `sent` made; `key` names the place."""
    component("figures.js")(key=component_key(key), data=data)
