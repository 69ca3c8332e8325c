"""The channels that the alarm rules look at: which metric, and how far it must move to count.

Distances come from what real collapses and healthy runs look like, not from one training set: rates
are judged in points below their best, entropies and lengths as factors, success as a share of its
peak. See docs/alarms.md for the table with measured rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ...catalogue import metric
from .series import Kind

LN2, LN10 = math.log(2), math.log(10)
NOT_ABOVE_CHANCE = 0.05
"""p-value of a retrieval accuracy above which it may be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """What is followed, and how far it has to move."""

    name: str
    keys: tuple[str, ...]
    """Metric keys in order of preference; `*` stands for a tag, and tags are averaged. The first
    gives the channel its label and its unit."""
    direction: Literal["fall", "rise"]
    raise_at: float
    """Distance from the baseline: in the metric's unit, in nats of its logarithm, or as a share."""
    against: Literal["best", "start", "recent", "zero"] = "best"
    transform: Literal["none", "log"] = "none"
    is_share: bool = False
    """Distance as a share of the baseline, measured from the lowest level if that is negative."""
    smooth: Literal["median", "mean"] = "median"
    window: int = 5
    persist: int = 3
    least_baseline: float = 0.0
    """A best below this is nothing to fall from (in the metric's unit; not for `transform`)."""
    warmup: int = 5
    """Observations before the baseline counts; one where the metric is measured now and then."""
    has_own_schedule: bool = False
    """An evaluation: it is rare if many steps lie between two of them, whatever rows the log has.
    Any other metric is rare if it is absent from most rows of the log."""

    @property
    def label(self) -> str:
        """As it stands before its numbers: "valid actions"."""
        return metric(self.keys[0]).in_sentence

    @property
    def unit(self) -> str:
        """How its numbers are written (see `rules.base.amount`)."""
        return metric(self.keys[0]).unit


_measured = partial(ChannelSpec, window=3, persist=2, warmup=3)
"""Of an estimate that has its own averaging, and is made every few steps."""
_vanishing = partial(_measured, direction="fall", is_share=True, raise_at=0.75, least_baseline=0.1)
"""Falls below a quarter of its best."""
_level = partial(ChannelSpec, direction="rise", against="zero")
"""Is wrong by its size alone."""

