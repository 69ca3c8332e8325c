"""On a GPU vLLM sleeps while the policy updates, and wakes into a memory that has room for it.

No GPU and no vLLM is needed: what the engines call of vLLM is written down.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_server import Script, serving
from small_qwen import make_model

from echoscope.core.config.engine import VllmEngineConfig, VllmServerEngineConfig
from echoscope.core.engines.vllm import engine as vllm_engine
from echoscope.core.engines.vllm import server as vllm_server
from echoscope.core.engines.vllm.engine import VllmEngine
from echoscope.core.engines.vllm.server import VllmServerEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    model: Any
    version: int


class RecordingVllm:
    """The calls of `LLMEngine` that an engine makes, in their order."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append(f"wake {' '.join(tags or ['all'])}")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        self.calls.append(method)

    def apply_model(self, function: Callable[..., Any]) -> None:
        self.calls.append(function.__name__)

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset_prefix_cache")
        return True

    def set_weight_version(self, version: str) -> None:
        self.calls.append(f"version {version}")


LOADED = ["reload_weights", "repair_tied_head"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    made = SimpleNamespace(from_engine_args=lambda arguments: RecordingVllm(calls))
    fake = SimpleNamespace(EngineArgs=lambda **_: None, LLMEngine=made)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setattr(vllm_engine, "require_vllm", lambda: None)
    for module in (vllm_engine, vllm_server):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
        monkeypatch.setattr(module, "give_back_cached_blocks", lambda: calls.append("empty cache"))
    return calls


def test_weights_wake_are_loaded_and_then_the_cache_wakes(calls: list[str]) -> None:
    model = make_model(0, tied=True)
    engine = VllmEngine(model, "folder", config=VllmEngineConfig())
    try:
        calls.clear()
        engine.release_memory()
        engine.sync_weights(Policy(model=model, version=3))
    finally:
        engine.close()
    assert calls == [
        "sleep 1",
        "empty cache",
        "wake weights",
        *LOADED,
        "wake kv_cache",
        "reset_prefix_cache",
        "version 3",
    ]


def test_an_engine_that_is_awake_is_not_woken(calls: list[str]) -> None:
    model = make_model(0, tied=True)
    engine = VllmEngine(model, "folder", config=VllmEngineConfig(sleep=False))
    try:
        calls.clear()
        engine.release_memory()
        engine.sync_weights(Policy(model=model, version=3))
    finally:
        engine.close()
    assert calls == [*LOADED, "reset_prefix_cache", "version 3"]


def test_a_server_wakes_in_the_same_order(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.other |= {
        "/collective_rpc": {},
        "/reset_prefix_cache": {"success": True},
        "/update_weight_version": {},
        "/weight_info": {"weight_version": "3"},
        "/sleep?level=1": {},
        "/wake_up?tags=weights": {},
        "/wake_up?tags=kv_cache": {},
    }
    with serving(script) as url:
        process = SimpleNamespace(url=url, api_key="key", is_alive=True, end=lambda: None)
        monkeypatch.setattr(vllm_server, "server_of", lambda *_, **__: process)
        model = make_model(0, tied=True)
        engine = VllmServerEngine(model, "folder", config=VllmServerEngineConfig())
        try:
            script.asked.clear()
            engine.release_memory()
            engine.sync_weights(Policy(model=model, version=3))
        finally:
            engine.close()
    assert [path for path, _ in script.asked] == [
        "/sleep?level=1",
        "/wake_up?tags=weights",
        "/collective_rpc",
        "/wake_up?tags=kv_cache",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/weight_info",
    ]
    assert calls == ["empty cache"]
