"""The channels that the alarm rules look at: which metric, and how far it must move to count.

Distances come from what real collapses and healthy runs look like, not from one training set: rates
are judged in points below their best, entropies and lengths as factors, success as a share of its
peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from echoscope.store.query import metric_keys

from ...catalogue import metric
from .series import Kind

LN2, LN10 = math.log(2), math.log(10)
NOT_ABOVE_CHANCE = 0.05
"""p-value of a retrieval accuracy above which it may be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Which metric is followed."""

    name: str
    keys: tuple[str, ...]
    """Metric keys in order of preference; `*` stands for a tag, and tags are averaged. The first
    gives the label and the unit."""

    @property
    def label(self) -> str:
        """As it stands before its numbers: "valid actions"."""
        return metric(self.keys[0]).in_sentence

    @property
    def unit(self) -> str:
        """How its numbers are written (see `rules.base.amount`)."""
        return metric(self.keys[0]).unit


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec(Spec):
    """A metric, and how far it has to move."""

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


def _fall(name: str, raise_at: float, *keys: str, **rest: Any) -> ChannelSpec:
    """A metric that must not fall so far below its best."""
    return ChannelSpec(name=name, keys=keys, direction="fall", raise_at=raise_at, **rest)


def _rise(name: str, raise_at: float, *keys: str, **rest: Any) -> ChannelSpec:
    """A metric that must not rise so far above its lowest."""
    return ChannelSpec(name=name, keys=keys, direction="rise", raise_at=raise_at, **rest)


def _size(name: str, raise_at: float, *keys: str, **rest: Any) -> ChannelSpec:
    """A metric that is wrong by its size alone."""
    return _rise(name, raise_at, *keys, against="zero", **rest)


_ESTIMATE: Mapping[str, Any] = {"window": 3, "persist": 2, "warmup": 3}
"""Of what has its own averaging, and is made every few steps."""
_VANISHING: Mapping[str, Any] = {**_ESTIMATE, "is_share": True, "least_baseline": 0.1}
_QUARTER = 0.75
"""Share of the best that is lost where a quarter is left."""
_OF_TEN: Mapping[str, Any] = {"smooth": "mean", "window": 10, "warmup": 10}
_AT_ONCE: Mapping[str, Any] = {"window": 1, "persist": 1, "warmup": 1}
"""Of a count, which is no estimate: the first is as certain as the third."""
_FROM_START: Mapping[str, Any] = {"against": "start", "transform": "log"}
_CUT_REPLIES = ("rollout/length_limited_frac", "text/truncated_frac")

CHANNELS: tuple[ChannelSpec, ...] = (
    # --- format and validity
    _fall("closed", 0.2, "rollout/reasoning_closed_frac", "text/closed_reasoning_frac"),
    _fall("format", 0.2, "rollout/format_valid_frac"),
    _fall("action", 0.2, metric_keys.ACTION_VALID, "text/valid_frac"),
    _fall(
        "eval_action",
        0.2,
        "probe/*/action_valid_frac",
        "probe/action_valid_frac",
        "eval/*/action_valid_frac",
        "eval/action_valid_frac",
        has_own_schedule=True,
    ),
    _rise("truncated", 0.2, *_CUT_REPLIES),
    _size("capped", 0.9, *_CUT_REPLIES),
    _rise(
        "length",
        LN2,
        metric_keys.RESPONSE_LENGTH,
        metric_keys.SAMPLED_TOKENS,
        "text/num_chars_p50",
        transform="log",
    ),
    # --- entropy
    _rise("entropy_up", LN2, metric_keys.ENTROPY, transform="log"),
    _fall("entropy_down", LN10, metric_keys.ENTROPY, **_FROM_START),
    _fall(
        "conditional_entropy_down",
        LN10,
        "info/first_turn/conditional_entropy_per_token",
        "info/all_turns/conditional_entropy_per_token",
        **_FROM_START,
        **_ESTIMATE,
    ),
    _fall("sibling_distance_down", _QUARTER, "text/sibling_distance", is_share=True, **_ESTIMATE),
    # --- dependence on the prompt
    *(
        _fall(
            f"dependence_{name}",
            _QUARTER,
            f"info/{family}/dependence_high",
            f"info/{family}/dependence",
            **_VANISHING,
        )
        for name, family in (("first", "first_turn"), ("all", "all_turns"))
    ),
    _fall(
        "retrieval",
        _QUARTER,
        "info/first_turn/retrieval_margin",
        "info/all_turns/retrieval_margin",
        **_VANISHING,
    ),
    _fall("text_retrieval", _QUARTER, "text/retrieval_margin", **_VANISHING),
    _fall("text_dependence", _QUARTER, "text/dependence", **_VANISHING),
    _rise("template", 0.3, "text/template_frac", **_ESTIMATE),
    _fall("agreement", 0.2, "text/agreement_frac", **_ESTIMATE),
    # --- repetition
    _rise("duplicates", 0.3, "text/near_duplicate_frac", **_ESTIMATE),
    _rise("loops", 0.2, "text/loop_frac", **_ESTIMATE),
    _rise("echo", 0.3, "text/echo_frac", **_ESTIMATE),
    _rise("copied", 0.4, "text/prompt_copy_frac", **_ESTIMATE),
    _rise("empty", 0.3, "text/empty_reasoning_frac", **_ESTIMATE),
    # --- reward spread
    _fall("spread", _QUARTER, metric_keys.GROUP_STD, against="start", is_share=True, **_OF_TEN),
    _size("zero_spread", 0.8, metric_keys.ZERO_STD, persist=5, **_OF_TEN),
    # --- the update
    _rise(
        "gradient",
        6.0,
        metric_keys.GRAD_NORM,
        against="recent",
        transform="log",
        persist=1,
        warmup=10,
    ),
    _size("non_finite", 0.5, "optim/non_finite", **_AT_ONCE),
    _size("regulariser", 1.0, metric_keys.REGULARISER_RATIO, window=3, persist=2, warmup=2),
    _fall("success_logprob", 0.05, "policy/success_logprob", window=10, persist=10, warmup=10),
    _size("mismatch", 0.05, "policy/mismatch_kl"),
    _size("mismatch_ratio", 0.02, "policy/mismatch_ratio_gap"),
    _size("staleness", 1.0, "rollout/uncorrected_staleness", **_AT_ONCE),
    _size("ref_kl", 1.0, metric_keys.REF_KL),
    _size("empty_selection", 0.5, "selection/is_empty", window=1, persist=5, warmup=1),
)


LARGEST_SHARE = 0.95
"""A fall by more than this share of the baseline cannot be told from a fall to nothing."""


def at_distance(spec: ChannelSpec, distance: float) -> ChannelSpec:
    """The channel with another distance at which it counts."""
    return replace(spec, raise_at=min(distance, LARGEST_SHARE) if spec.is_share else distance)


_RETRIEVALS: Mapping[str, str] = {"info/first_turn": "@1", "info/all_turns": "@1", "text": ""}
"""How the metrics of a retrieval begin, and end where they are of the first guess."""
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
    metric_keys.REGULARISER_RATIO: tuple(
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
    for prefix, top in _RETRIEVALS.items():
        accuracy, chance, p_value = (
            values.get(f"{prefix}/retrieval_{name}", math.nan)
            for name in (f"accuracy{top}", f"chance{top}", "p_value")
        )
        if math.isnan(chance) and (num_prompts := values.get(f"{prefix}/num_prompts", 0.0)) > 0:
            chance = 1 / num_prompts
        # 0 where a permutation test cannot tell it from chance.
        is_chance = p_value > NOT_ABOVE_CHANCE
        out[f"{prefix}/retrieval_margin"] = 0.0 if is_chance else accuracy - chance
    if metric_keys.ZERO_STD not in values:
        out[metric_keys.ZERO_STD] = values.get("reward/solved_frac", math.nan) + values.get(
            "reward/hopeless_frac", math.nan
        )
    task = values.get("gradient/policy/all/norm", math.nan)
    others = [values.get(f"gradient/{term}/all/norm", math.nan) for term in ("entropy", "kl")]
    finite = [norm for norm in others if math.isfinite(norm)]
    if task > 0 and finite:
        out[metric_keys.REGULARISER_RATIO] = max(finite) / task
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


def known_keys() -> list[str]:
    """Every key that a rule reads, and those it is derived from: what `--map` may name."""
    direct = [key for spec in SPECS for key in spec.keys]
    made_of = [key for keys in SOURCES.values() for key in keys]
    return list(dict.fromkeys([*direct, *made_of, *_BESIDE]))


_BESIDE = (
    "rollout/num_episodes",
    "rollout/num_groups",
    "reward/solved_frac",
    "reward/hopeless_frac",
    "info/first_turn/mutual_information",
    "info/first_turn/conditional_entropy",
    "info/all_turns/mutual_information",
    "info/all_turns/conditional_entropy",
)
"""What else is read, and no channel follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSpec(Spec):
    """A measure of success or a return, and what is known of its noise."""

    kind: Kind
    is_fixed: bool = False
    """An evaluation: the same tasks each time."""
    trials: str = ""
    """The metric that says over how many outcomes: beside the key if it has no `/`."""
    groups: str = ""


OUTCOMES: tuple[OutcomeSpec, ...] = (
    *(
        OutcomeSpec(
            name=f"success_{where}",
            keys=(f"{where}/*/success_rate", f"{where}/success_rate"),
            kind="rate",
            is_fixed=True,
            trials="num_tasks",
        )
        for where in ("probe", "eval")
    ),
    OutcomeSpec(
        name="success_train",
        keys=(metric_keys.SUCCESS_RATE,),
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
    OutcomeSpec(name="reward", keys=(metric_keys.RETURN_MEAN,), kind="amount"),
)
"""The most trustworthy first."""
SPECS: tuple[ChannelSpec | OutcomeSpec, ...] = (*CHANNELS, *OUTCOMES)
"""All that rules may rest on."""
