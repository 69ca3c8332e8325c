"""A tiny made-up step on which plug-ins are tried before a run begins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.store.records import RolloutBatch, Split, StopReason, Trajectory, Turn

from ..update.advantages import LeftOut, left_out_rewards
from ..update.batch import PolicyOutputs, TokenBatch, credit_rewards, pack

VOCABULARY = 16
RESPONSE = "<think>go up</think><answer>up</answer>"


def made_up_rollouts(*, group_size: int = 4) -> RolloutBatch:
    """A step of 3 x `group_size` episodes with 1 to 3 turns of 1 to 4 tokens.

    One group has different rewards, one is solved and one is hopeless; one episode failed.
    """
    rng = np.random.default_rng([0, group_size])
    groups = [
        tuple(_trajectory(p, g, group_size, _turns(rng)) for g in range(group_size))
        for p in range(3)
    ]
    return RolloutBatch(groups=tuple(groups))


def _trajectory(p: int, g: int, group_size: int, turns: list[Turn]) -> Trajectory:
    is_success = (bool(g % 2), True, False)[p]
    turns[-1] = replace(turns[-1], reward=float(is_success) + (0.1 * g if p == 0 else 0.0))
    failed = (p, g) == (2, 0)
    name = ("lake", "bandit")[p % 2]
    return Trajectory(
        step=1,
        split=Split.TRAIN,
        index=p * group_size + g,
        group_index=p,
        sibling_index=g,
        env_id=name,
        tag=name,
        env_seed=p,
        noise_seed=g,
        prompt_key=str(p),
        turns=tuple(turns),
        stop_reason=StopReason.ENV_ERROR if failed else StopReason.TERMINATED,
        is_success=None if failed else is_success,
    )


def batch_of(rollouts: RolloutBatch, *, with_values: bool = False) -> tuple[TokenBatch, LeftOut]:
    """The packed rows of all episodes that can train but the last, which selection left out."""
    selection = select_groups(rollouts, SelectionConfig(strategy="none"))
    keep_PG = selection.keep_PG.copy()
    if keep_PG.sum() > 1:
        keep_PG[tuple(np.argwhere(keep_PG)[-1])] = False
    chosen = [rollouts.groups[p][g] for p, g in np.argwhere(keep_PG)]
    rewards = [credit_rewards(each, each.episode_return, "trajectory") for each in chosen]
    left_out = left_out_rewards(rollouts, keep_PG, rollouts.returns_PG, "trajectory")
    batch = pack(chosen, rewards)
    values = _noise(batch, seed=1) if with_values else None
    return replace(batch, values=values), left_out


def outputs_of(batch: TokenBatch) -> PolicyOutputs:
    """Log-probs near the sampler's, some far from them, with gradient; entropies as well."""
    drift = _noise(batch, seed=2)
    drift[:, 1::3] *= 20
    logprobs = (batch.behaviour_logprobs + 0.1 * drift) * batch.loss_mask
    entropies = _noise(batch, seed=3).abs()
    return PolicyOutputs(
        logprobs=logprobs.detach().requires_grad_(True),
        entropies=entropies.detach().requires_grad_(True),
    )


def with_noise_advantages(batch: TokenBatch) -> TokenBatch:
    """Advantages of either sign, one in four zero; reference log-probs as well."""
    advantages = _noise(batch, seed=4)
    advantages[:, ::4] = 0
    return replace(
        batch,
        advantages=advantages,
        ref_logprobs=(batch.behaviour_logprobs + 0.2 * _noise(batch, seed=5)) * batch.loss_mask,
    )


def _turns(rng: np.random.Generator) -> list[Turn]:
    """Turns each of which continues the row of the one before, or begins a row of its own."""
    turns: list[Turn] = []
    row: list[int] = []
    for index in range(int(rng.integers(1, 4))):
        starts_anew = index > 0 and bool(rng.integers(2))
        more = rng.integers(VOCABULARY, size=2).tolist()
        prompt = [VOCABULARY, *more] if starts_anew else [*row, *more]
        size = int(rng.integers(1, 5))
        response = rng.integers(VOCABULARY, size=size)
        turns.append(
            Turn(
                index=index,
                observation="Goal 2 up 1 right.",
                response=RESPONSE,
                reasoning_chars=(7, 12),
                answer_chars=(28, 30),
                actions=("up",),
                prompt_tokens=np.array(prompt, dtype=np.int32),
                response_tokens=response.astype(np.int32),
                logprobs=rng.uniform(-4, -0.1, size).astype(np.float32),
                entropies=rng.uniform(0.1, 2, size).astype(np.float32),
                temperature=1.0,
            )
        )
        row = [*prompt, *response.tolist()]
    return turns


def _noise(batch: TokenBatch, *, seed: int) -> torch.Tensor:
    """(B, T) standard normal numbers on sampled tokens, 0 elsewhere; from no global generator."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(tuple(batch.loss_mask.shape), generator=generator)
    return noise * batch.loss_mask
