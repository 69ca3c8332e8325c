"""Figures on a page: `show(figure, key="entropy", config=export_config("entropy"), alt="...")`.

Streamlit's own chart is built anew whenever its data change; this one keeps its element, and with
it zoom, legend and hover. Its script (`figures.js`) and plotly's are fetched from this server.
What goes to the browser is one line of JSON about the chart, and the figure as JSON below it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import plotly.io
import streamlit as st

from . import assets

DEFAULT_HEIGHT = 450
"""Pixels, for a figure that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure as it is sent: made once, shown to many."""

    spec: str
    """JSON: `data` and `layout`."""
    height: int
    """Pixels."""


def drawing(figure: go.Figure) -> Drawing:
    """A figure without plotly's template: the browser puts the page's own in its place."""
    spec = figure.to_dict()
    spec["layout"].pop("template", None)
    height = spec["layout"].pop("height", DEFAULT_HEIGHT)
    text = plotly.io.to_json(spec, validate=False)
    assert isinstance(text, str)
    return Drawing(spec=text, height=int(height))


def show(
    figure: go.Figure | Drawing,
    *,
    key: str,
    alt: str,
    revision: str = "",
    config: Mapping[str, Any] | None = None,
) -> None:
    """Draw a figure here, in the colours and the width of the page.

    Args:
        key: Names the place: figures with the same key are one chart whose data change.
        alt: The chart in words, for those who cannot see it.
        revision: Another one begins without the zoom and the hidden curves of the one before.
        config: Of plotly.
    """
    shown = figure if isinstance(figure, Drawing) else drawing(figure)
    head = {
        "height": shown.height,
        "alt": alt,
        "revision": revision,
        "config": dict(config or {}),
    }
    data = f"{json.dumps(head)}\n{shown.spec}".encode()
    _component()(key=key, data=data)


@functools.cache
def _component() -> Callable[..., Any]:
    return st.components.v2.component("echoscope_figure", js=_script(), isolate_styles=False)


def _script() -> str:
    """Fixed text: a component's script is sent with every chart, so it only calls the real one."""
    library, script = json.dumps(assets.PLOTLY.path), json.dumps(assets.FIGURES.path)
    return f"""
export default async function (given) {{
  try {{
    const {{ default: show }} = await import(location.origin + {script});
    return show(given, location.origin + {library});
  }} catch (error) {{
    given.parentElement.textContent = `This chart cannot be drawn: ${{error.message}}`;
  }}
}}
"""
