"""A real GRPO run of TRL with our callback on the page Live: its steps, its alarm, and a stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs TRL: make test-trl")

from browsing import until
from streamlit.testing.v1 import AppTest
from trl_process import grpo

from echoscope.dashboard.data import queries
from echoscope.dashboard.page.problems import Problem
from echoscope.recorder.trl import EchoscopeCallback
from echoscope.store.records import CommandOutcome
from echoscope.store.status import Status

RUN = "echoscope"
"""The callback's run lies in the folder of this name, below TRL's own."""
STEPS = 2_000


def has_alarm() -> bool:
    try:
        return bool(queries.open_alarms(RUN))
    except Problem:  # the run is not there yet
        return False


def test_a_run_of_trl_appears_live_with_its_alarm_and_stops_when_the_page_says_so(
    tmp_path: Path, serve_root: Callable[..., None], open_page: Callable[..., AppTest]
) -> None:
    """All replies earn the same, so nothing can be learned."""
    serve_root(tmp_path)
    trainer = grpo(str(tmp_path), STEPS, 0, [EchoscopeCallback()])
    training = threading.Thread(target=trainer.train, daemon=True)
    training.start()
    try:
        until(has_alarm, "an alarm", patience_s=240)
        (row,) = queries.runs()
        assert (row.run_id, queries.row_status(row).status) == (RUN, Status.LIVE)
        page = open_page("live", tmp_path, run=RUN)
        assert not page.exception
        assert any(box.label.startswith("Open alarms") for box in page.get("expander"))
        page.button(key="steer_stop").click().run()
        page.button(key="draft_confirm").click().run()
        until(lambda: queries.info(RUN).status == "stopped", "the end of the run", patience_s=120)
    finally:
        trainer.control.should_training_stop = True
        training.join(timeout=60)

    last_step = queries.info(RUN).last_step
    assert last_step == trainer.state.global_step < STEPS, "it ended with a whole step"
    (command,) = queries.commands(RUN)
    assert command.ack is not None
    assert command.ack.outcome is CommandOutcome.APPLIED
    assert "It takes no more commands" in "".join(element.value for element in page.run().caption)
