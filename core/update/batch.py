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
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echoscope.store.records import FloatArray, Trajectory, Turn


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
    behaviour_logprobs: Tensor  # (B, T) float32, of the sampling distribution, 0 outside the mask
    token_rewards: Tensor  # (B, T) float32, 0 except on tokens that end a credited turn
    trajectory_index: Tensor  # (B,) int64, index into the packed trajectories
    group_index: Tensor  # (B,) int64
    trajectory_num_tokens: Tensor  # (B,) int64, sampled tokens of the row's whole trajectory
    ref_logprobs: Tensor | None = None  # (B, T) float32
    old_logprobs: Tensor | None = None  # (B, T) float32, of the trainer before the update
    trajectory_log_ratio: Tensor | None = None
    """(B,) float64, log old - log behaviour summed over the row's whole trajectory; there if
    `old_logprobs` is."""
    values: Tensor | None = None  # (B, T) float32, V before the token is sampled
    advantages: Tensor | None = None  # (B, T) float32
    returns: Tensor | None = None  # (B, T) float32, targets of the critic
    temperatures: Tensor | None = None  # (B, T) float32, of the sampling; None for 1 everywhere
    supports: TokenSupports | None = None
    """What truncation left in when tokens were sampled; None for the whole vocabulary."""

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

    def columns(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that is there, by name."""
        for item in fields(self):
            column = getattr(self, item.name)
            if isinstance(column, Tensor):
                yield item.name, column

    @property
    def num_row_tokens(self) -> int:
        """Tokens of the rows, without padding."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device | str) -> TokenBatch:
        """The same batch on another device."""
        moved = {name: column.to(device) for name, column in self.columns()}
        supports = None if self.supports is None else self.supports.to(device)
        return replace(self, **moved, supports=supports)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSupports:
    """The tokens that each sampled token of a batch was drawn from."""

    sizes: Tensor  # (B, T) int64, tokens left in; 0 for the whole vocabulary
    tokens: Tensor  # (sum of sizes,) int64, their ids, row by row and column by column

    def to(self, device: torch.device | str) -> TokenSupports:
        return TokenSupports(sizes=self.sizes.to(device), tokens=self.tokens.to(device))

    def select(self, index: Tensor, width: int) -> TokenSupports:
        """Those of some rows, trimmed to `width` columns, which must hold all their tokens."""
        counts_B = self.sizes.sum(1)
        starts_B = counts_B.cumsum(0) - counts_B
        counts_b = counts_B[index]
        shift_b = starts_B[index] - (counts_b.cumsum(0) - counts_b)
        places = torch.arange(int(counts_b.sum()), device=index.device)
        chosen = places + shift_b.repeat_interleave(counts_b)
        return TokenSupports(sizes=self.sizes[index, :width], tokens=self.tokens[chosen])

    def of(self, sampled: Tensor) -> tuple[Tensor, Tensor]:
        """Sizes (S,) of the sampled tokens of `sampled` (B, T - 1), which begins at column 1, and
        the ids of all of them, one after the other."""
        return self.sizes[:, 1:][sampled], self.tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyOutputs:
    """What one forward pass says about the tokens of a batch. Zero outside the loss mask."""

    logprobs: Tensor  # (B, T) float32, at the temperature and over the support of the sampling
    entropies: Tensor  # (B, T) float32, nats
    values: Tensor | None = None  # (B, T) float32
    num_forwarded: int = 0
    """Tokens that went through the model, padding included."""


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
    sampled = [turn.index for turn in trajectory.turns if turn.num_sampled_tokens]
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
    default_temperature: float = 1.0,
) -> TokenBatch:
    """Padded rows of what was sampled, with each turn's reward on its last sampled token.

    Turn k+1 continues the row of turn k if its prompt begins with that row's tokens, and starts a
    new row otherwise. A trajectory without sampled tokens gives no row; the others keep their
    position in `trajectories` as `trajectory_index`.

    Args:
        rewards: one array (K,) per trajectory, see `credit_rewards`.
        pad_token_id: any valid id; padding is known by the masks, never by this id.
        default_temperature: of turns that do not record the temperature they were sampled at.

    Raises:
        ValueError: a turn without token ids or log-probs (imported text cannot train).
    """
    rows: list[_Row] = []
    for index, (trajectory, rewards_K) in enumerate(zip(trajectories, rewards, strict=True)):
        rows += _rows_of(trajectory, index, rewards_K)
    return _pad(rows, trajectories, pad_token_id, default_temperature)


