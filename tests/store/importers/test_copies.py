"""Rows of a run that stand in two files: a copy counts once, an episode that came again twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rollout_import import import_run

from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.importers.survey import survey
from echoscope.store.reader import open_run


def rows(*replies: str, **fields: Any) -> str:
    return "".join(
        json.dumps({"messages": [{"role": "assistant", "content": reply}], **fields}) + "\n"
        for reply in replies
    )


def copies(folder: Path, files: dict[str, str]) -> tuple[dict[str, str], int]:
    """The files that are left out -> the file they copy, and how many rows are left."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    surveyed = survey(folder, folder)
    return dict(surveyed.copies), surveyed.num_rows


@pytest.mark.parametrize(
    ("files", "left_out", "num_rows"),
    [
        pytest.param(
            {"a.jsonl": rows("x", "y"), "b.jsonl": rows("x", "y"), "c.jsonl": rows("z")},
            {"b.jsonl": "a.jsonl"},
            3,
            id="the same rows: the later file is the copy",
        ),
        pytest.param(
            {"a.jsonl": rows("x", "y"), "old/a.jsonl": rows("x", "y")},
            {"old/a.jsonl": "a.jsonl"},
            2,
            id="the same rows in a folder below",
        ),
        pytest.param(
            {"1.jsonl": rows("x", "y"), "2.jsonl": rows("x", "y")},
            {},
            4,
            id="the same rows of other steps, by the files' names",
        ),
        pytest.param(
            {"a.jsonl": rows("x", "y", step=1), "b.jsonl": rows("x", "y", step=2)},
            {},
            4,
            id="the same rows of other steps, by the rows",
        ),
        pytest.param(
            {"a.jsonl": rows("x", "y"), "val/a.jsonl": rows("x", "y")},
            {},
            4,
            id="an evaluation of the same rows",
        ),
        pytest.param(
            {"a.jsonl": rows("x", "y"), "b.jsonl": rows("y", "x")}, {}, 4, id="another order"
        ),
        pytest.param({"a.jsonl": rows("x", "x", "y")}, {}, 3, id="again inside one file"),
        pytest.param(
            {"episode_0.jsonl": rows("x"), "episode_1.jsonl": rows("x")},
            {},
            2,
            id="one row in numbered files: attempts with the same text",
        ),
    ],
)
def test_copies(
    tmp_path: Path, files: dict[str, str], left_out: dict[str, str], num_rows: int
) -> None:
    assert copies(tmp_path, files) == (left_out, num_rows)


def test_a_copy_is_named_in_the_report_and_adds_nothing_later(tmp_path: Path) -> None:
    folder, run = tmp_path / "in", tmp_path / "run"
    folder.mkdir()
    (folder / "a.jsonl").write_text(rows("x", "y", step=1))
    import_run(folder, run)
    (folder / "a.copy.jsonl").write_text(rows("x", "y", step=1))
    report = import_path(folder, run)
    assert (report.written.num_kept, report.written.num_there) == (0, 2)
    assert report.sentences() == ["passed over a.jsonl: a copy: its rows are those of a.copy.jsonl"]
    assert open_run(run).info().attempt == 1
