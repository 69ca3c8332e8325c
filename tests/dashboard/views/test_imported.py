"""Pages of a run that was imported: what another trainer did not write is not shown as known."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from app_text import app_html
from shown_figures import ShownFigure, shown_figures
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.data import queries
from echoscope.dashboard.replay.listing import EPISODE
from echoscope.dashboard.report.report import make_report
from echoscope.diagnostics.tools.importing import import_path

OpenPage = Callable[..., AppTest]
FIXTURES = Path(__file__).parents[2] / "store" / "importers" / "fixtures"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the pages show of a fixture, worked out by hand from its file."""

    verdict: str
    """Needs 8 steps; a fixture has one or two."""
    legend: tuple[str, ...]
    """Of the newest step."""
    rows: tuple[tuple[str | None, ...], ...]
    """Group and sibling, return, success, advantage, update, turns of the trajectories of that
    step; None for what the list has no column for."""
    talk: tuple[str, ...]
    """All pieces of text of its first trajectory."""
    groups: tuple[str, ...] = ()
    """Of every step; a trajectory alone is no group."""


ONE = "Too early to tell: a verdict needs 8 steps, and there is 1."
TWO = "Too early to tell: a verdict needs 8 steps, and there are 2."
SHOWN = {
    # The functions' rewards add up: 1.0 + 0.5, 0 + 0, 1.0, 0. The std of (1.5, 0) is 1.5 / 2**0.5.
    "trl": Shown(
        verdict=ONE,
        legend=("4 unknown", "mean return 0.625"),
        rows=(
            ("0, 0", "1.5", None, "+0.70", None, "1"),
            ("0, 1", "0", None, "-0.70", None, "1"),
            ("1, 0", "1", None, "+0.70", None, "1"),
            ("1, 1", "0", None, "-0.70", None, "1"),
        ),
        talk=(*("Turn 0", "reward", "+1.5", "P", "reasoning", "a", "reply", "x"),),
        groups=(
            "group 1: mixed, return 0.50, reward std 0.71",
            "group 0: mixed, return 0.75, reward std 1.06",
        ),
    ),
    # One reward for the whole episode; example 3 was played twice, example 4 once.
    "verifiers": Shown(
        verdict=ONE,
        legend=("2 cut off", "1 unknown", "mean return 0.233"),
        rows=(
            ("0, 0", "0.7", None, None, None, "2"),
            ("0, 1", "0", None, None, None, "1"),
            ("1, 0", "0", None, None, None, "1"),
        ),
        talk=(
            *("Turn 0", "Guess", "reasoning", "a", "reply", "crane"),
            *("Turn 1", "reward", "+0.7", "GXX", "caper"),
        ),
        groups=("group 0: mixed, return 0.35, reward std 0.49",),
    ),
    # The conversation of step 4 has no reward; step 3 is tested below.
    "messages": Shown(
        verdict=TWO,
        legend=("1 unknown",),
        rows=(("0, 0", None, None, None, None, "1"),),
        talk=(
            *(
                "Turn 0",
                "reward",
                "unknown",
                "Board A\n[image_url]",
                "reasoning",
                "because",
                "reply",
                "up",
            ),
        ),
    ),
    # The reward of the first reply was never written, so the return of its episode is not known.
    "ragen": Shown(
        verdict=ONE,
        legend=("2 solved", "1 failed"),
        rows=(
            ("0, 0", None, "solved", None, None, "2"),
            ("0, 1", None, "failed", None, None, "1"),
            ("1, 0", "0.8", "solved", None, None, "2"),
        ),
        talk=(
            *("Turn 0", "action", "Down", "reward", "unknown", "S1"),
            *("reasoning", "down first", "answer", "Down"),
            *("Turn 1", "action", "Right, Up", "reward", "+10.9", "S2"),
            *("reasoning", "then right", "answer", "Right || Up"),
            *("After the last turn", "S3"),
        ),
        groups=("group 0: mixed, return unknown, reward std unknown",),
    ),
    "verl": Shown(
        verdict=TWO,
        legend=("1 solved", "1 failed"),
        rows=(
            ("0, 0", "1", "solved", None, None, "2"),
            ("0, 1", "0", "failed", None, None, "1"),
        ),
        talk=(
            *("Turn 0", "What is 2 + 3?", "reasoning", "add"),
            *("reply", "<tool_call>calc</tool_call>"),
            *("Turn 1", "reward", "+1", "<tool_response>5</tool_response>", "The answer is 5."),
        ),
        groups=("group 0: mixed, return 0.50, reward std 0.71",),
    ),
    # Summaries hold numbers and no text: 0.5 of the first turn, 1.0 of the end.
    "tinker": Shown(
        verdict=ONE,
        legend=("2 unknown", "mean return 1.5"),
        rows=(
            ("0, 0", "1.5", None, None, None, "2"),
            ("0, 1", "1.5", None, None, None, "2"),
        ),
        talk=(
            *("Turn 0", "reward", "+0.5", "the file holds no text of this turn"),
            *("Turn 1", "reward", "+1", "the file holds no text of this turn"),
        ),
        groups=("group 0: no spread, return 1.50, reward std 0.00",),
    ),
}


@pytest.fixture(scope="module")
def imported_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imported")
    for name in SHOWN:
        import_path(FIXTURES / name, root / name, is_packing=False)
    return root


def talk_of(page: AppTest) -> tuple[str, ...]:
    """Every piece of text of the conversation that the page Replay shows."""
    (talk,) = [e.proto.body for e in page.get("html") if '"es-talk"' in e.proto.body]
    return tuple(text_of(talk))


