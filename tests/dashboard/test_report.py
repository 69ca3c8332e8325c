"""A report is one file: everything inside, nothing foreign alive, no request possible."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_run import make_run

from echoscope.dashboard.problems import Problem
from echoscope.dashboard.report import make_report
from echoscope.dashboard.report_page import POLICY

Serve = Callable[..., None]
HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)> {title} "quoted"'


class Elements(HTMLParser):
    """Names and attributes of all elements, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def without_plotly(text: str) -> str:
    """The page without the library, which is 5 MB of somebody else's."""
    return re.sub(r"<script>/\*\*.*?</script>", "", text, count=1, flags=re.DOTALL)


@pytest.fixture(scope="session")
def report(recorded_root: Path) -> str:
    from echoscope.dashboard import settings

    settings.configure(settings.DashboardSettings(root=recorded_root))
    return make_report("tiny")


def test_it_says_the_verdict_and_shows_charts_and_trajectories(report: str) -> None:
    page = Elements(without_plotly(report))
    words = " ".join(page.words)
    assert "insufficient evidence" in words
    assert "Curves" in words
    assert len([one for one in page.of("div") if one.get("class") == "chart"]) >= 8
    assert page.of("details")


def test_every_figure_has_its_place_and_is_valid_json(report: str) -> None:
    page = without_plotly(report)
    figures = re.findall(r'<script type="application/json" class="figure">(.*?)</script>', page)
    assert len(figures) == page.count('<div class="chart"')
    for text in figures:
        assert {"data", "layout"} <= set(json.loads(text.replace("<\\/", "</")))


def test_nothing_in_it_can_ask_a_network(report: str) -> None:
    page = Elements(without_plotly(report))
    assert page.of("meta")[2]["content"] == POLICY
    assert "default-src 'none'" in POLICY
    for _, attributes in page.found:
        for name in ("src", "href", "srcset", "action"):
            assert str(attributes.get(name) or "data:").startswith(("data:", "#"))
    assert not [tag for tag, _ in page.found if tag in ("link", "iframe", "base", "object")]


def test_hostile_text_stays_text(tmp_path: Path, serve_root: Serve) -> None:
    make_run(tmp_path / "bad", name=HOSTILE, tags=[HOSTILE], text=HOSTILE)
    serve_root(tmp_path)
    page = Elements(without_plotly(make_report("bad")))
    assert not [one for one in page.of("img") if one.get("src") == "x"]
    assert all("alert" not in "".join(map(str, one.values())) for one in page.of("script"))
    assert not [name for _, a in page.found for name in a if name.startswith("on")]
    assert "alert(1)" in " ".join(page.words)


def test_chosen_trajectories_are_shown_and_an_unknown_one_is_a_problem(
    recorded_root: Path, serve_root: Serve
) -> None:
    serve_root(recorded_root)
    page = Elements(without_plotly(make_report("tiny", chosen=["t00000001-00002"])))
    assert [one["id"] for one in page.of("details")] == ["t00000001-00002"]
    with pytest.raises(Problem, match="no trajectory"):
        make_report("tiny", chosen=["t00000001-99999"])
    with pytest.raises(Problem, match="not a trajectory id"):
        make_report("tiny", chosen=["../x"])
    with pytest.raises(Problem):
        make_report("nope")
