"""Rows of a batch as one sequence: no padding, and a beginning that several rows share only once.

Linear layers see N tokens in a row, `(1, N, hidden)`. Attention alone must know the rows: each
row's own tokens attend to the beginning that the row shares with the one before it, and to
themselves. Rows stand in the order of their tokens, so siblings, and prompts with equal beginnings,
are neighbours.

    rows      a b c d | a b e      forwarded   a b c d e     positions   0 1 2 3 2
                                   places      0 1 2 3 | 0 1 4

`transformers` hands keyword arguments of a forward pass on to its attention function; this module
registers one under `IMPLEMENTATION`, which is plain sdpa unless it is given packed rows.

Legend: **B** rows, **T** padded length, **N** forwarded tokens, **S** sampled tokens, **H** heads,
**D** their size, **G** segments; a bucket has **b** segments of **q** queries and **k** keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging as transformers_logging

from ..memory import MAX_KEYS
from .batch import TokenBatch, select_rows

_varlen_attention: Callable[..., Any] | None = None
if find_spec("torch.nn.attention.varlen") is not None:  # torch from 2.10 on
    from torch.nn.attention.varlen import varlen_attn

    _varlen_attention = varlen_attn
_VARLEN_TAKES_GROUPS = _varlen_attention is not None and (
    "enable_gqa" in inspect.signature(_varlen_attention).parameters  # torch from 2.12 on
)

IMPLEMENTATION = "sdpa_packed"

_UNSUPPORTED = ("sliding_window", "softcap", "position_bias", "s_aux")
"""Arguments of an attention function that change what is attended to."""

_SLACK = 16
"""Queries of padding that are cheaper than one more call of the attention."""

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentBucket:
    """Segments of like length that attention takes together.

    A segment is what a row has beyond its shared beginning: queries, over the keys of the whole
    row. Both are padded at the end with place 0, which causality hides from the others.
    """

    shape: tuple[int, int, int]
    """(b, q, k)"""
    queries: Tensor  # (b * q,) int64, places
    keys: Tensor  # (b * k,) int64, places
    mask: Tensor | None
    """(b, 1, q, k) bool, True where attended to; None where the queries are whole rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ragged:
    """All segments one after the other, as kernels for sequences of any length take them.

    Queries are the forwarded tokens in their order. A segment's queries are the last of its keys.
    """

    keys: Tensor  # (sum of the segments' rows,) int64, places
    query_ends: Tensor  # (number of segments + 1,) int32, from 0
    key_ends: Tensor  # as `query_ends`
    most_queries: int
    """Of one segment."""
    most_keys: int


@dataclass(slots=True, kw_only=True, eq=False)
class PackedRows:
    """What a batch forwards, and where each token of each row stands."""

    input_ids: Tensor  # (1, N) int64
    position_ids: Tensor  # (1, N) int64
    states_S: Tensor
    """(S,) int64, place of the state that each sampled token was drawn in: one token before it."""
    num_row_tokens: int
    """Tokens that the rows would forward without padding and without sharing."""
    ragged: Ragged
    buckets: Sequence[SegmentBucket]
    outputs_N: Tensor
    """(N,) int64, where the buckets' outputs, one after the other, hold each token's."""
    num_attended: int = 0
    """Calls of the attention function so far."""

    @property
    def num_tokens(self) -> int:
        """N."""
        return int(self.input_ids.shape[1])

    @classmethod
    def of(cls, input_ids: Tensor, loss_mask: Tensor) -> PackedRows:
        """Of rows (B, T), each without the tokens that no sampled token follows; some is."""
        ids_BT, sampled_BT = input_ids.cpu().numpy(), loss_mask.cpu().numpy()
        rows, shared, ends = shared_beginnings(ids_BT, sampled_BT)
        own = ends - shared
        firsts = own.cumsum() - own  # place of each segment's first token
        places_BT = np.zeros(ids_BT.shape, dtype=np.int64)
        for index, row in enumerate(rows):
            start, end = shared[index], ends[index]
            places_BT[row, :start] = places_BT[rows[index - 1], :start]
            places_BT[row, start:end] = firsts[index] + np.arange(end - start)
        starts_N = np.repeat(shared - firsts, own)
        position_N = starts_N + np.arange(len(starts_N))
        row_N = np.repeat(rows, own)
        device = input_ids.device
        is_new = own > 0  # a row may be the beginning of another
        segments = (places_BT[rows][is_new], shared[is_new], ends[is_new])
        buckets, outputs_N = _buckets(*segments, device)
        return cls(
            input_ids=_tensor(ids_BT[row_N, position_N], device)[None],
            position_ids=_tensor(position_N, device)[None],
            states_S=_tensor(places_BT[:, :-1][sampled_BT[:, 1:]], device),
            num_row_tokens=int(ends.sum()),
            ragged=_ragged(*segments, device),
            buckets=buckets,
            outputs_N=outputs_N,
        )


