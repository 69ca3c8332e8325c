"""Norm of every trajectory's own gradient, in one extra backward pass.

Legend: **n** trajectories, **L** positions of one trajectory (padded), **m** positions in all,
**d** inputs and **p** outputs of a layer.

A layer's gradient is a sum over positions of outer products, so its norm follows from what enters
the layer and what flows back out of it. Weight gradients are never formed: the pass computes the
gradients of activations only, and squares take the place of the weight gradients it leaves out.

    linear      |sum_t g_t a_t'|^2, by materialising (n, p, d) or, where L (d + p) < d p, as
                sum over t, s of (g_t . g_s)(a_t . a_s)      (Goodfellow 2015; Li et al. 2022)
    embedding   gradients summed by token id
    norm, bias  summed directly
    tied        embedding E and output H share a weight: |E + H|^2 = |E|^2 + |H|^2 + 2 <E, H>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .gradient_stats import layer_groups

_MAX_ELEMENTS = 1 << 26
"""Numbers held at once by one layer's squares (256 MiB)."""


class UnsupportedLayerError(ValueError):
    """A trainable layer whose per-trajectory gradient has no rule here."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrajectoryNorms:
    """Squared norms by layer group. Whoever splits a batch puts the parts together."""

    squared: Mapping[str, NDArray[np.float64]]
    """Layer group to (n,)."""

    @property
    def norms_n(self) -> NDArray[np.float64]:
        """(n,) norm over all parameters."""
        return np.asarray(np.sqrt(np.maximum(sum(self.squared.values()), 0.0)))


def trajectory_norms(
    loss_of: Callable[[], Tensor],
    modules: Mapping[str, nn.Module],
    *,
    sample_of_row: Tensor,
    sample_of_token: Tensor | None = None,
    num_samples: int | None = None,
    layer_bands: int = 4,
) -> TrajectoryNorms:
    """Gradient norm of each trajectory's part of a loss that is a sum over trajectories.

    Args:
        loss_of: runs the forward pass and returns the scalar loss. No parameter's `.grad` changes.
        modules: what the forward pass uses, by name; layers without trainable weights cost nothing.
        sample_of_row: (B,) int64, trajectory of each row of activations (B, ..., d).
        sample_of_token: (S,) int64, trajectory of each row of activations that were flattened to
            (S, d), such as the hidden states of sampled tokens that enter the output layer. They
            may come in consecutive chunks.
        num_samples: n; one more than the largest index by default.

    Raises:
        UnsupportedLayerError: a trainable layer is neither linear, embedding nor elementwise.
    """
    if num_samples is None:
        num_samples = int(sample_of_row.max()) + 1 if sample_of_row.numel() else 0
    recorder = _Recorder(modules, sample_of_row, sample_of_token, num_samples)
    handles = [
        layer.module.register_forward_hook(partial(recorder.on_forward, layer))
        for layer in recorder.layers
    ]
    try:
        loss = loss_of()
    finally:
        for handle in handles:
            handle.remove()
    recorder.backward(loss)
    labels = layer_groups([layer.name for layer in recorder.layers], layer_bands)
    squared: dict[str, Tensor] = {}
    for layer in recorder.layers:
        label = labels[layer.name]
        squared[label] = squared[label] + layer.squared_n if label in squared else layer.squared_n
    return TrajectoryNorms(squared={k: v.double().cpu().numpy() for k, v in squared.items()})


class _Slots:
    """Where each of m flat positions stands among the positions of its trajectory."""

    def __init__(self, sample_m: Tensor, num_samples: int) -> None:
        self.sample_m = sample_m
        self.num_samples = num_samples
        counts = torch.bincount(sample_m, minlength=num_samples)
        self.length = int(counts.max()) if sample_m.numel() else 0
        """L."""
        order = sample_m.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device) - starts[sample_m[order]]
        self._slot_m = sample_m * self.length + place
        size = num_samples * self.length
        self._is_dense = len(sample_m) == size and bool(
            (self._slot_m == torch.arange(size, device=order.device)).all()
        )

    def pad(self, values: Tensor) -> Tensor:
        """(m, ...) to (n, L, ...), zero where a trajectory is shorter."""
        if not self._is_dense:
            flat = values.new_zeros((self.num_samples * self.length, *values.shape[1:]))
            flat[self._slot_m] = values
            values = flat
        return values.reshape(self.num_samples, self.length, *values.shape[1:])

    def total(self, values: Tensor) -> Tensor:
        """(m, ...) to sums per trajectory, (n, ...), float32."""
        out = values.new_zeros((self.num_samples, *values.shape[1:]), dtype=torch.float32)
        return out.index_add_(0, self.sample_m, values.float())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    """What went through a layer and came back, position by position."""

    inputs: Tensor  # (m, d), or (m,) token ids
    gradients: Tensor  # (m, p)
    slots: _Slots
    number: int
    """Of the forward passes through the layer, from 0."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Layer:
    """A module with trainable parameters of its own."""

    name: str
    module: nn.Module
    squared_n: Tensor
    num_passes: int = 0
    calls: list[_Call] = field(default_factory=list)
    """Those whose gradient has arrived, kept until all have."""
    num_tokens: int = 0
    """Flattened activations seen so far."""
    twin: _Layer | None = None
    """The layer that shares its weight."""
    ids: list[tuple[Tensor, _Slots]] = field(default_factory=list)
    """Of an embedding with a twin: the token ids it was given."""
    columns: list[Tensor] = field(default_factory=list)
    """For each of them, once the twin is done, the columns of its gradient: see `_columns`."""
    hidden: Tensor | None = None
    """(n, S, d) what the twin was given."""


