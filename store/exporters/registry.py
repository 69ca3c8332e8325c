"""The formats that a run can be exported to, in the order in which they are listed."""

from __future__ import annotations

from echoscope.text.did_you_mean import did_you_mean

from .format import ABOUT, ExportError, Format
from .formats import duckdb_file, inspect_log, lessons, messages, tables

FORMATS: tuple[Format, ...] = (
    messages.MESSAGES,
    lessons.SFT,
    lessons.DPO,
    inspect_log.INSPECT,
    duckdb_file.DUCKDB,
    tables.CSV,
)


def format_named(name: str) -> Format:
    """The format with this name.

    Raises:
        ExportError: there is none.
    """
    for candidate in FORMATS:
        if candidate.name == name:
            return candidate
    hint = did_you_mean(name, ABOUT)
    more = "" if hint.endswith("?") else " (`echoscope export --help` says what each is)"
    raise ExportError(f"--to {name!r} is no format{hint}{more}")
