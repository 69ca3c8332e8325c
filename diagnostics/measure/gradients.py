"""The gradient of a step taken apart: by term of the loss, by bucket of groups, by layer.

Legend: **P** groups, **T** terms of the loss, **C** = buckets x terms.

It receives scalar tensors by name and never the types of the trainer. Everything is exact: sums of
the very gradients that the update would use, before any clipping, no samples, no mini-batch means.
`.grad` of no parameter is touched.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from echoscope.store.records import BoolArray, DiagnosticRecord, FloatArray64

from ..config import GradientConfig
from .gradient_stats import (
    Bucket,
    Noise,
    cosine,
    estimate_noise,
    layer_groups,
    make_buckets,
    signal_share,
)

TermsOf = Callable[[int], Iterable[Mapping[str, Tensor]]]
"""Group index to its terms, one mapping per microbatch, each differentiated and freed before the
next is asked for. Terms are weighted and divided by the denominators of the whole step, so that
those of all groups sum to the step's loss. A group without trained tokens gives none."""

TOTAL = "total"
ALL = "all"


class GradientMemoryError(ValueError):
    """The summed gradients would not fit the configured memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientUnit:
    """What is known of one group before its gradient is taken."""

    reward_std: float
    """NaN where it is not defined."""
    weight: float
    """Its part of what the loss was divided by: trained tokens under `token_mean`, trajectories
    under the sequence means."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientReport:
    """Norms, cosines, signal and noise of a step's gradient.

    A bucket's gradient is the sum over its groups divided by its own weight, as if it were the
    whole batch; a group's likewise. Keys of terms include `total`, keys of buckets include `all`.
    """

    terms: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    norms: Mapping[tuple[str, str], float]
    """(term, bucket) to the norm of its gradient."""
    layer_norms: Mapping[tuple[str, str], float]
    """(term, layer group) to the norm over those parameters, all groups."""
    cosines: Mapping[tuple[str, str, str], float]
    """(term, other term, bucket) to the cosine of the two."""
    bucket_cosines: Mapping[tuple[str, str, str], float]
    """(term, bucket, other bucket) to the cosine of the two."""
    rest_cosines: Mapping[tuple[str, str], float]
    """(term, bucket) to the cosine with the sum over all other buckets."""
    noise: Mapping[str, Noise]
    """By term, over all groups."""
    signal_shares: Mapping[tuple[str, str], float]
    """(term, bucket) to the share of the squared norm that is signal."""
    group_norms: Mapping[str, FloatArray64]
    """By term, (P,): norm of each group's gradient over its own weight; NaN without weight."""
    bucket_stats: Mapping[str, Mapping[str, float]]
    """Bucket to num_groups, weight_frac, reward_std_mean."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Metric to why it is NaN, and `note` to what limits all of them."""

    def metrics(self) -> dict[str, float]:
        """`gradient/...` of this step."""
        out: dict[str, float] = {}
        for (term, bucket), value in self.norms.items():
            out[f"gradient/{term}/{bucket}/norm"] = value
        for (term, group), value in self.layer_norms.items():
            out[f"gradient/{term}/{ALL}/{group}/norm"] = value
        for (one, other, bucket), value in self.cosines.items():
            out[f"gradient/{one}/{bucket}/cosine_{other}"] = value
        for (term, one, other), value in self.bucket_cosines.items():
            out[f"gradient/{term}/{one}/cosine_{other}"] = value
        for (term, bucket), value in self.rest_cosines.items():
            out[f"gradient/{term}/{bucket}/cosine_rest"] = value
        for (term, bucket), value in self.signal_shares.items():
            out[f"gradient/{term}/{bucket}/signal_frac"] = value
        for term, noise in self.noise.items():
            out[f"gradient/{term}/{ALL}/signal_squared"] = noise.signal_squared
            out[f"gradient/{term}/{ALL}/noise_trace"] = noise.trace
            out[f"gradient/{term}/{ALL}/snr"] = noise.snr
            out[f"gradient/{term}/{ALL}/noise_scale"] = noise.noise_scale
        for bucket, values in self.bucket_stats.items():
            for name, value in values.items():
                out[f"gradient/{bucket}/{name}"] = value
        return out

    def record(self, step: int) -> DiagnosticRecord:
        """What is stored beside the metrics: kind `gradients`, `group_norms` (terms, P), and JSON
        with `terms`, `buckets` (name to group indices) and `reasons`."""
        payload = {
            "terms": list(self.terms),
            "buckets": {bucket.name: list(bucket.members) for bucket in self.buckets},
            "reasons": dict(self.reasons),
        }
        norms = np.stack([self.group_norms[term] for term in self.terms])
        return DiagnosticRecord(
            step=step,
            kind="gradients",
            arrays={"group_norms": norms},
            payload=json.dumps(payload),
        )


