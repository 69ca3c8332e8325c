"""The script that Streamlit runs: the menu of pages. What a page shows is in `views`."""

from __future__ import annotations

import streamlit as st

from echoscope.dashboard.escaping import visible
from echoscope.dashboard.page import links, ui


def main() -> None:
    pages = [
        st.Page(links.script(name), title=title, url_path=name, default=name == links.FRONT_PAGE)
        for name, (title, _) in links.PAGES.items()
    ]
    page = st.navigation(pages, position="top")
    run_id = st.query_params.get("run")
    about = [visible(run_id, 60)] if run_id and page.url_path else []
    st.set_page_config(page_title=" - ".join([page.title, *about, "Echoscope"]), layout="wide")
    ui.enter(page.url_path)
    page.run()


main()
