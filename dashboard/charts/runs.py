"""Curves of many runs on one chart, coloured as the table beside it colours them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data.curves import AS_STEPS, Curve
from .charts import NOTHING, STEP_TOLD, LineOptions, line_spec

PALETTE = (
    "#3b6fd4",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#8c6d31",
    "#56b4e9",
    "#c62828",
    "#6a3d9a",
    "#7a8b00",
    "#00838f",
    "#e07b00",
    "#7a7a7a",
    "#ad1457",
    "#4e7d2d",
    "#9575cd",
    "#a1664a",
    "#6706f9",
    "#fa38e7",
    "#14b814",
    "#0647e0",
    "#f91fa2",
    "#f90606",
    "#b26afb",
    "#42588a",
    "#fb876a",
)
"""Of runs and of groups, in their order, as many as a page of the table has lines. The later ones
are as far as can be from those before them."""
_FEW = 8
"""Curves up to which hovering lists all of them at a step."""


def curves_spec(
    curves: Sequence[Curve], *, title: str, help: str, height: int, is_complete: bool = True
) -> dict[str, Any]:
    """Some runs or groups over the steps; the table is their legend.

    Args:
        is_complete: No curve is still to come. Otherwise an empty chart says so.
    """
    options = LineOptions(height=height, has_legend=False)
    spec = line_spec(curves, AS_STEPS, options=options, title=title, help=help)
    if not is_complete and not any(curve.has_values for curve in curves):
        notes = [
            note | {"text": ""} if note["text"] == NOTHING else note
            for note in spec["layout"]["annotations"]
        ]
        spec["layout"]["annotations"] = notes
    if len(curves) > _FEW:
        spec["layout"]["hovermode"] = "closest"
        spec["data"] = [_as_line(trace) for trace in spec["data"]]
    return spec


def _as_line(trace: dict[str, Any]) -> dict[str, Any]:
    """Without a dot at each value; hovering, which names one curve only, says the step."""
    told = trace.get("hovertemplate", "")
    if "customdata" in trace and STEP_TOLD not in told:
        trace = {**trace, "hovertemplate": told.replace("<extra>", f"{STEP_TOLD}<extra>")}
    if trace.get("mode") != "lines+markers":
        return trace
    return {**trace, "mode": "lines", "line": {**trace.get("line", {}), "width": 1.3}}
