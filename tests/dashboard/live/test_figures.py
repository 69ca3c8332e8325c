"""Figures as they are sent, and the files that draw them."""

from __future__ import annotations

import gzip
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from echoscope.dashboard.live import figures
from echoscope.dashboard.page.ui import PAGES
from echoscope.dashboard.web import assets
from echoscope.dashboard.web.chunks import chunks


def test_a_drawing_has_the_data_and_leaves_the_look_to_the_page() -> None:
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, None]), {"height": 260, "hovermode": "closest"})
    found = figures.drawing(figure)
    spec = json.loads(found.spec)
    assert found.height == 260
    assert spec["layout"] == {"hovermode": "closest"}
    assert spec["data"][0]["x"] == [1, 2]
    assert spec["data"][0]["y"] == [3, None]


def test_what_is_not_finite_is_a_gap_and_numbers_are_packed() -> None:
    spec = json.loads(figures.drawing(go.Figure(go.Scatter(y=np.array([1.0, np.nan])))).spec)
    assert spec["data"][0]["y"]["dtype"] == "f8"


def test_data_as_they_are_are_sent_as_plotly_would_send_them() -> None:
    values = np.array([[1.0, np.nan], [2.0, 3.0]])
    trace = {"type": "scatter", "y": values[:, 0].copy(), "customdata": values, "text": ["a", "b"]}
    layout = {"height": 100, "hovermode": "closest"}
    mine, theirs = (
        json.loads(figures.drawing(figure).spec)
        for figure in ({"data": [trace], "layout": layout}, go.Figure(trace, layout))
    )
    assert mine == theirs


def test_what_is_no_number_in_data_as_they_are_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        figures.drawing({"data": [], "layout": {"title": float("nan")}})


def test_a_figure_without_a_height_gets_one() -> None:
    assert figures.drawing(go.Figure()).height == figures.DEFAULT_HEIGHT


def test_drawing_leaves_the_figure_as_it_was() -> None:
    figure = go.Figure(layout={"height": 100})
    figures.drawing(figure)
    assert figure.layout.height == 100


# Assets


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=assets.routes()), client=("127.0.0.1", 1))


@pytest.mark.parametrize(
    "asset", [assets.PLOTLY, assets.FIGURES, assets.PULSE], ids=lambda one: one.name
)
def test_a_script_is_kept_for_ever_under_the_name_of_its_content(
    client: TestClient, asset: assets.Asset
) -> None:
    found = client.get(asset.path)
    assert found.status_code == 200
    assert found.content == asset.read()
    assert found.headers["content-type"].startswith("text/javascript")
    assert "immutable" in found.headers["cache-control"]
    again = client.get(asset.path, headers={"if-none-match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_script_is_packed_for_another_machine_only(client: TestClient) -> None:
    path = assets.FIGURES.path
    assert client.get(path).headers["content-encoding"] == "identity"
    far = TestClient(Starlette(routes=assets.routes()), client=("192.0.2.7", 1))
    found = far.get(path, headers={"accept-encoding": "gzip"})
    assert found.headers["content-encoding"] == "gzip"
    assert found.content == assets.FIGURES.read()
    plain = far.get(path, headers={"accept-encoding": "identity"})
    assert plain.headers["content-encoding"] == "identity"


def test_packed_is_smaller() -> None:
    body = assets.PLOTLY.read()
    assert len(gzip.compress(body, 1)) < len(body) / 2


def test_plotly_is_compiled_while_it_is_fetched() -> None:
    script = b'\n} (typeof self !== "undefined" ? self : this, () => {\nbody\n}));'
    assert assets.compiled_ahead(script) == (
        b'\n} (typeof self !== "undefined" ? self : this, (function () {\nbody\n})));'
    )
    assert assets.compiled_ahead(b"of another make") == b"of another make"


def test_the_installed_plotly_is() -> None:
    assert assets.PLOTLY.read().endswith(b"\n})));")


def test_pages_without_charts_do_not_fetch_plotly() -> None:
    assert assets.PLOTLY.path in assets.head_tags("/live")
    assert assets.PLOTLY.path not in assets.head_tags("/replay")
    assert assets.head_tags("/anything-else") == ""


@pytest.mark.parametrize("name", list(PAGES))
def test_the_widgets_of_a_page_are_fetched_with_it(name: str) -> None:
    """Fails where a new Streamlit names its files otherwise: pages then only open more slowly."""
    found = chunks("" if name == "runs" else name)
    assert len(found) > 20
    assert len(set(found)) == len(found)
    assert any("/Html." in path for path in found)
    assert not any("PlotlyChart" in path for path in found)


@pytest.mark.parametrize("name", ["", "replay", "live"])
def test_pages_without_a_data_frame_in_sight_do_not_wait_for_its_scripts(name: str) -> None:
    assert not any("/DataFrame." in path for path in chunks(name))
