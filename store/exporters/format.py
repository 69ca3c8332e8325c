"""What the exporter must know of a format: its name, what it leaves out, how it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import StoreError

if TYPE_CHECKING:
    from .source import RunSource

SplitChoice = Literal["train", "eval", "all"]
SPLITS: Mapping[SplitChoice, tuple[str, ...]] = {
    "train": ("train", "import"),
    "eval": ("eval", "probe"),
    "all": ("train", "import", "eval", "probe"),
}
"""The splits of the store that each choice takes."""

ABOUT: Mapping[str, str] = {
    "messages": "JSON lines, one episode a line, as OpenAI's chat messages",
    "sft": "JSON lines for TRL's SFTTrainer: conversations",
    "dpo": "JSON lines for TRL's DPOTrainer: pairs of siblings",
    "inspect": "log of Inspect (.eval) for `inspect view`",
    "duckdb": "one DuckDB file with every table of the run",
    "csv": "folder with trajectories.csv, turns.csv, steps.csv",
}
"""The formats in the order in which they are listed: what each is and who reads it, in a line.

Apart from the formats, because the help of the command line names them, and writing them imports
pyarrow and DuckDB.
"""
BESIDE_EPISODES = (
    "token ids and log-probs, pictures, metrics of the steps, diagnostic arrays, alarms, settings "
    "and checkpoints"
)
"""What conversations have no place for."""


class ExportError(StoreError):
    """Nothing was exported, with the reason and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which episodes are exported, and how."""

    where: str = ""
    """A condition of SQL over the columns of `trajectories`; empty for all."""
    first_step: int | None = None
    last_step: int | None = None
    """Inclusive."""
    split: SplitChoice | None = None
    """None: as the format says."""
    best: int | None = None
    """Of each group so many with the highest return; None for all."""
    labels: tuple[str, ...] = ()
    """Only episodes to which a person gave at least one of these; empty for all."""
    over: str = ""
    """`dpo`: prefer the episodes of `labels` to siblings with this label; empty: by return."""
    margin: float = 0.0
    """`dpo`: by how much the chosen return must be higher at least; 0 for any difference."""


@dataclass(slots=True, kw_only=True)
class Written:
    """What a format wrote: the report begins from this."""

    num_rows: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """How a run is written in one form."""

    name: str
    """As `--to` spells it."""
    noun: str
    """What a row of it is called."""
    write: Callable[[RunSource, Path], Written]
    """Write everything to a path that does not exist yet."""
    leaves_out: str = BESIDE_EPISODES
    """What a run may hold and the format does not; empty for nothing."""
    is_folder: bool = False
    suffix: str = ""
    """The ending of a file that its readers look for; empty for any."""
    split: SplitChoice = "all"
    """The episodes that it takes where nobody says."""
