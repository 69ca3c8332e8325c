"""The script that Streamlit runs: the menu of pages. What a page shows is in `views`."""

from __future__ import annotations

import streamlit as st

from echoscope.dashboard.charts import theme
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.page import links, ui


def main() -> None:
    st.set_page_config(layout="wide")  # first: nothing is laid out in the middle before
    pages = [
        st.Page(
            links.script(name),
            title=title,
            url_path=name,
            default=name == links.FRONT_PAGE,
            visibility="hidden" if name in links.UNLISTED else "visible",
        )
        for name, title in links.PAGES.items()
    ]
    page = st.navigation(pages, position="top")
    run_id = st.query_params.get("run")
    about = [visible(run_id, 60)] if run_id and page.url_path else []
    tab = " - ".join([page.title, *about, "Echoscope"])
    st.set_page_config(page_title=tab, page_icon=theme.icon("blue"))
    ui.enter(page.url_path)
    page.run()


main()
