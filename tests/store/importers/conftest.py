"""Imports of the fixtures, and of rows that a test makes up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rollout_import import import_run

from echoscope.store.importers.importing import ImportReport
from echoscope.store.reader import RunReader, open_run

FIXTURES = Path(__file__).parent / "fixtures"


class Imported:
    """A run that was imported, and what the import reported."""

    def __init__(self, report: ImportReport) -> None:
        self.report = report
        self.reader: RunReader = open_run(report.path)

    @property
    def trajectories(self) -> list[Any]:
        steps = self.reader.sql("SELECT DISTINCT step FROM trajectories ORDER BY step")
        return [
            trajectory
            for step in steps.column("step").to_pylist()
            for trajectory in self.reader.trajectories_of_step(step)
        ]

    def extra(self, index: int) -> dict[str, Any]:
        return json.loads(self.trajectories[index].extra)


@pytest.fixture
def fixture(tmp_path: Path) -> Callable[[str], Imported]:
    """Imports a folder of the fixtures."""
    return lambda name: Imported(import_run(FIXTURES / name, tmp_path / "run"))


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., Imported]:
    """Imports rows of JSON lines, given as values, texts or bytes."""

    def write(*values: Any, name: str = "rows.jsonl") -> Imported:
        folder = tmp_path / "rows"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"".join(map(_line, values)))
        return Imported(import_run(folder, tmp_path / "run"))

    return write


def _line(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return data if data.endswith(b"\n") else data + b"\n"


def texts(turns: Sequence[Any]) -> list[tuple[str, str]]:
    return [(turn.observation, turn.response) for turn in turns]


def slime_sample(**more: Any) -> dict[str, Any]:
    """The fields of slime's `Sample.to_dict` (slime/utils/types.py)."""
    return {
        "group_index": 4,
        "index": 9,
        "prompt": [{"role": "user", "content": "2 + 3?"}],
        "tokens": [1, 2, 3, 4, 5, 6, 7, 8],
        "response": "a1<|im_end|>\n<|im_start|>user\nobs<|im_end|>\n<|im_start|>assistant\na2",
        "response_length": 5,
        "label": "5",
        "reward": 0.75,
        "loss_mask": [1, 1, 0, 1, 1],
        "weight_versions": ["7"],
        "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0, -2.0],
        "status": "completed",
        "metadata": {"k": 1},
        "remove_sample": False,
        **more,
    }
