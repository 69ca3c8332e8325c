"""Echoscope: train LLM agents with multi-turn RL, keep every trajectory, see collapse in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Recorder", "Run", "Runs", "__version__", "open_run", "open_runs"]

if TYPE_CHECKING:
    from echoscope.notebook.run import Run
    from echoscope.notebook.runs import Runs
    from echoscope.recorder.recorder import Recorder
    from echoscope.store.reader import open_run, open_runs


def __getattr__(name: str) -> Any:
    # Lazy, so that `echoscope --help` does not pay for pyarrow and duckdb.
    if name in ("open_run", "open_runs"):
        from echoscope.store import reader

        return getattr(reader, name)
    if name == "Recorder":
        from echoscope.recorder import recorder

        return recorder.Recorder
    if name == "Run":
        from echoscope.notebook import run

        return run.Run
    if name == "Runs":
        from echoscope.notebook import runs

        return runs.Runs
    raise AttributeError(f"module 'echoscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
