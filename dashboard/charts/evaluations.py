"""Figures of the pages Evaluations and Cure: success of several runs beside each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from echoscope.diagnostics.metric_entry import SHARE
from echoscope.diagnostics.tools.curing import BranchStanding
from echoscope.store.query.metric_keys import SUCCESS_RATE
from echoscope.text.amounts import percent

from ..data.curves import AS_STEPS, Curve
from ..data.evaluations import APART, EvaluationGroup, Ranked
from .charts import LineOptions, line_spec
from .parts import Spec, figure_text, note, scatter, whiskers
from .theme import ACCENT, SERIES, TONES

MAX_DRAWN = 12
"""Evaluations of a group that are drawn: the best."""
_ROW = 26
"""Pixels."""


def success_figure(group: EvaluationGroup) -> Spec:
    """A dot with whiskers for each evaluation of a group, the best at the top.

    Open grey dots are lower than the best; filled ones cannot be told apart from it.
    """
    drawn = group.rows[:MAX_DRAWN]
    rates = [row.here.table.success for row in drawn]
    percent_of = 100 * np.array([(rate.value, rate.low, rate.high) for rate in rates])
    colors = [TONES["gray"] if row.standing == APART else ACCENT for row in drawn]
    trace = scatter(
        x=percent_of[:, 0],
        y=list(range(len(drawn))),
        mode="markers",
        marker={
            "size": 10,
            "color": colors,
            "line": {"width": 2, "color": colors},
            "symbol": ["circle-open" if row.standing == APART else "circle" for row in drawn],
        },
        error_x=whiskers(*percent_of.T, color=TONES["gray"], thickness=1.5, width=4),
        text=[figure_text(f"{row.played.name}: {row.standing}") for row in drawn],
        hovertemplate="%{text}<br>success %{x:.1f} %<extra></extra>",
        showlegend=False,
    )
    layout = {
        "height": _ROW * len(drawn) + 56,
        "margin": {"l": 10, "r": 14, "t": 6, "b": 34},
        "xaxis": {"range": [-2, 102], "ticksuffix": " %", "zeroline": False},
        "yaxis": {
            "range": [len(drawn) - 0.4, -0.6],
            "tickvals": list(range(len(drawn))),
            "ticktext": [_label(n, row) for n, row in enumerate(drawn, 1)],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        },
    }
    return {"data": [trace], "layout": layout}


def _label(rank: int, row: Ranked) -> str:
    """Place and name. Of a long name its ends are shown: the last letters tell runs apart."""
    name = row.played.run_id
    short = name if len(name) <= 24 else f"{name[:10]}...{name[-11:]}"
    return figure_text(f"{rank}  {short}", width=40)


def cure_colors(labels: Sequence[str]) -> dict[str, str]:
    """Label -> its colour; the first one is the untreated run."""
    return dict(zip(labels, (TONES["gray"], *SERIES), strict=False))


def cure_figure(
    stands: Mapping[str, BranchStanding], *, untreated: str, chosen: str, holds: float
) -> Spec:
    """Success over the steps since the checkpoint.

    Args:
        stands: label to how that run does, the untreated one first; labels may be foreign.
        untreated, chosen: labels: drawn dashed in grey, and wide.
        holds: the share from which on a treatment holds; NaN for none.
    """
    last = max(
        (max(stand.steps, default=0) for label, stand in stands.items() if label != untreated),
        default=0,
    )
    colors = cure_colors([*stands])
    curves = []
    for label, stand in stands.items():
        # What the untreated run did long after the others ended would press them together.
        steps = [step for step in stand.steps if not last or step <= last]
        curves.append(
            Curve(
                key=SUCCESS_RATE,
                name=label,
                steps=np.array(steps, np.int64),
                values=np.array(stand.success[: len(steps)], np.float64),
                unit=SHARE,
                color=colors[label],
                width=4 if label == chosen else 2,
                dash="dash" if label == untreated else "solid",
                is_line=True,
            )
        )
    options = LineOptions(height=320, has_legend=False)
    spec = line_spec(curves, AS_STEPS, options=options, title="Success on the fixed tasks")
    layout = spec["layout"]
    layout["yaxis"]["range"] = [-0.02, 1.02]
    if holds == holds:
        name = f"holds from {percent(holds)} on"
        level = note(name, (1, holds), "right bottom", paper="x", color=TONES["green"])
        layout["annotations"].append(level)
        ends = {"x0": 0, "x1": 1, "y0": holds, "y1": holds}
        border = {"color": TONES["green"], "width": 1, "dash": "dot"}
        layout["shapes"].append({"type": "line", "xref": "paper", "line": border, **ends})
    return spec
