"""Which way whole weights take to vLLM, and what becomes of one that is cut off.

No GPU and no vLLM is needed: vLLM's side of a transfer is a stand-in that asks what vLLM's asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from scripted_server import Body, Script, serving, status
from small_qwen import make_model
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from echoscope.core.config.engine import OpenAiEngineConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.engines.base import EngineError
from echoscope.core.engines.server import http
from echoscope.core.engines.server.engine import ServerEngine
from echoscope.core.engines.vllm import transfer
from echoscope.core.engines.vllm.transfer import Transfers, checkpoint_tensors, own_address
from echoscope.core.engines.vllm.worker.echoscope_vllm_worker import (
    EchoscopeWorker,
    decoded,
    encoded,
)


def mixture() -> PreTrainedModel:
    """Experts that the module holds as one tensor, and a checkpoint each by itself."""
    config = Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
    )
    return Qwen3MoeForCausalLM(config)


# -- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: make_model(0, tied=True), id="tied"),
        pytest.param(lambda: make_model(0, tied=False), id="untied"),
        pytest.param(lambda: make_model(0, tied=True).to(torch.bfloat16), id="bfloat16"),
        pytest.param(mixture, id="experts"),
    ],
)
def test_what_is_sent_is_what_a_file_would_hold(
    make: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    """Names, types, shapes and values: vLLM loads both as a checkpoint."""
    model = make()
    model.save_pretrained(tmp_path)
    in_file = load_file(tmp_path / "model.safetensors")
    sent = checkpoint_tensors(model)
    assert sent.keys() == in_file.keys()
    for name, tensor in in_file.items():
        assert (sent[name].dtype, sent[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(sent[name], tensor), name


def test_weights_are_sent_without_a_copy() -> None:
    model = make_model(0, tied=True)
    weights = dict(model.named_parameters())
    for name, tensor in checkpoint_tensors(model).items():
        assert tensor.data_ptr() == weights[name].data_ptr(), name


def test_a_handle_travels_as_json_without_being_unpickled() -> None:
    handle = (
        torch.Tensor, (3, 4), (4, 1), 0, torch.TypedStorage, torch.bfloat16, 0, b"\x00handle\xff",
        24, 0, False, b"counter", 7, b"event", True,
    )  # fmt: skip
    sent = [{"GPU-1": handle}, {"GPU-1": handle}]
    back = decoded(encoded(sent))
    assert [tuple(inner["GPU-1"]) for inner in back] == [
        (handle[0], [3, 4], [4, 1], *handle[3:])
    ] * 2
    with pytest.raises(KeyError):
        decoded({"class": "os.system"})
    with pytest.raises(AttributeError):
        decoded({"dtype": "no_such_type"})


# -- which way -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "has_ranks", "way"),
    [
        (["0"], False, "ipc"),
        (["1"], False, "nccl"),
        (["1", "2"], True, "nccl"),
        (["0"], True, ""),  # vLLM's IPC would wait for all ranks
        (["0", "1"], False, ""),  # one of two workers is on the policy's GPU
    ],
)
def test_the_way_follows_from_who_shares_the_policys_gpu(
    gpus: list[str], has_ranks: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "obstacle", lambda model: "")
    model, visible = make_model(0, tied=True), ["0", "1", "2"]
    transfers = Transfers("auto", model)
    assert transfers.backend_for(gpus, visible, has_ranks=has_ranks) == way
    for setting in ("nccl", "ipc"):
        transfers = Transfers(setting, model)  # type: ignore[arg-type]
        if setting == way:
            assert transfers.backend_for(gpus, visible, has_ranks=has_ranks) == way
        else:
            with pytest.raises(ConfigError, match=rf"engine.transfer is {setting}, but .*: set"):
                transfers.backend_for(gpus, visible, has_ranks=has_ranks)
    assert Transfers("files", model).backend_for(gpus, visible, has_ranks=has_ranks) == ""


def test_without_a_gpu_or_with_adapters_weights_go_through_files_which_is_said_once() -> None:
    reported: list[str] = []
    base = make_model(0, tied=True)
    adapters = get_peft_model(make_model(0, tied=True), LoraConfig(r=4, target_modules=["q_proj"]))
    for model in (base, base, adapters):
        transfers = Transfers("auto", model, reported.append)
        assert transfers.opened(http.HttpServer("http://127.0.0.1:1")) is None
        assert transfers.opened(http.HttpServer("http://127.0.0.1:2")) is None
    because = "new weights go to vLLM through files, because "
    on_cpu, as_files = "the policy is not on a GPU", "adapters go as files"
    assert reported == [because + on_cpu, because + on_cpu, because + as_files]
    for model, reason in ((base, on_cpu), (adapters, as_files)):
        with pytest.raises(ConfigError, match=rf"engine.transfer is nccl, but {reason}: set"):
            Transfers("nccl", model)


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ([{"backend": "", "gpu": "GPU-2"}], "was started without --weight-transfer-config"),
        ([{"backend": "nccl", "gpu": "GPU-1"}], "shares the GPU of the policy"),
        ([{"backend": "ipc", "gpu": "GPU-2"}], "does not share the GPU of the policy"),
        ("nothing", "vLLM's workers answered 'nothing'"),
    ],
)
def test_a_server_that_was_started_for_something_else_gets_files(
    workers: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or, where a way is set, nothing."""
    monkeypatch.setattr(transfer, "obstacle", lambda model: "")
    monkeypatch.setattr(transfer, "own_gpu", lambda model: "GPU-1")
    script, reported = Script(), list[str]()
    script.other["/collective_rpc"] = {"results": workers}
    with serving(script) as url:
        server, model = http.HttpServer(url), make_model(0, tied=True)
        assert Transfers("auto", model, reported.append).opened(server) is None
        assert sentence in reported[0]
        with pytest.raises(EngineError, match=r"engine\.transfer is nccl, but"):
            Transfers("nccl", model).opened(server)


