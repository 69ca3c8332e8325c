"""vLLM's own transfer of weights without a GPU: its NCCL engines, whose broadcasts go over gloo.

Sender, rendezvous, order of the calls and loading are vLLM's. A server takes part with
`--worker-extension-cls gloo_transfer.GlooWorker`, its trainer with `GlooSender.connected`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_common import worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
    NCCLWeightTransferInitInfo,
)

from echoscope.core.engines.vllm import transfer
from echoscope.core.engines.vllm.worker.echoscope_vllm_worker import EchoscopeWorker

_WAITS = timedelta(seconds=30)


class Group:
    """Trainer and workers; rank 0 sends."""

    def __init__(self, address: str, port: int, rank: int, size: int) -> None:
        self.store = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=_WAITS)
        self.group = dist.ProcessGroupGloo(self.store, rank, size, _WAITS)
        self.disabled = False

    def broadcast(self, tensor: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        self.group.abort()


class GlooEngine(NCCLWeightTransferEngine):  # type: ignore[misc]
    """A worker's side."""

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        rank = self.parallel_config.rank + init_info.rank_offset
        self.model_update_group = Group(
            init_info.master_address, init_info.master_port, rank, init_info.world_size
        )

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        described = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        for name, dtype, shape in described:
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self.model_update_group.broadcast(weight)
            self.model.load_weights([(name, weight)])


class GlooSender(NCCLTrainerWeightTransferEngine):  # type: ignore[misc]
    """The trainer's side. With `num_left` it fails after so many weights."""

    num_left: int | None = None

    @classmethod
    def connected(cls, client: Any, source: Any, address: str, size: int) -> GlooSender:
        """As `trainer_init`, whose communicator needs a GPU."""
        info = NCCLWeightTransferInitInfo(
            master_address=address,
            master_port=transfer.free_port(address),
            rank_offset=1,
            world_size=size,
        )
        sender = cls(client=client, source=source)
        with ThreadPoolExecutor(1) as thread:
            joined = thread.submit(client.init_weight_transfer_engine, worker_init_payload(info))
            sender.model_update_group = Group(address, info.master_port, 0, size)
            joined.result()
        return sender

    def _broadcast(self, source: Any, meta: Any) -> None:
        for tensor in self._until_it_fails(self._checked_iter(source, meta)):
            self.model_update_group.broadcast(tensor.contiguous())

    def _until_it_fails(self, pairs: Iterator[tuple[str, torch.Tensor]]) -> Iterator[torch.Tensor]:
        for number, (_, tensor) in enumerate(pairs):
            if number == self.num_left:
                raise RuntimeError("the cable was pulled")
            yield tensor


class GlooWorker(EchoscopeWorker):
    """A worker whose process knows the engine above."""


WeightTransferEngineFactory.register_engine("gloo", GlooEngine)
