"""System: where the time of a step goes, who waits for whom, and how busy the machine is."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts.system import phases_spec, waits_spec
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.progress import (
    COLLECTION,
    MEANS,
    NUM_STEPS,
    PHASES,
    STEP,
    WAITS,
    Shares,
    engines_words,
    phases,
    waits,
)
from echoscope.dashboard.live import figures
from echoscope.dashboard.live.refreshing import follow, guarded
from echoscope.dashboard.page import ui
from echoscope.dashboard.page.evaluation_box import evaluation_box
from echoscope.dashboard.words import plain
from echoscope.diagnostics.catalogue import LISTED, metric

PREFIXES = ("system/", "collection/", "ray/", "engine/")
SPEED = ("time/tokens_per_s", "time/step_s")


def draw(run_id: str) -> None:
    if evaluation_box(run_id):
        return
    if ui.is_following(run_id):
        follow("system", run_id, ("keys", "position"), lambda: _shares(run_id))
        follow("machine", run_id, ("keys",), lambda: _machine(run_id, is_followed=True))
    else:
        guarded(lambda: _shares(run_id))
        guarded(lambda: _machine(run_id, is_followed=False))


def _shares(run_id: str) -> None:
    """Of the last steps, as bars: the phases, then who waited during the collection."""
    since = queries.info(run_id).last_step - NUM_STEPS
    means = queries.table(run_id, MEANS, [(STEP, COLLECTION, *PHASES, *WAITS), since])
    parts, waiting = phases(means), waits(means)
    if parts is None:
        ui.empty("No step of this run says how long it took, so there is nothing to divide.")
        return
    figures.show(phases_spec(parts), _words("Phases of a step", parts), key="phases")
    if waiting is not None:
        figures.show(waits_spec(waiting), _words("Waiting", waiting), key="waits")
    else:
        st.caption(
            "Who waits for whom is measured where episodes run side by side: collection.mode=async."
        )
    words = engines_words(queries.info(run_id).config)
    if words:
        st.caption(plain(words, 400))


def _words(title: str, shares: Shares) -> str:
    parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in shares.seconds.items())
    return f"{title}, mean of steps {shares.first_step} to {shares.last_step}: {parts}"


def _machine(run_id: str, *, is_followed: bool) -> None:
    keys = _keys(queries.metric_keys(run_id))
    if not any(key.startswith("system/") for key in keys):
        st.caption(
            "How busy the machine was is not measured in this run: Echoscope's own trainer "
            "measures it at each step."
        )
    page = live_charts.snapshot(run_id, is_followed=is_followed)
    live_charts.plain(page, keys)


def _keys(known: Sequence[str]) -> list[str]:
    """Of the machine first, then speed, then waiting."""
    listed = [key for prefix in PREFIXES for key in known if key.startswith(prefix)]
    machine = [key for key in listed if key.startswith(PREFIXES[0])]
    machine.sort(key=_place)
    return [*machine, *(key for key in SPEED if key in known), *listed[len(machine) :]]


def _place(key: str) -> int:
    """Where the catalogue lists a metric."""
    listed = list(LISTED)
    return listed.index(metric(key).key) if metric(key).key in LISTED else len(listed)


ui.run_frame("System", draw)
