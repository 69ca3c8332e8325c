"""AdamW over float32 master weights, learning-rate schedules, and the guard against NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .config import OptimConfig


def lr_multiplier(config: OptimConfig, step: int, total_steps: int) -> float:
    """Factor on the base learning rate at a step (1-based): warm-up, then the schedule.

    A pure function of the step, so that resuming and live changes need no scheduler state.
    """
    if step <= config.warmup_steps:
        return step / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return 1.0
    span = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps - 1) / span)
    if config.schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimizer step did."""

    grad_norm: float
    """L2 norm over all parameters before clipping; NaN or infinite when the step was skipped."""
    is_skipped: bool


class Optimizer:
    """AdamW whose parameters are float32, whatever the model's dtype.

    Weights in bfloat16 have a float32 master: at learning rates near 1e-6 an update is smaller
    than bfloat16 can add. Their gradients are summed over microbatches in float32 too.

    Args:
        groups: `(parameters, name)` pairs; learning rates are given at each step by name.
    """

    def __init__(
        self, groups: Sequence[tuple[Sequence[nn.Parameter], str]], config: OptimConfig
    ) -> None:
        self._pairs: list[tuple[nn.Parameter, Tensor]] = []
        param_groups = []
        for parameters, name in groups:
            masters = [self._master(p) for p in parameters]
            self._pairs += list(zip(parameters, masters, strict=True))
            if masters:
                param_groups.append({"params": masters, "name": name})
        self._adamw = torch.optim.AdamW(
            param_groups,
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )

    @staticmethod
    def _master(parameter: nn.Parameter) -> Tensor:
        if parameter.dtype == torch.float32:
            return parameter
        return parameter.detach().float().clone().requires_grad_(True)

    def zero_grad(self) -> None:
        for parameter, master in self._pairs:
            parameter.grad = None
            master.grad = None

    def accumulate(self) -> None:
        """Move the model's gradients into the masters; call after each backward pass."""
        for parameter, master in self._pairs:
            if master is parameter or parameter.grad is None:
                continue
            grad = parameter.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            parameter.grad = None

    def step(self, *, lrs: dict[str, float], grad_clip: float) -> StepResult:
        """Clip and apply the gathered gradients, unless one of them is NaN or infinite."""
        masters = [master for _, master in self._pairs]
        norm = float(torch.nn.utils.clip_grad_norm_(masters, grad_clip))
        finite = math.isfinite(norm)
        if finite:
            for group in self._adamw.param_groups:
                group["lr"] = lrs[group["name"]]
            self._adamw.step()
            with torch.no_grad():
                for parameter, master in self._pairs:
                    if master is not parameter:
                        parameter.copy_(master)
        self.zero_grad()
        return StepResult(grad_norm=norm, is_skipped=not finite)

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments, step counts and masters by position: what a checkpoint holds."""
        out: dict[str, Tensor] = {}
        for index, (parameter, master) in enumerate(self._pairs):
            for name, value in self._adamw.state.get(master, {}).items():
                out[f"{index}.{name}"] = value.contiguous()
            if master is not parameter:
                out[f"{index}.master"] = master.detach().contiguous()
        return out

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `state_tensors` gave."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            index, _, name = key.partition(".")
            parameter, master = self._pairs[int(index)]
            if name == "master":
                with torch.no_grad():
                    master.copy_(value)
                    parameter.copy_(master)
            else:
                state.setdefault(int(index), {})[name] = value
        groups = self._adamw.state_dict()["param_groups"]
        self._adamw.load_state_dict({"state": state, "param_groups": groups})
