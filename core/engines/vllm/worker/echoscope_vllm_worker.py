"""New weights inside a vLLM worker: the extension of a server's workers, and its repair.

The environment of a vLLM server need not have this package: this file is found by its folder.
Only plain types are returned: vLLM hangs on others.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

IS_SERVER = "ECHOSCOPE_VLLM_SERVER"
"""Set in the processes of a server that this package started: all of one process group."""
_LOOK_EVERY_S = 0.5


def end_with_parent() -> None:
    """Kill this process group as soon as the parent of this process is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="echoscope-parent", daemon=True).start()


def repair_tied_head(model: torch.nn.Module) -> int:
    """Pack the output embedding again after a reload on the CPU; returns how many were.

    On the CPU vLLM keeps a packed copy of each linear layer. A reload packs those layers again
    that it got weights for. An output embedding that is tied to the input's gets none, so that it
    would go on with the old weights.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return 0
    heads = [
        module
        for module in model.modules()
        if isinstance(module, ParallelLMHead) and module.weight.numel()
    ]
    for head in heads:
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
    return len(heads)


CLASSES = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, torch.TypedStorage)
}
"""What a handle of a tensor in a GPU's memory may name."""


def encoded(value: Any) -> Any:
    """Handles of tensors in a GPU's memory as JSON, so that nobody has to unpickle them."""
    if isinstance(value, dict):
        return {key: encoded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(inner) for inner in value]
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, type):
        return {"class": f"{value.__module__}.{value.__qualname__}"}
    return value


def decoded(value: Any) -> Any:
    """What `encoded` was given; sequences come back as lists."""
    if isinstance(value, list):
        return [decoded(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"bytes": str(text)}:
            return base64.b64decode(text)
        case {"dtype": str(name)} if isinstance(getattr(torch, name), torch.dtype):
            return getattr(torch, name)
        case {"class": str(name)}:
            return CLASSES[name]
    return {key: decoded(inner) for key, inner in value.items()}


class EchoscopeWorker:
    """Methods that a vLLM worker gets beside its own (`--worker-extension-cls`)."""

    def echoscope_reload(self: Any, folder: str, version: int) -> int:
        """Take in the weights of a model folder; returns the version that it holds now."""
        with self.echoscope_updating(is_whole=True):
            self.reload_weights(weights_path=folder)
        return int(self.echoscope_took(version))

    def echoscope_transfer(self: Any) -> dict[str, Any]:
        """What vLLM's own transfer of weights was started for, the GPU (both empty without), and
        whether NCCL is missing: vLLM then sends and receives nothing, and says nothing of it."""
        config = self.vllm_config.weight_transfer_config
        group = getattr(self.weight_transfer_engine, "model_update_group", None)
        on_gpu = self.device.type == "cuda"
        return {
            "backend": "" if config is None else str(config.backend),
            "gpu": str(torch.cuda.get_device_properties(self.device).uuid) if on_gpu else "",
            "is_silent": group is not None and bool(group.disabled),
        }

    def echoscope_start(self: Any) -> bool:
        """Get ready for weights by vLLM's own transfer."""
        with self.echoscope_updating(is_whole=False):
            self.start_weight_update()
        return True

    def echoscope_receive(self: Any, update_info: dict[str, Any]) -> bool:
        """Take in weights that lie in the memory of this GPU."""
        self.update_weights(update_info | {"ipc_handles": decoded(update_info["ipc_handles"])})
        return True

    def echoscope_finish(self: Any, version: int) -> int:
        """All weights have come; returns the version that it holds now."""
        self.finish_weight_update()
        self.echoscope_cut_off = ""
        return int(self.echoscope_took(version))

    @contextlib.contextmanager
    def echoscope_updating(self: Any, *, is_whole: bool) -> Iterator[None]:
        """New weights are on their way, and those that came before have all arrived.

        Where some did not, vLLM would add the next ones to them and take a layer for complete that
        has parts of two policies.

        Args:
            is_whole: they have all come when this ends.
        """
        cut_off = getattr(self, "echoscope_cut_off", "")
        if cut_off:
            raise RuntimeError(f"weights were cut off on their way ({cut_off}): start vLLM again")
        self.echoscope_cut_off = "the transfer did not end"
        try:
            yield
        except BaseException as error:
            self.echoscope_cut_off = f"{type(error).__name__}: {error}"
            raise
        if is_whole:
            self.echoscope_cut_off = ""

    def echoscope_took(self: Any, version: int) -> int:
        repair_tied_head(self.get_model())
        self.echoscope_version = version
        return int(self.echoscope_version)


if os.environ.get(IS_SERVER) and __name__ != "__main__":
    end_with_parent()  # vLLM imports this file in each of its worker processes