class _Recorder:
    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        sample_of_row: Tensor,
        sample_of_token: Tensor | None,
        num_samples: int,
    ) -> None:
        self.sample_of_row = sample_of_row
        self.sample_of_token = sample_of_token
        self.num_samples = num_samples
        self.layers = _find_layers(modules, num_samples, sample_of_row.device)
        self._row_slots: dict[int, _Slots] = {}
        self._sources: list[Tensor] = []
        """Where the backward pass may end: outputs of layers whose input needs no gradient."""

    def on_forward(
        self, layer: _Layer, module: nn.Module, args: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if not output.requires_grad:
            return
        inputs = args[0].detach()
        slots = self._slots(layer, inputs)
        if layer.twin is not None and not inputs.is_floating_point():
            layer.ids.append((inputs.flatten(), slots))
        if not args[0].requires_grad:
            self._sources.append(output)
        number = layer.num_passes
        layer.num_passes += 1
        output.register_hook(partial(self._on_gradient, layer, inputs, slots, number))

    def backward(self, loss: Tensor) -> None:
        """Send gradients through the activations; the hooks take what they need on the way."""
        sources = [*self._sources, *_free_leaves(loss)]
        if sources and loss.requires_grad:
            torch.autograd.grad(loss, sources, allow_unused=True)
        # Left over: layers some of whose outputs had no part in the loss, and embeddings that
        # need what their twin has gathered.
        for layer in sorted(self.layers, key=lambda one: isinstance(one.module, nn.Embedding)):
            if layer.calls:
                self._finish(layer)

    def _slots(self, layer: _Layer, inputs: Tensor) -> _Slots:
        """Which trajectory each position of a layer's input belongs to."""
        is_ids = not inputs.is_floating_point()
        if inputs.ndim == 2 and not is_ids:
            start, layer.num_tokens = layer.num_tokens, layer.num_tokens + len(inputs)
            if self.sample_of_token is None or layer.num_tokens > len(self.sample_of_token):
                raise ValueError(
                    f"layer {layer.name} saw {layer.num_tokens} flattened activations, more than "
                    "sample_of_token names"
                )
            return _Slots(self.sample_of_token[start : layer.num_tokens], self.num_samples)
        if len(inputs) != len(self.sample_of_row):
            raise ValueError(
                f"layer {layer.name} saw {len(inputs)} rows, but sample_of_row names "
                f"{len(self.sample_of_row)}"
            )
        per_row = (inputs if is_ids else inputs[..., 0]).numel() // max(len(inputs), 1)
        if per_row not in self._row_slots:
            samples = self.sample_of_row.repeat_interleave(per_row)
            self._row_slots[per_row] = _Slots(samples, self.num_samples)
        return self._row_slots[per_row]

    def _on_gradient(
        self, layer: _Layer, inputs: Tensor, slots: _Slots, number: int, grad: Tensor
    ) -> None:
        flat = inputs.flatten(0, -2) if inputs.is_floating_point() else inputs.flatten()
        gradients = grad.detach().flatten(0, -2)
        layer.calls.append(_Call(inputs=flat, gradients=gradients, slots=slots, number=number))
        waits = isinstance(layer.module, nn.Embedding) and layer.twin is not None
        if len(layer.calls) == layer.num_passes and not waits:
            self._finish(layer)

    def _finish(self, layer: _Layer) -> None:
        """Square what a layer has gathered, and let go of it."""
        calls, layer.calls, layer.num_passes = layer.calls, [], 0
        call = _joined(calls)
        if isinstance(layer.module, nn.Linear):
            owner = layer if layer.twin is None else layer.twin  # a tied weight is the embedding's
            owner.squared_n += _linear(call, layer.module)
            if layer.twin is not None:
                layer.twin.hidden = call.slots.pad(call.inputs).float()
                layer.twin.columns = [
                    _columns(call, ids, slots, layer.twin.module) for ids, slots in layer.twin.ids
                ]
        elif isinstance(layer.module, nn.Embedding):
            layer.squared_n += _embedding(call, layer.module)
            if layer.hidden is not None:
                for one in calls:
                    layer.squared_n += 2 * _cross(one, layer.hidden, layer.columns[one.number])
        else:
            layer.squared_n += _elementwise(call, layer.module)


def _find_layers(
    modules: Mapping[str, nn.Module], num_samples: int, device: torch.device
) -> list[_Layer]:
    layers: list[_Layer] = []
    owner: dict[int, _Layer] = {}
    for prefix, root in modules.items():
        for name, module in root.named_modules():
            own = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if not own:
                continue
            path = f"{prefix}.{name}" if name else prefix
            if not isinstance(module, nn.Linear | nn.Embedding) and not _is_norm(module):
                raise UnsupportedLayerError(
                    f"{path} is a {type(module).__name__}, for which per-trajectory gradients are "
                    "not implemented; linear layers, embeddings and norms are"
                )
            squared_n = torch.zeros(num_samples, device=device)
            layer = _Layer(name=f"{path}.", module=module, squared_n=squared_n)
            for parameter in own:
                twin = owner.setdefault(id(parameter), layer)
                if twin is not layer:
                    _tie(layer, twin)
            layers.append(layer)
    return layers


def _is_norm(module: nn.Module) -> bool:
    """Scales, and perhaps shifts, each feature of what it has normalised."""
    names = {name for name, _ in module.named_parameters(recurse=False)}
    return type(module).__name__.endswith("Norm") and names <= {"weight", "bias"}


def _tie(layer: _Layer, twin: _Layer) -> None:
    kinds = [isinstance(one.module, nn.Embedding) for one in (layer, twin)]
    if sum(kinds) != 1 or layer.twin is not None or twin.twin is not None:
        raise UnsupportedLayerError(
            f"{layer.name[:-1]} and {twin.name[:-1]} share a weight; only an embedding and one "
            "output layer may"
        )
    layer.twin, twin.twin = twin, layer


def _free_leaves(loss: Tensor) -> list[Tensor]:
    """Leaves that are no parameters, such as embeddings that were made to require gradients."""
    found: dict[int, Tensor] = {}
    stack: list[Any] = [loss.grad_fn]  # torch does not declare what its nodes hold
    seen = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad" and not isinstance(node.variable, nn.Parameter):
            found[id(node.variable)] = node.variable
        stack += [parent for parent, _ in node.next_functions]
    return list(found.values())


def _joined(calls: Sequence[_Call]) -> _Call:
    if len(calls) == 1:
        return calls[0]
    sample_m = torch.cat([call.slots.sample_m for call in calls])
    return _Call(
        inputs=torch.cat([call.inputs for call in calls]),
        gradients=torch.cat([call.gradients for call in calls]),
        slots=_Slots(sample_m, calls[0].slots.num_samples),
        number=0,
    )


def _linear(call: _Call, module: nn.Linear) -> Tensor:
    """(n,) squared norms of weight and bias gradients."""
    inputs, gradients = call.slots.pad(call.inputs), call.slots.pad(call.gradients)
    squared = torch.zeros(len(inputs), device=inputs.device)
    if module.bias is not None and module.bias.requires_grad:
        squared += gradients.float().sum(1).square().sum(-1)
    if not module.weight.requires_grad or not inputs.numel():
        return squared
    length, d, p = call.slots.length, inputs.shape[-1], gradients.shape[-1]
    is_gram = length * (d + p) < d * p
    step = max(1, _MAX_ELEMENTS // (2 * length * length if is_gram else d * p))
    for start in range(0, len(inputs), step):
        a = inputs[start : start + step].float()
        g = gradients[start : start + step].float()
        if is_gram:
            products = (a @ a.mT) * (g @ g.mT)
            squared[start : start + step] += products.sum((1, 2))
        else:
            squared[start : start + step] += (g.mT @ a).square().sum((1, 2))
    return squared


def _embedding(call: _Call, module: nn.Embedding) -> Tensor:
    """(n,) from gradients summed by trajectory and token id."""
    keep = _is_trained(call.inputs, module)
    key = (call.slots.sample_m * module.num_embeddings + call.inputs)[keep]
    distinct, inverse = torch.unique(key, return_inverse=True)
    gradients = call.gradients[keep].float()
    sums = gradients.new_zeros((len(distinct), gradients.shape[-1]))
    sums.index_add_(0, inverse, gradients)
    squared = gradients.new_zeros(call.slots.num_samples)
    owner = distinct // module.num_embeddings
    return squared.index_add_(0, owner, sums.square().sum(-1))


def _elementwise(call: _Call, module: nn.Module) -> Tensor:
    """(n,) for a norm: its output is linear in its weight, so weight 1 minus weight 0 is what the
    weight multiplies."""
    own = dict(module.named_parameters(recurse=False))
    zeros = {name: torch.zeros_like(parameter) for name, parameter in own.items()}
    squared = torch.zeros(call.slots.num_samples, device=call.inputs.device)
    with torch.no_grad():
        base = torch.func.functional_call(module, zeros, (call.inputs,))
        for name, parameter in own.items():
            if parameter.requires_grad:
                ones = zeros | {name: torch.ones_like(parameter)}
                factor = torch.func.functional_call(module, ones, (call.inputs,)) - base
                squared += call.slots.total(call.gradients * factor).square().sum(-1)
    return squared


def _columns(head: _Call, ids_m: Tensor, slots: _Slots, embedding: nn.Module) -> Tensor:
    """(n, S, L) of the gradients of the output layer's logits, only the columns of the token ids
    that were embedded: all that the cross term of a tied weight needs of them."""
    assert isinstance(embedding, nn.Embedding)
    ids = slots.pad(torch.where(_is_trained(ids_m, embedding), ids_m, -1) + 1) - 1  # none is -1
    logits = head.slots.pad(head.gradients)
    index = ids.clamp(min=0)[:, None, :].expand(-1, logits.shape[1], -1)
    return logits.gather(2, index).float() * (ids >= 0)[:, None, :]


def _cross(call: _Call, hidden: Tensor, columns: Tensor) -> Tensor:
    """(n,) <E, H>: over positions t embedded and s put out, G[s, id_t] (e_t . h_s)."""
    embedded = call.slots.pad(call.gradients).float()
    return (columns * (hidden @ embedded.mT)).sum((1, 2))


def _is_trained(ids: Tensor, module: nn.Embedding) -> Tensor:
    """False for the padding token, to which an embedding passes no gradient."""
    if module.padding_idx is None:
        return torch.ones_like(ids, dtype=torch.bool)
    return ids != module.padding_idx
