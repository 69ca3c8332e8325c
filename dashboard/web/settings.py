"""What a dashboard process was started with, for the scripts that Streamlit runs in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """Set once, before the first page is drawn."""

    root: Path
    """Folder whose subfolders are runs; nothing outside of it is ever opened."""
    sources: tuple[Path, ...] = ()
    """Files or folders of other trainers that the command line named, wherever they are."""
    is_read_only: bool = False
    """No steering, no branching, no notes."""
    may_branch: bool = True
    """A page may start `echoscope ctl RUN branch` as a process of its own."""
    sql_seconds: float = 10.0
    """A query that runs longer is interrupted."""
    sql_rows: int = 10_000
    """Rows of an answer that are shown; more are cut off, and it says so."""
    sql_memory: str = "1GB"


_current: list[DashboardSettings] = []


def configure(settings: DashboardSettings) -> None:
    """Say what this process serves; a later call replaces it."""
    _current[:] = [settings]


def settings() -> DashboardSettings:
    """What this process serves.

    Raises:
        RuntimeError: before `configure`.
    """
    if not _current:
        raise RuntimeError("the dashboard is started with `echoscope dashboard [ROOT]`")
    return _current[0]
