"""Weights by vLLM's own transfer into a vLLM that runs: on the CPU, over gloo instead of NCCL.

Everything but the broadcast is what a GPU gets: vLLM's sender, its routes, its loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from generating import generate
from recorded import metric
from small_qwen import largest_gap, make_model, moved, some_prompts

from echoscope.core.config.engine import OpenAiEngineConfig, VllmEngineConfig
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import EngineError
from echoscope.core.engines.server.engine import ServerEngine
from echoscope.core.engines.server.http import HttpServer
from echoscope.core.engines.vllm import transfer
from echoscope.core.engines.vllm.server import ServerProcess, VllmEngine, server_of
from echoscope.core.engines.vllm.transfer import Transfers
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents

pytestmark = pytest.mark.vllm
SMALL = VllmEngineConfig(
    kv_cache_gib=0.0625,
    max_batch_rows=32,
    options={"worker-extension-cls": "gloo_transfer.GlooWorker"},
)


class GlooTransfers(Transfers):
    """All servers that are started take part."""

    def backend_for(self, gpus: Sequence[str], visible: Sequence[str], *, has_ranks: bool) -> str:
        return "gloo"


@pytest.fixture(autouse=True)
def gloo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A policy on the CPU may send, over gloo."""
    import gloo_transfer

    monkeypatch.setattr(transfer, "obstacle", lambda model: "")
    monkeypatch.setitem(transfer.SENDERS, "gloo", gloo_transfer.GlooSender.connected)
    monkeypatch.setitem(transfer._LABELS, "gloo", "gloo")
    monkeypatch.setattr(gloo_transfer.GlooSender, "num_left", None)
    return gloo_transfer.GlooSender


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights than any policy of these tests has."""
    path = tmp_path_factory.mktemp("transfer") / "model"
    make_model(7, tied=True).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    process = server_of(make_model(0, tied=True), str(folder), SMALL, positions=512, backend="gloo")
    yield process
    process.end()


def engine_over(server: ServerProcess, model: Any, **settings: Any) -> ServerEngine:
    reported: list[str] = []
    engine = ServerEngine(
        model,
        config=OpenAiEngineConfig(url=server.url, weights="vllm", max_batch_rows=32),
        api_key=server.api_key,
        transfers=GlooTransfers("auto", model, reported.append),
        **settings,
    )
    engine.reported = reported  # type: ignore[attr-defined]
    return engine


def test_transferred_weights_sample_as_those_of_files(server: ServerProcess) -> None:
    """At the start, after an update, and for the next trainer that connects."""
    model = make_model(0, tied=True)
    for version in (3, 5):
        engine = engine_over(server, model, policy_version=version)
        assert engine.reported == ["new weights go to vLLM by gloo"]  # type: ignore[attr-defined]
        assert largest_gap(engine, model, some_prompts(300)) < 2e-5
        moved(model)
        assert largest_gap(engine, model, some_prompts(300)) > 0.01
        engine.sync_weights(SimpleNamespace(model=model, version=version + 1))
        assert largest_gap(engine, model, some_prompts(300)) < 2e-5
        (sample,) = generate(engine, some_prompts()[:1], params_of(), seeds=[0])
        assert sample.policy_version == version + 1
        engine.close()


def params_of() -> Any:
    from echoscope.core.engines.base import SamplingParams

    return SamplingParams(max_new_tokens=4)


def test_a_server_without_a_transfer_says_so_and_gets_files(folder: Path) -> None:
    """It refuses NCCL, and a server on the CPU has no NCCL to connect."""
    model = make_model(0, tied=True)
    plain = server_of(model, str(folder), SMALL, positions=512)
    try:
        engine = engine_over(plain, model)
        (sentence,) = engine.reported  # type: ignore[attr-defined]
        assert "was started without --weight-transfer-config" in sentence
        assert largest_gap(engine, model, some_prompts(300)) < 2e-5
        engine.close()
        with pytest.raises(EngineError, match="answered 500"):
            HttpServer(plain.url, retries=0).post("/init_weight_transfer_engine", {"init_info": {}})
    finally:
        plain.end()


def test_a_transfer_that_is_cut_off_leaves_a_server_that_takes_no_more_weights(
    folder: Path, gloo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a layer has come: files on top of it would give weights that no policy had."""
    model = make_model(0, tied=True)
    reported: list[str] = []
    transfers = GlooTransfers("auto", model, reported.append)
    engine = VllmEngine(
        model, str(folder), config=SMALL, transfers=transfers, backend="gloo", positions=512
    )
    url, key = engine._process.url, engine._process.api_key  # type: ignore[union-attr]
    monkeypatch.setattr(gloo, "num_left", 5)
    with pytest.raises(EngineError, match="did not get the weights by gloo: the cable was pulled"):
        engine.sync_weights(SimpleNamespace(model=moved(model), version=1))
    with pytest.raises(EngineError, match="start vLLM again"):
        ServerEngine(
            model, config=OpenAiEngineConfig(url=url, weights="vllm"), api_key=key,
            transfers=transfers,
        )  # fmt: skip
    engine.close()
    again = VllmEngine(
        model, str(folder), config=SMALL, transfers=transfers, backend="gloo", positions=512
    )
    assert largest_gap(again, model, some_prompts(300)) < 2e-5
    again.close()
    assert reported[0] == "new weights go to vLLM by gloo"
    assert "through files, because a transfer failed" in reported[-1]


class Listening(SilentEvents):
    def __init__(self) -> None:
        self.reports: list[str] = []

    def message(self, text: str) -> None:
        self.reports.append(text)


def test_a_run_with_two_servers_whose_transfer_fails_once_samples_from_no_other_weights(
    make_config: Callable[..., RunConfig],
    tmp_path: Path,
    gloo: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three updates by transfer; at the third one server is lost, and its successor gets files."""
    monkeypatch.setattr(transfer, "Transfers", GlooTransfers)
    num_sent = 0
    broadcast = gloo._broadcast

    def failing(self: Any, source: Any, meta: Any) -> None:
        nonlocal num_sent
        num_sent += 1
        self.num_left = 3 if num_sent == 7 else None
        broadcast(self, source, meta)

    monkeypatch.setattr(gloo, "_broadcast", failing)
    events = Listening()
    options = "options: {worker-extension-cls: gloo_transfer.GlooWorker}"
    config = make_config(
        f"engine={{kind: vllm, kv_cache_gib: 0.0625, max_batch_rows: 32, replicas: 2, {options}}}",
        "steps=5",
        "diagnostics.enabled=false",
        "eval.every=0",
    )
    assert start(config, tmp_path / "run", events) == "finished"
    assert "new weights go to vLLM by gloo" in events.reports
    assert any("the cable was pulled" in sentence for sentence in events.reports), events.reports
    assert sum(metric(tmp_path / "run", "engine/num_lost").values()) == 1
    assert max(metric(tmp_path / "run", "policy/mismatch_kl").values()) < 1e-6
    assert max(metric(tmp_path / "run", "rollout/staleness_max").values()) == 0
    assert num_sent >= 8
