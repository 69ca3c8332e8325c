"""What became of a sink: one small file a sink, `RUN/sinks/NAME.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from echoscope.text.amounts import counted

from ..config import FrozenModel
from .settings import SINK_NAMES, SinkName

FOLDER = "sinks"
"""In the folder of a run."""
_MAX_BYTES = 100_000


class SinkStatus(FrozenModel):
    """How far a run has been copied."""

    model_config = ConfigDict(extra="ignore")

    sink: SinkName
    state: Literal["running", "finished", "failed"] = "running"
    where: str = ""
    """A folder, or the address of a page."""
    identity: str = ""
    """The run's id at W&B: a run that goes on stays one run there."""
    last_step: int | None = None
    """The last step that the sink has taken."""
    num_lost: int = 0
    """Steps that were not taken."""
    problem: str = ""
    """What went wrong last; empty while all is well."""

    def in_words(self) -> str:
        """How far it came, and what went wrong.

        >>> SinkStatus(sink="wandb", state="failed", last_step=3, problem="disk full").in_words()
        'failed after step 3 (disk full)'
        """
        far = "before the first step" if self.last_step is None else f"after step {self.last_step}"
        where = f", {self.where}" if self.where else ""
        lost = f", {counted(self.num_lost, 'step')} lost" if self.num_lost else ""
        return f"{self.state} {far}{where}{lost}" + (f" ({self.problem})" if self.problem else "")


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
        with path_of(run_path, sink).open("rb") as file:
            status = SinkStatus.model_validate_json(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return None
    return status if status.sink == sink else None


def all_statuses(run_path: Path) -> list[SinkStatus]:
    """The sinks that a run has had."""
    statuses = (read_status(run_path, name) for name in SINK_NAMES)
    return [status for status in statuses if status is not None]
