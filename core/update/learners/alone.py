"""What trains: the weights of a policy and their optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.tensor import DTensor

from echoscope.diagnostics.measure.gradients import GradientReport
from echoscope.diagnostics.measure.information.cross_scores import Scorer
from echoscope.diagnostics.measure.information.scoring import ModelScorer
from echoscope.store.records import RolloutBatch

from ...config.settings import RunConfig
from ...optim import Optimizer
from ...policy import Policy
from ...rollout.chat import ChatFormat
from ..batch import TokenBatch
from ..step_gradients import AllGroups, all_groups, break_down
from ..update import UpdateResult, annotate, update

OPTIMIZER_NAME = "optimizer.safetensors"
SHARDS_NAME = "optimizer"
"""Folder of a checkpoint where several ranks have trained: each wrote its part, in safetensors."""


@dataclass(slots=True, kw_only=True)
class Learner:
    """Whole weights in this process."""

    policy: Policy
    optimizer: Optimizer

    def annotate(self, batch: TokenBatch, config: RunConfig) -> tuple[TokenBatch, Tensor | None]:
        """See `update.annotate`."""
        return annotate(self.policy, batch.to(self.policy.device), config)

    def update(self, batch: TokenBatch, config: RunConfig, step: int) -> UpdateResult:
        """See `update.update`."""
        return update(self.policy, self.optimizer, batch, config, step)

    def gradients(
        self, rollouts: RolloutBatch, config: RunConfig, chat: ChatFormat
    ) -> GradientReport:
        """See `step_gradients.break_down`; leaves random generators as they were."""
        return self.break_down(all_groups(rollouts, config, chat), config)

    def break_down(self, groups: AllGroups, config: RunConfig) -> GradientReport:
        """See `step_gradients.break_down`."""
        device = self.policy.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # dropout
            return break_down(self.policy, groups, config)

    def scorer(self, temperature: float) -> Scorer:
        """Log-probs of reasonings under the present weights, at this temperature of sampling."""
        return ModelScorer(self.policy.model, temperature=temperature)

    def forget_gradients(self) -> None:
        """Throw away what a pass that failed has left behind."""
        self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        """Write the optimizer's state into a checkpoint's folder."""
        save_file(self.optimizer.state_tensors(), folder / OPTIMIZER_NAME)

    def load(self, folder: Path) -> None:
        """Take it back, bit for bit."""
        if (folder / SHARDS_NAME).is_dir():
            self.optimizer.load_state_tensors(read_shards(self.optimizer, folder / SHARDS_NAME))
            return
        device = str(self.policy.device)
        self.optimizer.load_state_tensors(load_file(folder / OPTIMIZER_NAME, device=device))

    def optimizer_bytes(self) -> int:
        """Size of the optimizer's state in a checkpoint."""
        return sum(tensor.nbytes for tensor in self.optimizer.state_tensors().values())

    def close(self) -> None:
        """Nothing to end."""


def read_shards(optimizer: Optimizer, folder: Path) -> dict[str, Tensor]:
    """What ranks wrote, for an optimizer of whole weights or of another number of ranks."""
    reader = HuggingFaceStorageReader(str(folder))
    masters, state = list(optimizer.masters()), {}
    for key in reader.read_metadata().state_dict_metadata:
        index, _, name = key.partition(".")
        state[key] = torch.zeros(()) if name == "step" else torch.zeros_like(masters[int(index)])
    is_split = any(isinstance(master, DTensor) for master in masters)
    dcp.load(state, storage_reader=reader, no_dist=not is_split)
    return state
