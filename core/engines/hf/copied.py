"""The built-in engine over a copy of the weights: it samples while the update moves the others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from ...config.engine import HfEngineConfig
from .engine import HfEngine


class CopiedHfEngine(HfEngine):
    """An `HfEngine` whose weights stay as they are until `sync_weights` copies new ones.

    It holds the weights a second time, in the memory of the policy's device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        config: HfEngineConfig,
        policy_version: int = 0,
        report: Callable[[str], None] = lambda text: None,
        on_token: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        self._copy = copy.deepcopy(model)
        self._copy.requires_grad_(False)
        super().__init__(
            self._copy,
            config=config,
            policy_version=policy_version,
            report=report,
            on_token=on_token,
        )

    def sync_weights(self, policy: Any) -> None:
        """Copy `policy.model`'s weights, and sample from them as `policy.version` from now on."""
        with torch.no_grad():
            pairs = zip(self._copy.parameters(), policy.model.parameters(), strict=True)
            for target, source in pairs:
                target.copy_(source)
        super().sync_weights(_Copied(model=self._copy, version=policy.version))


class _Copied:
    """The part of a policy that `HfEngine.sync_weights` reads."""

    def __init__(self, *, model: PreTrainedModel, version: int) -> None:
        self.model, self.version = model, version