def decompose(
    terms_of: TermsOf,
    units: Sequence[GradientUnit],
    parameters: Mapping[str, Tensor],
    config: GradientConfig,
    *,
    coupling: str = "",
) -> GradientReport:
    """Take the gradient of a step's loss apart, one group at a time.

    One backward pass per term and microbatch; memory of one gradient per bucket and term, and one
    more per term for the group at hand.

    Args:
        terms_of: terms of each group, see `TermsOf`. Rejected groups are groups too.
        units: one per group, in the order of the indices that `terms_of` takes.
        parameters: trainable parameters by name, shared ones once.
        coupling: in words, what ties groups together besides the weights, such as advantages
            whitened over the batch; the noise estimates treat groups as independent.

    Raises:
        GradientMemoryError: the sums need more than `config.max_buffer_gb`.
    """
    buckets = make_buckets([unit.reward_std for unit in units], config)
    sums = _Sums(parameters, buckets, layer_groups(parameters, config.layer_bands), config)
    for bucket in buckets:
        for index in bucket.members:
            sums.add(bucket.name, index, terms_of(index))
    return _report(sums, units, buckets, coupling)


class _Sums:
    """Gradients summed by bucket and term, and the inner products within each group."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buckets: Sequence[Bucket],
        layer_group: Mapping[str, str],
        config: GradientConfig,
    ) -> None:
        self.parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        self.layer_group = layer_group
        self.names: list[str] = []
        """Terms, in the order met."""
        self.group_products: dict[int, FloatArray64] = {}
        """(T, T) inner products of one group's terms; groups without terms have none."""
        self._buckets = [bucket.name for bucket in buckets]
        self._limit_gb = config.max_buffer_gb
        self._sums: dict[str, dict[str, Tensor]] = {}
        """Parameter to term to (buckets, size)."""

    def add(self, bucket: str, index: int, chunks: Iterable[Mapping[str, Tensor]]) -> None:
        """Differentiate the terms of one group and add them to its bucket."""
        group: dict[tuple[str, str], Tensor] = {}  # (parameter, term) to a flat gradient
        for terms in chunks:
            self._meet(terms)
            for name, gradients in _differentiate(terms, list(self.parameters.values())):
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    if gradient is not None:
                        # Not in place: autograd may give two parameters the same tensor.
                        flat = gradient.detach().flatten().float()
                        before = group.get((parameter, name))
                        group[parameter, name] = flat if before is None else before + flat
        if not self.names:
            return
        at = self._buckets.index(bucket)
        products = np.zeros((len(self.names), len(self.names)))
        for parameter in self.parameters:
            present = [n for n in self.names if (parameter, n) in group]
            if present:
                rows = torch.stack([group[parameter, n] for n in present])
                where = [self.names.index(n) for n in present]
                products[np.ix_(where, where)] += _gram(rows)
                for name in present:
                    self._sums[parameter][name][at] += group[parameter, name]
        self.group_products[index] = products

    def products(self) -> tuple[FloatArray64, dict[str, FloatArray64]]:
        """(C, C) inner products of all sums, bucket by bucket, and the same by layer group."""
        size = len(self._buckets) * len(self.names)
        by_layer: dict[str, FloatArray64] = {}
        for parameter, by_term in self._sums.items():
            if by_term:
                rows = torch.stack([by_term[name] for name in self.names], dim=1).flatten(0, 1)
                label = self.layer_group[parameter]
                by_layer[label] = by_layer.get(label, np.zeros((size, size))) + _gram(rows)
        total = sum(by_layer.values(), np.zeros((size, size)))
        return total, by_layer

    def _meet(self, terms: Mapping[str, Tensor]) -> None:
        """Make room for terms that no group had before."""
        new = [name for name in terms if name not in self.names]
        if not new:
            return
        self.names += new
        size = sum(parameter.numel() for parameter in self.parameters.values())
        need_gb = 4e-9 * size * len(self.names) * (len(self._buckets) + 1)
        if need_gb > self._limit_gb:
            raise GradientMemoryError(
                f"{len(self._buckets)} buckets of {len(self.names)} terms need {need_gb:.1f} GB of "
                f"summed gradients, but gradient.max_buffer_gb is {self._limit_gb:g}; lower "
                "gradient.buckets, train adapters (model.lora), or raise the limit"
            )
        for parameter, tensor in self.parameters.items():
            rows = self._sums.setdefault(parameter, {})
            for name in new:
                rows[name] = tensor.new_zeros(
                    (len(self._buckets), tensor.numel()), dtype=torch.float32
                )


