"""The parts of the catalogue about asynchronous collection and samples of another policy."""

from __future__ import annotations

from .metric_entry import Metric
from .metric_entry import of_unit as _of
from .metric_entry import share as _share

OFF_POLICY_METRICS: tuple[Metric, ...] = (
    _of(
        "policy/stale_kl",
        "KL of older weights",
        "nats per token",
        "KL divergence between sampler and trainer on the tokens that older weights sampled: how "
        "far the policy has moved since. The mismatch KL leaves these tokens out.",
        "down",
        "KL between the weights that sampled and those that train",
    ),
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

COLLECTION_METRICS: tuple[Metric, ...] = (
    _of(
        "collection/engine_wait_s",
        "Engine waited",
        "s",
        "Seconds of a step's collection in which the engine had nothing to sample, because all "
        "episodes waited for their environments. Large: more episodes in flight help.",
        "down",
    ),
    _of(
        "collection/env_wait_s",
        "Environments waited",
        "s",
        "Seconds of a step's collection in which no environment was at work, because all episodes "
        "waited for the engine. Near the whole: sampling is the bottleneck.",
        "down",
    ),
    _of(
        "collection/update_wait_s",
        "Update waited",
        "s",
        "Seconds that the update waited for the episodes of its step.",
        "down",
    ),
    _of(
        "collection/num_requests_mean",
        "Requests at the engine",
        "requests",
        "Replies that the engine sampled at the same time or had in its queue, mean over the "
        "time of a step's collection.",
        "",
    ),
    _of(
        "collection/num_env_calls_mean",
        "Environment calls",
        "calls",
        "Environments at work at the same time, mean over the time of a step's collection.",
        "",
    ),
    _of(
        "collection/num_steps_ahead",
        "Steps ahead",
        "steps",
        "Whole steps that had been played before the step that trained; at most "
        "`collection.max_staleness`.",
        "",
    ),
)

ENGINE_METRICS: tuple[Metric, ...] = (
    _of(
        "engine/sync_s",
        "Weight sync",
        "s",
        "Seconds of the step in which new weights went to the engine that samples.",
        "down",
    ),
    _of(
        "engine/num_retries",
        "Repeated requests",
        "",
        "Requests of the step that a sampling server failed and that were made again. Worry if it "
        "is rarely 0.",
        "down",
    ),
    _of(
        "engine/num_restarts",
        "Server restarts",
        "",
        "Sampling servers of the step that died and were started again. It should be 0.",
        "down",
    ),
)
"""Of engines that sample elsewhere."""
