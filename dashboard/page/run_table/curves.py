"""The curves beside the table: the runs or groups that it shows, in the colours of its swatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import streamlit as st

from echoscope.dashboard.charts.compare import curves_spec
from echoscope.dashboard.data.comparing.groups import RunGroup
from echoscope.dashboard.data.comparing.series import bucket_width, mean_curve
from echoscope.dashboard.data.curves import AS_STEPS, Curve, describe
from echoscope.dashboard.data.run_table.curves import evenly, latest_means, members_each
from echoscope.dashboard.data.run_table.facts import Facts
from echoscope.dashboard.data.run_table.groups import TableLine
from echoscope.dashboard.data.run_table.table import RunsTable
from echoscope.diagnostics.catalogue import metric

from ...data.run_table.columns import OF_EVERY_RUN
from ...escaping import visible
from ...live import figures
from . import state

HEIGHT = 340


def draw(
    facts: Facts,
    table: RunsTable,
    lines: Sequence[TableLine],
    asked: state.TableRequest,
    num_matching: int,
) -> int:
    """A chart for each metric, and of how many runs they are; how many runs are still to be read.

    Args:
        num_matching: Runs that match the filter.
    """
    of_page = [line for line in lines if line.colour]
    drawn_lines = [line for line in of_page if asked.draws(line.digest)]
    most = members_each([len(line.rows) for line in drawn_lines])
    of_lines = [table.rows[n] for line in drawn_lines for n in line.rows]
    width = bucket_width(max((row.last_step for row in of_lines), default=0))
    num_runs, num_missing = 0, 0
    for key in asked.curves:
        curves = []
        num_runs, num_missing_before = 0, num_missing
        for line in drawn_lines:
            rows = [table.rows[n] for n in evenly(line.rows, most)]
            members = {row.run_id: latest_means(facts, row, key, width) for row in rows}
            num_missing += sum(means is None for means in members.values())
            measured = {
                run: means
                for run, means in members.items()
                if means is not None and (means["key"] == key).any()
            }
            num_runs += len(measured)
            if measured:
                curves.append(_curve(line, measured, key, width))
        title, help_text = _title(key)
        spec = curves_spec(
            curves,
            title=title,
            help=help_text,
            height=HEIGHT,
            is_complete=num_missing == num_missing_before,
        )
        figures.show(spec, describe(curves[:8]), key=f"runs {key}")
    text = f"{num_runs:,} of {num_matching:,} runs"
    if asked.groups:
        groups = f"{len(drawn_lines)} of {len(of_page)} groups of this page"
        text = f"Drawn: {groups}, as means with 95 % intervals, from {text}."
        if any(len(line.rows) > most for line in drawn_lines):
            text += f" A larger group's curve is of {most} runs, evenly chosen."
    else:
        text = f"Drawn: {text}, those of this page."
    st.caption(f"{text} {num_missing:,} more are being read." if num_missing else text)
    return num_missing


def _title(key: str) -> tuple[str, str]:
    """Heading and explanation of a chart, as the table calls the metric."""
    column = next((c for c in OF_EVERY_RUN.values() if c.key == key), None)
    return (column.label, column.help) if column else (metric(key).name, metric(key).help)


def _curve(line: TableLine, members: Mapping[str, pd.DataFrame], key: str, width: int) -> Curve:
    name = visible(line.name, 80)
    if line.kind == "group":
        if len(members) < len(line.rows):
            name = f"{name}, {len(members):,} of {len(line.rows):,} runs"
        return mean_curve(
            RunGroup(runs=tuple(members), name=name),
            key,
            members,
            dict.fromkeys(members, AS_STEPS),
            width=width,
            smooth=0.0,
            color=line.colour,
        )
    (means,) = members.values()
    of_key = means[means["key"] == key]
    return Curve(
        key=key,
        name=name,
        steps=of_key["bucket"].to_numpy(np.int64) * width,
        values=of_key["value"].to_numpy(np.float64),
        unit=metric(key).unit,
        color=line.colour,
    )
