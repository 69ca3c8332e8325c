"""When a part of a page asks for news: a click on one of its buttons is never lost by it."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def page() -> None:
    """A part that is drawn with its page and then by itself, while there is news."""
    import streamlit as st

    from echoscope.dashboard.live.refreshing import _look
    from echoscope.dashboard.page.problems import Problem

    events = st.session_state.setdefault("events", [])

    def draw() -> None:
        events.append("drawn")
        if st.session_state.get("is_broken"):
            raise Problem("the disk is gone")

    def has_news() -> bool:
        events.append("asked for news")
        return events.count("drawn") < 3

    look = _look(draw, has_news)
    look()
    events.append("page is there")
    look()


WITH_THE_PAGE = ["drawn", "page is there"]
ALONE = ["drawn", "asked for news"]


def test_a_part_is_drawn_before_news_of_it_begin_the_page_anew() -> None:
    app = AppTest.from_function(page).run()
    assert app.session_state.events == [*WITH_THE_PAGE, *ALONE] * 2


def test_a_part_that_cannot_be_drawn_asks_for_news_all_the_same() -> None:
    app = AppTest.from_function(page)
    app.session_state.is_broken = True
    assert app.run().session_state.events == [*WITH_THE_PAGE, *ALONE] * 2
