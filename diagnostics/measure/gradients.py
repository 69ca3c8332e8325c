"""The gradient of a step taken apart: by term of the loss, and by bucket of groups.

Legend: **P** groups, **T** terms of the loss, **C** = buckets x terms. A group's gradient g_p is
its part of the step's: they sum to the gradient of the step's loss. The group is the sampling unit,
since siblings share a baseline.

It receives scalar tensors by name and never the types of the trainer. Everything is exact: sums of
the very gradients that the update would use, before any clipping, no samples, no mini-batch means.
Parameters have no `.grad` afterwards but the one they had.

Parameters may be split over ranks by FSDP2. Then every rank calls `decompose` with its share of the
rows; each holds its part of every sum, and only inner products travel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributed.tensor import DTensor

from echoscope.store.records import BoolArray, DiagnosticRecord, FloatArray64

from ..selection.rules import is_zero

TermsOf = Callable[[int], Iterable[Mapping[str, Tensor]]]
"""Group index to its terms, one mapping per microbatch, each differentiated and freed before the
next is asked for. Terms are weighted and divided by the denominators of the whole step, so that
those of all groups sum to the step's loss. A group without trained tokens gives none."""

BUCKETS = 4
TOTAL = "total"
ALL = "all"
MAX_BUFFER_GB = 8.0


class GradientMemoryError(ValueError):
    """The summed gradients would not fit the memory that they may take."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientReport:
    """Norms, cosines, signal and noise of a step's gradient.

    A bucket's gradient is the sum over its groups divided by its own weight, as if it were the
    whole batch. Terms include `total`, buckets include `all`.
    """

    values: Mapping[str, float]
    """`<term>/<bucket>/norm`, `signal_frac` and `cosine_rest` (with the sum of all other buckets),
    `<term>/all/snr` and `noise_scale`, `<bucket>/num_groups` and `reward_std_mean`."""
    buckets: Mapping[str, tuple[int, ...]]

    def metrics(self) -> dict[str, float]:
        """`gradient/...` of this step."""
        return {f"gradient/{key}": value for key, value in self.values.items()}

    def record(self, step: int) -> DiagnosticRecord:
        """What is stored beside the metrics: kind `gradients`, JSON with `buckets`."""
        payload = json.dumps({"buckets": self.buckets})
        return DiagnosticRecord(step=step, kind="gradients", payload=payload)


def decompose(
    terms_of: TermsOf,
    parameters: Mapping[str, Tensor],
    *,
    reward_std_P: FloatArray64,
    weights_P: FloatArray64,
) -> GradientReport:
    """Take the gradient of a step's loss apart, one group at a time.

    One backward pass per term and microbatch; memory of one gradient per bucket and term, and one
    more per term for the group at hand.

    Args:
        terms_of: terms of each group, see `TermsOf`. Rejected groups are groups too.
        parameters: trainable parameters by name, shared ones once.
        reward_std_P: of each group, in the order of the indices that `terms_of` takes; NaN where it
            is not defined.
        weights_P: each group's part of what the loss was divided by: trained tokens under
            `token_mean`, trajectories under the sequence means.

    Raises:
        GradientMemoryError: the sums need more than `MAX_BUFFER_GB`.
    """
    buckets = make_buckets(reward_std_P)
    sums = _Sums(parameters, list(buckets))
    for bucket, members in buckets.items():
        for index in members:
            sums.add(bucket, index, terms_of(index))
    values = _values(sums, reward_std_P, weights_P, buckets)
    return GradientReport(values=values, buckets=buckets)


class _Sums:
    """Gradients summed by bucket and term, and the inner products within each group."""

    def __init__(self, parameters: Mapping[str, Tensor], buckets: list[str]) -> None:
        self.parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        self._is_split = any(isinstance(p, DTensor) for p in self.parameters.values())
        self.buckets = buckets
        self.terms: list[str] = []
        self.group_products: dict[int, FloatArray64] = {}
        """(T, T) inner products of one group's terms; groups without terms have none."""
        self._sums: dict[str, dict[str, Tensor]] = {}
        """Parameter to term to (buckets, size)."""

    def add(self, bucket: str, index: int, chunks: Iterable[Mapping[str, Tensor]]) -> None:
        """Differentiate the terms of one group and add them to its bucket."""
        group: dict[tuple[str, str], Tensor] = {}  # (parameter, term) to a flat gradient
        for terms in chunks:
            self._meet(terms)
            for name, gradients in self._differentiate(terms):
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    if gradient is not None:
                        # Not in place: autograd may give two parameters the same tensor.
                        flat = gradient.detach().flatten().float()
                        before = group.get((parameter, name))
                        group[parameter, name] = flat if before is None else before + flat
        row = self.buckets.index(bucket)
        products = np.zeros((len(self.terms), len(self.terms)))
        for parameter in self.parameters:
            present = [term for term in self.terms if (parameter, term) in group]
            if present:
                rows = torch.stack([group[parameter, term] for term in present])
                places = [self.terms.index(term) for term in present]
                products[np.ix_(places, places)] += _gram(rows)
                for term in present:
                    self._sums[parameter][term][row] += group[parameter, term]
        self.group_products[index] = self._over_ranks(products)

    def products(self) -> FloatArray64:
        """(C, C) inner products of all sums, bucket by bucket."""
        size = len(self.buckets) * len(self.terms)
        total = np.zeros((size, size))
        for by_term in self._sums.values():
            rows = torch.stack([by_term[term] for term in self.terms], dim=1).flatten(0, 1)
            total += _gram(rows)
        return self._over_ranks(total)

    def cells(self, term: str, bucket: str) -> BoolArray:
        """(C,) which sums make up a term's gradient over a bucket."""
        hits = [term in (t, TOTAL) and bucket in (b, ALL) for b in self.buckets for t in self.terms]
        return np.array(hits, dtype=np.bool_)

    def group_squares(self, term: str, num_groups: int) -> FloatArray64:
        """(P,) squared norm of every group's gradient; 0 for a group that gave no terms."""
        out = np.zeros(num_groups)
        for index, products in self.group_products.items():
            if term == TOTAL:
                out[index] = products.sum()
            elif (position := self.terms.index(term)) < len(products):
                out[index] = products[position, position]
        return out

    def _differentiate(
        self, terms: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Sequence[Tensor | None]]]:
        """Each term and its gradient; the graph is freed with the last."""
        parameters = list(self.parameters.values())
        live = [(name, term) for name, term in terms.items() if term.requires_grad]
        for position, (name, term) in enumerate(live, 1):
            keeps_graph = position < len(live)
            if self._is_split:
                yield name, _summed_over_ranks(term, parameters, keeps_graph)
            else:
                gradients = torch.autograd.grad(
                    term, parameters, retain_graph=keeps_graph, allow_unused=True
                )
                yield name, gradients

    def _over_ranks(self, products: FloatArray64) -> FloatArray64:
        """Inner products of whole gradients from those of this rank's part."""
        if not self._is_split:
            return products
        first = next(iter(self.parameters.values()))
        total = torch.from_numpy(products).to(first.device)
        dist.all_reduce(total)
        return np.asarray(total.cpu().numpy(), dtype=np.float64)

    def _meet(self, terms: Mapping[str, Tensor]) -> None:
        """Make room for terms that no group had before."""
        new = [term for term in terms if term not in self.terms]
        if not new:
            return
        self.terms += new
        size = sum(parameter.numel() for parameter in self.parameters.values())
        size //= dist.get_world_size() if self._is_split else 1
        need_gb = 4e-9 * size * len(self.terms) * (len(self.buckets) + 1)
        if need_gb > MAX_BUFFER_GB:
            raise GradientMemoryError(
                f"{len(self.buckets)} buckets of {len(self.terms)} terms need {need_gb:.1f} GB of "
                f"summed gradients, more than {MAX_BUFFER_GB:g} GB; train adapters (model.lora), "
                "or set diagnostics.gradient.every=0"
            )
        for parameter, tensor in self.parameters.items():
            rows = self._sums.setdefault(parameter, {})
            for term in new:
                part = _part(tensor)
                shape = (len(self.buckets), part.numel())
                rows[term] = part.new_zeros(shape, dtype=torch.float32)


