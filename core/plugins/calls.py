"""What an estimator or a loss of the user's own is given, and what it must return.

Legend: **N** trajectories, **L** their longest number of sampled tokens (estimators), or the
sampled tokens of a microbatch, flat (losses). docs/plugins.md has examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from echoscope.store.records import BoolArray, FloatArray64, IntArray64
from echoscope.text.user_code import UserCodeError, call, loaded

from ..config.loss import CustomLossConfig
from ..config.settings import CustomAdvantageConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdvantageInputs:
    """What an estimator sees: the sampled tokens of each trajectory that trains, in their order.

    Arrays are read-only. A row is a trajectory; behind its last token everything is 0.
    """

    rewards_NL: FloatArray64  # (N, L) the reward that the update sees, on the token that earned it
    values_NL: FloatArray64 | None  # (N, L) the critic's, before each token; None without a critic
    logprobs_NL: FloatArray64  # (N, L) of the sampling distribution
    mask_NL: BoolArray  # (N, L) False behind the last token
    turns_NL: IntArray64  # (N, L) turn of each token
    groups_N: IntArray64  # (N,) siblings share a number
    left_out: Mapping[int, Sequence[FloatArray64]]
    """Group to the rewards by turn, (K,), of its siblings that selection left out."""

    @property
    def returns_N(self) -> FloatArray64:
        """(N,) sum of each trajectory's rewards."""
        return np.asarray(self.rewards_NL.sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """What a loss sees: the sampled tokens of one microbatch, flat.

    A microbatch holds whole rows. A trajectory may have several rows, in several microbatches.
    """

    logprobs_L: Tensor  # (L,) of the policy, with gradient
    entropies_L: Tensor  # (L,) nats, with gradient
    old_logprobs_L: Tensor  # (L,) of the policy that the importance ratio is taken to
    behaviour_logprobs_L: Tensor  # (L,) of the sampler: the same, unless off_policy says otherwise
    advantages_L: Tensor  # (L,)
    ref_logprobs_L: Tensor | None  # (L,) of the reference policy; None without loss.kl_coef
    rows_L: Tensor  # (L,) int64, row of the microbatch
    turns_L: Tensor  # (L,) int64, turn of the trajectory


def estimate(
    config: CustomAdvantageConfig, inputs: AdvantageInputs
) -> tuple[FloatArray64, FloatArray64 | None]:
    """(N, L) advantages of the user's estimator, and (N, L) critic targets if it gives them.

    Raises:
        UserCodeError: it failed, or returned the wrong shape, NaN, or values behind the end.
    """
    for array in _arrays(inputs):
        array.setflags(write=False)
    name = config.function
    result = call("advantage", name, loaded("advantage", name), inputs, **config.params)
    wrong = partial(_wrong, "advantage", name)
    pair = result if isinstance(result, tuple) else (result, None)
    if len(pair) != 2:
        raise wrong(f"returned {len(pair)} arrays, not 1 or 2")
    advantages = _checked(wrong, "advantages", pair[0], inputs.mask_NL)
    if pair[1] is None:
        return advantages, None
    return advantages, _checked(wrong, "returns", pair[1], inputs.mask_NL)


def token_losses(config: CustomLossConfig, inputs: LossInputs) -> Tensor:
    """(L,) the user's loss of each sampled token, with gradient.

    The function gets copies, so what it writes into them harms nobody.

    Raises:
        UserCodeError: it failed, or returned the wrong shape or NaN.
    """
    copies = {
        each.name: value.clone()
        for each in fields(inputs)
        if (value := getattr(inputs, each.name)) is not None
    }
    name = config.function
    loss = call("loss", name, loaded("loss", name), replace(inputs, **copies), **config.params)
    expected, wrong = tuple(inputs.logprobs_L.shape), partial(_wrong, "loss", name)
    if not isinstance(loss, Tensor):
        raise wrong(f"returned a {type(loss).__name__}, but must return a tensor")
    if tuple(loss.shape) != expected:
        raise wrong(
            f"returned the shape {tuple(loss.shape)}, but must return one loss for each sampled "
            f"token, {expected}"
        )
    if not loss.is_floating_point():
        raise wrong(f"returned {loss.dtype}, but must return floats")
    bad = int((~torch.isfinite(loss.detach())).sum())
    if bad:
        raise wrong(f"is NaN or infinite at {bad} of {expected[0]} tokens")
    return loss


def _arrays(inputs: AdvantageInputs) -> list[np.ndarray[Any, Any]]:
    values = [getattr(inputs, each.name) for each in fields(inputs)]
    values += [rewards_K for siblings in inputs.left_out.values() for rewards_K in siblings]
    return [value for value in values if isinstance(value, np.ndarray)]


def _checked(
    wrong: Callable[[str], UserCodeError], what: str, values: Any, mask_NL: BoolArray
) -> FloatArray64:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise wrong(f"returned {what} that are no array: {error}") from None
    if array.shape != mask_NL.shape:
        raise wrong(
            f"returned {what} of the shape {array.shape}, but must return (N, L), {mask_NL.shape}"
        )
    if array.dtype.kind not in "fiu":
        raise wrong(f"returned {what} of {array.dtype}, but must return floats")
    out = array.astype(np.float64)
    bad = int((~np.isfinite(out)).sum())
    if bad:
        raise wrong(f"returned {what} with {bad} NaN or infinite entries")
    if out[~mask_NL].any():
        raise wrong(
            f"returned {what} behind the end of trajectories, where mask_NL is False: they must be "
            "0 there (np.where(inputs.mask_NL, advantages, 0.0))"
        )
    return out


def _wrong(kind: str, name: str, rule: str) -> UserCodeError:
    return UserCodeError(f"{kind} plug-in {name!r} {rule}")