def text_of(markup: str) -> list[str]:
    """The pieces of text of some HTML."""
    return [html.unescape(p).strip() for p in re.split(r"<[^>]*>", markup) if p.strip()]


def rows_of(page: AppTest) -> tuple[tuple[str | None, ...], ...]:
    columns = [EPISODE, "return", "success", "advantage", "update", "turns"]
    cells = page.dataframe[0].value.reindex(columns=columns).to_numpy(dtype=object)
    return tuple(tuple(None if pd.isna(cell) else cell for cell in row) for row in cells)


def figure_of(page: AppTest, key: str) -> ShownFigure | None:
    """A chart by its place; None where it is not on the page."""
    figures = shown_figures(page)
    return next((figures[name] for name in figures if name.endswith(f"-{key}")), None)


@pytest.mark.long
@pytest.mark.parametrize("name", SHOWN)
def test_the_newest_step_of_each_format_is_replayed(
    name: str, imported_root: Path, open_page: OpenPage
) -> None:
    page = open_page("replay", imported_root, run=name, order="id")
    assert not page.exception
    (legend,) = [e.proto.body for e in page.get("html") if '"es-key-line"' in e.proto.body]
    assert tuple(text_of(legend)) == SHOWN[name].legend
    assert rows_of(page) == SHOWN[name].rows
    assert "tokens" not in page.dataframe[0].value, "no file says how many"
    assert talk_of(page) == SHOWN[name].talk
    (details,) = [box for box in page.get("popover") if box.proto.popover.label == "Details"]
    details_html = "".join(element.proto.body for element in details.get("html"))
    for word in ("none", "nan", "tokens", "seed"):
        assert word not in details_html.lower(), "nobody said so"


@pytest.mark.parametrize("name", SHOWN)
def test_verdict_and_groups_of_each_format(
    name: str, imported_root: Path, serve_root: Callable[..., None], open_page: OpenPage
) -> None:
    serve_root(imported_root)
    queries.verdict(name, wait_s=60)  # the page shows it as soon as it is there
    page = open_page("diagnosis", imported_root, run=name)
    assert not page.exception
    assert SHOWN[name].verdict in app_html(page)
    figure = figure_of(page, "group_map")
    traces = [] if figure is None else json.loads(figure.text)["data"]
    texts = [trace["text"] for trace in traces if trace["type"] == "heatmap"]
    assert (
        tuple(cell for text in texts for row in text for cell in row if cell) == SHOWN[name].groups
    )
    assert ("Groups and their rewards;" in f"{texts_of(page)};") == (figure is None)


# The mean of 1.5, 0, 1, 0; the mean of 0.7, 0, 0 and 0.7 / 2**0.5.
@pytest.mark.parametrize(
    ("name", "earned", "spread"),
    [
        ("trl", "0.625 reward at step 5", ""),  # a sum of terms whose weights nobody knows
        ("verifiers", "0.2333 reward at step 0", "0.495 reward at step 0"),
        ("messages", "1.5 reward at step 3", ""),
    ],
)
def test_rewards_and_their_spread_are_on_the_page_live(
    name: str, earned: str, spread: str, imported_root: Path, open_page: OpenPage
) -> None:
    page = open_page("live", imported_root, run=name)
    assert not page.exception
    descriptions = [figure.head["alt"] for figure in shown_figures(page).values()]
    assert len([text for text in descriptions if f"Return. Return: {earned}," in text]) == 1
    spreads = [text for text in descriptions if "Reward std within groups" in text]
    assert len(spreads) == bool(spread)
    assert all(f": {spread}," in text for text in spreads)


def test_an_earlier_step_has_its_own_reward_success_and_tool_call(
    imported_root: Path, open_page: OpenPage
) -> None:
    page = open_page("replay", imported_root, run="messages", step="3")
    assert rows_of(page) == (("0, 0", "1.5", "solved", None, None, "2"),)
    assert talk_of(page) == (
        *("Turn 0", "Board A", "reasoning", "left is free", "answer", "left"),
        *("Turn 1", "reward", "+1.5", "Board B", 'move(to="up")', "result", "moved"),
    )


def test_guesses_are_named_on_the_page(imported_root: Path, open_page: OpenPage) -> None:
    page = open_page("replay", imported_root, run="verl", trajectory="i00000010-00000")
    assert not page.exception
    assert "reconstructed: turns were split at role names in plain text" in app_html(page)
    assert "rollouts/10.jsonl" in app_html(page)


def texts_of(page: AppTest) -> str:
    """All captions and plain texts of a page."""
    return "\n".join(element.value for element in [*page.caption, *page.text]).replace("\\", "")


def test_an_imported_run_offers_no_control_and_says_why(
    imported_root: Path, open_page: OpenPage
) -> None:
    page = open_page("live", imported_root, run="verl")
    assert not [element for element in page.button if "steer" in str(element.key)]
    assert "This run was imported from files of verl, so it takes no commands." in texts_of(page)
    assert "The weights of this run are with another trainer" in texts_of(page)
    titles = "".join(figure.text for figure in shown_figures(page).values())
    assert "<b>Return</b>" in titles
    assert "<b>Policy entropy</b>" not in titles


def test_pages_of_an_imported_run_say_what_it_cannot_have(
    imported_root: Path, open_page: OpenPage
) -> None:
    diagnosis = open_page("diagnosis", imported_root, run="ragen")
    assert "Alarms are raised while a training runs; this run was imported" in texts_of(diagnosis)
    assert "need the model's weights" in texts_of(diagnosis)


def test_the_report_of_an_imported_run_has_no_empty_chart(imported_root: Path) -> None:
    text = make_report(imported_root / "verl")
    assert 'class="title">Return ' in text
    assert "No value was measured." not in text
