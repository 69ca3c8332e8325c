"""Pieces that every page shares: labels without Markdown, parameters of the address, words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.charts import theme
from echoscope.dashboard.page import ui
from echoscope.dashboard.words import plain, status_words
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.claims import Fate
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.store.status import RunStatus, Status

Serve = Callable[..., None]
JOINER = "\u2060"


def markdown_of(label: str) -> str:
    """What a reader of Markdown shows of an escaped label: escapes taken away."""
    return re.sub(r"\\(.)", r"\1", label).replace(JOINER, "")


@pytest.mark.parametrize(
    "text",
    [
        "plain-name_1.2",
        "**bold** _em_ `code` ~~no~~",
        "[a](http://evil.example) ![b](x.png)",
        "<script>alert(1)</script> &lt;",
        "$x^2$ :red[x] :smile: :material/home:",
        "# head - list 1. list > quote | table",
        "back\\slash \\* ",
    ],
)
def test_a_label_shows_text_as_it_is(text: str) -> None:
    label = plain(text)
    assert markdown_of(label) == " ".join(text.split())
    assert not re.search(r"(?<!\\)(?:\\\\)*[*_`\[\]<>$:!~|]", label)


@pytest.mark.parametrize(
    ("text", "kept_apart"),
    [
        ("http://evil.example", f"http\\:{JOINER}"),
        ("www.evil.example", f"www{JOINER}"),
        ("a@evil.example", f"\\@{JOINER}"),
        (":smile:", f"\\:{JOINER}smile"),
        (":100:", f"\\:{JOINER}100"),
    ],
)
def test_what_becomes_a_link_by_itself_is_kept_apart(text: str, kept_apart: str) -> None:
    assert kept_apart in plain(text)


def test_a_label_is_one_short_line_of_visible_characters() -> None:
    assert "\n" not in plain("a\nb")
    assert len(plain("x" * 50_000_000)) < 300
    assert "RIGHT" in plain("a\u202eb")


def test_the_badge_says_how_a_run_stands_and_how_far_it_is() -> None:
    paused = RunStatus(status=Status.PAUSED, by="alarm ECHO_TRAP", since=0.0)
    assert status_words(paused, 37, 80, 720.0) == (
        'paused by the alarm "echo trap" for 12 min, step 37 of 80',
        "orange",
    )
    live = RunStatus(status=Status.LIVE)
    assert status_words(live, 120, 80, 0.0) == ("live, step 120", "blue")
    assert status_words(RunStatus(status=Status.WAITING), -1, 80, 0.0)[0] == (
        "waiting for its first step"
    )


def test_a_badge_shows_the_marks_of_a_hostile_author_by_name() -> None:
    hostile = RunStatus(status=Status.PAUSED, by="a\u202eb")
    assert "\u202e" not in status_words(hostile, 1, 2, 0.0)[0]


def test_who_comes_from_another_page_finds_the_newest() -> None:
    def app() -> None:
        import streamlit as st

        from echoscope.dashboard.page import ui

        ui.enter(st.session_state["at"])

    page = AppTest.from_function(app)
    for page_name, is_kept in (
        ("replay", False),
        ("replay", True),
        ("live", False),
        ("replay", False),
    ):
        page.session_state["at"] = page_name
        page.session_state[ui.SEEN_STEP] = ("a", 3)
        page.run()
        assert (ui.SEEN_STEP in page.session_state) is is_kept


# -- the address -----------------------------------------------------------------------------------


def asking(**params: str) -> AppTest:
    """A page that asks the address for everything."""

    def page() -> None:
        import streamlit as st

        from echoscope.dashboard.page import url_state

        st.json(
            {
                "step": url_state.int_param("step", 7, least=1, most=99),
                "x": url_state.choice_param("x", ("step", "time"), "step"),
                "runs": url_state.list_param("runs", most=2),
                "q": url_state.text_param("q", most=5),
            }
        )

    test = AppTest.from_function(page, default_timeout=60)
    for name, value in params.items():
        test.query_params[name] = value
    return test.run()


def test_what_the_address_says_is_used() -> None:
    page = asking(step="42", x="time", runs="a,b,a", q="abc")
    assert json.loads(page.json[0].value) == {
        "step": 42,
        "x": "time",
        "runs": ["a", "b"],
        "q": "abc",
    }
    assert not page.info


def test_without_a_word_of_it_there_are_defaults() -> None:
    page = asking()
    assert json.loads(page.json[0].value) == {"step": 7, "x": "step", "runs": [], "q": ""}
    assert not page.info


@pytest.mark.parametrize("step", ["0", "100", "-1", "1.5", "x", "9" * 400, "\u0661"])
def test_a_number_out_of_range_is_noted(step: str) -> None:
    page = asking(step=step)
    assert len(page.info) == 1
    assert "at least 1 and at most 99" in markdown_of(page.info[0].value)


def test_every_malformed_word_is_noted() -> None:
    page = asking(step="x", x="y", runs="a,b,c", q="too long")
    assert len(page.info) == 4
    assert not page.exception


@pytest.mark.parametrize("text", ["optim.lr=1e-4", "0.889", "at 12:03", "model.lora.rank"])
def test_keys_and_numbers_are_copied_as_they_are(text: str) -> None:
    assert JOINER not in plain(text)


def test_every_state_of_a_verdict_has_a_colour() -> None:
    states = {state.words(has_ended=over) for state in RunState for over in (False, True)}
    assert set(theme.STATE_TONES) == states
    assert theme.STATE_TONES["recovering"] == theme.STATE_TONES["watch"] == "orange"


def test_a_run_that_crashed_or_waits_is_never_green() -> None:
    well = replace(Diagnosis().verdict(), state=RunState.HEALTHY)
    crashed = replace(well, claims=(Fate(kind="crashed", words="It crashed."),))
    assert theme.shown_state(well) == "healthy"
    assert theme.shown_state(crashed) == "watch"
    assert theme.shown_state(replace(crashed, state=RunState.COLLAPSED)) == "collapsed"
