"""A verdict as a notebook shows it: a card, its evidence as a table, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from echoscope.dashboard.escaping import escape, visible
from echoscope.dashboard.report import verdict_html
from echoscope.dashboard.report.evidence_rows import evidence_rows
from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict_text import verdict_parts

from . import html


@dataclass(frozen=True, slots=True, repr=False)
class Judgement:
    """What is happening to a run, since when, how one knows, and what to do.

    A cell that ends with it shows a card. `verdict` is the whole record, and `verdict.to_json()`
    what `echoscope diagnose --json` prints; the other fields are what one reads in a notebook.
    """

    run: str
    """How commands name the run."""
    verdict: Verdict

    @property
    def state(self) -> str:
        """healthy, converged, watch, recovering, collapsing, collapsed, not learning, insufficient
        evidence, evaluation."""
        return self.verdict.state.value

    @property
    def sentence(self) -> str:
        """The first part of the verdict: what it is, since when, and what that means."""
        return verdict_parts(self.verdict.text)[0][1]

    @property
    def evidence(self) -> pd.DataFrame:
        """What the verdict claims of each metric, most telling first.

        Columns: metric, name, unit, before, after, low, high, first_step, last_step, words.
        `before` is missing where nothing changed. `low` and `high` are the 95 % interval of
        `after`; missing where the noise is unknown.
        """
        columns = [
            "metric",
            "name",
            "unit",
            "before",
            "after",
            "low",
            "high",
            "first_step",
            "last_step",
            "words",
        ]
        rows = [
            (
                row.metric,
                metric(row.metric).name,
                metric(row.metric).unit,
                row.before,
                row.after,
                *(row.interval or (None, None)),
                *row.steps,
                row.words,
            )
            for row in evidence_rows(self.verdict)
        ]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.astype(dict.fromkeys(("before", "after", "low", "high"), float))

    @property
    def examples(self) -> pd.DataFrame:
        """Turns that show the verdict: trajectory_id, turn, note. `Run.episode` opens one."""
        rows = [
            (exemplar.trajectory_id, exemplar.turn, exemplar.note)
            for exemplar in self.verdict.exemplars
        ]
        return pd.DataFrame(rows, columns=["trajectory_id", "turn", "note"])

    @property
    def advice(self) -> pd.DataFrame:
        """What to do, the first action first: text, command (empty where none helps), why."""
        rows = [(action.text, action.command, action.why) for action in self.verdict.actions]
        return pd.DataFrame(rows, columns=["text", "command", "why"])

    def __repr__(self) -> str:
        head = f"{self.run}: {self.state} (confidence {self.verdict.confidence})"
        return visible(f"{head}\n{self.verdict.text}", None)

    def _repr_html_(self) -> str:
        return html.framed(
            f'<div class="es-nb-title">{escape(self.run, 200)}</div>',
            verdict_html.box(self.verdict),
            verdict_html.grounds(self.verdict),
        )