CHANNELS: tuple[ChannelSpec, ...] = (
    # --- format and validity
    ChannelSpec(
        name="closed",
        keys=("rollout/reasoning_closed_frac", "text/closed_reasoning_frac"),
        direction="fall",
        raise_at=0.2,
    ),
    ChannelSpec(
        name="format",
        keys=("rollout/format_valid_frac",),
        direction="fall",
        raise_at=0.2,
    ),
    ChannelSpec(
        name="action",
        keys=("rollout/action_valid_frac", "text/valid_frac"),
        direction="fall",
        raise_at=0.2,
    ),
    ChannelSpec(
        name="eval_action",
        keys=(
            "probe/*/action_valid_frac",
            "probe/action_valid_frac",
            "eval/*/action_valid_frac",
            "eval/action_valid_frac",
        ),
        direction="fall",
        raise_at=0.2,
        has_own_schedule=True,
    ),
    ChannelSpec(
        name="truncated",
        keys=("rollout/length_limited_frac", "text/truncated_frac"),
        direction="rise",
        raise_at=0.2,
    ),
    _level(
        name="capped",
        keys=("rollout/length_limited_frac", "text/truncated_frac"),
        raise_at=0.9,
    ),
    ChannelSpec(
        name="length",
        keys=(
            "rollout/response_length_mean",
            "rollout/num_sampled_tokens_mean",
            "text/num_chars_p50",
        ),
        direction="rise",
        transform="log",
        raise_at=LN2,
    ),
    # --- entropy
    ChannelSpec(
        name="entropy_up",
        keys=("policy/entropy",),
        direction="rise",
        transform="log",
        raise_at=LN2,
    ),
    ChannelSpec(
        name="entropy_down",
        keys=("policy/entropy",),
        direction="fall",
        against="start",
        transform="log",
        raise_at=LN10,
    ),
    _measured(
        name="conditional_entropy_down",
        keys=(
            "info/first_turn/conditional_entropy_per_token",
            "info/all_turns/conditional_entropy_per_token",
        ),
        direction="fall",
        against="start",
        transform="log",
        raise_at=LN10,
    ),
    _measured(
        name="sibling_distance_down",
        keys=("text/sibling_distance",),
        direction="fall",
        is_share=True,
        raise_at=0.75,
    ),
    # --- dependence on the prompt
    _vanishing(
        name="dependence_first",
        keys=("info/first_turn/dependence_high", "info/first_turn/dependence"),
    ),
    _vanishing(
        name="dependence_all",
        keys=("info/all_turns/dependence_high", "info/all_turns/dependence"),
    ),
    _vanishing(
        name="retrieval",
        keys=("info/first_turn/retrieval_margin", "info/all_turns/retrieval_margin"),
    ),
    _vanishing(
        name="text_retrieval",
        keys=("text/retrieval_margin",),
    ),
    _vanishing(
        name="text_dependence",
        keys=("text/dependence",),
    ),
    _measured(
        name="template",
        keys=("text/template_frac",),
        direction="rise",
        raise_at=0.3,
    ),
    _measured(
        name="agreement",
        keys=("text/agreement_frac",),
        direction="fall",
        raise_at=0.2,
    ),
    # --- repetition
    _measured(
        name="duplicates",
        keys=("text/near_duplicate_frac",),
        direction="rise",
        raise_at=0.3,
    ),
    _measured(
        name="loops",
        keys=("text/loop_frac",),
        direction="rise",
        raise_at=0.2,
    ),
    _measured(
        name="echo",
        keys=("text/echo_frac",),
        direction="rise",
        raise_at=0.3,
    ),
    # --- reward spread
    ChannelSpec(
        name="spread",
        keys=("reward/group_std_mean",),
        direction="fall",
        against="start",
        is_share=True,
        raise_at=0.75,
        smooth="mean",
        window=10,
        persist=3,
        warmup=10,
    ),
    _level(
        name="zero_spread",
        keys=("reward/zero_std_frac",),
        raise_at=0.8,
        smooth="mean",
        window=10,
        persist=5,
        warmup=10,
    ),
    # --- the update
    ChannelSpec(
        name="gradient",
        keys=("optim/grad_norm",),
        direction="rise",
        against="recent",
        transform="log",
        raise_at=6.0,
        persist=1,
        warmup=10,
    ),
    _level(
        name="non_finite",
        keys=("optim/non_finite",),
        raise_at=0.5,
        window=1,
        persist=1,
        warmup=1,
    ),
    _level(
        name="regulariser",
        keys=("gradient/regulariser_ratio",),
        raise_at=1.0,
        window=3,
        persist=2,
        warmup=2,
    ),
    ChannelSpec(
        name="success_logprob",
        keys=("policy/success_logprob",),
        direction="fall",
        raise_at=0.05,
        window=10,
        persist=10,
        warmup=10,
    ),
    _level(
        name="mismatch",
        keys=("policy/mismatch_kl",),
        raise_at=0.05,
    ),
    _level(
        name="mismatch_ratio",
        keys=("policy/mismatch_ratio_gap",),
        raise_at=0.02,
    ),
    _level(
        name="staleness",
        keys=("rollout/uncorrected_staleness",),
        raise_at=1.0,
        window=1,  # a count, not an estimate: the first stale step is as certain as the third
        persist=1,
        warmup=1,
    ),
    _level(
        name="ref_kl",
        keys=("policy/ref_kl",),
        raise_at=1.0,
    ),
    _level(
        name="empty_selection",
        keys=("selection/is_empty",),
        raise_at=0.5,
        window=1,
        persist=5,
        warmup=1,
    ),
)


LARGEST_SHARE = 0.95
"""A fall by more than this share of the baseline cannot be told from a fall to nothing."""


def at_distance(spec: ChannelSpec, distance: float) -> ChannelSpec:
    """The channel with another distance at which it counts."""
    return replace(spec, raise_at=min(distance, LARGEST_SHARE) if spec.is_share else distance)


SOURCES: Mapping[str, tuple[str, ...]] = {
    **{
        f"info/{family}/{name}": tuple(f"info/{family}/{source}" for source in sources)
        for family in ("first_turn", "all_turns")
        for name, sources in (
            ("dependence_high", ("mutual_information_high", "num_prompts")),
            (
                "retrieval_margin",
                ("retrieval_accuracy@1", "retrieval_chance@1", "retrieval_p_value"),
            ),
        )
    },
    "text/retrieval_margin": (
        "text/retrieval_accuracy",
        "text/retrieval_chance",
        "text/retrieval_p_value",
    ),
    "policy/mismatch_ratio_gap": ("policy/mismatch_ratio_mean",),
    "rollout/uncorrected_staleness": ("rollout/staleness_mean", "off_policy/weight_mean"),
    "gradient/regulariser_ratio": tuple(
        f"gradient/{term}/all/norm" for term in ("policy", "entropy", "kl")
    ),
}
"""A metric that `derived` makes -> the stored metrics that it is made of."""


