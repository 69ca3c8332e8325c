"""echoscope ctl RUN alarms: what the run warns of."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import AsJson
from .terminal import print_json, print_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoscope.store.query.alarms import AlarmHistory


def alarms(
    context: typer.Context,
    is_all: Annotated[
        bool, typer.Option("--all", help="Also show alarms that have ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List open alarms, the most serious first, without any text of the policy."""
    from echoscope.store.query.alarms import histories
    from echoscope.store.reader import open_run
    from echoscope.store.records import SEVERITY_RANK
    from echoscope.store.status import RUNNING
    from echoscope.store.steer.settings import live_settings

    reader = open_run(context.obj)
    is_live, current = reader.info().status == RUNNING, live_settings(reader).now
    rows = [_row(one, context.obj, is_live, current) for one in histories(reader.alarms())]
    listed = [row for row in rows if is_all or row["state"] != "cleared"]
    listed.sort(
        key=lambda row: (row["state"] == "cleared", -SEVERITY_RANK[row["severity"]], row["step"])
    )
    if as_json:
        print_json({"run_id": reader.run_id, "alarms": listed})
        return
    for row in listed:
        _print(row)
    if not listed:
        typer.echo("no alarms" if is_all or not rows else f"no open alarms; {len(rows)} over")


def _row(
    history: AlarmHistory, run: Path, is_live: bool, current: Mapping[str, Any]
) -> dict[str, Any]:
    """One alarm as it was raised last, with what it still advises."""
    from echoscope.diagnostics.judge.advice.actions import alarm_advice

    alarm = history.latest
    advice = alarm_advice(
        alarm,
        run=shlex.quote(str(run)),
        is_live=is_live,
        current=current,
        is_open=history.is_open,
    )
    return {
        "alarm_id": alarm.alarm_id,
        "rule": alarm.rule,
        "severity": history.severity,
        "state": "open" if history.is_open else "cleared",
        "step": history.raised.step,
        "severities": [
            {"severity": each.value, "since_step": since} for each, since in history.course
        ],
        "onset_step": alarm.onset_step,
        "cleared_step": history.cleared_step,
        "message": alarm.message if history.is_open else history.ending,
        "advice": advice.text,
        "refuted_by": alarm.refuted_by,
        "suggested": advice.command or None,
        "metric": alarm.metric,
        "value": alarm.value,
        "baseline": alarm.baseline,
        "threshold": alarm.threshold,
        "evidence": list(alarm.evidence),
    }


def _print(row: dict[str, Any]) -> None:
    if row["state"] == "cleared":
        print_lines(f"{row['message']}  [{row['alarm_id']}]")
        return
    onset = "" if row["onset_step"] is None else f", onset {row['onset_step']}"
    *earlier, latest = row["severities"]
    before = "".join(f", {each['severity']} at step {each['since_step']}" for each in earlier)
    since = f"since step {latest['since_step']}{before}{onset}"
    lines = [
        f"{row['severity']} {row['rule']} {since}  [{row['alarm_id']}]",
        f"  {row['message']}",
    ]
    if row["advice"]:
        lines.append(f"  {row['advice']}")
    if row["suggested"] is not None:
        lines.append(f"  suggested: {row['suggested']}")
    if row["evidence"]:
        lines.append(f"  evidence: {', '.join(row['evidence'])}")
    print_lines(*lines)
