"""Rows of tokens that train: from trajectories to padded tensors.

Legend: **B** rows, **T** padded row length, **K** turns, **L** tokens of one row. Column t
describes `input_ids[:, t]`: its log-prob is log p(x_t | x_<t). `loss_mask` is True exactly on
sampled tokens; column 0 is never True.

    turn 0 was sampled after P P, turn 1 after P P a0 a0 E: one row
        P P a0 a0 E a1      loss_mask 0 0 1 1 0 1
    a window dropped turn 0, so turn 2 was sampled after P E a1 E: a second row
        P E a1 E a2         loss_mask 0 0 0 0 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..store.records import FloatArray, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBatch:
    """Padded rows, right-padded. A trajectory is one row while each prompt extends the last.

    Rows of one trajectory stand together, in the order of their turns; every sampled token stands
    in exactly one row.
    """

    input_ids: Tensor  # (B, T) int64
    attention_mask: Tensor  # (B, T) bool, False on padding
    loss_mask: Tensor  # (B, T) bool, True exactly on sampled tokens
    turn_index: Tensor  # (B, T) int64, turn of a sampled token, -1 elsewhere
    behaviour_logprobs: Tensor  # (B, T) float32, 0 outside the loss mask
    token_rewards: Tensor  # (B, T) float32, 0 except on tokens that end a credited turn
    trajectory_index: Tensor  # (B,) int64, index into the packed trajectories
    group_index: Tensor  # (B,) int64
    trajectory_num_tokens: Tensor  # (B,) int64, sampled tokens of the row's whole trajectory
    ref_logprobs: Tensor | None = None  # (B, T) float32
    values: Tensor | None = None  # (B, T) float32, V before the token is sampled
    advantages: Tensor | None = None  # (B, T) float32
    returns: Tensor | None = None  # (B, T) float32, targets of the critic

    @property
    def num_rows(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def width(self) -> int:
        """T."""
        return int(self.input_ids.shape[1])

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())

    def to(self, device: torch.device | str) -> TokenBatch:
        """The same batch on another device."""
        return replace(self, **{name: column.to(device) for name, column in _columns(self)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyOutputs:
    """What one forward pass says about the tokens of a batch. Zero outside the loss mask."""

    logprobs: Tensor  # (B, T) float32, at the sampling temperature
    entropies: Tensor  # (B, T) float32, nats
    values: Tensor | None = None  # (B, T) float32


def credit_rewards(
    trajectory: Trajectory,
    normalised_return: float,
    credit: Literal["trajectory", "turn"],
) -> NDArray[np.float64]:
    """Reward of each turn, (K,), as the update sees it.

    `trajectory`: the whole (normalised) return on the last turn with sampled tokens. `turn`: each
    turn's own `total_reward`; the reward of a turn without sampled tokens goes to the nearest
    earlier turn that has some, else to the first that has. All zero if no turn has any.
    """
    credited = np.zeros(trajectory.num_turns)
    sampled = [turn.index for turn in trajectory.turns if _num_sampled(turn)]
    if not sampled:
        return credited
    if credit == "trajectory":
        credited[sampled[-1]] = normalised_return
        return credited
    for turn in trajectory.turns:
        target = max((k for k in sampled if k <= turn.index), default=sampled[0])
        credited[target] += turn.total_reward
    return credited


def pack(
    trajectories: Sequence[Trajectory],
    rewards: Sequence[NDArray[np.floating]],
    *,
    pad_token_id: int = 0,
    max_row_tokens: int | None = None,
) -> TokenBatch:
    """Padded rows of what was sampled, with each turn's reward on its last sampled token.

    Turn k+1 continues the row of turn k if its prompt begins with that row's tokens, and starts a
    new row otherwise. A trajectory without sampled tokens gives no row; the others keep their
    position in `trajectories` as `trajectory_index`.

    Args:
        rewards: one array (K,) per trajectory, see `credit_rewards`.
        pad_token_id: any valid id; padding is known by the masks, never by this id.
        max_row_tokens: the longest row that may train.

    Raises:
        ValueError: a turn without token ids or log-probs (imported text cannot train), rewards that
            do not fit the turns or fall on a turn without tokens, a row that is too long.
    """
    rows: list[_Row] = []
    for index, (trajectory, rewards_K) in enumerate(zip(trajectories, rewards, strict=True)):
        rows += _rows_of(trajectory, index, rewards_K)
    for row in rows:
        if max_row_tokens is not None and row.length > max_row_tokens:
            raise ValueError(
                f"trajectory {trajectories[row.trajectory_index].id} has a row of {row.length} "
                f"tokens, but at most {max_row_tokens} may train; lower context.max_prompt_tokens, "
                "context.max_response_tokens or context.history_turns"
            )
    return _pad(rows, trajectories, pad_token_id)


def select_rows(batch: TokenBatch, rows: Tensor | Sequence[int]) -> TokenBatch:
    """Some rows in the given order, trimmed to the longest of them."""
    index = torch.as_tensor(rows, dtype=torch.int64, device=batch.input_ids.device)
    lengths = batch.attention_mask.sum(1)[index]
    width = int(lengths.max()) if len(index) else 0
    parts = {
        name: column[index, :width] if column.ndim == 2 else column[index]
        for name, column in _columns(batch)
    }
    return replace(batch, **parts)


def microbatches(batch: TokenBatch, max_tokens: int) -> list[tuple[TokenBatch, Tensor]]:
    """Parts of at most `max_tokens` padded tokens each, and the rows (b,) that each one holds.

    Rows of like length stand together, longest first, so that little is padding; a single row
    longer than `max_tokens` is a part of its own. Rows of one trajectory may fall into different
    parts. `full[rows, :part.width] = values` puts a part's values back in their place.
    """
    lengths = batch.attention_mask.sum(1).tolist()
    order = sorted(range(batch.num_rows), key=lambda row: (-lengths[row], row))
    parts: list[list[int]] = []
    for row in order:
        if parts and lengths[parts[-1][0]] * (len(parts[-1]) + 1) <= max_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return [_part(batch, rows) for rows in parts]


def minibatches(batch: TokenBatch, num_parts: int) -> list[tuple[TokenBatch, Tensor]]:
    """`num_parts` parts of whole trajectories with about equally many sampled tokens each.

    Fewer parts if there are fewer trajectories; none is empty. Trajectories are dealt out from the
    one with the most tokens to the lightest part so far, ties in order, so equal batches give equal
    parts. Inside a part the rows keep their order. Returns each part and its rows (b,).
    """
    rows_of: dict[int, list[int]] = {}
    for row, trajectory in enumerate(batch.trajectory_index.tolist()):
        rows_of.setdefault(trajectory, []).append(row)
    num_tokens = batch.loss_mask.sum(1).tolist()
    units = sorted(rows_of.values(), key=lambda rows: (-sum(num_tokens[r] for r in rows), rows[0]))
    parts: list[list[int]] = [[] for _ in range(min(num_parts, len(units)))]
    weights = [0] * len(parts)
    for rows in units:
        lightest = weights.index(min(weights))
        parts[lightest] += rows
        weights[lightest] += sum(num_tokens[row] for row in rows)
    return [_part(batch, sorted(rows)) for rows in parts]


def scatter_to_turns(
    batch: TokenBatch, values_BT: Tensor, trajectories: Sequence[Trajectory]
) -> list[tuple[FloatArray, ...] | None]:
    """Per-token values of a batch, given back to the turns they belong to.

    Args:
        batch: as packed from these very `trajectories` (any rows of it).
        values_BT: (B, T), read on sampled tokens only.

    Returns:
        For each trajectory one array (Lr,) per turn; None if it has sampled tokens and the batch
        holds none of its rows.

    Raises:
        ValueError: the batch holds only some of a trajectory's rows.
    """
    chunks: dict[int, list[FloatArray]] = {}
    values = values_BT.detach().to("cpu", torch.float32)
    loss_mask = batch.loss_mask.cpu()
    for row, index in enumerate(batch.trajectory_index.tolist()):
        chunks.setdefault(index, []).append(values[row][loss_mask[row]].numpy())
    out: list[tuple[FloatArray, ...] | None] = []
    for index, trajectory in enumerate(trajectories):
        if index not in chunks and trajectory.num_sampled_tokens:
            out.append(None)
            continue
        flat = np.concatenate([np.zeros(0, np.float32), *chunks.get(index, [])])
        if len(flat) != trajectory.num_sampled_tokens:
            raise ValueError(
                f"the batch holds {len(flat)} of the {trajectory.num_sampled_tokens} sampled "
                f"tokens of {trajectory.id}; whole trajectories are needed"
            )
        ends = np.cumsum([_num_sampled(turn) for turn in trajectory.turns])
        out.append(tuple(np.split(flat, ends[:-1])) if len(ends) else ())
    return out


@dataclass(slots=True, kw_only=True)
class _Row:
    """A row while it grows. Lists have L entries."""

    trajectory_index: int
    tokens: list[int]
    turn_index: list[int]
    logprobs: list[float]
    rewards: list[float]

    @property
    def length(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int], turn: int, logprobs: Sequence[float]) -> None:
        self.tokens += tokens
        self.turn_index += [turn] * len(tokens)
        self.logprobs += logprobs
        self.rewards += [0.0] * len(tokens)


def _num_sampled(turn: Turn) -> int:
    return 0 if turn.response_tokens is None else len(turn.response_tokens)


def _rows_of(trajectory: Trajectory, index: int, rewards_K: NDArray[np.floating]) -> Iterator[_Row]:
    if len(rewards_K) != trajectory.num_turns:
        raise ValueError(
            f"{trajectory.id} has {trajectory.num_turns} turns, but {len(rewards_K)} rewards"
        )
    row: _Row | None = None
    for turn, reward in zip(trajectory.turns, rewards_K.tolist(), strict=True):
        if turn.prompt_tokens is None or turn.response_tokens is None or turn.logprobs is None:
            raise ValueError(
                f"turn {turn.index} of {trajectory.id} has no sampled token ids and log-probs; "
                "only rollouts that were stored with their tokens can train"
            )
        if not len(turn.response_tokens):
            if reward:
                raise ValueError(
                    f"turn {turn.index} of {trajectory.id} has the reward {reward}, but no sampled "
                    "token to carry it; see credit_rewards"
                )
            continue
        prompt = turn.prompt_tokens.tolist()
        if not prompt:
            raise ValueError(
                f"turn {turn.index} of {trajectory.id} was sampled from an empty prompt"
            )
        if row is None or prompt[: row.length] != row.tokens:
            if row is not None:
                yield row
            row = _Row(trajectory_index=index, tokens=[], turn_index=[], logprobs=[], rewards=[])
        added = prompt[row.length :]
        row.extend(added, -1, [0.0] * len(added))
        row.extend(turn.response_tokens.tolist(), turn.index, turn.logprobs.tolist())
        row.rewards[-1] = reward
    if row is not None:
        yield row


def _pad(rows: Sequence[_Row], trajectories: Sequence[Trajectory], pad_token_id: int) -> TokenBatch:
    width = max((row.length for row in rows), default=0)

    def column(lists: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        out = torch.full((len(rows), width), fill, dtype=dtype)
        for index, values in enumerate(lists):
            out[index, : len(values)] = torch.tensor(values, dtype=dtype)
        return out

    owners = [trajectories[row.trajectory_index] for row in rows]
    turn_index = column([row.turn_index for row in rows], -1, torch.int64)
    return TokenBatch(
        input_ids=column([row.tokens for row in rows], pad_token_id, torch.int64),
        attention_mask=column([[1] * row.length for row in rows], 0, torch.bool),
        loss_mask=turn_index >= 0,
        turn_index=turn_index,
        behaviour_logprobs=column([row.logprobs for row in rows], 0.0, torch.float32),
        token_rewards=column([row.rewards for row in rows], 0.0, torch.float32),
        trajectory_index=torch.tensor([row.trajectory_index for row in rows], dtype=torch.int64),
        group_index=torch.tensor([owner.group_index for owner in owners], dtype=torch.int64),
        trajectory_num_tokens=torch.tensor(
            [owner.num_sampled_tokens for owner in owners], dtype=torch.int64
        ),
    )


def _columns(batch: TokenBatch) -> Iterator[tuple[str, Tensor]]:
    """Every column that is there, by name."""
    for item in fields(batch):
        column = getattr(batch, item.name)
        if column is not None:
            yield item.name, column


def _part(batch: TokenBatch, rows: list[int]) -> tuple[TokenBatch, Tensor]:
    index = torch.tensor(rows, dtype=torch.int64, device=batch.input_ids.device)
    return select_rows(batch, index), index
