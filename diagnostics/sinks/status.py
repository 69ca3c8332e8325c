"""What became of a sink: one small file a sink, `RUN/sinks/NAME.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from ..config import FrozenModel
from .settings import SINK_NAMES, SinkName

FOLDER = "sinks"


class SinkStatus(FrozenModel):
    """How far a run has been copied."""

    sink: SinkName
    state: Literal["running", "finished", "failed"] = "running"
    where: str = ""
    """A folder, or the address of a page."""
    identity: str = ""
    """The run's id there: a run that goes on stays one run."""
    last_step: int | None = None
    """The last step that the sink has taken; it has all before, too."""
    problem: str = ""

    def in_words(self) -> str:
        """How far it came, and what went wrong.

        >>> SinkStatus(sink="wandb", state="failed", last_step=3, problem="disk full").in_words()
        'failed after step 3 (disk full)'
        """
        far = "before the first step" if self.last_step is None else f"after step {self.last_step}"
        where = f", {self.where}" if self.where else ""
        return f"{self.state} {far}{where}" + (f" ({self.problem})" if self.problem else "")


def path_of(run_path: Path, sink: SinkName) -> Path:
    return run_path / FOLDER / f"{sink}.json"


def write_status(run_path: Path, status: SinkStatus) -> None:
    """Replace the file of a sink. Raises OSError where the disk refuses."""
    path = path_of(run_path, status.sink)
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(status.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def read_status(run_path: Path, sink: SinkName) -> SinkStatus | None:
    """What the file of a sink says; None without one, or where it cannot be read."""
    try:
        return SinkStatus.model_validate_json(path_of(run_path, sink).read_bytes())
    except (OSError, ValueError):
        return None


def all_statuses(run_path: Path) -> list[SinkStatus]:
    """The sinks that a run has had."""
    statuses = (read_status(run_path, name) for name in SINK_NAMES)
    return [status for status in statuses if status is not None]
