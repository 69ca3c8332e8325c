"""The formats that a run can be exported to, in the order in which they are listed."""

from __future__ import annotations

from echoscope.text.did_you_mean import did_you_mean

from .format import ABOUT, ExportError, Format
from .formats import (
    dpo,
    duckdb_file,
    inspect_log,
    messages,
    parquet,
    scout,
    sft,
    tables,
    trackio_folder,
    trl,
)

FORMATS: tuple[Format, ...] = (
    messages.MESSAGES,
    parquet.PARQUET,
    parquet.DATASETS,
    sft.SFT,
    dpo.DPO,
    trl.TRL,
    inspect_log.INSPECT,
    scout.SCOUT,
    trackio_folder.TRACKIO,
    duckdb_file.DUCKDB,
    tables.CSV,
)


def format_named(name: str) -> Format:
    """The format with this name.

    Raises:
        ExportError: there is none.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    hint = did_you_mean(name, ABOUT)
    more = "" if hint.endswith("?") else " (`echoscope export --help` says what each is)"
    raise ExportError(f"--to {name!r} is no format{hint}{more}")
