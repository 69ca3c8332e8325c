"""The script that Streamlit runs: the menu of pages. What a page shows is in `views`."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from echoscope.dashboard import ui

HERE = Path(__file__).parent


def main() -> None:
    st.set_page_config(page_title="Echoscope", layout="wide")
    pages = [
        st.Page(HERE / script, title=title, url_path=name, default=name == "runs")
        for name, (title, script) in ui.PAGES.items()
        if (HERE / script).is_file()
    ]
    st.navigation(pages, position="top").run()


main()