def _summed_over_ranks(
    term: Tensor, parameters: Sequence[Tensor], keeps_graph: bool
) -> Sequence[Tensor | None]:
    """This rank's part of a term's gradient: FSDP sums over ranks only into `.grad`."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    term.backward(retain_graph=keeps_graph)
    gradients = [None if p.grad is None else _part(p.grad) for p in parameters]
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient
    return gradients


def _part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _gram(rows: Tensor) -> FloatArray64:
    return np.asarray((rows @ rows.T).double().cpu().numpy(), dtype=np.float64)


def _values(
    sums: _Sums,
    reward_std_P: FloatArray64,
    weights_P: FloatArray64,
    buckets: Mapping[str, tuple[int, ...]],
) -> dict[str, float]:
    products = sums.products()
    groups = {ALL: tuple(range(len(weights_P))), **buckets}

    def dot(a: BoolArray, b: BoolArray) -> float:
        """Of two sums of cells. Cells outside them may be NaN."""
        return float(products[np.ix_(a, b)].sum())

    out: dict[str, float] = {}
    for term in (*sums.terms, TOTAL):
        squares_P = sums.group_squares(term, len(weights_P))
        whole = sums.cells(term, ALL)
        for bucket, members in groups.items():
            bucket_cells = sums.cells(term, bucket)
            square, weight = dot(bucket_cells, bucket_cells), float(weights_P[list(members)].sum())
            scale = float(weights_P.sum()) / weight if weight > 0 else math.nan
            root = 0.0 if square <= 0 else math.sqrt(square)  # NaN stays NaN
            out[f"{term}/{bucket}/norm"] = root * scale
            out[f"{term}/{bucket}/signal_frac"] = signal_share(squares_P[list(members)], square)
            if bucket != ALL:
                rest = whole & ~bucket_cells
                angle = cosine(dot(bucket_cells, rest), square, dot(rest, rest))
                out[f"{term}/{bucket}/cosine_rest"] = angle
        snr, scale = noise(squares_P, dot(whole, whole))
        out |= {f"{term}/{ALL}/snr": snr, f"{term}/{ALL}/noise_scale": scale}
    for bucket, members in buckets.items():
        out[f"{bucket}/num_groups"] = float(len(members))
        out[f"{bucket}/reward_std_mean"] = float(reward_std_P[list(members)].mean())
    return out


def signal_and_trace(norms_squared_P: FloatArray64, total_squared: float) -> tuple[float, float]:
    """Signal and noise of a gradient, unbiased (McCandlish et al. 2018, appendix A.1).

    With h_p = P g_p, so that the step's gradient is the mean of h_p, batches of 1 and of P give

        |G|^2     = (P |mean h|^2 - mean |h|^2) / (P - 1)
        tr(Sigma) = (mean |h|^2 - |mean h|^2) P / (P - 1)

    |G|^2 of the expected gradient may come out negative; tr(Sigma) is the total variance of one
    group's h_p. Groups without a trained token count: they are draws that gave nothing. NaN with
    fewer than two groups.

    Args:
        norms_squared_P: |g_p|^2 of every group.
        total_squared: |sum of g_p|^2.
    """
    size = len(norms_squared_P)
    if size < 2:
        return math.nan, math.nan
    mean_of_squares = size * float(norms_squared_P.sum())
    signal = (size * total_squared - mean_of_squares) / (size - 1)
    # Rounding may leave it a little below 0; NaN stays NaN.
    trace = float(np.maximum((mean_of_squares - total_squared) * size / (size - 1), 0.0))
    return signal, trace


def noise(norms_squared_P: FloatArray64, total_squared: float) -> tuple[float, float]:
    """Signal-to-noise ratio of the step, and the noise scale in groups.

    The ratio is P |G|^2 / tr(Sigma): at 1 the step's gradient is half signal, in squares. NaN where
    groups do not differ. The noise scale is tr(Sigma) / |G|^2: the number of groups at which signal
    and noise are equal. NaN where |G|^2 is not positive: not distinguishable from zero.
    """
    signal, trace = signal_and_trace(norms_squared_P, total_squared)
    ratio = len(norms_squared_P) * signal / trace if trace > 0 else math.nan
    return ratio, trace / signal if signal > 0 else math.nan


def signal_share(norms_squared_p: FloatArray64, sum_squared: float) -> float:
    """Share of a bucket's squared norm that is signal: below 0 as often as above where none is.

    |sum|^2 minus the sum of |g_p|^2 is the sum of g_p . g_q over pairs of different groups: the
    average over all ways to cut the bucket into halves of their inner product, up to its scale.
    NaN with fewer than two groups, or without a gradient.
    """
    size = len(norms_squared_p)
    if size < 2 or not sum_squared > 0:
        return math.nan
    return (sum_squared - float(norms_squared_p.sum())) * size / (size - 1) / sum_squared


def make_buckets(reward_std_P: ArrayLike) -> dict[str, tuple[int, ...]]:
    """Groups of like reward std: name to their indices, every group in exactly one bucket.

    `zero` holds groups without spread, `undefined` those whose std is NaN; the others go to
    `bucket_1` (least spread), `bucket_2`, ... in equal numbers of at least two groups.
    """
    std_P = np.asarray(reward_std_P, dtype=np.float64)
    undefined, zero = np.isnan(std_P), is_zero(std_P)
    spread = np.flatnonzero(~undefined & ~zero)
    ranked = spread[np.argsort(std_P[spread], kind="stable")]
    parts = np.array_split(ranked, max(1, min(BUCKETS, len(ranked) // 2)))
    named = {
        "zero": np.flatnonzero(zero),
        **{f"bucket_{number}": part for number, part in enumerate(parts, 1)},
        "undefined": np.flatnonzero(undefined),
    }
    return {name: tuple(sorted(part.tolist())) for name, part in named.items() if part.size}


def cosine(dot: float, squared_a: float, squared_b: float) -> float:
    """NaN where one of the two is zero or not finite."""
    scale = math.sqrt(squared_a) * math.sqrt(squared_b) if min(squared_a, squared_b) >= 0 else 0.0
    return dot / scale if scale > 0 and math.isfinite(scale) else math.nan
