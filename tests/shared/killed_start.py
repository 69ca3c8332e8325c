"""What a start of a run leaves that was killed before `run.json`."""

from __future__ import annotations

from pathlib import Path

import pytest

from echoscope.store.log import starting
from echoscope.store.log.journal import Journal
from echoscope.store.log.layout import Layout
from echoscope.store.log.state import RunState

PLACES = ("folder", "lock", "journal", "run.json")
"""What was just going to be made."""


class KilledError(BaseException):
    """Nothing in the store catches it, as nothing catches a kill."""


def leave_killed_start(path: Path, before: str) -> None:
    if before == "folder":
        return
    path.mkdir(parents=True)
    if before == "lock":
        return
    layout = Layout(path)
    lock = starting.claim(layout)
    state = RunState("killed")
    state.description = {"run_id": "killed"}

    def die(*_: object, **__: object) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        if before == "journal":
            patch.setattr(Journal, "create", die)
        else:
            patch.setattr(starting, "replace_file", die)
        with pytest.raises(KilledError):
            starting.lay_out(layout, state, lock)
    lock.release()
