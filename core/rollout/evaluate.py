"""Evaluation and probe: success on tasks that never train, the same ones each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from echoscope.diagnostics.measure.outcomes import pass_at_k
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.store.records import RolloutBatch, Split

from ..update.metrics import mean, success_rate


def evaluation_metrics(
    batch: RolloutBatch, split: Split = Split.EVAL, *, pass_at: Sequence[int] = ()
) -> dict[str, float]:
    """Success with its 95 % interval, return and pass@k per tag, and over all tags.

    The interval is over tasks: with several siblings a task counts by its mean success, so that
    siblings, which share the task, do not pass for independent trials. A task counts only if some
    sibling's success is known: not where the environment failed or cannot tell.

    Args:
        split: EVAL or PROBE; it begins every key.
        pass_at: the k of further pass@k, with intervals (`pass_at_k`); at most G. Without them
            there is only pass@G, the share of tasks that any sibling solved.
    """
    out: dict[str, float] = {}
    tags = sorted({trajectory.tag for trajectory in batch.trajectories})
    for tag in tags:
        groups = tuple(group for group in batch.groups if group[0].tag == tag)
        out |= _tag_metrics(f"{split}/{tag}", RolloutBatch(groups=groups), pass_at)
    if len(tags) > 1:
        out |= _tag_metrics(f"{split}/all", batch, pass_at)
    return out


def success_over_tags(values: Mapping[str, float]) -> float:
    """Success over all tags, from the metrics of an evaluation; NaN where there is none.

    >>> success_over_tags({"eval/lake/success_rate": 0.5, "probe/lake/success_rate": 0.9})
    0.5
    """
    suffix = "/success_rate"
    rates = {k: v for k, v in values.items() if k.startswith("eval/") and k.endswith(suffix)}
    return rates.get("eval/all/success_rate", mean(list(rates.values())))


def _tag_metrics(prefix: str, batch: RolloutBatch, pass_at: Sequence[int]) -> dict[str, float]:
    judged = [g for g in batch.groups if any(t.is_success is not None for t in g)]
    rates = [success_rate(group) for group in judged]
    low, high = wilson_interval(mean(rates), len(rates))
    any_P = [float(any(t.is_success for t in group)) for group in judged]
    valid = [float(bool(turn.is_valid)) for t in batch.trajectories for turn in t.turns]
    out = {
        f"{prefix}/success_rate": mean(rates),
        f"{prefix}/success_rate_low": float(low),
        f"{prefix}/success_rate_high": float(high),
        f"{prefix}/pass_at_{batch.group_size}": mean(any_P),
        f"{prefix}/return_mean": mean(
            [t.episode_return for t in batch.trajectories if not t.stop_reason.is_failure]
        ),
        f"{prefix}/action_valid_frac": mean(valid),
        f"{prefix}/num_turns_mean": mean([float(t.num_turns) for t in batch.trajectories]),
        f"{prefix}/num_tasks": float(len(judged)),
    }
    outcomes = [[t.is_success for t in g if t.is_success is not None] for g in batch.groups]
    for k in pass_at:  # over the tasks that have at least k siblings with a known success
        chances = [pass_at_k(len(each), sum(each), k) for each in outcomes if len(each) >= k]
        low, high = wilson_interval(mean(chances), len(chances))
        key = f"{prefix}/pass_at_{k}"
        out |= {key: mean(chances), f"{key}_low": float(low), f"{key}_high": float(high)}
    return out
