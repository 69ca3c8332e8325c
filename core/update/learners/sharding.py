"""A policy whose weights are split over ranks by FSDP2.

A step's `Policy.outputs` calls parts of the model past its own `forward`, so the model is wrapped
in a module that calls whatever it is given: FSDP's hooks see every pass, tied weights stay tied,
and the same code runs with whole weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from ...policy import ModelCritic, Policy
from .world import World

_T = TypeVar("_T")


class Whole(nn.Module):
    """Calls what it is given; its weights are whole meanwhile."""

    def __init__(self, model: nn.Module, critic: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.critic = critic

    def forward(self, work: Callable[[], _T]) -> _T:
        return work()


def shard(policy: Policy, world: World) -> None:
    """Split the weights of a policy, whole and equal on all ranks, over them.

    Weights are kept in float32, so that the optimizer needs no masters of its own. Where the model
    computes in bfloat16 they are cast as they are gathered, and gradients are summed in float32.
    """
    computes_in = next(policy.model.parameters()).dtype
    whole = Whole(policy.model, policy.critic).to(torch.float32)
    mesh = init_device_mesh(policy.device.type, (world.size,))
    precision = MixedPrecisionPolicy(param_dtype=computes_in, reduce_dtype=torch.float32)
    critic = policy.critic
    head = critic.head if isinstance(critic, ModelCritic) else critic
    if head is not None:
        fully_shard(head, mesh=mesh)  # in float32, whatever the model computes in
    _split(whole, mesh, precision)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by what all ranks train on: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can only sum
    policy.world, policy.shards = world, whole
    policy.split = lambda model: _split(Whole(model, None), mesh, MixedPrecisionPolicy())


def _split(whole: Whole, mesh: DeviceMesh, precision: MixedPrecisionPolicy) -> Whole:
    for module in whole.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh, mp_policy=precision)
    # What is outside of the layers is gathered once a pass: backward reads the output layer again.
    fully_shard(whole, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    return whole


def with_whole_weights(policy: Policy, work: Callable[[], _T]) -> _T:
    """What `work` gives where every rank has all weights of the model in memory.

    Ranks may then call the model as often as they like, each by itself.
    """
    assert policy.shards is not None
    layers = [m for m in policy.model.modules() if isinstance(m, FSDPModule)]

    def inside() -> _T:
        for layer in layers:
            layer.set_reshard_after_forward(False, recurse=False)
            layer.unshard()
        try:
            return work()
        finally:
            for layer in layers:
                layer.set_reshard_after_forward(True, recurse=False)
                layer.reshard()

    result: _T = policy.shards(inside)
    policy.keeps_parts()
    return result


def whole_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Every weight by name, gathered one at a time. All ranks must go through all of them."""
    assert policy.shards is not None
    for name, parameter in policy.shards.named_parameters():
        yield name, parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
