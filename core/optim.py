"""AdamW over float32 master weights, learning-rate schedules, and the guard against NaN."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from .config.settings import OptimConfig


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
class ParameterGroup:
    """Parameters that share a learning rate and a gradient clip."""

    name: str
    """Key of the group's learning rate and of its gradient norm."""
    parameters: Sequence[nn.Parameter]
    is_decayed: bool = True
    """Weight decay applies to the group's matrices. Norms and biases never decay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """What one optimizer step did."""

    grad_norms: Mapping[str, float]
    """Group name to the L2 norm of its gradient before clipping; NaN or infinite in at least one
    group when the step was skipped. A group without parameters has no entry."""
    is_skipped: bool
    """A NaN or infinite gradient: no weight moved."""

    @property
    def moved(self) -> frozenset[str]:
        """The groups whose weights moved: those with a gradient other than zero."""
        if self.is_skipped:
            return frozenset()
        return frozenset(name for name, norm in self.grad_norms.items() if norm > 0)


def needs_offload(parameter: Tensor) -> bool:
    """Whether the weight lies outside of host memory."""
    return parameter.device.type != "cpu"


class Optimizer:
    """AdamW whose parameters are float32, whatever the model's dtype.

    Weights in bfloat16 have a float32 master: at learning rates near 1e-6 an update is smaller
    than bfloat16 can add. Their gradients are summed over microbatches in float32 too.

    Each group is clipped on its own, so that a large gradient of the critic does not scale the
    policy's. A group whose gradient is zero does not move: AdamW's momentum and weight decay would
    move it without a signal.

    With `config.offload` masters, moments and summed gradients of weights on an accelerator are in
    host memory, where AdamW runs: two copies over the bus a step for some ten bytes a weight.

    Args:
        groups: learning rates are given at each step by name.

    """

    def __init__(self, groups: Sequence[ParameterGroup], config: OptimConfig) -> None:
        self._offloads = config.offload
        self._pairs: list[tuple[nn.Parameter, Tensor]] = []
        self._masters: dict[str, list[Tensor]] = {}
        param_groups: list[dict[str, object]] = []
        for group in groups:
            masters = [self._master(p) for p in group.parameters]
            self._pairs += list(zip(group.parameters, masters, strict=True))
            if masters:
                self._masters[group.name] = masters
            for is_decayed, decay in ((True, config.weight_decay), (False, 0.0)):
                chosen = [m for m in masters if (group.is_decayed and m.ndim > 1) is is_decayed]
                entry = {"params": chosen, "name": group.name, "weight_decay": decay}
                param_groups += [entry] if chosen else []
        self._adamw = torch.optim.AdamW(param_groups, lr=config.lr, betas=config.betas, fused=True)

    def _master(self, parameter: nn.Parameter) -> Tensor:
        if self._offloads and needs_offload(parameter):
            return parameter.detach().to("cpu", torch.float32, copy=True).requires_grad_(True)
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
            grad = parameter.grad.to(master.device, torch.float32)
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            parameter.grad = None

    def step(
        self,
        *,
        lrs: Mapping[str, float],
        grad_clip: float,
        only: Collection[str] | None = None,
    ) -> OptimizerStep:
        """Clip and apply the gathered gradients, unless one of them is NaN or infinite.

        Args:
            lrs: learning rate of each group by name.
            grad_clip: the largest gradient norm of a group; each is clipped apart.
            only: the groups that may move; None for all. The gradients of others are dropped.
        """
        norms = {
            name: float(torch.nn.utils.clip_grad_norm_(masters, grad_clip))
            for name, masters in self._masters.items()
            if only is None or name in only
        }
        done = OptimizerStep(
            grad_norms=norms, is_skipped=not all(math.isfinite(norm) for norm in norms.values())
        )
        if done.moved:
            for name in self._masters.keys() - done.moved:
                for master in self._masters[name]:
                    master.grad = None  # AdamW leaves what has no gradient alone
            for group in self._adamw.param_groups:
                group["lr"] = lrs[group["name"]]
            self._adamw.step()
            with torch.no_grad():
                for parameter, master in self._pairs:
                    if master is not parameter:
                        parameter.copy_(master)
        self.zero_grad()
        return done

    def masters(self) -> Iterator[Tensor]:
        """What AdamW moves, one for each parameter, in the order of `state_tensors`."""
        return (master for _, master in self._pairs)

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
        in_order = chain.from_iterable(group["params"] for group in self._adamw.param_groups)
        index_of = {id(master): index for index, master in enumerate(in_order)}
        for key, value in tensors.items():
            index, _, name = key.partition(".")
            parameter, master = self._pairs[int(index)]
            if name == "master":
                with torch.no_grad():
                    master.copy_(value)
                    parameter.copy_(master)
            else:
                state.setdefault(index_of[id(master)], {})[name] = value
        groups = self._adamw.state_dict()["param_groups"]
        self._adamw.load_state_dict({"state": state, "param_groups": groups})
