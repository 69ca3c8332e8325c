"""Settings of the diagnostics: what is measured, when, and how groups are selected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from echoscope.store.records import MAX_STEP

from .judge.courses.channels import CHANNELS, OUTCOMES, SPECS
from .judge.courses.outcome import LARGE_SHARE
from .judge.rules.alarm_texts import RuleName


class FrozenModel(BaseModel):
    """Base of every configuration model: immutable, strict, and an unknown key is an error.

    A number is not read from text, and true is not 1: what a word means is decided where it is
    parsed (YAML 1.2).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


_T = TypeVar("_T")
Live = Annotated[_T, Field(json_schema_extra={"live": True})]
"""A field that may change while the run is going."""


class SelectionConfig(FrozenModel):
    """Which groups train: SNR-adaptive filtering (RAGEN-2, section 4) and the filters of DAPO
    (`mixed`, `overlong`, `max_groups`)."""

    strategy: Live[Literal["none", "top_p", "top_k", "top_k_abs", "min_p", "custom"]] = Field(
        "none",
        description="none: keep all. top_p: keep the best groups that hold `value` of the metric's "
        "sum. top_k: keep this share of the groups. top_k_abs: keep this many. min_p: keep groups "
        "above value * max. custom: your own rule, selection.function.",
    )
    function: str = Field(
        "",
        max_length=200,
        description="Your own rule, `module:function` or an entry point, for strategy custom.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of your own rule."
    )
    metric: Live[Literal["reward_std", "reward_mean", "reward_sum", "entropy", "length"]] = Field(
        "reward_std", description="Metric that ranks the units."
    )
    value: Live[float] = Field(
        0.9,
        gt=0,
        le=1e6,
        description="Threshold of the strategy: a share, or with top_k_abs a number.",
    )
    keep: Live[Literal["largest", "smallest"]] = Field(
        "largest",
        description="Keep the units with the largest, or with the smallest metric.",
    )
    include_zero: Live[bool] = Field(
        False,
        description="Also consider units whose metric is zero.",
    )
    mixed: Live[Literal["any", "return", "success"]] = Field(
        "any",
        description="any: groups of every kind may train. return: only groups whose siblings "
        "differ in return. success: only groups in which some succeeded and some did not.",
    )
    overlong: Live[Literal["keep", "drop"]] = Field(
        "keep",
        description="drop: an episode with a reply that was cut at its longest does not train; its "
        "return still counts for its siblings.",
    )
    max_groups: Live[int] = Field(
        0,
        ge=0,
        le=MAX_STEP,
        description="Only the first so many of the groups that are kept train; 0 for all.",
    )

    @model_validator(mode="after")
    def _value_fits_strategy(self) -> SelectionConfig:
        if self.strategy == "custom" and not self.function:
            raise ValueError(
                "selection.strategy is custom, which needs your own rule: start the run with "
                "selection.function=module:function"
            )
        if self.strategy in ("top_p", "top_k", "min_p") and self.value > 1:
            raise ValueError(
                "selection.value must be between 0 and 1 with "
                f"selection.strategy={self.strategy}, not {self.value:g}. For a count of groups "
                "set selection.strategy=top_k_abs."
            )
        return self


class InformationConfig(FrozenModel):
    """When I(X;Z) is measured, and how many prompts and reasonings of the first turn are compared.

    Estimates of different size are not comparable (their ceiling is ln N), so sizes are settings.
    """

    every: Live[int] = Field(
        5,
        ge=0,
        le=MAX_STEP,
        description="Steps between two measurements of I(X;Z), or more if they exceed "
        "diagnostics.budget_frac and nothing changes; 0 turns them off.",
    )
    prompts: int = Field(8, ge=2, le=4096, description="Distinct first prompts, at most.")
    reasonings: int = Field(8, ge=1, le=4096, description="Reasonings per first prompt, at most.")


class TextConfig(FrozenModel):
    """How often the text alone is read."""

    every: Live[int] = Field(
        2,
        ge=0,
        le=MAX_STEP,
        description="Steps between two measurements of the text; 0 turns them off.",
    )


if TYPE_CHECKING:
    ChannelName = str
