"""All runs of a folder at a Python prompt: `echoscope.Runs("runs")`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from echoscope.dashboard.charts.curated import eval_keys
from echoscope.dashboard.escaping import escape, visible
from echoscope.dashboard.labels import value_words
from echoscope.diagnostics.catalogue import metric
from echoscope.store.errors import NotARunError, StoreError
from echoscope.store.query.listing import RunDetails, RunList, RunRow, details_of, row_status
from echoscope.store.reader import open_run
from echoscope.text.amounts import counted
from echoscope.text.did_you_mean import did_you_mean

from . import html
from .judgement import table_html
from .run import Run

SUCCESS = "rollout/success_rate"
_LATEST = """
SELECT key, arg_max(value, step) AS value FROM metrics
WHERE key LIKE '%/success_rate' AND NOT isnan(value) GROUP BY key
"""
MAX_SHOWN = 50
"""Runs of a card."""
_COLUMNS = (
    *("run", "status", "step", "steps", "success", "success_metric"),
    *("alarm", "alarm_severity", "alarm_step"),
    *("environment", "algorithm", "model", "parent", "started", "tags", "note", "problem"),
)


class Runs:
    """The runs of a folder: a table, and each run by its name.

    Iterating gives the names, pinned runs first, then the newest.

    Raises:
        NotARunError: no such folder.

    Examples:
        >>> runs = Runs("runs")
        >>> list(runs), "demo" in runs
        (['demo'], True)
        >>> runs["demo"].last_step
        29
    """

    def __init__(self, root: str | Path = "runs") -> None:
        if not isinstance(root, str | Path):
            raise TypeError(f"a folder of runs is named by its path, not by {type(root).__name__}")
        self._root = Path(root)
        if not self._root.is_dir():
            raise NotARunError(f"{root}: no such folder")
        self._list = RunList(self._root)

    def _rows(self) -> list[RunRow]:
        rows = self._list.rows()
        while self._list.num_unread:
            self._list.look_again()
            rows = self._list.rows()
        return rows

    def table(self) -> pd.DataFrame:
        """The runs, one row each.

        Columns: run, status, step, steps (planned), success (the last that is known),
        success_metric (which one it is: success in training; without it the success in
        evaluation), alarm (the worst that is open), alarm_severity, alarm_step, environment,
        algorithm, model, parent, started (UTC), tags, note, and problem (why a run cannot be read;
        empty otherwise).
        """
        now = time.time()
        frame = pd.DataFrame([_entry(row, now) for row in self._rows()], columns=list(_COLUMNS))
        frame["started"] = pd.to_datetime(frame["started"], unit="s", utc=True)
        return frame.astype(dict.fromkeys(("step", "steps", "alarm_step"), "Int64"))

    def __iter__(self) -> Iterator[str]:
        return iter([row.run_id for row in self._rows()])

    def __len__(self) -> int:
        return len(self._rows())

    def __contains__(self, name: object) -> bool:
        return name in {row.run_id for row in self._rows()}

    def __getitem__(self, name: str) -> Run:
        names = list(self)
        if name not in names:
            raise NotARunError(
                f"{self._root}: no run {str(name)[:80]!r}{did_you_mean(name, names)}"
            )
        return Run(self._root / name)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        lines = [f"{self._root}: {counted(len(self), 'run')}"]
        for row in _shown(self.table()):
            lines.append("  ".join(text for text in row.values() if text))
        return visible("\n".join(lines), None)

    def _repr_html_(self) -> str:
        table = self.table()
        more = len(table) - MAX_SHOWN
        left_out = f"<p>{more} more: .table()</p>" if more > 0 else ""
        empty = "<p>No runs yet.</p>" if table.empty else ""
        title = f'<div class="es-nb-title">{escape(str(self._root), 200)}</div>'
        return html.framed(title, empty, table_html(_shown(table)), left_out)


def _entry(row: RunRow, now: float) -> dict[str, Any]:
    details, problem = RunDetails(), row.problem
    if not problem:
        try:
            details = details_of(row)
        except StoreError as error:
            problem = str(error)
    key, success = ("", None) if problem else _success(row)
    return {
        "run": row.run_id,
        "status": "unreadable" if problem else row_status(row, details, now).status.value,
        "step": row.last_step if row.last_step >= 0 else None,
        "steps": row.num_steps,
        "success": success,
        "success_metric": key,
        "alarm": details.alarm_rule,
        "alarm_severity": details.alarm_severity,
        "alarm_step": details.alarm_step,
        "environment": ", ".join(row.environments),
        "algorithm": row.algorithm,
        "model": row.base_model,
        "parent": row.parent_run_id or "",
        "started": row.created_at or None,
        "tags": list(row.tags),
        "note": row.note,
        "problem": problem,
    }


def _success(row: RunRow) -> tuple[str, float | None]:
    """The success of a run, with the metric that it is; ("", None) where it has none."""
    if row.success_rate is not None:
        return SUCCESS, row.success_rate
    if row.last_step < 0:
        return "", None
    # Seldom: the last step did not measure success. The run itself has to be asked.
    try:
        rows = open_run(row.path).sql(_LATEST).to_pylist()
    except StoreError:
        return "", None
    latest = {entry["key"]: entry["value"] for entry in rows}
    key = next((key for key in (SUCCESS, *eval_keys(list(latest))) if key in latest), "")
    return key, latest.get(key)


def _success_words(key: str, value: float) -> str:
    """The value, and what it is where it is no success in training."""
    words = value_words(key, value)
    return words if key == SUCCESS else f"{words} ({metric(key).in_sentence})"


def _shown(table: pd.DataFrame) -> list[dict[str, str]]:
    """The rows of a card, as text."""
    rows = []
    for row in table.head(MAX_SHOWN).to_dict("records"):
        success = row["success"]
        is_known = success is not None and success == success
        rows.append(
            {
                "run": str(row["run"]),
                "status": str(row["status"]),
                "step": "" if row["step"] is pd.NA else str(row["step"]),
                "success": _success_words(row["success_metric"], success) if is_known else "",
                "open alarm": str(row["alarm"]).replace("_", " ").lower(),
                "environment": str(row["environment"]),
                "started": "" if row["started"] is pd.NaT else f"{row['started']:%Y-%m-%d %H:%M}",
                "problem": str(row["problem"]),
            }
        )
    kept = [name for name in (rows[0] if rows else {}) if any(row[name] for row in rows)]
    return [{name: row[name] for name in kept} for row in rows]
