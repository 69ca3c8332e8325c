"""vLLM in a process of its own on this machine: started with the engine, ended with it.

Beyond the process this is the client of any server that speaks the completions protocol.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.store.records import IntArray

from ...config.engine import CPU_CACHE_GIB, OpenAiEngineConfig, VllmEngineConfig
from ...config.loading import ConfigError
from ...policy import causal_model
from ..base import EngineError, SamplingParams
from ..server.engine import MAX_SUPPORT, ServerEngine
from ..server.http import HttpServer
from .install import require_vllm
from .transfer import free_port
from .weights import SharedFolder, adapter_settings
from .worker.echoscope_vllm_worker import IS_SERVER

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of an attention head that vLLM computes on the CPU. Others fail at the first request."""
WORKER_FOLDER = Path(__file__).parent / "worker"
MODEL_NAME = "policy"
START_S = 1800.0
"""Longest start of a server: a large model that compiles takes many minutes."""
_LOOK_EVERY_S = 0.25
_END_WITHIN_S = 10.0


class ServerProcess:
    """One vLLM server, its workers included: they are a process group of their own.

    It listens on the loopback address. Sampling asks for a key that is made up for it. The routes
    that take weights do not: whoever may open a socket on this machine can call them.

    Args:
        arguments: flags of vLLM's server, its address left out.
        devices: names of the GPUs that it may use; empty for all.

    Raises:
        EngineError: the server did not come up.
    """

    def __init__(self, python: str, arguments: list[str], devices: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api_key = secrets.token_hex(16)
        self._folder = SharedFolder()
        self._log = self._folder.path / "server.log"
        paths = [str(WORKER_FOLDER), os.environ.get("PYTHONPATH")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    python,
                    str(WORKER_FOLDER / "echoscope_vllm_serve.py"),
                    *arguments,
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                    "VLLM_API_KEY": self.api_key,
                    "VLLM_SERVER_DEV_MODE": "1",
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    IS_SERVER: "1",
                }
                | ({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}),
            )
        try:
            self._await()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End every process of the server, gently first."""
        for number, seconds in ((signal.SIGTERM, _END_WITHIN_S), (signal.SIGKILL, _END_WITHIN_S)):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and _group_exists(self._process):
                time.sleep(0.05)
        self._process.wait()
        self._folder.remove()

    def _await(self) -> None:
        server = HttpServer(self.url, retries=0)
        deadline = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None:
                raise EngineError(
                    f"vLLM's server ended while it started: {self._why()}; change engine.options, "
                    "or set engine.kind=hf"
                )
            try:
                server.get("/health", timeout_s=5)
            except EngineError:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"vLLM's server did not start within {START_S:g} s; "
                        f"its last words: {self._why()}"
                    ) from None
                time.sleep(_LOOK_EVERY_S)
            else:
                return

    def _why(self) -> str:
        """The line of the log that says what went wrong: the last one with an error."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line for line in lines if "Error: " in line or "error: " in line] or lines
        return " ".join(telling[-1].split())[-300:] if telling else "it wrote nothing"


