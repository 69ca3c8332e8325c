"""Which trajectories show a verdict: different prompts, chosen by what they prove."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from echoscope.dashboard.report.telling import example_html, telling
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.claims import Change, Disagreement, Level
from echoscope.diagnostics.judge.record import Shown, Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.store.records import Turn


def rows() -> pd.DataFrame:
    """Four prompts of three siblings: returns rise with the prompt; the last sibling succeeds."""
    return pd.DataFrame(
        {
            "id": f"t00000001-{3 * prompt + sibling:05d}",
            "split": "train",
            "prompt_key": f"p{prompt}",
            "episode_return": prompt + sibling / 8,
            "num_sampled_tokens": 8,
            "num_turns": 1,
            "is_success": sibling == 2,
        }
        for prompt in range(4)
        for sibling in range(3)
    )


def told(verdict: Verdict, table: pd.DataFrame) -> tuple[str, list[int]]:
    """What the examples are called, and the number of each in its step."""
    places, heading = telling(verdict, table)
    return heading, [int(example.trajectory_id[-5:]) for example in places]


def test_a_healthy_run_shows_one_typical_trajectory_of_each_prompt() -> None:
    # The median return is 1.625; 1.25 and 2 of prompts 1 and 2 are nearest, then 0.25 and 3.
    verdict = replace(Diagnosis().verdict(), state=RunState.HEALTHY)
    assert told(verdict, rows()) == ("typical trajectories", [5, 6, 2])


def test_a_problem_without_exemplars_shows_the_worst_failures() -> None:
    verdict = replace(Diagnosis().verdict(), state=RunState.COLLAPSED)
    assert told(verdict, rows()) == ("failed trajectories", [0, 3, 6])
    unknown = rows().assign(is_success=None)
    heading = "trajectories with the lowest return"
    assert told(verdict, unknown) == (heading, [0, 3, 6])


def test_return_up_and_success_down_shows_failures_that_earn_most() -> None:
    def change(key: str, before: float, after: float) -> Change:
        ends = [
            Level(metric=key, value=v, low=v, high=v, steps=(0, 9), num_points=10)
            for v in (before, after)
        ]
        return Change(before=ends[0], after=ends[1], low=0.0, high=0.0)

    claim = Disagreement(
        up=change("reward/return_mean", 1, 3), down=change("rollout/success_rate", 0.8, 0.1)
    )
    verdict = replace(Diagnosis().verdict(), state=RunState.WATCH, claims=(claim,))
    assert told(verdict, rows()) == ("failed trajectories with the highest return", [10, 7, 4])


def test_exemplars_of_an_alarm_come_first() -> None:
    example = Shown(trajectory_id="t00000001-00003", turn=1, note="why")
    examples = telling(replace(Diagnosis().verdict(), exemplars=(example,)), rows())
    assert examples == ((example,), "")


def test_a_step_without_trajectories_shows_none() -> None:
    assert telling(Diagnosis().verdict(), rows()[:0]) == ([], "")


def test_the_text_that_proves_the_finding_is_marked() -> None:
    response = "I go <left>, I go <left>"
    turn = Turn(index=0, observation="Where to?", response=response, reasoning_chars=(0, 12))
    example = Shown(trajectory_id="t00000001-00003", turn=0, spans=((5, 11),), note="why")
    html = example_html(turn, example)
    assert "Where to?" in html
    assert html.count('<span class="es-hit">&lt;left&gt;</span>') == 2
    assert "es-hit" not in example_html(turn, replace(example, spans=()))
