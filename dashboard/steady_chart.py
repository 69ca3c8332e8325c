"""A plotly chart that is updated in place.

`st.plotly_chart` gives a chart another identity whenever its data change, and the browser then
builds it anew: every second, zooming in is lost and the page flickers. The same message under an
identity of its own makes plotly move from one figure to the next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import streamlit as st
from streamlit.elements.lib.layout_utils import LayoutConfig
from streamlit.proto.PlotlyChart_pb2 import PlotlyChart


def steady_chart(figure: go.Figure, *, key: str, config: Mapping[str, Any], alt: str) -> None:
    """Draw a figure where the last one of this `key` was.

    Args:
        key: Unique on the page; a CSS class `st-key-KEY` stands on the element around it.
        alt: What the chart shows, in words.
    """
    message = PlotlyChart(
        id=key,
        spec=figure.to_json(validate=False),
        config=json.dumps(dict(config)),
        theme="streamlit",
        alt=alt,
    )
    size = LayoutConfig(width="stretch", height=figure.layout.height)
    st.container(key=key)._enqueue("plotly_chart", message, layout_config=size)
