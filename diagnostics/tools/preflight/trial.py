"""Judge a run before it starts, by rollouts of its starting policy.

The rollouts, and the seconds and bytes they took, come from whoever has the policy
(`core/run/trial.py`); here they are counted, judged and put into words.

Legend: **P** groups, **G** siblings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from echoscope.store.records import FinishReason, RolloutBatch, StopReason, Trajectory, Turn
from echoscope.text.amounts import duration_in_two_units, fixed, memory_size, percent

from ...judge.advice.luck import luck_words, mean_luck
from ...measure.information.estimate import InformationEstimate
from ...measure.rewards import reward_stats
from ...selection.filter import RELATIVE_NOISE, select_groups
from ...selection.payoff import payoff_of
from .findings import Cost, Dependence, Limits, Numbers, Preflight
from .rules import Commands, find

NAN = float("nan")
_FAILED = (StopReason.ENV_ERROR, StopReason.TIMEOUT)


def judge(
    batches: Sequence[RolloutBatch],
    limits: Limits,
    *,
    command: Commands,
    warm_start: str,
    dependence: Dependence | None = None,
    cost: Cost | None = None,
) -> Preflight:
    """Count, judge and advise.

    Args:
        batches: one per trial step, at least one with at least one group.
        command: writes the train command with settings changed.
        warm_start: the command that begins a warm start; "" where no expert can demonstrate.

    Raises:
        ValueError: there are no rollouts.
    """
    numbers = measure(batches, limits)
    return Preflight(
        numbers=numbers,
        findings=find(numbers, limits, dependence, cost, command, warm_start),
        dependence=dependence,
        cost=cost,
        lines=_lines(numbers, limits, dependence, cost),
    )


def measure(batches: Sequence[RolloutBatch], limits: Limits) -> Numbers:
    """Count what the trial rollouts were.

    Raises:
        ValueError: there are no rollouts.
    """
    episodes = [t for batch in batches for t in batch.trajectories]
    if not episodes:
        raise ValueError("a preflight needs rollouts, but there are none")
    stats = [reward_stats(batch) for batch in batches]
    std_P = np.concatenate([one.std_P for one in stats])
    known_P = np.isfinite(std_P)
    turns = [turn for episode in episodes for turn in episode.turns]
    selections = [select_groups(batch, limits.selection) for batch in batches]
    returns = np.array([episode.episode_return for episode in episodes])
    success = [float(e.is_success) for e in episodes if e.is_success is not None]
    lengths = _sizes(turns)
    return Numbers(
        num_steps=len(batches),
        num_groups=len(std_P),
        num_episodes=len(episodes),
        num_turns=len(turns),
        num_prompts=len({episode.prompt_key for episode in episodes}),
        num_mixed=int((std_P[known_P] > 0).sum()),
        num_mixed_by_task=sum(_mixed_by_task(batch) for batch in batches),
        num_solved=sum(int(one.solved_P.sum()) for one in stats),
        num_hopeless=sum(int(one.hopeless_P.sum()) for one in stats),
        num_equal=sum(int(one.constant_P.sum()) for one in stats),
        num_undefined=int((~known_P).sum()),
        num_identical=sum(int(one.identical_P.sum()) for one in stats),
        success_rate=float(np.mean(success)) if success else NAN,
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        group_std_mean=float(std_P[known_P].mean()) if known_P.any() else NAN,
        format_valid_frac=_frac([turn.answer_chars is not None for turn in turns]),
        action_valid_frac=_frac([bool(turn.is_valid) for turn in turns]),
        action_effective_frac=_frac([bool(turn.is_effective) for turn in turns]),
        capped_frac=_frac([turn.finish_reason is FinishReason.LENGTH for turn in turns]),
        response_p50=float(np.quantile(lengths, 0.5)) if lengths else NAN,
        response_p90=float(np.quantile(lengths, 0.9)) if lengths else NAN,
        prompt_max=max(
            (float(len(t.prompt_tokens)) for t in turns if t.prompt_tokens is not None), default=NAN
        ),
        turns_mean=float(np.mean([episode.num_turns for episode in episodes])),
        too_long_frac=_frac([e.stop_reason is StopReason.PROMPT_TOO_LONG for e in episodes]),
        failed_frac=_frac([episode.stop_reason in _FAILED for episode in episodes]),
        is_finite=_are_finite(episodes),
        num_kept=sum(int(selection.keep_P.sum()) for selection in selections),
        num_empty=sum(selection.is_empty for selection in selections),
        payoff=payoff_of(std_P, luck=luck_words(mean_luck(one.luck_frac for one in stats))),
    )


def dependence_of(estimate: InformationEstimate) -> Dependence:
    """The first-turn information that a preflight shows."""
    return Dependence(
        mutual_information=estimate.mutual_information,
        dependence=estimate.dependence,
        num_prompts=estimate.num_prompts,
        p_value=estimate.retrieval_p_value,
        problem=estimate.problem,
    )


def _mixed_by_task(batch: RolloutBatch) -> int:
    """Groups whose environment's rewards differ between siblings that can train."""
    found = 0
    rewards_PG = batch.array_PG(lambda t: t.env_return)
    for row, good in zip(rewards_PG, batch.trainable_PG, strict=True):
        values = row[good]
        if values.size > 1 and np.ptp(values) > RELATIVE_NOISE * np.abs(values).max():
            found += 1
    return found


