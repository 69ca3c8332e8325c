"""What-if on the Diagnosis page: move the filter, see what it would have kept, then apply it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.judge.advice.actions import Action
from echoscope.diagnostics.read.table import steps_with_groups
from echoscope.diagnostics.selection.payoff import Payoff, Worth
from echoscope.diagnostics.tools.whatif import (
    Kept,
    WhatIf,
    WhatIfError,
    apply_changes,
    own_settings,
    simulate,
)
from echoscope.store.reader import RunReader
from echoscope.text.amounts import percent

from ..data import queries
from ..steer import branch_form
from ..words import NONE, plain
from . import links, ui

MAX_STEPS = 24
"""Steps that are simulated at once: about 6 ms of processor time each."""
STRATEGIES = {
    "none": "keep all groups",
    "top_p": "top-p: the most spread, up to a share of it",
    "top_k": "top-k: a share of the groups",
    "min_p": "min-p: above a share of the largest spread",
}


def whatif_box(run_id: str, actions: Sequence[Action]) -> None:
    """The form, what it would keep beside what the run kept, and the command that does it.

    Args:
        actions: What the verdict on the same page advises.
    """
    steps = _steps(run_id)
    if not steps:
        ui.empty("No training trajectories are stored, so there is nothing to select from.")
        return
    chosen = spaced(steps, MAX_STEPS)
    try:
        own = apply_changes(own_settings(queries.reader(run_id))(steps[-1]), {})
        changes = _asked(own)
        result = _simulated(run_id, tuple(changes.items()), tuple(chosen))
    except WhatIfError as error:
        ui.notice(str(error))
        return
    st.dataframe(_table(result), hide_index=True)
    which = (
        f"{len(chosen)} steps, evenly spread over {len(steps)}"
        if len(chosen) < len(steps)
        else "all steps"
    )
    payoff = payoff_words(result.payoff, actions)
    st.caption(plain(f"On the rollouts that the run made, {which}. {payoff}", limit=600))
    for note in result.notes:
        st.caption(plain(note, limit=400))
    if changes:
        _apply(run_id, changes)


_steps = queries.kept(steps_with_groups)


def _whatif(run: RunReader, changes: Sequence[tuple[str, Any]], steps: Sequence[int]) -> WhatIf:
    """What a filter would have kept of some finished steps."""
    return simulate(run, dict(changes), steps)


_simulated = queries.kept(_whatif, queries.attempt)


def spaced(steps: Sequence[int], most: int) -> list[int]:
    """At most `most` of the steps, evenly spread. While a run grows they stay the same for long.

    >>> spaced(range(1, 9), 4), spaced(range(1, 10), 4), spaced(range(1, 13), 4)
    ([1, 3, 5, 7], [1, 5, 9], [1, 5, 9])
    """
    stride = 1
    while len(steps) > most * stride:
        stride *= 2
    return [*steps[::stride]]


def payoff_words(payoff: Payoff, actions: Sequence[Action]) -> str:
    """Whether filtering pays; the verdict's advice instead, where that is another thing to do.

    The ratio knows nothing of what is the matter with the run: spread that is noise looks the same.
    """
    is_other = bool(actions) and not any(
        key.startswith("selection.") for key in actions[0].settings
    )
    if payoff.worth is Worth.PAYS and is_other:
        return f"Before any filter, do what the verdict says: {actions[0].text}"
    return payoff.text


def _asked(own: SelectionConfig) -> dict[str, Any]:
    left, right = st.columns([3, 2])
    names = list(STRATEGIES)
    start = own.strategy if own.strategy in names else "top_p"
    strategy = left.selectbox(
        "Filter", names, index=names.index(start), format_func=STRATEGIES.__getitem__, key="wf_rule"
    )
    value = right.slider(
        "Value",
        0.05,
        1.0,
        min(max(own.value, 0.05), 1.0),
        0.05,
        key="wf_value",
        disabled=strategy == "none",
    )
    changes: dict[str, Any] = {"selection.strategy": strategy}
    if strategy != "none" and abs(value - own.value) > 1e-9:
        changes["selection.value"] = round(float(value), 4)
    return changes if strategy != own.strategy or len(changes) > 1 else {}


def _table(result: WhatIf) -> pd.DataFrame:
    rows = [("this filter", result.simulated)]
    if result.recorded is not None:
        rows.append(("the run", result.recorded))
    return pd.DataFrame([{"": name, **_row(kept)} for name, kept in rows])


def _row(kept: Kept) -> dict[str, str]:
    return {
        "groups kept": f"{kept.num_groups_kept} of {kept.num_groups} ({_percent(kept.kept_frac)})",
        "signal kept": _percent(kept.signal_frac),
        "tokens saved": _percent(kept.tokens_saved_frac),
        "steps without update": str(kept.num_empty),
        "left out": ", ".join(f"{count} {why}" for why, count in kept.drops.items()) or NONE,
    }


def _percent(share: float) -> str:
    return NONE if share != share else percent(share)


def _apply(run_id: str, changes: dict[str, Any]) -> None:
    settings_text = " ".join(f"{key}={value}" for key, value in changes.items())
    info = queries.info(run_id)
    if info.status == "running":
        st.caption("The run is live. This changes its filter from the next step on:")
        st.code(f"echoscope ctl {queries.typed(run_id)} set {settings_text}", language="bash")
        links.link("Change it on the page Live", "live", run=run_id)
    else:
        st.caption("The run has ended. This trains on from its last checkpoint with this filter:")
        steps = info.config.get("steps")
        if isinstance(steps, int) and steps <= info.last_step:  # as planned: it needs a new plan
            settings_text = f"steps={2 * steps} {settings_text}"
        st.code(f"echoscope ctl {queries.typed(run_id)} branch {settings_text}", language="bash")
        if st.button("Branch with this filter", key="wf_branch"):
            branch_form.preset(run_id, changes)
            st.switch_page(links.script("live"), query_params=links.link_params(run=run_id))