def _differentiate(
    terms: Mapping[str, Tensor], parameters: Sequence[Tensor]
) -> Iterable[tuple[str, Sequence[Tensor | None]]]:
    """Each term and its gradient; the graph is freed with the last."""
    live = [(name, term) for name, term in terms.items() if term.requires_grad]
    for position, (name, term) in enumerate(live, 1):
        yield (
            name,
            torch.autograd.grad(
                term, parameters, retain_graph=position < len(live), allow_unused=True
            ),
        )


def gradient_norm(losses: Iterable[Tensor], parameters: Sequence[Tensor]) -> float:
    """Norm of the gradient of a sum of losses, such as the microbatches of one trajectory.

    Each loss is differentiated and freed before the next is asked for.
    """
    sums: dict[int, Tensor] = {}
    for loss in losses:
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for index, gradient in enumerate(gradients):
                if gradient is not None:
                    sums[index] = sums[index] + gradient if index in sums else gradient
    return math.sqrt(sum(float(total.float().square().sum()) for total in sums.values()))


def _gram(rows: Tensor) -> FloatArray64:
    return np.asarray((rows @ rows.T).double().cpu().numpy(), dtype=np.float64)


def _report(
    sums: _Sums, units: Sequence[GradientUnit], buckets: Sequence[Bucket], coupling: str
) -> GradientReport:
    weights_P = np.array([unit.weight for unit in units], dtype=np.float64)
    whole = float(weights_P.sum())
    products, by_layer = sums.products()
    select = _Selector(sums.names, [bucket.name for bucket in buckets])
    terms = (*sums.names, TOTAL)
    members = {bucket.name: list(bucket.members) for bucket in buckets}
    with_all = {ALL: list(range(len(units))), **members}
    cells = {(term, name): select(term, name) for term in terms for name in with_all}
    squared = {key: _product(products, cell, cell) for key, cell in cells.items()}
    group_squared = {term: _group_squares(sums, term, len(units)) for term in terms}

    def scaled(norm: float, which: list[int]) -> float:
        return norm * _ratio(whole, float(weights_P[which].sum()))

    report = GradientReport(
        terms=terms,
        buckets=tuple(buckets),
        norms={key: scaled(_root(value), with_all[key[1]]) for key, value in squared.items()},
        layer_norms={
            (term, label): _root(_product(part, cells[term, ALL], cells[term, ALL]))
            for label, part in by_layer.items()
            for term in terms
        },
        **_angles(products, cells, sums.names, list(members)),
        noise={term: estimate_noise(group_squared[term], squared[term, ALL]) for term in terms},
        signal_shares={
            (term, name): signal_share(group_squared[term][which], squared[term, name])
            for term in terms
            for name, which in with_all.items()
        },
        group_norms={
            term: np.array([scaled(_root(v), [k]) for k, v in enumerate(values.tolist())])
            for term, values in group_squared.items()
        },
        bucket_stats={
            name: {
                "num_groups": float(len(which)),
                "weight_frac": _ratio(float(weights_P[which].sum()), whole),
                "reward_std_mean": float(np.mean([units[k].reward_std for k in which])),
            }
            for name, which in members.items()
        },
    )
    return replace(report, reasons=MappingProxyType(_reasons(report, coupling)))