def select_rows(batch: TokenBatch, rows: Tensor | Sequence[int]) -> TokenBatch:
    """Some rows in the given order, trimmed to the longest of them."""
    index = torch.as_tensor(rows, dtype=torch.int64, device=batch.input_ids.device)
    lengths = batch.attention_mask.sum(1)[index]
    width = int(lengths.max()) if len(index) else 0
    parts = {
        name: column[index, :width] if column.ndim == 2 else column[index]
        for name, column in batch.columns()
    }
    supports = None if batch.supports is None else batch.supports.select(index, width)
    return replace(batch, **parts, supports=supports)


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
) -> list[tuple[FloatArray, ...]]:
    """Per-token values of a batch, given back to the turns they belong to.

    Args:
        batch: as packed from these very `trajectories`.
        values_BT: (B, T), read on sampled tokens only.

    Returns:
        For each trajectory one array (Lr,) per turn.
    """
    flat = values_BT.detach().to("cpu", torch.float32)[batch.loss_mask.cpu()].numpy()
    sizes = [[turn.num_sampled_tokens for turn in trajectory.turns] for trajectory in trajectories]
    ends = np.cumsum([size for of_turns in sizes for size in of_turns], dtype=np.int64)
    assert len(flat) == ends[-1:].sum()
    parts = iter(np.split(flat, ends))
    return [tuple(next(parts) for _ in of_turns) for of_turns in sizes]


@dataclass(slots=True, kw_only=True)
class _Row:
    """A row while it grows."""

    trajectory_index: int
    tokens: list[int] = field(default_factory=list)
    responses: list[tuple[int, Turn, float]] = field(default_factory=list)
    """Where the tokens of each response begin, its turn, and the reward of the last of them."""


def _rows_of(trajectory: Trajectory, index: int, rewards_K: NDArray[np.floating]) -> Iterator[_Row]:
    row: _Row | None = None
    for turn, reward in zip(trajectory.turns, rewards_K.tolist(), strict=True):
        if turn.prompt_tokens is None or turn.response_tokens is None or turn.logprobs is None:
            raise ValueError(
                f"turn {turn.index} of {trajectory.id} has no sampled token ids and log-probs; "
                "only rollouts that were stored with their tokens can train"
            )
        if not len(turn.response_tokens):
            continue
        prompt = turn.prompt_tokens.tolist()
        if row is None or prompt[: len(row.tokens)] != row.tokens:
            if row is not None:
                yield row
            row = _Row(trajectory_index=index)
        row.tokens = prompt + turn.response_tokens.tolist()
        row.responses.append((len(prompt), turn, reward))
    if row is not None:
        yield row


def _pad(
    rows: Sequence[_Row],
    trajectories: Sequence[Trajectory],
    pad_token_id: int,
    default_temperature: float,
) -> TokenBatch:
    shape = (len(rows), max((len(row.tokens) for row in rows), default=0))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.bool_)
    turn_index = np.full(shape, -1, dtype=np.int64)
    logprobs, rewards = np.zeros((2, *shape), dtype=np.float32)
    temperatures = np.ones(shape, dtype=np.float32)
    sizes, left_in = np.zeros(shape, dtype=np.int64), []
    for index, row in enumerate(rows):
        input_ids[index, : len(row.tokens)] = row.tokens
        attention_mask[index, : len(row.tokens)] = True
        for start, turn, reward in row.responses:
            here = slice(start, start + turn.num_sampled_tokens)
            temperature = default_temperature if turn.temperature is None else turn.temperature
            turn_index[index, here] = turn.index
            logprobs[index, here] = turn.logprobs
            rewards[index, here.stop - 1] = reward
            temperatures[index, here] = temperature
            if turn.support is not None:
                sizes[index, here] = turn.support.sizes
                left_in.append(turn.support.tokens)
    supports = None
    if sizes.any():
        tokens = torch.from_numpy(np.concatenate(left_in).astype(np.int64))
        supports = TokenSupports(sizes=torch.from_numpy(sizes), tokens=tokens)
    owners = [trajectories[row.trajectory_index] for row in rows]
    return TokenBatch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy(attention_mask),
        loss_mask=torch.from_numpy(turn_index >= 0),
        turn_index=torch.from_numpy(turn_index),
        behaviour_logprobs=torch.from_numpy(logprobs),
        token_rewards=torch.from_numpy(rewards),
        trajectory_index=torch.tensor([row.trajectory_index for row in rows], dtype=torch.int64),
        group_index=torch.tensor([owner.group_index for owner in owners], dtype=torch.int64),
        trajectory_num_tokens=torch.tensor(
            [owner.num_sampled_tokens for owner in owners], dtype=torch.int64
        ),
        temperatures=torch.from_numpy(temperatures) if (temperatures != 1).any() else None,
        supports=supports,
    )


def _part(batch: TokenBatch, rows: list[int]) -> tuple[TokenBatch, Tensor]:
    index = torch.tensor(rows, dtype=torch.int64, device=batch.input_ids.device)
    return select_rows(batch, index), index
