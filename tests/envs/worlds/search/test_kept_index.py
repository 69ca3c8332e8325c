"""Indexes on disk: the same results, never half of one, and never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from echoscope.envs.worlds.search import bm25
from echoscope.envs.worlds.search.bm25 import Bm25Index

bm25s = pytest.importorskip("bm25s")
TEXTS = [f"word{n % 7} word{n % 11} {n}" for n in range(200)]
QUERIES = ["word1", "word3 word5", "17", "word2 word9 44", "zebra"]


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bm25, "KEPT_FROM", 100)
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path / "cache"))


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "search").glob("*"))


def results(texts: list[str] = TEXTS) -> list[list[tuple[int, float]]]:
    index = Bm25Index(texts)
    return [index.best(query, 9) for query in QUERIES]


def test_a_kept_index_is_not_built_again_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = results()
    (folder,) = folders(tmp_path)
    monkeypatch.setattr(bm25s.BM25, "index", None)  # building would raise
    assert results() == built
    assert folders(tmp_path) == [folder]


def test_other_texts_have_an_index_of_their_own(tmp_path: Path) -> None:
    results()
    ((place, _),) = results([*TEXTS[:-1], "zebra"])[-1]
    assert place == 199
    results([f"{TEXTS[0]}{TEXTS[1]}", *TEXTS[2:]])
    assert len(folders(tmp_path)) == 3


def test_a_small_corpus_is_not_kept(tmp_path: Path) -> None:
    results(TEXTS[:99])
    assert folders(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["params.index.json", "vocab.index.json", "data.csc.index.npy", "indptr.csc.index.npy"]
)
@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_a_damaged_index_is_built_again(tmp_path: Path, name: str, damage: str) -> None:
    built = results()
    (folder,) = folders(tmp_path)
    file = folder / name
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"{}")
    assert results() == built
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = results()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="the search index is not kept at"):
        assert results() == built
