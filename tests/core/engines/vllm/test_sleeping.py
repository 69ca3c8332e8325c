"""On a GPU vLLM sleeps while the policy updates, and wakes into a memory that has room for it.

No GPU and no vLLM is needed: what the engines call of vLLM is written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_server import Script, reloaded, serving
from small_qwen import make_model

from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.engines.vllm import server as vllm_server
from echoscope.core.engines.vllm.server import VllmEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    model: Any
    version: int


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(vllm_server, "has_gpu", lambda: True)
    monkeypatch.setattr(vllm_server, "give_back_cached_blocks", lambda: calls.append("empty cache"))
    return calls


def test_weights_wake_are_loaded_and_then_the_cache_wakes(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    script.other |= {
        "/collective_rpc": reloaded,
        "/reset_prefix_cache": {"success": True},
        "/sleep?level=1": {},
        "/wake_up?tags=weights": {},
        "/wake_up?tags=kv_cache": {},
    }
    with serving(script) as url:
        process = SimpleNamespace(url=url, api_key="key", is_alive=True, end=lambda: None)
        monkeypatch.setattr(vllm_server, "server_of", lambda *_, **__: process)
        model = make_model(0, tied=True)
        engine = VllmEngine(model, "folder", config=VllmEngineConfig())
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
    ]
    assert calls == ["empty cache"]
