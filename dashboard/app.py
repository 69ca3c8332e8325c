"""The script that Streamlit runs: the menu of pages. What a page shows is in `views`."""

from __future__ import annotations

import streamlit as st

from echoscope.dashboard import ui


def main() -> None:
    st.set_page_config(page_title="Echoscope", layout="wide")
    pages = [
        st.Page(ui.script(name), title=title, url_path=name, default=name == ui.FRONT_PAGE)
        for name, (title, _) in ui.PAGES.items()
    ]
    page = st.navigation(pages, position="top")
    ui.enter(page.url_path)
    page.run()


main()
