"""Which trajectories show what a verdict says: one of each prompt, chosen by what they prove. Pure.

Several samples of one prompt are alike in every run that learns. Only different prompts side by
side show what a run does whatever the task is.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.claims import Disagreement
from echoscope.diagnostics.judge.record import Shown, Verdict
from echoscope.store.query.metric_keys import RETURN_MEAN
from echoscope.store.records import Turn

from ..escaping import cut
from ..replay import tokens
from ..replay.html import text_box

EXAMPLES = 3
_ASKED_CHARS, _REPLY_CHARS = 300, 900
_WELL = (RunState.HEALTHY, RunState.CONVERGED, RunState.RECOVERING, RunState.INSUFFICIENT)


def telling(verdict: Verdict, rows: pd.DataFrame) -> tuple[Sequence[Shown], str]:
    """What shows a verdict: the exemplars of its alarms, else some trajectories of a step.

    Where the return rises while success falls, those that earn most and fail; of another problem,
    the worst; of a run without one, the most typical.

    Args:
        rows: of the table `trajectories`, of one step.

    Returns:
        Places in trajectories, and a noun for what they are examples of: `failed trajectories with
        the highest return`; empty where each has its own note.
    """
    if verdict.exemplars:
        return verdict.exemplars, ""
    trained = rows[rows["split"].isin(["train", "import"]) & (rows["num_turns"] > 0)]
    failed = trained[trained["is_success"].eq(False)]
    returns = trained["episode_return"]
    paid = [claim for claim in verdict.claims if isinstance(claim, Disagreement)]
    if any(claim.up.metric == RETURN_MEAN for claim in paid) and len(failed):
        return _chosen(failed, -returns, "failed trajectories with the highest return")
    if verdict.state in _WELL:
        return _chosen(trained, (returns - returns.median()).abs(), "typical trajectories")
    if len(failed):
        return _chosen(failed, returns, "failed trajectories")
    return _chosen(trained, returns, "trajectories with the lowest return")


def _chosen(rows: pd.DataFrame, rank: pd.Series[float], reason: str) -> tuple[Sequence[Shown], str]:
    """The first of each prompt, those of the smallest rank first."""
    ranked = rows.assign(_rank=rank).sort_values(["_rank", "id"])
    first = ranked.drop_duplicates("prompt_key").head(EXAMPLES)
    places = [Shown(trajectory_id=str(name), turn=0) for name in first["id"]]
    return places, reason if places else ""


def example_html(turn: Turn, example: Shown) -> str:
    """What the policy saw and wrote, cut short, with the text marked that proves the finding."""
    marked = [turn.response[start:end] for start, end in example.spans]
    asked = text_box(cut(turn.observation, _ASKED_CHARS)[0])
    return f'<div class="es-asked">{asked}</div>{tokens.text_html(turn, _REPLY_CHARS, marked)}'