def shared_beginnings(ids_BT: _Ints, sampled_BT: NDArray[np.bool_]) -> tuple[_Ints, _Ints, _Ints]:
    """Rows in the order of their tokens, how many each shares with the one before it, their ends.

    A row ends before its last sampled token: nothing is predicted from that one. Three arrays (B,);
    the first holds row numbers, the others follow its order.
    """
    num_rows, width = ids_BT.shape
    if not width:
        return np.arange(num_rows), *np.zeros((2, num_rows), dtype=np.int64)
    last_B = width - 1 - sampled_BT[:, ::-1].argmax(1)
    ends_B = np.where(sampled_BT.any(1), last_B, 0)
    keys = [row.tobytes() for row in np.ascontiguousarray(ids_BT.astype(">u4"))]
    rows = sorted(range(num_rows), key=lambda row: (keys[row][: 4 * ends_B[row]], row))
    order = np.array(rows, dtype=np.int64)
    ids, ends = ids_BT[order], ends_B[order]
    shared = np.zeros(num_rows, dtype=np.int64)
    differs = ids[1:] != ids[:-1]
    equal = np.where(differs.any(1), differs.argmax(1), width)
    shared[1:] = np.minimum(equal, np.minimum(ends[1:], ends[:-1]))
    return order, shared, ends


def _ragged(places_GT: _Ints, shared_G: _Ints, ends_G: _Ints, device: torch.device) -> Ragged:
    own_G = ends_G - shared_G
    is_there = np.arange(places_GT.shape[1]) < ends_G[:, None]
    query_ends, key_ends = (
        _tensor(np.concatenate([[0], sizes.cumsum()]), device).int() for sizes in (own_G, ends_G)
    )
    return Ragged(
        keys=_tensor(places_GT[is_there], device),
        query_ends=query_ends,
        key_ends=key_ends,
        most_queries=int(own_G.max()),
        most_keys=int(ends_G.max()),
    )


def _buckets(
    places_GT: _Ints, shared_G: _Ints, ends_G: _Ints, device: torch.device
) -> tuple[list[SegmentBucket], Tensor]:
    """Segments of like length together, and where their outputs hold each place."""
    own_G = ends_G - shared_G
    # Without a mask attention reads half of the keys: it pays to repeat a short beginning.
    first_G = np.where(2 * shared_G <= ends_G, 0, shared_G)
    outputs_N = np.empty(int(own_G.sum()), dtype=np.int64)
    buckets: list[SegmentBucket] = []
    offset = 0
    for chosen in _alike(ends_G - first_G, ends_G, first_G == 0):
        first, end = first_G[chosen, None], ends_G[chosen, None]
        b, q, k = len(chosen), int((end - first).max()), int(end.max())
        columns = first + np.arange(q)
        keys = np.where(np.arange(k) < end, places_GT[chosen, :k], 0)
        padded = np.where(columns < end, columns, 0)
        queries = np.where(columns < end, np.take_along_axis(places_GT[chosen], padded, 1), 0)
        is_own = (columns >= shared_G[chosen, None]) & (columns < end)
        outputs_N[queries[is_own]] = offset + is_own.reshape(-1).nonzero()[0]
        offset += b * q
        mask = None
        if first.any():
            mask = torch.from_numpy(np.arange(k) <= columns[:, :, None])[:, None].to(device)
        buckets.append(
            SegmentBucket(
                shape=(b, q, k),
                queries=_tensor(queries.reshape(-1), device),
                keys=_tensor(keys.reshape(-1), device),
                mask=mask,
            )
        )
    return buckets, _tensor(outputs_N, device)


