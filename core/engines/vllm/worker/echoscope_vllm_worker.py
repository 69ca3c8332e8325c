"""New weights inside a vLLM worker: the extension of a server's workers, and its repair.

The environment of a vLLM server need not have this package: this file is found by its folder.
Only plain types are returned: vLLM hangs on others.
"""

from __future__ import annotations

import os
from typing import Any

import torch


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

    def echoscope_reload(self: Any, folder: str) -> int:
        """Take in the weights of a model folder; returns the id of the worker's process."""
        self.reload_weights(weights_path=folder)
        repair_tied_head(self.get_model())
        return os.getpid()

    def echoscope_pid(self: Any) -> int:
        """The worker's process."""
        return os.getpid()
