"""New weights inside a vLLM worker: the extension of a server's workers, and its repair.

The environment of a vLLM server need not have this package: this file is found by its folder.
Only plain types are returned: vLLM hangs on others.
"""

from __future__ import annotations

import os
import signal
import threading
import time
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


class EchoscopeWorker:
    """Methods that a vLLM worker gets beside its own (`--worker-extension-cls`)."""

    def echoscope_reload(self: Any, folder: str, version: int) -> int:
        """Take in the weights of a model folder; returns the version that it holds now."""
        self.reload_weights(weights_path=folder)
        repair_tied_head(self.get_model())
        self.echoscope_version = version
        return int(self.echoscope_version)

    def echoscope_pid(self: Any) -> int:
        """The worker's process."""
        return os.getpid()


if os.environ.get(IS_SERVER) and __name__ != "__main__":
    end_with_parent()  # vLLM imports this file in each of its worker processes
