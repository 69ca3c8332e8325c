"""The example notebook runs from top to bottom, and what the documentation ships is such a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from made_run import make_run
from nbclient import NotebookClient

import echoscope

from .conftest import FIXTURES

if TYPE_CHECKING:
    from echoscope.core.config.settings import RunConfig

NOTEBOOK = Path(echoscope.__file__).resolve().parent / "docs" / "examples" / "notebook.ipynb"
FIGURE = "application/vnd.plotly.v1+json"
MOST_BYTES = 200_000


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def executed(run: Path, folder: Path) -> Any:
    """The example notebook, run on another run."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    parameters = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", ()))
    parameters.source = f"RUN = {str(run)!r}\nROLLOUTS = {str(FIXTURES / 'verl')!r}"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def is_progress(output: Any) -> bool:
    """Whether an output is the line that counts the rows of an import."""
    return (
        output.output_type == "stream"
        and output.name == "stderr"
        and re.fullmatch(r"(\rimporting '.*': [\d,]+ of [\d,]+ rows)+\n?", output.text) is not None
    )


def assert_shows_everything(notebook: Any, name: str) -> None:
    printed = outputs(notebook)
    # An import that takes long, as on a busy machine, counts its rows on stderr.
    results = [output for output in printed if not is_progress(output)]
    assert not [output for output in results if output.output_type in ("error", "stream")]
    pages = [output.get("data", {}).get("text/html", "") for output in printed]
    cards = [page for page in pages if "es-nb" in page]
    assert len(cards) == 4  # the run, its verdict, an episode, the other trainer's files
    assert name in cards[0]
    figures = [output.data[FIGURE] for output in printed if FIGURE in output.get("data", {})]
    assert len(figures) == 2
    assert all(figure["data"] for figure in figures)


@pytest.mark.long
def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    def values(step: int) -> dict[str, float]:
        return {
            "rollout/success_rate": 0.5,
            "policy/entropy": 1 / (step + 1),
            "reward/return_mean": 0.5,
        }

    path = make_run(tmp_path / "made", 12, values=values)
    assert_shows_everything(executed(path, tmp_path), "made")


def test_its_paths_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells up to the paths, as they are shipped, where the notebook was started elsewhere."""
    monkeypatch.chdir(tmp_path)
    cells = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    folder_cell, parameters = cells[0], cells[1]
    assert parameters.metadata["tags"] == ["parameters"]
    names: dict[str, Any] = {}
    for cell in (folder_cell, parameters):
        exec(compile(cell.source, "cell", "exec"), names)
    assert Path(names["ROLLOUTS"]).is_dir()
    assert Path.cwd() / names["RUN"] == Path(echoscope.__file__).resolve().parent / names["RUN"]
    assert len(echoscope.Run(names["ROLLOUTS"]).trajectories()) == 4


@pytest.mark.slow
def test_it_runs_on_a_run_that_a_trainer_wrote(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    from echoscope.core.run.launch import start
    from echoscope.core.run.observers import SilentEvents

    assert start(make_config(), tmp_path / "tiny", SilentEvents()) == "finished"
    assert_shows_everything(executed(tmp_path / "tiny", tmp_path), "tiny")


def test_the_one_that_is_shipped_was_executed_and_is_small() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    kinds = {kind for output in outputs(notebook) for kind in output.get("data", {})}
    assert kinds == {"text/plain", "text/html", "image/png"}
    assert NOTEBOOK.stat().st_size < MOST_BYTES


def test_the_one_that_is_shipped_names_no_folder_of_a_machine() -> None:
    assert not re.search(r"/(?:root|home|tmp|Users)/", NOTEBOOK.read_text(encoding="utf-8"))
