"""Pages of a run that another trainer recorded: its episodes, and what they say of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from echoscope.recorder.recorder import Recorder
from echoscope.store.reader import open_run

OpenPage = Callable[..., AppTest]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two steps of two groups: one solved by both siblings, one by none."""
    with Recorder(tmp_path / "mine") as recorder:
        for step in (1, 2):
            for n in range(4):
                talk = [("user", f"task {n // 2}"), ("assistant", f"reply {n}")]
                messages = [{"role": role, "content": text} for role, text in talk]
                is_solved = n < 2
                recorder.episode(messages, float(is_solved), success=is_solved, env="lake")
            recorder.step(step, {"loss": 0.5})
    return tmp_path


def test_replay_calls_a_recorded_run_recorded(root: Path, open_page: OpenPage) -> None:
    page = open_page("replay", root, run="mine", q="reply")
    assert not page.exception
    assert page.caption[0].value.replace("\\", "").startswith("All steps, recorded, text 'reply'.")
    assert "import" not in page.caption[0].value
    columns = set(page.dataframe[0].value.columns)
    assert {"return", "success"} <= columns
    assert not {"advantage", "update", "dropped", "tokens"} & columns  # nobody recorded them


def test_the_environment_of_recorded_episodes_is_listed(root: Path, open_page: OpenPage) -> None:
    page = open_page("runs", root)
    assert page.dataframe[0].value["env"].tolist() == ["lake"]


def test_recorded_groups_say_how_many_solved_all_and_failed_all(root: Path) -> None:
    run = open_run(root / "mine")
    for key in ("reward/solved_frac", "reward/hopeless_frac"):
        assert run.metrics(key)[1].tolist() == [0.5, 0.5]
