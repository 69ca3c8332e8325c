"""The line To do of the bar: what is done next, or nothing that contradicts the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import add_steps, make_run, open_writer

from echoscope.dashboard.page.bar import _to_do
from echoscope.diagnostics.judge.advice.actions import Action
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.claims import Fate
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis

RESUME = Action(text="Resume the run: x.", command="echoscope train --resume runs/x")


def test_the_way_on_stands_there_with_its_command(serve_root: Callable[..., None]) -> None:
    bar = verdict_of(RunState.HEALTHY, actions=(RESUME,))
    assert _to_do("x", bar) == "To do: Resume the run: x. `echoscope train --resume runs/x`"
    branch = replace(RESUME, verb="branch", command="echoscope ctl x branch")
    assert _to_do("x", replace(bar, actions=(branch,))) == "To do: Resume the run: x."


def verdict_of(state: RunState, **changes: object) -> Verdict:
    return replace(Diagnosis().verdict(), state=state, last_step=5, had=("success",), **changes)


CRASHED = Fate(kind="crashed", words="The run crashed after step 5.", way_on="Resume it.")


@pytest.mark.parametrize(
    ("verdict", "ended", "live"),
    [
        (verdict_of(RunState.HEALTHY), "To do: nothing.", "To do: nothing now. Let the run go on."),
        (verdict_of(RunState.RECOVERING), "", "To do: nothing now. Let the run go on."),
        (verdict_of(RunState.HEALTHY, claims=(CRASHED,)), "", ""),
        (verdict_of(RunState.WATCH), "", ""),
        (
            verdict_of(RunState.INSUFFICIENT),
            "To do: train for more steps.",
            "To do: wait for more steps.",
        ),
        (
            replace(verdict_of(RunState.INSUFFICIENT), had=("reward",)),
            "To do: log a success rate, in training or of an evaluation.",
            "To do: log a success rate, in training or of an evaluation.",
        ),
    ],
)
def test_what_is_to_do_without_an_action(
    verdict: Verdict, ended: str, live: str, tmp_path: Path, serve_root: Callable[..., None]
) -> None:
    make_run(tmp_path / "ended")
    writer = open_writer(tmp_path / "live")
    add_steps(writer, "live", range(3))
    serve_root(tmp_path)
    assert _to_do("ended", verdict) == ended
    assert _to_do("live", verdict) == live
    writer.close(status="stopped")
