"""Echoscope: train LLM agents with multi-turn RL, keep every trajectory, see collapse in time."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from echoscope.text.extras import missing_package

__version__ = "0.1.0"
__all__ = ["Recorder", "Run", "__version__", "open_run", "open_runs"]

if TYPE_CHECKING:
    from echoscope.notebook.run import Run
    from echoscope.recorder.recorder import Recorder
    from echoscope.store.reader import open_run, open_runs


_HOMES = {
    "open_run": "echoscope.store.reader",
    "open_runs": "echoscope.store.reader",
    "Recorder": "echoscope.recorder.recorder",
    "Run": "echoscope.notebook.run",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `echoscope --help` does not pay for pyarrow and duckdb.
    if name not in _HOMES:
        raise AttributeError(f"module 'echoscope' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        raise ImportError(f"echoscope.{name}: {message}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
