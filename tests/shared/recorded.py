"""What a run recorded, without what may differ between two equal runs: clocks, attempts, names."""

from __future__ import annotations

from pathlib import Path

from echoscope.store.reader import open_run

_TABLES = {
    "metrics": "SELECT step, phase, key, value FROM metrics "
    "WHERE key NOT SIMILAR TO '(time|system)/.*' ORDER BY step, phase, key",
    "trajectories": "SELECT * EXCLUDE (run_id, attempt, duration_s) FROM trajectories ORDER BY id",
    "turns": "SELECT * EXCLUDE (run_id, attempt) FROM turns ORDER BY trajectory_id, turn",
    "tokens": "SELECT * EXCLUDE (run_id, attempt) FROM tokens ORDER BY trajectory_id, turn",
}


def recorded(path: Path) -> dict[str, list[str]]:
    """Rows of each table as text: equal text means equal bits, NaN included."""
    reader = open_run(path)
    return {
        name: [repr(row) for row in reader.sql(sql).to_pylist()] for name, sql in _TABLES.items()
    }


def assert_same_recording(first: Path, other: Path) -> None:
    """Metrics first: they say what differs."""
    expected, again = recorded(first), recorded(other)
    for name in _TABLES:
        assert again[name] == expected[name], name


def metric(path: Path, key: str, phase: str = "train") -> dict[int, float]:
    """Step to value."""
    steps, values = open_run(path).metrics(key, phase=phase)
    return dict(zip(steps.tolist(), values.tolist(), strict=True))
