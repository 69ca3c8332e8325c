"""A verdict as a notebook shows it: a card, tables of evidence, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import pandas as pd
import pyarrow as pa

from echoscope.dashboard.charts.theme import STATES, shown_state
from echoscope.dashboard.escaping import escape, visible
from echoscope.dashboard.report import verdict_html
from echoscope.dashboard.report.evidence_rows import evidence_rows
from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.alarms import RULES_BY_NAME
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.sentences import verdict_parts

from . import html
from .frames import As, as_table


@dataclass(frozen=True, slots=True, repr=False)
class Judgement:
    """What is happening to a run, since when, how one knows, and what to do.

    A cell that ends with it shows a card. `verdict` is the whole record; the other fields are the
    parts of it that one reads in a notebook.
    """

    run: str
    """How commands name the run."""
    verdict: Verdict

    @property
    def state(self) -> str:
        """healthy, converged, watch, recovering, collapsing, collapsed, not learning, insufficient
        evidence."""
        return self.verdict.state.value

    @property
    def sentence(self) -> str:
        """The first part of the verdict: what it is, since when, and what that means."""
        return verdict_parts(self.verdict.text)[0][1]

    @property
    def regime(self) -> str:
        """How the reasoning stands, in words: `diverse reasoning`, `template collapse`."""
        return self.verdict.regime.words

    @property
    def confidence(self) -> str:
        """high, medium, low or none; `verdict.rests_on` says why."""
        return self.verdict.confidence

    @property
    def evidence(self) -> pd.DataFrame:
        """What the verdict claims of each metric, most telling first; see `table`."""
        return self.table()

    @overload
    def table(self, *, as_: Literal["pandas"] = ...) -> pd.DataFrame: ...

    @overload
    def table(self, *, as_: Literal["arrow"]) -> pa.Table: ...

    def table(self, *, as_: As = "pandas") -> pd.DataFrame | pa.Table:
        """The evidence: metric, name, unit, before, after, low, high, first_step, last_step, words.

        `before` is missing where nothing changed. `low` and `high` are the 95 % interval of
        `after`; missing where the noise is unknown.
        """
        rows = [
            {
                "metric": row.metric,
                "name": metric(row.metric).name,
                "unit": metric(row.metric).unit,
                "before": row.before,
                "after": row.after,
                "low": None if row.interval is None else row.interval[0],
                "high": None if row.interval is None else row.interval[1],
                "first_step": row.steps[0],
                "last_step": row.steps[1],
                "words": row.words,
            }
            for row in evidence_rows(self.verdict)
        ]
        return as_table(pa.Table.from_pylist(rows, schema=_EVIDENCE), as_)

    @property
    def findings(self) -> pd.DataFrame:
        """The alarms that are raised, the most serious first: rule, title, meaning, refuted_by."""
        rules = [RULES_BY_NAME[name] for name in self.verdict.kinds]
        rows = [
            {"rule": r.name, "title": r.title, "meaning": r.meaning, "refuted_by": r.refuted_by}
            for r in rules
        ]
        return pd.DataFrame(rows, columns=["rule", "title", "meaning", "refuted_by"])

    @property
    def examples(self) -> pd.DataFrame:
        """Turns that show the findings: trajectory_id, turn, note. `Run.episode` opens one."""
        rows = [
            {"trajectory_id": s.trajectory_id, "turn": s.turn, "note": s.note}
            for s in self.verdict.exemplars
        ]
        return pd.DataFrame(rows, columns=["trajectory_id", "turn", "note"])

    @property
    def advice(self) -> pd.DataFrame:
        """What to do, the first action first: text, command (empty where none helps), why."""
        rows = [{"text": a.text, "command": a.command, "why": a.why} for a in self.verdict.actions]
        return pd.DataFrame(rows, columns=["text", "command", "why"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the source: what was skipped, reconstructed, not measured."""
        return self.verdict.notes

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values: what `echoscope diagnose --json` prints."""
        return self.verdict.to_json()

    def __repr__(self) -> str:
        head = f"{self.run}: {self.state} (confidence {self.confidence})"
        return visible(f"{head}\n{self.verdict.text}", None)

    def _repr_html_(self) -> str:
        return html.framed(
            f'<div class="es-nb-title">{escape(self.run, 200)}</div>',
            self.box_html(),
            table_html([row.cells() for row in evidence_rows(self.verdict)]),
            *self._lists(),
        )

    def box_html(self) -> str:
        """State, confidence and the parts of the verdict, escaped."""
        color = STATES[shown_state(self.verdict)]
        step = "" if self.verdict.last_step is None else f"after step {self.verdict.last_step}, "
        return (
            f'<div class="es-nb-verdict" style="border-color:{color}">'
            f"{html.badge(escape(self.state), color)} "
            f'<span class="es-nb-quiet">{step}confidence {escape(self.confidence)}; reasoning: '
            f"{escape(self.regime)}</span>{verdict_html.parts(self.verdict)}</div>"
        )

    def _lists(self) -> list[str]:
        verdict = self.verdict
        lists: list[tuple[str, Sequence[str]]] = [
            ("Likely causes, in order", verdict.causes),
            ("This verdict is false if", verdict.refuted_by),
            ("Not checked", verdict.could_not_see),
            (
                "Examples",
                [f"{s.trajectory_id}, turn {s.turn}: {s.note}" for s in verdict.exemplars],
            ),
            ("Notes", verdict.notes),
        ]
        return [
            f"<details><summary>{title}</summary><ul>"
            + "".join(f"<li>{escape(text, 1000)}</li>" for text in texts)
            + "</ul></details>"
            for title, texts in lists
            if texts
        ]


_EVIDENCE = pa.schema(
    [(name, pa.string()) for name in ("metric", "name", "unit")]
    + [(name, pa.float64()) for name in ("before", "after", "low", "high")]
    + [("first_step", pa.int64()), ("last_step", pa.int64()), ("words", pa.string())]
)


def table_html(rows: Sequence[dict[str, str]]) -> str:
    """Rows of hostile text as a table; empty without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name, 100)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text, 1000)}</td>" for text in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
