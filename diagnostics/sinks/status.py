"""What became of a sink: one small file a sink, `RUN/sinks/NAME.json`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from echoscope.text.amounts import counted

from .settings import SINK_NAMES, SinkName

FOLDER = "sinks"
"""In the folder of a run."""
_MAX_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """How far a run has been copied."""

    sink: SinkName
    state: Literal["running", "finished", "failed"] = "running"
    where: str = ""
    """A folder, or the address of a page."""
    identity: str = ""
    """The run's id at W&B: a run that goes on stays one run there."""
    last_step: int | None = None
    """The last step that the sink has taken."""
    num_lost: int = 0
    """Records that were not taken."""
    problem: str = ""
    """What went wrong last; empty while all is well."""

    def in_words(self) -> str:
        """How far it came, and what went wrong.

        >>> SinkStatus(sink="wandb", state="failed", last_step=3, problem="disk full").in_words()
        'failed after step 3 (disk full)'
        """
        far = "before the first step" if self.last_step is None else f"after step {self.last_step}"
        where = f", {self.where}" if self.where else ""
        lost = f", {counted(self.num_lost, 'record')} lost" if self.num_lost else ""
        return f"{self.state} {far}{where}{lost}" + (f" ({self.problem})" if self.problem else "")

    def changed(self, **values: Any) -> SinkStatus:
        return replace(self, **values)


def path_of(run_path: Path, sink: SinkName) -> Path:
    return run_path / FOLDER / f"{sink}.json"


def write_status(run_path: Path, status: SinkStatus) -> None:
    """Replace the file of a sink. Raises OSError where the disk refuses."""
    path = path_of(run_path, status.sink)
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(status), indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def read_status(run_path: Path, sink: SinkName) -> SinkStatus | None:
    """What the file of a sink says; None without one, or where it cannot be read."""
    path = path_of(run_path, sink)
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        values = json.loads(path.read_text("utf-8"))
        names = {field.name for field in fields(SinkStatus)}
        status = SinkStatus(**{k: v for k, v in values.items() if k in names})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    is_step = status.last_step is None or isinstance(status.last_step, int)
    return status if status.sink == sink and is_step else None


def all_statuses(run_path: Path) -> list[SinkStatus]:
    """The sinks that a run has had."""
    statuses = (read_status(run_path, name) for name in SINK_NAMES)
    return [status for status in statuses if status is not None]
