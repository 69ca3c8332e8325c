"""Every page says what SQL says: at least fifty numbers of two trained runs and an evaluation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess
from made_evaluation import make_evaluation
from page_numbers import Pages

from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents


@pytest.fixture
def root(recorded_root: Path, make_config: Callable[..., Any], tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    shutil.copytree(recorded_root / "tiny", folder / "one")
    config = make_config("steps=4", "eval.every=2", "seed=7")
    assert start(config, folder / "two", SilentEvents()) == "finished"
    make_evaluation(folder / "played", {"lake": ["110", "100", "000", "111"]})
    return folder


def test_numbers_are_those_of_sql(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    page.set_viewport_size({"width": 1440, "height": 5000})
    pages = Pages(page, serve(root).url, root)
    (tag,) = {key.split("/")[1] for key in pages.keys("one") if key.startswith("eval/")} - {"all"}
    numbers = [
        *chain(
            pages.live("one", tag),
            pages.diagnosis("one"),
            pages.runs("one"),
            *(pages.replay("one", step) for step in range(1, 6)),
            pages.replay("two", 2),
            pages.compare("one", "two"),
            pages.evaluations("played"),
            pages.asked("one"),
        )
    ]
    assert [number for number in numbers if not number.is_equal] == []
    assert len(numbers) >= 50
    names = {number.page for number in numbers}
    assert names >= {
        "Live",
        "Diagnosis",
        "Alarms",
        "Runs",
        "Replay",
        "Compare",
        "Evaluations",
        "SQL",
    }
