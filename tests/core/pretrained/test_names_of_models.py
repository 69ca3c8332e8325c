"""Short names of models: shipped, or fetched into the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from echoscope.core.pretrained.names import models_folder, named_models

SHIPPED = ["tiny", "tiny-puzzles"]


def test_a_fetched_folder_has_its_name_and_half_a_folder_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path / "cache"))
    assert list(named_models()) == SHIPPED
    folder = models_folder() / "smollm2"
    folder.mkdir(parents=True)
    assert list(named_models()) == SHIPPED
    (folder / "config.json").write_text("{}")
    assert list(named_models()) == [*SHIPPED, "smollm2"]
    assert named_models()["smollm2"] == folder
