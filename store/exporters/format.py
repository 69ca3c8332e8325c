"""What the exporter must know of a format: its name, what it holds, how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
Form = Literal["messages", "prompt-completion"]

ABOUT: Mapping[str, str] = {
    "messages": "JSON lines, one episode a line, as OpenAI's chat messages",
    "parquet": "folder for datasets.load_dataset: train.parquet, eval.parquet",
    "datasets": "folder for datasets.load_from_disk (needs the package datasets)",
    "sft": "JSON lines for TRL's SFTTrainer: conversations",
    "dpo": "JSON lines for TRL's DPOTrainer: pairs of siblings",
    "trl": "folder of completions, one Parquet file a step, as TRL logs them",
    "inspect": "log of Inspect (.eval) for `inspect view`",
    "scout": "folder of transcripts for Inspect Scout",
    "trackio": "folder for `trackio show` (needs the package trackio)",
    "duckdb": "one DuckDB file with every table of the run",
    "csv": "folder with trajectories.csv, turns.csv, steps.csv",
}
"""The formats in the order in which they are listed: what each is and who reads it, in a line.

Apart from the formats, because the help of the command line names them, and writing them imports
pyarrow and DuckDB.
"""

FACETS: Mapping[str, tuple[str, str]] = {
    "groups": ("which episodes are siblings", "SELECT 1 FROM trajectories"),
    "steps": ("the step of each episode", "SELECT 1 FROM trajectories"),
    "turn_rewards": (
        "rewards of single turns",
        "SELECT 1 FROM trajectories WHERE num_turns > 1 AND episode_return IS NOT NULL",
    ),
    "terms": (
        "format penalties and shaping terms apart from the reward",
        "SELECT 1 FROM turns WHERE format_penalty < 0 OR cardinality(shaping) > 0",
    ),
    "success": ("success", "SELECT 1 FROM trajectories WHERE is_success IS NOT NULL"),
    "actions": (
        "executed actions, whether they were valid and whether they had an effect",
        "SELECT 1 FROM turns WHERE len(actions) > 0",
    ),
    "stops": (
        "why episodes and replies ended",
        "SELECT 1 FROM trajectories WHERE stop_reason <> 'unknown'",
    ),
    "seeds": (
        "seeds of the tasks",
        "SELECT 1 FROM trajectories WHERE env_seed IS NOT NULL OR noise_seed IS NOT NULL",
    ),
    "advantages": (
        "advantages and what the update left out",
        "SELECT 1 FROM trajectories WHERE kept IS NOT NULL",
    ),
    "infos": (
        "numbers that the environment reported",
        "SELECT 1 FROM turns WHERE cardinality(info) > 0",
    ),
    "frames": (
        "drawings of the states",
        "SELECT 1 FROM trajectories WHERE final_frame IS NOT NULL "
        "UNION ALL SELECT 1 FROM turns WHERE frame IS NOT NULL",
    ),
    "pictures": ("pictures", "SELECT 1 FROM images"),
    "tokens": (
        "token ids, log-probs and entropies",
        "SELECT 1 FROM tokens",
    ),
    "metrics": ("metrics of the steps", "SELECT 1 FROM metrics"),
    "diagnostics": ("diagnostic arrays", "SELECT 1 FROM diagnostics"),
    "events": (
        "alarms, commands, settings and checkpoints",
        "SELECT 1 FROM alarms UNION ALL SELECT 1 FROM commands UNION ALL SELECT 1 FROM settings "
        "UNION ALL SELECT 1 FROM checkpoints",
    ),
    "text": ("prompts and replies", "SELECT 1 FROM turns"),
    "final": (
        "what the policy would have seen next",
        "SELECT 1 FROM trajectories WHERE final_observation <> ''",
    ),
}
"""What a run may hold, in words, with a query that has a row where the run holds it."""

ENTRY = frozenset(
    {"groups", "steps", "turn_rewards", "terms", "success", "actions", "stops", "seeds"}
    | {"advantages", "infos", "frames", "text", "final"}
)
"""What messages hold together with the entry `echoscope` beside them."""


class ExportError(StoreError):
    """Nothing was exported, with the reason and the way out."""


class OutputExistsError(ExportError):
    """The output exists, and an export may replace it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists; choose another name, or pass is_overwriting=True")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why episodes that were asked for are left out."""

    why: str
    """A clause that fits one episode and several."""
    option: str = ""
    """The option that leaves them out, as the command line spells it."""


FAILED = Reason(
    why="the environment failed, or a command dropped the step (stop_reason is env_error, timeout "
    "or aborted)"
)
NO_TURNS = Reason(why="the episode has no turns")


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
    margin: float = 0.0
    """`dpo`: by how much the chosen return must be higher at least; 0 for any difference."""
    is_keeping_same_actions: bool = False
    """`dpo`: also pairs of siblings that executed the same actions."""
    form: Form = "messages"
    """`sft`: whole conversations, or the prompt apart from what follows it."""


@dataclass(slots=True, kw_only=True)
class Written:
    """What a format wrote: the report begins from this."""

    num_rows: int = 0
    whole: str = ""
    """What the rows are epochs of, counted, for example `152 samples`; empty where they are of
    nothing."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a run is written in one form."""

    name: str
    """As `--to` spells it."""
    noun: str
    """What a row of it is called."""
    holds: frozenset[str]
    """Keys of FACETS. Of a lesson: `loses` says what a row holds."""
    write: Callable[[RunSource, Path, Options], Written]
    """Write everything to a path that does not exist yet."""
    is_folder: bool = False
    suffix: str = ""
    """The ending of a file that its readers look for; empty for any."""
    is_lesson: bool = False
    """Made for a trainer, which reads the conversations and nothing else."""
    split: SplitChoice = "all"
    """The episodes that it takes where nobody says."""
    loses: tuple[str, ...] = ()
    """Sentences on what else is lost, whatever the run holds."""


def all_but(*names: str) -> frozenset[str]:
    """Every facet but these."""
    return frozenset(FACETS) - _checked(names)


def _checked(names: Iterable[str]) -> frozenset[str]:
    unknown = set(names) - FACETS.keys()
    if unknown:
        raise ValueError(f"no facets: {sorted(unknown)}")
    return frozenset(names)