def _sizes(turns: Sequence[Turn]) -> list[int]:
    return [len(turn.response_tokens) for turn in turns if turn.response_tokens is not None]


def _frac(values: Sequence[bool]) -> float:
    return float(np.mean(values)) if values else NAN


def _are_finite(episodes: Sequence[Trajectory]) -> bool:
    rewards = [episode.episode_return for episode in episodes]
    logprobs = [t.logprobs for e in episodes for t in e.turns if t.logprobs is not None]
    return bool(np.isfinite(rewards).all()) and all(np.isfinite(row).all() for row in logprobs)


# --- words


def _lines(
    n: Numbers, limits: Limits, dependence: Dependence | None, cost: Cost | None
) -> dict[str, str]:
    out = {
        "rollouts": f"{n.num_episodes} episodes of {n.num_groups} groups ({n.num_prompts} distinct "
        f"prompts), {n.turns_mean:.1f} turns each",
        "success": f"{percent(n.success_rate)} of episodes; mean return {n.return_mean:.3f}, std "
        f"{n.return_std:.3f}",
        "groups": f"{n.num_mixed} with reward spread, {n.num_solved} all solved, "
        f"{n.num_hopeless} all failed"
        + (f", {n.num_equal} with equal returns" if n.num_equal else "")
        + (f", {n.num_undefined} with fewer than two siblings" if n.num_undefined else "")
        + f"; mean reward std {fixed(n.group_std_mean, 3)}",
        "format": f"{percent(n.format_valid_frac)} of replies in the right format, "
        f"{percent(n.action_valid_frac)} with a valid action, "
        f"{percent(n.action_effective_frac)} with an action that had an effect",
        "replies": f"median {n.response_p50:.0f}, 90 % up to {n.response_p90:.0f} of "
        f"{limits.max_response_tokens} tokens; {percent(n.capped_frac)} cut at the cap",
        "prompts": f"up to {n.prompt_max:.0f} of {limits.max_prompt_tokens} tokens",
        "selection": _selection_line(n, limits),
    }
    if dependence is not None:
        out["I(X;Z)"] = _dependence_line(dependence)
    if cost is not None:
        out |= _cost_lines(cost)
    return out


def _selection_line(n: Numbers, limits: Limits) -> str:
    rule = limits.selection
    by = "" if rule.strategy == "none" else f" {rule.value:g} of {rule.metric}"
    by = f" ({rule.function})" if rule.strategy == "custom" else by
    return (
        f"{rule.strategy}{by} keeps {n.num_kept} of {n.num_groups} groups; does filtering by "
        f"reward spread pay: {n.payoff.worth.value} (std over mean of the reward std: "
        f"{fixed(n.payoff.ratio, 2)})"
    )


def _dependence_line(found: Dependence) -> str:
    if found.problem:
        return f"not available: {found.problem}"
    return (
        f"{found.mutual_information:.2f} nats over {found.num_prompts} prompts at the first turn, "
        f"{percent(found.dependence)} of its maximum"
    )


def _cost_lines(cost: Cost) -> dict[str, str]:
    out = {
        "model": f"{cost.num_parameters / 1e6:,.1f} M parameters, "
        f"{cost.num_trainable / 1e6:,.1f} M trained, on {cost.device}"
    }
    kind = "GPU memory allocated" if cost.is_gpu else "the whole process"
    out["memory"] = (
        f"peak {memory_size(cost.peak_bytes)} of {memory_size(cost.total_bytes)} ({kind}, measured"
        + (", without an update)" if cost.problem else ", one update included)")
    )
    if cost.estimate:
        out["memory needed"] = cost.estimate
    if cost.checkpoint_bytes:
        out["disk"] = (
            f"{memory_size(cost.checkpoint_bytes)} a checkpoint (measured), "
            f"{cost.num_checkpoints} kept"
        )
    if cost.problem:
        return out
    out["time"] = (
        f"about {duration_in_two_units(cost.total_s)}: {cost.steps} steps of "
        f"{cost.rollout_s:.2f} s rollouts and {cost.update_s:.2f} s update (both measured), "
        f"{duration_in_two_units(cost.evaluation_s)} for {cost.num_evaluated} evaluation "
        f"episodes ({cost.episode_s * 1e3:.1f} ms each, as in the rollouts); measurements add up "
        f"to {percent(cost.diagnostics_frac)}"
    )
    return out
