"""Log-probs and entropies of sampled tokens from the hidden states that they were drawn in.

The output layer makes V logits for each token, and their gradient has as many numbers again: at a
vocabulary of 50,000 to 150,000 tokens that is most of the update's memory. So beyond
`LOGITS_AT_ONCE` logits are made for some tokens at a time, forgotten, and made again in the
backward pass, where their gradient is written over them.

Legend: **S** sampled tokens, **V** vocabulary, **c** tokens of a chunk, **H** hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from ..config.loading import ConfigError
from ..memory import LOGITS_AT_ONCE
from .batch import TokenBatch

_LEFT_OUT = -1e30
"""Logit of a token that truncation left out: its probability is 0, and 0 * log-prob is not NaN."""

_SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Model settings that change logits after the output embedding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """Which tokens were sampled, and from what."""

    targets: Tensor  # (S,)
    temperatures: Tensor | None  # (S,), None for 1
    support_sizes: Tensor | None  # (S,), None for the whole vocabulary
    support_tokens: Tensor | None  # (sum of sizes,)

    @classmethod
    def of(cls, batch: TokenBatch) -> SampledTokens:
        """Those of a batch, in the order of its loss mask."""
        sampled = batch.loss_mask[:, 1:]
        temperatures, sizes, tokens = batch.temperatures, None, None
        if batch.supports is not None:
            sizes, tokens = batch.supports.of(sampled)
        return cls(
            targets=batch.input_ids[:, 1:][sampled],
            temperatures=None if temperatures is None else temperatures[:, 1:][sampled],
            support_sizes=sizes,
            support_tokens=tokens,
        )

    def chunks(self, size: int) -> Iterator[SampledTokens]:
        """Parts of at most `size` tokens each; one empty part if there are none."""
        sizes, tokens = self.support_sizes, self.support_tokens
        ends = None if sizes is None else [0, *sizes.cumsum(0).tolist()]
        for start in range(0, max(len(self.targets), 1), size):
            part = slice(start, min(start + size, len(self.targets)))
            held = None
            if ends is not None and tokens is not None:
                held = tokens[ends[part.start] : ends[part.stop]]
            yield SampledTokens(
                targets=self.targets[part],
                temperatures=None if self.temperatures is None else self.temperatures[part],
                support_sizes=None if sizes is None else sizes[part],
                support_tokens=held,
            )


class VocabularyHead:
    """Hidden states of sampled tokens to log-probs and entropies, in float32.

    Raises:
        ConfigError: the model changes its logits after the output layer.
    """

    def __init__(self, head: nn.Module, config: object) -> None:
        scaled = [n for n in _SCALED_LOGITS if vars(config).get(n) not in (None, 1, 1.0)]
        if scaled:
            raise ConfigError(
                f"the model scales its logits by {scaled[0]}, which training does not support yet"
            )
        self._head = head

    def __call__(self, hidden_SH: Tensor, sampled: SampledTokens) -> tuple[Tensor, Tensor]:
        """(S,) log-probs and (S,) entropies."""
        if not len(hidden_SH):
            empty = hidden_SH.sum() * 0 + hidden_SH.new_zeros(0, dtype=torch.float32)
            return empty, empty
        vocabulary = int(self._head.get_parameter("weight").shape[0])
        chunk = max(1, LOGITS_AT_ONCE // vocabulary)
        if len(hidden_SH) <= chunk:
            return self._statistics(hidden_SH, sampled)
        if type(self._head) is nn.Linear and torch.is_grad_enabled():
            weight, bias = self._head.weight, self._head.bias
            out: tuple[Tensor, Tensor] = _InChunks.apply(hidden_SH, weight, bias, sampled, chunk)
            return out
        pairs = zip(hidden_SH.split(chunk), sampled.chunks(chunk), strict=True)
        if torch.is_grad_enabled():  # adapters on the output layer, or one of another kind
            parts = [checkpoint(self._statistics, *pair, use_reentrant=False) for pair in pairs]
        else:
            parts = [self._statistics(*pair) for pair in pairs]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _statistics(self, hidden_cH: Tensor, sampled: SampledTokens) -> tuple[Tensor, Tensor]:
        return _statistics(self._head(hidden_cH).float(), sampled)


class _InChunks(torch.autograd.Function):
    """The same of a linear output layer, of which one chunk of logits is held at a time.

    By the logits the gradient of a log-prob is onehot - p, and that of the entropy
    -p (log p + entropy), both over the temperature.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_SH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        sampled: SampledTokens,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for hidden_cH, part in zip(hidden_SH.split(chunk), sampled.chunks(chunk), strict=True):
            logits_cV = linear(hidden_cH, weight_VH, bias_V).float()
            if part.support_sizes is not None:
                parts.append(_statistics(logits_cV, part))
                continue
            logprobs_cV = _normalise_(logits_cV, part)
            own_c = logprobs_cV.gather(-1, part.targets[:, None]).squeeze(-1)
            parts.append((own_c, -logprobs_cV.exp().mul_(logprobs_cV).sum(-1)))
        logprobs_S, entropies_S = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.sampled, ctx.chunk = sampled, chunk
        ctx.save_for_backward(hidden_SH, weight_VH, bias_V, entropies_S)
        ctx.set_materialize_grads(False)
        return logprobs_S, entropies_S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob_S: Tensor | None, by_entropy_S: Tensor | None) -> Any:
        hidden_SH, weight_VH, bias_V, entropies_S = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        by_hidden_SH = torch.empty_like(hidden_SH) if wants_hidden else None
        by_weight_VH = torch.zeros_like(weight_VH) if wants_weight else None
        by_bias_V = torch.zeros_like(bias_V) if wants_bias else None
        for index, part in enumerate(ctx.sampled.chunks(ctx.chunk)):
            span = slice(index * ctx.chunk, index * ctx.chunk + len(part.targets))
            hidden_cH = hidden_SH[span]
            by_logits_cV = _by_logits(
                linear(hidden_cH, weight_VH, bias_V).float(),
                part,
                entropies_S[span],
                None if by_logprob_S is None else by_logprob_S[span],
                None if by_entropy_S is None else by_entropy_S[span],
            ).to(hidden_SH.dtype)
            if by_hidden_SH is not None:
                torch.mm(by_logits_cV, weight_VH, out=by_hidden_SH[span])
            if by_weight_VH is not None:
                by_weight_VH.addmm_(by_logits_cV.T, hidden_cH)
            if by_bias_V is not None:
                by_bias_V += by_logits_cV.sum(0)
        return by_hidden_SH, by_weight_VH, by_bias_V, None, None