def test_the_trainer_names_the_address_under_which_a_server_reaches_it() -> None:
    assert own_address("http://127.0.0.1:8000") == "127.0.0.1"


# -- how -----------------------------------------------------------------------------------------


class Sender:
    """Asks of its client what vLLM's senders ask, and keeps what it would have moved."""

    def __init__(self, client: Any, weights: Any, address: str, size: int) -> None:
        self.client, self.weights, self.size = client, weights, size
        self.sent: list[dict[str, torch.Tensor]] = []
        self.num_shutdowns = 0
        client.init_weight_transfer_engine({"world_size": size})

    def send_weights(self) -> None:
        self.client.start_weight_update()
        self.sent.append({name: tensor.clone() for name, tensor in self.weights})
        self.client.update_weights({"names": list(self.sent[-1])})
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        self.num_shutdowns += 1


class Weights:
    def __init__(self, model: Any) -> None:
        self.model = model

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(checkpoint_tensors(self.model).items())


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[Sender]:
    """Those that were made; a policy counts as one on a GPU."""
    made: list[Sender] = []

    def make(*args: Any) -> Sender:
        made.append(Sender(*args))
        return made[-1]

    monkeypatch.setattr(transfer, "obstacle", lambda model: "")
    monkeypatch.setattr(transfer, "_weights_of", Weights)
    monkeypatch.setitem(transfer.SENDERS, "nccl", make)
    return made


def worker(body: Body) -> Any:
    """What a worker of vLLM with this package's extension answers."""
    match body["method"]:
        case "echoscope_transfer":
            return {"results": [{"backend": "nccl", "gpu": "GPU-2", "is_silent": False}] * 2}
        case "echoscope_finish":
            return {"results": [str(body["args"][0])] * 2}
        case "echoscope_reload":
            return {"results": [str(body["args"][1])] * 2}
    return {"results": [True, True]}


@pytest.fixture
def script() -> Script:
    script = Script()
    script.other |= {
        "/collective_rpc": worker,
        "/get_world_size": {"world_size": 2},
        "/init_weight_transfer_engine": {},
        "/update_weights": {},
        "/reset_prefix_cache": {"success": True},
        "/shutdown_weight_transfer_engine": {},
    }
    return script


def asked(script: Script) -> list[str]:
    out = [body.get("method", path) for path, body in script.asked if path != "/v1/models"]
    script.asked.clear()
    return out


def engine_for(url: str, model: Any, transfers: Transfers, version: int = 0) -> ServerEngine:
    config = OpenAiEngineConfig(url=url, weights="vllm")
    return ServerEngine(model, config=config, policy_version=version, transfers=transfers)


def test_each_sync_sends_the_weights_of_then_and_reads_every_workers_version(
    senders: list[Sender], script: Script
) -> None:
    model, reported = make_model(0, tied=True), list[str]()
    sync = ["echoscope_start", "/update_weights", "echoscope_finish", "/reset_prefix_cache"]
    with serving(script) as url:
        engine = engine_for(url, model, Transfers("auto", model, reported.append))
        assert asked(script) == [
            "echoscope_transfer",
            "/get_world_size",
            "/init_weight_transfer_engine",
            "echoscope_transfer",
            *sync,
        ]
        with torch.no_grad():
            model.get_input_embeddings().weight.add_(1)
        engine.sync_weights(SimpleNamespace(model=model, version=1))
        assert asked(script) == sync
        engine.close()
        assert asked(script) == ["/shutdown_weight_transfer_engine"]
    (sender,) = senders
    assert sender.size == 3, "two workers and the trainer"
    before, after = (weights["model.embed_tokens.weight"] for weights in sender.sent)
    assert torch.equal(before + 1, after)
    assert sender.num_shutdowns == 1
    assert reported == ["new weights go to vLLM by NCCL"]