def derived(values: Mapping[str, float]) -> dict[str, float]:
    """Metrics that rules need and sources give in other terms; only what can be computed."""
    out: dict[str, float] = {}
    for family in ("first_turn", "all_turns"):
        prefix = f"info/{family}"
        num_prompts = values.get(f"{prefix}/num_prompts", math.nan)
        if num_prompts > 1:
            high = values.get(f"{prefix}/mutual_information_high", math.nan)
            out[f"{prefix}/dependence_high"] = min(max(high / math.log(num_prompts), 0.0), 1.0)
        out[f"{prefix}/retrieval_margin"] = _above_chance(
            values.get(f"{prefix}/retrieval_accuracy@1", math.nan),
            values.get(f"{prefix}/retrieval_chance@1", math.nan),
            values.get(f"{prefix}/retrieval_p_value", math.nan),
        )
    out["text/retrieval_margin"] = _above_chance(
        values.get("text/retrieval_accuracy", math.nan),
        values.get("text/retrieval_chance", math.nan),
        values.get("text/retrieval_p_value", math.nan),
    )
    if "reward/zero_std_frac" not in values:
        out["reward/zero_std_frac"] = values.get("reward/solved_frac", math.nan) + values.get(
            "reward/hopeless_frac", math.nan
        )
    task = values.get("gradient/policy/all/norm", math.nan)
    others = [values.get(f"gradient/{term}/all/norm", math.nan) for term in ("entropy", "kl")]
    known = [norm for norm in others if math.isfinite(norm)]
    if task > 0 and known:
        out["gradient/regulariser_ratio"] = max(known) / task
    lag = values.get("rollout/staleness_mean", math.nan)
    out["rollout/uncorrected_staleness"] = 0.0 * lag if "off_policy/weight_mean" in values else lag
    ratio = values.get("policy/mismatch_ratio_mean", math.nan)
    out["policy/mismatch_ratio_gap"] = abs(ratio - 1)
    update = [v for key, v in values.items() if key.startswith(("loss/", "optim/"))]
    if update:
        broken = any(math.isinf(value) for value in update)
        skipped = values.get("optim/num_skipped", 0.0) > 0
        out["optim/non_finite"] = float(broken or skipped)
    return {key: value for key, value in out.items() if math.isfinite(value)}


def _above_chance(accuracy: float, chance: float, p_value: float) -> float:
    """How far retrieval is above chance; 0 where a permutation test cannot tell it from chance."""
    return 0.0 if p_value > NOT_ABOVE_CHANCE else accuracy - chance


def known_keys() -> list[str]:
    """Every key that a rule reads, and those it is derived from: what `--map` may name."""

    direct = [key for spec in SPECS for key in spec.keys]
    sources = [
        "rollout/num_episodes",
        "rollout/num_groups",
        "reward/solved_frac",
        "reward/hopeless_frac",
        "text/retrieval_accuracy",
        "text/retrieval_chance",
        "gradient/policy/all/norm",
        "gradient/entropy/all/norm",
        "gradient/kl/all/norm",
        "policy/mismatch_ratio_mean",
        "rollout/staleness_mean",
        *(
            f"info/{family}/{name}"
            for family in ("first_turn", "all_turns")
            for name in (
                "mutual_information",
                "num_prompts",
                "retrieval_accuracy@1",
                "retrieval_chance@1",
                "conditional_entropy",
            )
        ),
    ]
    return list(dict.fromkeys([*direct, *sources]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSpec:
    """Which metric is followed, and what is known of its noise."""

    name: str
    keys: tuple[str, ...]
    """Metric keys in order of preference; `*` stands for a tag, and tags are averaged."""
    kind: Kind
    is_fixed: bool = False
    """An evaluation: the same tasks each time."""
    trials: str = ""
    """The metric that says over how many outcomes: beside the key if it has no `/`."""
    groups: str = ""

    @property
    def label(self) -> str:
        return metric(self.keys[0]).in_sentence

    @property
    def unit(self) -> str:
        return metric(self.keys[0]).unit


OUTCOMES: tuple[OutcomeSpec, ...] = (
    OutcomeSpec(
        name="success_probe",
        keys=("probe/*/success_rate", "probe/success_rate"),
        kind="rate",
        is_fixed=True,
        trials="num_tasks",
    ),
    OutcomeSpec(
        name="success_eval",
        keys=("eval/*/success_rate", "eval/success_rate"),
        kind="rate",
        is_fixed=True,
        trials="num_tasks",
    ),
    OutcomeSpec(
        name="success_train",
        keys=("rollout/success_rate",),
        kind="rate",
        trials="rollout/num_episodes",
        groups="rollout/num_groups",
    ),
    OutcomeSpec(
        name="eval_reward",
        keys=("eval/*/return_mean", "eval/return_mean"),
        kind="amount",
        is_fixed=True,
    ),
    OutcomeSpec(name="reward", keys=("reward/return_mean",), kind="amount"),
)
"""The most trustworthy first."""
SPECS: tuple[ChannelSpec | OutcomeSpec, ...] = (*CHANNELS, *OUTCOMES)
"""All that rules may rest on."""
