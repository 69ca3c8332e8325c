"""Without Ray, or with another version of it: one sentence that names the command."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.ray.session import check_ray
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    whole = metadata.version

    def answer(name: str) -> str:
        if name != "ray":
            return whole(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", answer)


def test_missing_ray_is_refused_before_a_run_is_made(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'ray==2\.60\.0'"):
        start(make_config("engine.kind=ray"), tmp_path / "run", SilentEvents())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("version", ["2.59.3", "3.0.0"])
def test_another_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, version)
    with pytest.raises(ConfigError, match=f"{version} is installed: pip install 'ray==2.60.0'"):
        check_ray()


def test_a_patch_release_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "2.60.1")
    check_ray()
