"""The part of the catalogue about the weights of samples of another policy."""

from __future__ import annotations

from .metric_entry import Metric
from .metric_entry import of_unit as _of
from .metric_entry import share as _share

OFF_POLICY_METRICS: tuple[Metric, ...] = (
    _of(
        "off_policy/weight_mean",
        "Importance weight",
        "",
        "Mean weight of the sampled tokens: trainer's over sampler's probability, after `cap` or "
        "the band. Near 1 if both agree.",
        "steady",
    ),
    _of("off_policy/weight_max", "Largest weight", "", "Largest weight of a sampled token."),
    _share(
        "off_policy/truncated_frac",
        "Truncated weights",
        "Share of tokens whose weight was cut at `off_policy.cap`. Each cut biases the gradient; "
        "worry above 5 %.",
        "down",
    ),
    _share(
        "off_policy/masked_frac",
        "Masked tokens",
        "Share of tokens that the update leaves out, because sampler and trainer differ by more "
        "than `off_policy.low` to `high` allows. Worry above 5 %.",
        "down",
    ),
    _share(
        "off_policy/effective_frac",
        "Effective sample",
        "Effective sample size of the weights over the number of tokens: 100 % for equal weights. "
        "Worry below 50 %: few tokens carry the update.",
        "up",
    ),
    _of(
        "off_policy/sequence_weight_mean",
        "Trajectory weight",
        "",
        "Mean weight of the trajectories, where `off_policy.level` is sequence. Near 1 if sampler "
        "and trainer agree.",
        "steady",
    ),
    _share(
        "off_policy/sequence_truncated_frac",
        "Truncated trajectories",
        "Share of trajectories whose weight was cut at `off_policy.cap`.",
        "down",
    ),
    _share(
        "off_policy/sequence_masked_frac",
        "Masked trajectories",
        "Share of trajectories that the update leaves out, because sampler and trainer differ too "
        "much. Worry above 20 %.",
        "down",
    ),
    _share(
        "off_policy/sequence_effective_frac",
        "Effective trajectories",
        "Effective sample size of the trajectories' weights over their number. Worry below 50 %: "
        "few trajectories carry the update.",
        "up",
    ),
)