def test_a_transfer_that_is_cut_off_is_not_asked_twice_and_the_next_server_gets_files(
    senders: list[Sender], script: Script
) -> None:
    """The server is lost to this engine: it may hold parts of two policies."""
    model, reported = make_model(0, tied=True), list[str]()
    transfers = Transfers("auto", model, reported.append)
    with serving(script) as url:
        engine = engine_for(url, model, transfers)
        script.other["/update_weights"] = status(500, "out of memory")
        asked(script)
        policy = SimpleNamespace(model=model, version=1)
        with pytest.raises(EngineError, match="answered 500: out of memory"):
            engine.sync_weights(policy)
        assert asked(script) == ["echoscope_start", "/update_weights"]
        assert senders[0].num_shutdowns >= 1, "a broadcast would wait for ever"
        with pytest.raises(EngineError, match="disconnected in an earlier transfer"):
            engine.sync_weights(policy)
        engine.close()
        asked(script)
        again = engine_for(url, model, transfers, version=1)
        assert asked(script) == ["echoscope_reload", "/reset_prefix_cache"]
        again.close()
    assert "files, because a transfer failed" in reported[-1]
    assert "out of memory" in reported[-1]


def test_a_way_that_is_set_is_tried_again(senders: list[Sender], script: Script) -> None:
    model = make_model(0, tied=True)
    transfers = Transfers("nccl", model)
    with serving(script) as url:
        script.other["/update_weights"] = status(500)
        for _ in range(2):
            with pytest.raises(EngineError, match="answered 500"):
                engine_for(url, model, transfers)
    assert len(senders) == 2


def test_a_worker_without_nccl_is_refused_before_anything_is_sent(
    senders: list[Sender], script: Script
) -> None:
    """vLLM would send nothing, say nothing, and sample from memory that nobody wrote."""
    silent = {"backend": "nccl", "gpu": "GPU-2", "is_silent": True}
    reported: list[str] = []

    def answer(body: Body) -> Any:
        return {"results": [silent]} if body["method"] == "echoscope_transfer" else worker(body)

    script.other["/collective_rpc"] = answer
    model = make_model(0, tied=True)
    with serving(script) as url:
        engine_for(url, model, Transfers("auto", model, reported.append)).close()
    assert not senders[0].sent
    assert "have no NCCL in common" in reported[0]


def test_a_worker_with_another_version_is_an_error(senders: list[Sender], script: Script) -> None:
    def old(body: Body) -> Any:
        return {"results": ["6", "7"]} if body["method"] == "echoscope_finish" else worker(body)

    script.other["/collective_rpc"] = old
    model = make_model(0, tied=True)
    with serving(script) as url, pytest.raises(EngineError, match=r"was sent version 7 .* holds"):
        engine_for(url, model, Transfers("auto", model), version=7)


# -- in the worker -------------------------------------------------------------------------------


class HalfLoaded(EchoscopeWorker):
    """vLLM's worker as far as this package's extension calls it."""

    def __init__(self) -> None:
        self.fails = False
        self.reloads = 0

    def reload_weights(self, weights_path: str) -> None:
        self.reloads += 1
        if self.fails:
            raise OSError("no such folder")

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def get_model(self) -> torch.nn.Module:
        return torch.nn.Module()


@pytest.fixture
def half_loaded(monkeypatch: pytest.MonkeyPatch) -> HalfLoaded:
    monkeypatch.setattr(f"{EchoscopeWorker.__module__}.repair_tied_head", lambda model: 0)
    return HalfLoaded()


def test_a_worker_takes_no_weights_after_some_were_cut_off(half_loaded: HalfLoaded) -> None:
    """vLLM keeps what has arrived, and would make a layer of it and of the next policy's."""
    assert half_loaded.echoscope_reload("folder", 1) == 1
    half_loaded.echoscope_start()
    with pytest.raises(RuntimeError, match=r"cut off on their way \(the transfer did not end\)"):
        half_loaded.echoscope_reload("folder", 2)
    with pytest.raises(RuntimeError, match="start vLLM again"):
        half_loaded.echoscope_start()
    assert half_loaded.reloads == 1


def test_a_worker_says_why_files_were_cut_off(half_loaded: HalfLoaded) -> None:
    half_loaded.fails = True
    with pytest.raises(OSError, match="no such folder"):
        half_loaded.echoscope_reload("folder", 1)
    half_loaded.fails = False
    with pytest.raises(RuntimeError, match=r"\(OSError: no such folder\): start vLLM again"):
        half_loaded.echoscope_reload("folder", 1)


def test_a_worker_takes_one_transfer_after_the_other(half_loaded: HalfLoaded) -> None:
    for version in (1, 2):
        half_loaded.echoscope_start()
        assert half_loaded.echoscope_finish(version) == version
