"""The figures and the live lines on a page that AppTest drew, as a browser would get them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streamlit.testing.v1 import AppTest

COMPONENT = "echoscope_figures_default"
LINE, LISTENER = "echoscope_pulse_line", "echoscope_pulse_listen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFigure:
    """One figure with its place on the page."""

    head: dict[str, Any]
    """`height`, `alt`, `revision`, `config`."""
    text: str
    """JSON of `data` and `layout`, without escapes of HTML's letters."""

    @property
    def layout(self) -> dict[str, Any]:
        layout: dict[str, Any] = json.loads(self.text)["layout"]
        return layout


def shown_figures(page: AppTest) -> dict[str, ShownFigure]:
    """Element id -> figure, in the order of the page."""
    out = {}
    for element in page.get("bidi_component"):
        if element.proto.component_name == COMPONENT:
            head, _, spec = element.proto.bytes.decode().partition("\n")
            text = json.dumps(json.loads(spec), ensure_ascii=False, separators=(",", ":"))
            out[element.proto.id] = ShownFigure(head=json.loads(head), text=text)
    return out


def shown_lines(page: AppTest) -> dict[str, dict[str, Any]]:
    """Name -> what the browser gets of each line that goes on by itself."""
    return {data["name"]: data for data in _data_of(page, LINE)}


def listened_to(page: AppTest) -> set[str]:
    """What of the run's pulse has a part of the page drawn again."""
    return {name for data in _data_of(page, LISTENER) for name in data["seen"]}


def _data_of(page: AppTest, component: str) -> list[dict[str, Any]]:
    return [
        json.loads(json.loads(element.proto.json))
        for element in page.get("bidi_component")
        if element.proto.component_name == component
    ]