else:
    ChannelName = Literal[tuple(spec.name for spec in SPECS)]


class AlarmConfig(FrozenModel):
    """Which rules judge the run, from when on, and what they do."""

    warmup_steps: int = Field(
        20,
        ge=0,
        le=MAX_STEP,
        description="During these first steps only a loss of success can make an alarm critical, "
        "because early batches differ more than the policy does.",
    )
    disabled: tuple[RuleName, ...] = Field(
        (), strict=False, description="Alarms that are turned off."
    )
    thresholds: dict[ChannelName, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default_factory=dict,
        description="How far a metric must move before it counts, instead of the default "
        "(docs/alarms.md): a difference for rates, a difference of logarithms for entropy and "
        "length, a share of the best for success, dependence and reward spread.",
        json_schema_extra=dict[str, Any](
            live=True,
            defaults={spec.name: round(spec.raise_at, 4) for spec in CHANNELS}
            | {spec.name: LARGE_SHARE for spec in OUTCOMES},
        ),
    )
    actions: Live[dict[RuleName, Literal["notify", "pause", "stop"]]] = Field(
        default_factory=dict,
        description="What an alarm does when it is raised: notify (default), pause or stop.",
    )


ADDRESSED = ("webhook", "slack", "discord", "teams", "apprise")
"""Kinds of targets that have an address, which may be a secret."""
_TARGET = re.compile(
    rf"desktop|command:.+|(?:{'|'.join(ADDRESSED)}):[A-Za-z_]\w*", re.ASCII | re.DOTALL
)


class NotifyConfig(FrozenModel):
    """Who is told of alarms, and how often."""

    targets: tuple[Annotated[str, Field(max_length=4000)], ...] = Field(
        (),
        max_length=20,
        strict=False,
        description="desktop, command:COMMAND, or slack:, discord:, teams:, webhook: or apprise: "
        "with the name of an environment variable. Nobody is told by default.",
    )
    severity: Literal["warning", "critical"] = Field(
        "critical", description="The mildest alarm that is told."
    )
    every_s: float = Field(
        3600.0,
        ge=0,
        le=1e7,
        description="Seconds between two messages. Alarms of the time between are told together.",
    )
    at_end: bool = Field(False, description="Also tell how the run ended.")
    dashboard_url: str = Field(
        "",
        max_length=500,
        pattern=r"^(https?://[^\s?#]+)?$",
        description="Where the dashboard is reached, for the link in a message.",
    )

    @field_validator("targets")
    @classmethod
    def _are_targets(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        for target in targets:
            if not _TARGET.fullmatch(target):
                has_address = target.startswith(ADDRESSED) or "://" in target
                given = "an address" if has_address else repr(target[:80])
                raise ValueError(  # what stands there may be a secret
                    f"a target of notify is {given}, but must be desktop, command:COMMAND, or "
                    "slack:, discord:, teams:, webhook: or apprise: with the NAME of an "
                    "environment variable that holds the address, such as slack:SLACK_HOOK; run: "
                    "export SLACK_HOOK=ADDRESS"
                )
        return targets


class GradientConfig(FrozenModel):
    """How often gradients are taken apart."""

    every: Live[int] = Field(
        25,
        ge=0,
        le=MAX_STEP,
        description="Steps between two gradient breakdowns; 0 turns them off.",
    )


class DiagnosticsConfig(FrozenModel):
    """What a training run measures of itself, and when, and who judges it."""

    enabled: bool = Field(True, description="Measure and judge the run.")
    budget_frac: float = Field(
        0.025,
        gt=0,
        le=1,
        description="Share of the training's work that information and gradients may take. If they "
        "need more, they are measured less often than `every` says. While I(X;Z), the text or "
        "success shows a sign of collapse, information is measured every `every` steps, ahead of "
        "the budget.",
    )
    text: TextConfig = Field(default_factory=TextConfig)
    information: InformationConfig = Field(default_factory=InformationConfig)
    gradient: GradientConfig = Field(default_factory=GradientConfig)
    alarms: AlarmConfig = Field(default_factory=AlarmConfig)
    notify: NotifyConfig = Field(default_factory=NotifyConfig)
