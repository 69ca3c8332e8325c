"""Whole weights on their way to vLLM by its own transfer: NCCL, or CUDA IPC on one GPU.

vLLM moves the tensors. Here is chosen whether it can, what they are called, and what becomes of a
transfer that is cut off: its server takes no weights any more, because vLLM would count what has
arrived already and mix two policies.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from ...config.loading import ConfigError
from ..base import EngineError
from ..server.http import HttpServer
from .install import VERSION
from .worker.echoscope_vllm_worker import encoded

Setting = Literal["auto", "nccl", "ipc", "files"]
CHUNK_BYTES = 256 << 20
"""By NCCL weights go in parts of about this size; trainer and worker hold two of them."""
_CLOSE_S = 10.0
_LABELS = {"nccl": "NCCL", "ipc": "CUDA IPC"}


class Sender(Protocol):
    """vLLM's side of a transfer in the process that trains."""

    def send_weights(self) -> None: ...
    def shutdown(self) -> None: ...


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` gives them; nothing is copied, unless a
    checkpoint has other tensors than the module (the experts of some mixtures)."""
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors = remove_tied_weights_from_state_dict(tensors, model)
    return dict(revert_weight_conversion(model, tensors))


def obstacle(model: PreTrainedModel | PeftModel) -> str:
    """Why these weights cannot go by vLLM's transfer; empty if they can."""
    if isinstance(model, PeftModel):
        return "adapters go as files"
    if device_of(model).type != "cuda":
        return "the policy is not on a GPU"
    try:
        version = metadata.version("vllm").split("+")[0]
    except metadata.PackageNotFoundError:
        return f"the Python that trains has no vLLM {VERSION}"
    if version.rsplit(".", 1)[0] != VERSION.rsplit(".", 1)[0]:
        return f"the Python that trains has vLLM {version}, not {VERSION}"
    return ""


class Transfers:
    """Which way the weights of a policy go to its servers, for all engines of a run.

    Args:
        report: is told in one sentence which way is taken, and why.

    Raises:
        ConfigError: the way that is set cannot be taken with this policy.
    """

    def __init__(
        self,
        setting: Setting,
        model: PreTrainedModel | PeftModel,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.setting, self._model, self._report = setting, model, report
        self._lock = threading.Lock()
        self._sends = threading.Lock()
        """Servers are sent weights in turn: each transfer has buffers on the GPU."""
        self._reported: set[str] = set()
        self._obstacle = "engine.transfer is files" if setting == "files" else obstacle(model)
        if self._obstacle and setting not in ("auto", "files"):
            raise ConfigError(
                f"engine.transfer is {setting}, but {self._obstacle}: set engine.transfer=auto"
            )

    def backend_for(self, gpus: Sequence[str], visible: Sequence[str], *, has_ranks: bool) -> str:
        """What a server is started with; empty for files.

        Args:
            gpus: those of the server, by the names of `visible`.
            visible: all that this process sees, in the order of their numbers here.
            has_ranks: there are several; vLLM's transfer by IPC would wait for all of them.

        Raises:
            ConfigError: the way that is set cannot be taken to these GPUs.
        """
        if self._obstacle:
            return ""
        if visible[device_of(self._model).index or 0] not in gpus:
            way, refusal = "nccl", "its GPU is not the policy's: set engine.transfer=nccl"
        elif len(gpus) == 1 and not has_ranks:
            way, refusal = "ipc", "it shares the policy's GPU: set engine.transfer=ipc"
        else:
            way = ""
            refusal = (
                "it shares the policy's GPU, where neither NCCL nor, with several ranks or GPUs, "
                "CUDA IPC reaches it: set engine.transfer=files"
            )
        if self.setting not in ("auto", way):
            raise ConfigError(
                f"engine.transfer is {self.setting}, but a server cannot get its weights so: "
                f"{refusal}"
            )
        return way

    def opened(self, server: HttpServer) -> Transfer | None:
        """A connection to a server that is up; None if its weights go through files.

        Raises:
            EngineError: the way that is set cannot be taken.
        """
        with self._lock:
            because = self._obstacle
        transfer = None
        if not because:
            try:
                transfer = self._connected(server)
            except EngineError as error:
                because = str(error)
                if self.setting != "auto":
                    raise EngineError(f"engine.transfer is {self.setting}, but {error}") from None
        self._say(
            f"new weights go to vLLM by {_LABELS.get(transfer.backend, transfer.backend)}"
            if transfer is not None
            else f"new weights go to vLLM through files, because {because}"
        )
        return transfer

    def has_failed(self, error: EngineError) -> None:
        """Whoever is connected from now on gets files, unless a way is set."""
        with self._lock:
            if self.setting == "auto" and not self._obstacle:
                self._obstacle = f"a transfer failed ({error})"

    def _connected(self, server: HttpServer) -> Transfer:
        workers = asked_workers(server)
        backends = {str(worker["backend"]) for worker in workers}
        shares = own_gpu(self._model) in {worker["gpu"] for worker in workers} - {""}
        backend = backends.pop() if len(backends) == 1 else ""
        if not backend:
            raise EngineError(
                f"{server.url} was started without --weight-transfer-config "
                """'{"backend": "nccl"}'"""
            )
        if shares != (backend == "ipc"):
            where = "shares" if shares else "does not share"
            raise EngineError(
                f"{server.url} {where} the GPU of the policy and was started for {backend}"
            )
        if self.setting not in ("auto", backend):
            raise EngineError(f"{server.url} was started for {backend}")
        return Transfer(backend, server, self._model, self._sends)

    def _say(self, sentence: str) -> None:
        with self._lock:
            is_new = sentence not in self._reported
            self._reported.add(sentence)
        if is_new:
            self._report(sentence)


class Transfer:
    """A connection through which one server gets the weights, as often as they change.

    Args:
        backend: vLLM's name of it; its servers were started for the same.
        turns: held while weights are sent.

    Raises:
        EngineError: it does not come about.
    """

    def __init__(
        self,
        backend: str,
        server: HttpServer,
        model: PreTrainedModel | PeftModel,
        turns: threading.Lock,
    ) -> None:
        self.backend = backend
        self._url, self._turns = server.url, turns
        self._device = device_of(model)
        self._client = _Client(server)
        self._sender: Sender | None = None
        try:
            with self._failing("cannot be connected"), on_device(self._device):
                self._connect(model)
        except EngineError:
            self._let_go()
            raise
        self._client.cut_off = self._let_go

    def _connect(self, model: PreTrainedModel | PeftModel) -> None:
        server = self._client.server
        self._weights = _weights_of(model)
        size = int(server.get("/get_world_size")["world_size"])
        self._sender = SENDERS[self.backend](
            self._client, self._weights, own_address(self._url), 1 + size
        )
        group = getattr(self._sender, "model_update_group", None)
        is_silent = group is not None and group.disabled
        if is_silent or any(worker["is_silent"] for worker in asked_workers(server)):
            raise EngineError(f"{self._url} and the trainer have no NCCL in common")

    def send(self, model: PreTrainedModel | PeftModel, version: int) -> Any:
        """Send the present weights; what the workers answer is the version that they hold.

        Raises:
            EngineError: it was cut off. The server then takes no weights before it starts again.
        """
        sender = self._sender
        if sender is None:
            raise EngineError(f"{self._url} was disconnected in an earlier transfer of weights")
        self._client.version, self._client.answer = version, None
        self._weights.model = model
        try:
            with self._failing("did not get the weights"), self._turns, on_device(self._device):
                sender.send_weights()
        except EngineError:
            self._let_go()
            raise
        return self._client.answer

    def close(self) -> None:
        """Disconnect; the server goes on. Twice is fine."""
        if self._sender is not None:
            with contextlib.suppress(EngineError):  # it may be gone already
                self._client.server.post("/shutdown_weight_transfer_engine", timeout_s=_CLOSE_S)
        self._let_go()

    def _let_go(self) -> None:
        """Also of what waits inside of a transfer."""
        sender, self._sender = self._sender, None
        if sender is not None:
            with contextlib.suppress(Exception):  # its peer may be gone
                sender.shutdown()

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except EngineError:
            raise
        except Exception as error:  # NCCL, CUDA and vLLM each have their own
            first = (str(error) or type(error).__name__).strip().splitlines()[0][:200]
            label = _LABELS.get(self.backend, self.backend)
            raise EngineError(f"{self._url} {what} by {label}: {first}") from error


class _Client:
    """What a transfer asks of its server: vLLM's `VLLMWeightSyncClient`.

    Nothing is asked twice: half an update cannot be made again.
    """

    def __init__(self, server: HttpServer) -> None:
        self.server = server.without_retries()
        self.version = 0
        self.answer: Any = None
        self.cut_off: Callable[[], None] = lambda: None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.server.post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._rpc("echoscope_start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            if "ipc_handles" in update_info:
                handles = encoded(update_info["ipc_handles"])
                self._rpc("echoscope_receive", [update_info | {"ipc_handles": handles}])
            else:
                self.server.post("/update_weights", {"update_info": update_info})
        except BaseException:
            self.cut_off()  # the broadcast would wait for workers that never come
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.answer = self._rpc("echoscope_finish", [self.version])

    def _rpc(self, method: str, args: Sequence[Any] = ()) -> Any:
        return self.server.post("/collective_rpc", {"method": method, "args": list(args)})


def _weights_of(model: PreTrainedModel | PeftModel) -> Any:
    """A `WeightSource` of vLLM over the model that it is told of last."""
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource

    class TransferredWeights(WeightSource):  # type: ignore[misc]
        def __init__(self) -> None:
            self.model = model

        def metadata(self) -> list[Any]:
            return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in self]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(checkpoint_tensors(self.model).items())

    return TransferredWeights()


def _by_nccl(client: _Client, weights: Any, address: str, size: int) -> Sender:
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    info = NCCLTrainerInitInfo(
        rank=0,
        master_address=address,
        master_port=free_port(address),
        world_size=size,
        packed_buffer_size_bytes=CHUNK_BYTES,
    )
    sender: Sender = WeightTransferTrainerFactory.trainer_init(info, client=client, source=weights)
    return sender


def _by_ipc(client: _Client, weights: Any, address: str, size: int) -> Sender:
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    info = IPCTrainerInitInfo(rank=0)
    sender: Sender = WeightTransferTrainerFactory.trainer_init(info, client=client, source=weights)
    return sender


SENDERS: dict[str, Callable[[Any, Any, str, int], Sender]] = {"nccl": _by_nccl, "ipc": _by_ipc}
"""By vLLM's name: takes its client, the weights, this machine's address for the server, and how
many processes the transfer has, this one included."""


def device_of(model: PreTrainedModel | PeftModel) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """This thread works on that device, whose weights are all written."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        yield


def own_gpu(model: PreTrainedModel | PeftModel) -> str:
    """The name that a GPU has in every process of its machine; empty on the CPU."""
    device = device_of(model)
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def own_address(url: str) -> str:
    """This machine's address on the network of a server."""
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    family, kind, *_, target = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def free_port(address: str = "127.0.0.1") -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as probe:
        return int(probe.getsockname()[1])


def asked_workers(server: HttpServer) -> list[dict[str, Any]]:
    """What each worker of a server says of its transfers."""
    answer = server.post("/collective_rpc", {"method": "echoscope_transfer"})
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise EngineError(f"vLLM's workers answered {str(results)[:80]!r}")
    return results