def _by_logits(
    logits_cV: Tensor,
    sampled: SampledTokens,
    entropies_c: Tensor,
    by_logprob_c: Tensor | None,
    by_entropy_c: Tensor | None,
) -> Tensor:
    """The gradient by the logits, (c, V), which are overwritten."""
    if by_logprob_c is None and by_entropy_c is None:
        return logits_cV.zero_()
    if sampled.support_sizes is not None:
        return _by_logits_of_supports(logits_cV, sampled, by_logprob_c, by_entropy_c)
    logprobs_cV = _normalise_(logits_cV, sampled)
    if by_entropy_c is None:
        out_cV = logprobs_cV.exp_()
    else:
        out_cV = logprobs_cV.exp()
        factors_cV = logprobs_cV.add_(entropies_c[:, None]).mul_(by_entropy_c[:, None])
        if by_logprob_c is not None:
            factors_cV.add_(by_logprob_c[:, None])
        out_cV.mul_(factors_cV)
    if by_logprob_c is not None:
        if by_entropy_c is None:
            out_cV.mul_(by_logprob_c[:, None])
        out_cV.scatter_add_(-1, sampled.targets[:, None], -by_logprob_c[:, None])
    scale_c = -1.0 if sampled.temperatures is None else -1.0 / sampled.temperatures[:, None]
    return out_cV.mul_(scale_c)


def _by_logits_of_supports(
    logits_cV: Tensor,
    sampled: SampledTokens,
    by_logprob_c: Tensor | None,
    by_entropy_c: Tensor | None,
) -> Tensor:
    with torch.enable_grad():
        logits_cV.requires_grad_(True)
        logprobs_c, entropies_c = _statistics(logits_cV, sampled)
    both = ((logprobs_c, by_logprob_c), (entropies_c, by_entropy_c))
    asked = [(output, by) for output, by in both if by is not None]
    outputs, gradients = zip(*asked, strict=True)
    (out_cV,) = torch.autograd.grad(outputs, logits_cV, gradients)
    return out_cV


def _normalise_(logits_cV: Tensor, sampled: SampledTokens) -> Tensor:
    """Log-probs in the place of float32 logits."""
    if sampled.temperatures is not None:
        logits_cV.div_(sampled.temperatures[:, None])
    return logits_cV.sub_(logits_cV.logsumexp(dim=-1, keepdim=True))


def _statistics(logits_cV: Tensor, sampled: SampledTokens) -> tuple[Tensor, Tensor]:
    """(c,) log-probs of the targets and entropies, over the support that each was drawn from."""
    if sampled.temperatures is not None:
        logits_cV = logits_cV / sampled.temperatures[:, None]
    if sampled.support_sizes is None or sampled.support_tokens is None:
        return _of_vocabulary(logits_cV, sampled.targets)
    own = logits_cV.gather(-1, sampled.targets[:, None]).squeeze(-1)
    kept = _kept(logits_cV, sampled.support_sizes, sampled.support_tokens)
    logprobs, entropies = own - kept.logsumexp(dim=-1), _entropies(kept.log_softmax(dim=-1))
    is_whole = sampled.support_sizes == 0
    if not is_whole.any():
        return logprobs, entropies
    whole = _of_vocabulary(logits_cV, sampled.targets)
    return torch.where(is_whole, whole[0], logprobs), torch.where(is_whole, whole[1], entropies)


def _of_vocabulary(logits_cV: Tensor, targets_c: Tensor) -> tuple[Tensor, Tensor]:
    """(c,) log-probs of the targets and entropies, of the whole softmax."""
    logprobs_cV = logits_cV.log_softmax(dim=-1)
    return logprobs_cV.gather(-1, targets_c[:, None]).squeeze(-1), _entropies(logprobs_cV)


def _entropies(logprobs_cK: Tensor) -> Tensor:
    return -(logprobs_cK.exp() * logprobs_cK).sum(-1)


def _kept(logits_cV: Tensor, sizes_c: Tensor, tokens: Tensor) -> Tensor:
    """(c, K) logits of the tokens left in, K the largest number of them; the rest is far below."""
    columns = torch.arange(max(int(sizes_c.max()), 1), device=sizes_c.device)
    is_there = columns < sizes_c[:, None]
    ids = torch.zeros(is_there.shape, dtype=torch.int64, device=sizes_c.device)
    ids[is_there] = tokens
    return logits_cV.gather(-1, ids).masked_fill(~is_there, _LEFT_OUT)
