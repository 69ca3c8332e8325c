"""Saved views: kept in the root, safe against two writers and hostile names."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echoscope.dashboard.data.run_table import saved_views
from echoscope.dashboard.data.run_table.saved_views import (
    FILE,
    delete_view,
    read_views,
    save_view,
)
from echoscope.store.errors import StoreError


def test_a_view_is_kept_and_deleted(tmp_path: Path) -> None:
    assert read_views(tmp_path) == {}
    save_view(tmp_path, " best ", {"filter": "lr > 1e-6 & x", "sort": "-success", "page": "3"})
    assert read_views(tmp_path) == {"best": {"filter": "lr > 1e-6 & x", "sort": "-success"}}
    delete_view(tmp_path, "best")
    delete_view(tmp_path, "best")
    assert read_views(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\u202eb", "x" * 61])
def test_a_name_that_cannot_be_typed_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is no name for a view"):
        save_view(tmp_path, name, {})


def test_markup_is_a_name_like_any_other(tmp_path: Path) -> None:
    save_view(tmp_path, "<script>../..", {"group": "lr"})
    assert read_views(tmp_path) == {"<script>../..": {"group": "lr"}}


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: save_view(tmp_path, f"v{n}", {"group": str(n)}), range(24)))
    assert len(read_views(tmp_path)) == 24


@pytest.mark.parametrize("text", ["{", "[]", '{"views": 3}', '{"views": {"a\\nb": ""}}', "\xff"])
def test_a_damaged_file_is_said_and_never_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreError, match="holds no saved views"):
        save_view(tmp_path, "a", {})
    assert (tmp_path / FILE).read_bytes() == text.encode("latin-1")


def test_more_views_than_there_may_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_view(tmp_path, "a", {})
    save_view(tmp_path, "b", {})
    monkeypatch.setattr(saved_views, "MAX_VIEWS", 2)
    with pytest.raises(StoreError, match="there are 2 saved views"):
        save_view(tmp_path, "c", {})


def test_what_is_no_parameter_of_the_page_is_left_out(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"views": {"a": "run=x&token=y&group=lr"}}))
    assert read_views(tmp_path) == {"a": {"group": "lr"}}