def _alike(sizes_G: _Ints, ends_G: _Ints, is_whole_G: NDArray[np.bool_]) -> list[_Ints]:
    """Segments of a kind in parts whose longest is little longer than the shortest."""
    parts: list[list[int]] = []
    order = np.lexsort((-ends_G, -sizes_G, ~is_whole_G)).tolist()
    for segment in order:
        longest = parts[-1][0] if parts else segment
        slack = max(sizes_G[segment] // 2, _SLACK)
        is_alike = is_whole_G[longest] == is_whole_G[segment]
        if parts and is_alike and sizes_G[longest] <= sizes_G[segment] + slack:
            parts[-1].append(segment)
        else:
            parts.append([segment])
    return [np.array(part, dtype=np.int64) for part in parts]


def _tensor(values: _Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


# -- attention -----------------------------------------------------------------------------------


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_rows: PackedRows | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over packed rows, from (1, H, N, D) to (1, N, H, D); sdpa without them.

    Raises:
        ValueError: the layer has a window, a cap, a bias or a sink.
    """
    if packed_rows is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return out
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(f"its attention has a {name}")
    packed_rows.num_attended += 1
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # (N, H, D)
    scale = kwargs.get("scaling")
    if _varlen_attention is not None and query.is_cuda and query.dtype != torch.float32:
        outputs = attend_ragged(
            _varlen_attention,
            packed_rows.ragged,
            query,
            key,
            value,
            scale,
            takes_groups=_VARLEN_TAKES_GROUPS,
        )
        return outputs[None], None
    parts = [_attend(bucket, query, key, value, scale) for bucket in packed_rows.buckets]
    outputs = parts[0] if len(parts) == 1 else torch.cat(parts)
    return outputs.index_select(0, packed_rows.outputs_N)[None], None


def attend_ragged(
    kernel: Callable[..., Any],
    ragged: Ragged,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    *,
    takes_groups: bool = True,
) -> Tensor:
    """(N, H, D) by one call of `torch.nn.attention.varlen.varlen_attn` or its like, without a mask.

    Flash attention aligns causality at the end: the last query of a segment sees all its keys.

    Args:
        takes_groups: the kernel lets several heads of queries share one of keys.
    """
    num_groups = query.shape[1] // key.shape[1]
    keys, values = (states.index_select(0, ragged.keys) for states in (key, value))
    if num_groups > 1 and not takes_groups:
        keys, values = (states.repeat_interleave(num_groups, dim=1) for states in (keys, values))
    shared = {"enable_gqa": True} if num_groups > 1 and takes_groups else {}
    out: Tensor = kernel(
        query.contiguous(),
        keys,
        values,
        ragged.query_ends,
        ragged.key_ends,
        ragged.most_queries,
        ragged.most_keys,
        scale=scale,
        window_size=(-1, 0),
        **shared,
    )
    return out


def _attend(
    bucket: SegmentBucket, query: Tensor, key: Tensor, value: Tensor, scale: float | None
) -> Tensor:
    """(b * q, H, D)"""
    b, q, k = bucket.shape
    num_heads, num_groups = query.shape[1], query.shape[1] // key.shape[1]
    queries = query.index_select(0, bucket.queries).view(b, q, num_heads, -1).transpose(1, 2)
    keys, values = (
        states.index_select(0, bucket.keys).view(b, k, states.shape[1], -1).transpose(1, 2)
        for states in (key, value)
    )
    # With a mask, CUDA has no fast kernel whose keys have fewer heads than its queries.
    takes_groups = bucket.mask is None or not query.is_cuda
    if num_groups > 1 and not takes_groups:
        keys, values = (states.repeat_interleave(num_groups, dim=1) for states in (keys, values))
    out = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=bucket.mask,
        is_causal=bucket.mask is None,
        scale=scale,
        enable_gqa=num_groups > 1 and takes_groups,
    )
    return out.transpose(1, 2).reshape(b * q, num_heads, -1)


AttentionInterface.register(IMPLEMENTATION, packed_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


# -- models --------------------------------------------------------------------------------------


def packed_hidden(trunk: nn.Module, rows: PackedRows) -> Tensor:
    """Last hidden states of the forwarded tokens, (N, hidden)."""
    out = trunk(
        input_ids=rows.input_ids,
        position_ids=rows.position_ids,
        use_cache=False,
        packed_rows=rows,
    )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


def padded_hidden(trunk: nn.Module, input_ids: Tensor) -> Tensor:
    """Last hidden states, (B, T, hidden). Rows are right-padded, so causality hides the padding."""
    positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None, :]
    out = trunk(input_ids=input_ids, position_ids=positions, use_cache=False)
    hidden: Tensor = out.last_hidden_state
    return hidden


def enable_packing(model: PreTrainedModel) -> str | None:
    """Let a model take packed rows; why it cannot, or None. One that cannot is left as it was."""
    before = model.config._attn_implementation
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # a model that cannot change it warns
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        reason = _why_not(model)
        if reason is not None:
            model.set_attn_implementation(before)
    finally:
        transformers_logging.set_verbosity(level)
    return reason


@torch.no_grad()
def _why_not(model: PreTrainedModel) -> str | None:
    """Three short rows, packed and padded: every layer must attend to the packed ones, alike."""
    weight = model.get_input_embeddings().weight
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8, 9], [4, 2, 1, 3, 0, 0]])
    sampled = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0]]).bool()
    ids, sampled = (ids % len(weight)).to(weight.device), sampled.to(weight.device)
    rows = PackedRows.of(ids, sampled)
    trunk = model.base_model
    try:
        packed = packed_hidden(trunk, rows)[rows.states_S].float()
    except (TypeError, ValueError, RuntimeError) as error:
        return " ".join(str(error).split())[:200]
    num_layers = model.config.get_text_config().num_hidden_layers
    if rows.num_attended != num_layers:
        return (
            f"{rows.num_attended} of its {num_layers} layers have an attention that can be replaced"
        )
    padded = padded_hidden(trunk, ids[:, :-1])[sampled[:, 1:]].float()
    allowed = 1e-4 if weight.dtype == torch.float32 else 5e-2
    gap = float((packed - padded).abs().max() / padded.abs().max())
    return None if gap < allowed else f"its states differ by {gap:.2g} of the largest"


def packed_microbatches(batch: TokenBatch, max_tokens: int) -> list[tuple[TokenBatch, Tensor]]:
    """Parts of at most `max_tokens` forwarded tokens each, and the rows (b,) that each one holds.

    Rows with equal beginnings stand together. A part whose first row alone is longer may hold
    `max_tokens` beyond that row: its siblings would forward its beginning once more elsewhere. The
    rows of a part together have at most `MAX_KEYS` times as many tokens as it may forward.
    """
    rows, shared, ends = shared_beginnings(
        batch.input_ids.cpu().numpy(), batch.loss_mask.cpu().numpy()
    )
    parts: list[list[int]] = []
    room = keys = 0
    for row, start, end in zip(rows.tolist(), shared.tolist(), ends.tolist(), strict=True):
        if parts and end - start <= room and end <= keys:
            parts[-1].append(row)
        else:
            parts.append([row])
            start = 0
            most = max_tokens if end <= max_tokens else end + max_tokens
            room, keys = most, MAX_KEYS * most
        room -= end - start
        keys -= end
    index = [torch.tensor(part, device=batch.input_ids.device) for part in parts]
    return [(select_rows(batch, rows), rows) for rows in index]