class _Angles(TypedDict):
    cosines: dict[tuple[str, str, str], float]
    bucket_cosines: dict[tuple[str, str, str], float]
    rest_cosines: dict[tuple[str, str], float]


def _angles(
    products: FloatArray64,
    cells: Mapping[tuple[str, str], BoolArray],
    names: Sequence[str],
    buckets: Sequence[str],
) -> _Angles:
    """Cosines between terms, between buckets, and of each bucket with the others together."""

    def angle(a: BoolArray, b: BoolArray) -> float:
        return cosine(_product(products, a, b), _product(products, a, a), _product(products, b, b))

    terms = (*names, TOTAL)
    return {
        "cosines": {
            (one, other, name): angle(cells[one, name], cells[other, name])
            for one, other in itertools.combinations(names, 2)
            for name in (ALL, *buckets)
        },
        "bucket_cosines": {
            (term, one, other): angle(cells[term, one], cells[term, other])
            for term in terms
            for one, other in itertools.combinations(buckets, 2)
        },
        "rest_cosines": {
            (term, name): angle(cells[term, name], cells[term, ALL] & ~cells[term, name])
            for term in terms
            for name in buckets
        },
    }


class _Selector:
    """Which sums make up a term's gradient over a bucket: (C,)."""

    def __init__(self, terms: Sequence[str], buckets: Sequence[str]) -> None:
        self._cells = [(bucket, term) for bucket in buckets for term in terms]

    def __call__(self, term: str, bucket: str) -> BoolArray:
        hits = [term in (t, TOTAL) and bucket in (b, ALL) for b, t in self._cells]
        return np.array(hits, dtype=np.bool_)


def _product(products: FloatArray64, a: BoolArray, b: BoolArray) -> float:
    """Inner product of two sums of cells. Cells outside them may be NaN."""
    return float(products[np.ix_(a, b)].sum())


def _root(squared: float) -> float:
    return 0.0 if squared <= 0 else math.sqrt(squared)  # NaN stays NaN


def _group_squares(sums: _Sums, term: str, num_groups: int) -> FloatArray64:
    """(P,) squared norm of every group's gradient; 0 for a group that gave no terms."""
    out = np.zeros(num_groups)
    for index, products in sums.group_products.items():
        if term == TOTAL:
            out[index] = products.sum()
        elif sums.names.index(term) < len(products):
            at = sums.names.index(term)
            out[index] = products[at, at]
    return out


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.nan


def _reasons(report: GradientReport, coupling: str) -> dict[str, str]:
    """Why each metric that is NaN is NaN."""
    known = {f"gradient/{t}/{ALL}/noise_scale": n.reason for t, n in report.noise.items()}
    for bucket in report.buckets:
        if len(bucket.members) < 2:
            for term in report.terms:
                known[f"gradient/{term}/{bucket.name}/signal_frac"] = "the bucket has one group"
    out = {
        key: known.get(key) or "a gradient in it is zero or not finite"
        for key, value in report.metrics().items()
        if math.isnan(value)
    }
    if coupling:
        out["note"] = f"{coupling}: groups are not independent, so noise and signal are approximate"
    return out
