"""Settings of the loss and of the critic. Defaults live here and in `settings.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from echoscope.diagnostics.config import FrozenModel, Live

from .limits import Coefficient, LearningRate, PluginName, Share, Steps, Tokens

Aggregation = Literal[
    "token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"
]


_AGGREGATION = "How much a token counts in the mean of the loss (docs/algorithms.md)."
_CLIP_LOW = "The importance ratio is clipped at 1 minus this."
_CLIP_HIGH = "The importance ratio is clipped at 1 plus this; higher keeps more exploration."


class _LossConfig(FrozenModel):
    aggregation: Aggregation = Field("token_mean", description=_AGGREGATION)
    norm_tokens: Tokens | None = Field(
        None,
        description="seq_mean_token_sum_norm divides each trajectory's sum by this; null for the "
        "most tokens that an episode may sample.",
    )
    kl_coef: Live[Coefficient] = Field(
        0.0, description="Weight of the KL penalty against the reference policy."
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="How the logged KL is estimated; the gradient does not depend on it."
    )
    entropy_coef: Live[float] = Field(
        0.0,
        ge=-1e3,
        le=1e3,
        description="Weight of the entropy bonus; too high, and replies become random.",
    )
    value_coef: Live[Coefficient] = Field(0.5, description="Weight of the critic's loss.")
    value_clip: float | None = Field(
        0.5,
        gt=0,
        le=1e6,
        description="Largest move of a value in an update that lowers the critic's loss; null: no "
        "limit.",
    )


class _SurrogateConfig(_LossConfig):
    clip_low: Live[Share] = Field(0.2, description=_CLIP_LOW)
    clip_high: Live[Coefficient] = Field(0.28, description=_CLIP_HIGH)


class ClipLossConfig(_SurrogateConfig):
    """PPO's clipped surrogate, with separate low and high clip and an optional dual clip."""

    kind: Literal["clip"] = "clip"
    dual_clip: float | None = Field(
        3.0,
        gt=1,
        le=1e6,
        description="Largest factor on a negative advantage; null: no limit.",
    )


class GspoLossConfig(_SurrogateConfig):
    """GSPO: the geometric-mean ratio of the whole sequence is clipped."""

    kind: Literal["gspo"] = "gspo"
    # A ratio of whole sequences hardly moves: the paper's limits are a thousandth of PPO's.
    clip_low: Live[Share] = Field(3e-4, description=_CLIP_LOW)
    clip_high: Live[Coefficient] = Field(4e-4, description=_CLIP_HIGH)
    # The paper averages over sequences (Zheng et al. 2025, equation 5).
    aggregation: Aggregation = Field("seq_mean_token_mean", description=_AGGREGATION)


class CispoLossConfig(_SurrogateConfig):
    """CISPO: the importance weight is clipped and carries no gradient."""

    kind: Literal["cispo"] = "cispo"
    clip_low: Live[Share] = Field(
        1.0,
        description="The importance ratio is clipped at 1 minus this; 1 for no limit (MiniMax-M1).",
    )


class CustomLossConfig(_LossConfig):
    """A loss of your own for each token; averages, KL, entropy and values stay as configured."""

    kind: Literal["custom"] = "custom"
    function: PluginName
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the function."
    )


LossConfig = Annotated[
    ClipLossConfig | GspoLossConfig | CispoLossConfig | CustomLossConfig,
    Field(discriminator="kind"),
]


class NoCriticConfig(FrozenModel):
    """No critic."""

    kind: Literal["none"] = "none"


class _CriticConfig(FrozenModel):
    warmup_steps: Steps = Field(
        0,
        description="Steps at the beginning in which only the critic trains, so that the policy's "
        "first advantages are no noise. With kind head, only the head trains in them.",
    )


class HeadCriticConfig(_CriticConfig):
    """A value head on the policy's own trunk."""

    kind: Literal["head"] = "head"
    lr: LearningRate = Field(1e-3, description="Learning rate of the head.")
    detach: bool = Field(False, description="The value loss does not train the trunk.")


class ModelCriticConfig(_CriticConfig):
    """A second model with a value head."""

    kind: Literal["model"] = "model"
    path: str = Field("", description="Empty for the policy's own starting weights.")
    lr: LearningRate = Field(1e-5, description="Learning rate of the critic.")


CriticConfig = Annotated[
    NoCriticConfig | HeadCriticConfig | ModelCriticConfig, Field(discriminator="kind")
]
