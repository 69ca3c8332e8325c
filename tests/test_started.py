"""What a test started ends with it, whatever became of the test."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from started import ended_afterwards, started

SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]


def test_a_test_that_fails_half_way_leaves_no_process() -> None:
    with suppress(ZeroDivisionError), ended_afterwards():
        process = started(subprocess.Popen(SLEEP))
        1 / 0  # noqa: B018
    assert process.wait() == -9


def test_what_a_wider_fixture_started_stays() -> None:
    with ended_afterwards():
        wider = started(subprocess.Popen(SLEEP))
        with ended_afterwards():
            pass
        assert wider.poll() is None
    assert wider.wait() == -9
