"""Runs: every run under the root."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from echoscope.dashboard import queries, ui


def draw() -> None:
    rows = queries.runs()
    if not rows:
        ui.empty_root()
        return
    st.dataframe(pd.DataFrame([{"run": row.run_id, "status": row.status} for row in rows]))
    for row in rows[:5]:
        ui.link(row.run_id, "live", run=row.run_id)


def main() -> None:
    ui.frame("Runs", draw)


main()
