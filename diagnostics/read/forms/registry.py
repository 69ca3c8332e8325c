"""Binary forms of metrics files, told by their first bytes; forms of text are told from their lines
in `metrics_file.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from echoscope.store.importers.spooled.trackio_traces import is_sqlite

from ..foreign_names import Meaning
from ..table import MetricTable
from .tensorboard import is_events, read_events
from .trackio import read_trackio
from .wandb_file import is_wandb, read_wandb_table


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryForm:
    """How the files of one program are recognised and read."""

    name: str
    matches: Callable[[bytes], bool]
    """By the first bytes of the file, 256 KiB at most."""
    read: Callable[[Path, Mapping[str, Meaning], str], MetricTable]
    """The table of a file, given what its columns mean and which run to read ("" for the longest).

    Raises MetricsFileError with one sentence where the file cannot be read, OSError of the disk.
    """


FORMS = (
    BinaryForm(name="TensorBoard", matches=is_events, read=read_events),
    BinaryForm(name="trackio", matches=is_sqlite, read=read_trackio),
    BinaryForm(name="W&B", matches=is_wandb, read=read_wandb_table),
)


def form_of(head: bytes) -> BinaryForm | None:
    """The form of a file that begins so; None for text, and for what is not read."""
    return next((form for form in FORMS if form.matches(head)), None)