class VllmEngine(ServerEngine):
    """An engine over a vLLM server that this engine starts, watches and ends.

    A server that dies ends the run, whose checkpoint holds the last finished step.

    Args:
        folder: a model folder with the shape of `model`, or a hub id.
        devices: names of the GPUs that it may use; empty for all.
        backend: vLLM's name of the transfer that brings its weights; empty for files.
        shared: `policy_version`, `report`, `files` and `transfers` of `ServerEngine`.

    Raises:
        ConfigError: the server's Python has no vLLM of the right version, or vLLM cannot run the
            model here.
        EngineError: the server does not start, or takes no weights.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        folder: str,
        *,
        config: VllmEngineConfig,
        positions: int | None = None,
        devices: Sequence[str] = (),
        backend: str = "",
        **shared: Any,
    ) -> None:
        most = int(causal_model(model).config.max_position_embeddings)
        most = most if positions is None else min(positions, most)
        self._sleeps = config.sleep and has_gpu()
        self._is_asleep = False
        self._process: ServerProcess | None = server_of(
            model, folder, config, positions=most, devices=devices, backend=backend
        )
        client = OpenAiEngineConfig(
            url=self._process.url,
            model=MODEL_NAME,
            weights="vllm",
            max_batch_rows=config.max_batch_rows,
        )
        try:
            super().__init__(
                model,
                config=client,
                positions=positions,
                api_key=self._process.api_key,
                **shared,
            )
        except BaseException:
            self._end_process()
            raise

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        if self._is_asleep:
            give_back_cached_blocks()
            self._server.post("/wake_up")
            self._is_asleep = False
        super().submit(key, prompt, params, seed=seed)

    def release_memory(self) -> None:
        """Let the device sleep, where vLLM can. Without effect on the CPU."""
        self._check_open()
        if self._sleeps and not self._is_asleep:
            self._server.post("/sleep?level=1")
            self._is_asleep = True

    def sync_weights(self, policy: Any) -> None:
        if self._is_asleep:
            give_back_cached_blocks()
            self._server.post("/wake_up?tags=weights")
        super().sync_weights(policy)

    def _weights_are_in(self) -> None:
        if self._is_asleep:  # the cache stays away while two copies of the weights are about
            self._server.post("/wake_up?tags=kv_cache")
            self._is_asleep = False

    def close(self) -> None:
        """Cut off what is under way and end the server, its workers included."""
        super().close()
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()


def server_of(
    model: PreTrainedModel | PeftModel,
    folder: str,
    config: VllmEngineConfig,
    *,
    positions: int,
    devices: Sequence[str] = (),
    backend: str = "",
) -> ServerProcess:
    """A server for a model of that shape. Whoever asks for it ends it.

    Raises:
        ConfigError, EngineError: as `VllmEngine`.
    """
    python = config.python or sys.executable
    require_vllm(python)
    base, on_cpu = causal_model(model), not has_gpu()
    if on_cpu:
        check_head_size(base)
    flags: dict[str, Any] = {
        "model": folder,
        "served-model-name": MODEL_NAME,
        "dtype": str(base.get_input_embeddings().weight.dtype).removeprefix("torch."),
        "skip-tokenizer-init": True,
        "max-model-len": positions,
        "max-num-seqs": config.max_batch_rows,
        "enforce-eager": on_cpu,
        "enable-prefix-caching": True,
        # A seeded prompt that is computed in parts ends vLLM 0.32 on the CPU.
        "no-enable-chunked-prefill": on_cpu,
        "enable-sleep-mode": config.sleep and not on_cpu,
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": min(base.get_input_embeddings().num_embeddings, MAX_SUPPORT),
        "generation-config": "vllm",
        "return-tokens-as-token-ids": True,
        "disable-log-stats": True,
        "disable-uvicorn-access-log": True,
        "worker-extension-cls": "echoscope_vllm_worker.EchoscopeWorker",
        "weight-transfer-config": json.dumps({"backend": backend}) if backend else None,
    }
    if config.kv_cache_gib is not None or on_cpu:
        flags["kv-cache-memory-bytes"] = int((config.kv_cache_gib or CPU_CACHE_GIB) * 2**30)
    else:
        flags["gpu-memory-utilization"] = config.gpu_memory
    if isinstance(model, PeftModel):
        flags |= {name.replace("_", "-"): v for name, v in adapter_settings(model).items()}
    arguments = []
    for name, value in (flags | config.options).items():
        if value is not False and value is not None:
            arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return ServerProcess(python, arguments, devices)


def has_gpu() -> bool:
    """Whether vLLM samples on a GPU, where it may sleep."""
    return torch.cuda.is_available()


def devices_of(config: VllmEngineConfig, index: int, num_ranks: int) -> list[str]:
    """The GPUs of a replica; empty without any.

    The ranks of this machine have its first GPUs. The replicas take the others where all of them
    find room there, and else all GPUs in turn.

    Args:
        num_ranks: ranks on this machine.

    Raises:
        ConfigError: one replica needs more GPUs than there are.
    """
    visible = visible_gpus()
    size = config.gpus_per_replica
    if not has_gpu() or (config.replicas == 1 and size == len(visible)):
        return []
    if size > len(visible):
        raise ConfigError(
            f"tensor-parallel-size in engine.options is {size}, but torch sees {len(visible)} GPUs"
        )
    first = num_ranks if config.leaves_ranks_alone(num_ranks, len(visible)) else 0
    return [visible[(first + index * size + offset) % len(visible)] for offset in range(size)]


def visible_gpus() -> list[str]:
    """The GPUs of this process, by the names that CUDA_VISIBLE_DEVICES has for them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(n) for n in range(torch.cuda.device_count())]


def give_back_cached_blocks() -> None:
    """Before vLLM wakes: torch keeps what the update has freed, and vLLM could not take it."""
    torch.cuda.empty_cache()


def check_head_size(model: PreTrainedModel) -> None:
    """Raises ConfigError for attention heads that vLLM cannot compute on the CPU."""
    config = model.config.to_dict()
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if size not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"the model's attention heads are {size} wide, but vLLM on the CPU computes widths "
            f"{', '.join(map(str, CPU_HEAD_SIZES))} only: set engine.kind=hf"
        )


def _group_exists(process: subprocess.Popen[bytes]) -> bool:
    process.poll()  # a leader that has ended must not be counted
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
