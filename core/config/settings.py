"""The settings of a run and their defaults; sections with a file of their own are imported here.

Fields marked live may change while the run is going (`echoscope ctl RUN set KEY=VALUE`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from echoscope.diagnostics.config import (
    DiagnosticsConfig,
    FrozenModel,
    Live,
    SelectionConfig,
)
from echoscope.diagnostics.sinks.settings import SinksConfig
from echoscope.envs.settings import EnvGroup
from echoscope.store.records import MAX_STEP

from .beside_training import (
    BranchedFrom,
    CheckpointConfig,
    CurriculumConfig,
    EvalConfig,
    GuardConfig,
    ObserverEntry,
    ProbeConfig,
    RecipeOrigin,
)
from .collection import CollectionConfig
from .consistency import contradictions
from .context import ContextConfig
from .engine import EngineConfig, HfEngineConfig
from .limits import (
    MAX_COUNT,
    MIN_TEMPERATURE,
    Coefficient,
    Decay,
    LearningRate,
    PluginName,
    Rows,
    Share,
    Steps,
    Tokens,
)
from .loss import ClipLossConfig, CriticConfig, LossConfig, NoCriticConfig

StopString = Annotated[str, Field(min_length=1, max_length=200)]
TokenId = Annotated[int, Field(ge=0, le=10_000_000)]


class LoraConfig(FrozenModel):
    """Low-rank adapters. The reference policy is then the base with the adapters off."""

    rank: int = Field(64, ge=1, le=4096, description="Rank of the adapters' matrices.")
    alpha: float = Field(
        64.0, gt=0, le=1e6, description="Adapters are scaled by this over the rank."
    )
    target_modules: list[str] | Literal["all-linear"] = Field(
        "all-linear", description="Names of the layers that get adapters."
    )


class ModelConfig(FrozenModel):
    path: str = Field(
        "tiny",
        description="A name of `echoscope models list`, a folder, or a Hugging Face id.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 on CUDA, float32 elsewhere."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA where there is a GPU, else the CPU."
    )
    lora: LoraConfig | None = Field(
        None, description="Train low-rank adapters only; null: all weights."
    )
    gradient_checkpointing: bool | None = Field(
        None,
        description="Recompute activations in the backward pass: a third more time, a fraction of "
        "the memory. null: on with CUDA, off elsewhere.",
    )

    packing: bool = Field(
        True,
        description="Forward the update's rows without padding, and a beginning that rows share, "
        "such as siblings' prompt, once. Models whose attention cannot be replaced are padded. "
        "The numbers are those of padded rows but for rounding.",
    )

    def checkpoints_activations(self, device_type: str) -> bool:
        """Whether activations are computed again in backward on `cpu` or `cuda`."""
        if self.gradient_checkpointing is None:
            return device_type == "cuda"
        return self.gradient_checkpointing


class SamplingConfig(FrozenModel):
    temperature: Live[float] = Field(
        1.0,
        ge=MIN_TEMPERATURE,
        le=10,
        description="Sampling temperature: higher varies the replies more.",
    )
    top_p: Live[float] = Field(
        1.0,
        ge=1e-6,
        le=1,
        description="Sample from the likeliest tokens that hold this probability; 1 for all.",
    )
    top_k: Live[int] = Field(
        0,
        ge=0,
        le=MAX_COUNT,
        description="Sample from this many likeliest tokens; 0 for all.",
    )
    min_p: Live[Share] = Field(
        0.0,
        description="Leave out tokens less likely than this share of the likeliest; 0 for off.",
    )
    stop: list[StopString] = Field(
        default_factory=list,
        max_length=16,
        description="A reply ends with any of these texts, which it keeps; in evaluation and "
        "probe, too.",
    )
    stop_token_ids: list[TokenId] = Field(
        default_factory=list,
        max_length=64,
        description="Token ids that end a reply besides those that the model names; in evaluation "
        "and probe, too.",
    )


class DynamicSamplingConfig(FrozenModel):
    """DAPO's dynamic sampling: play more tasks until enough groups are mixed.

    `selection.mixed` says what mixed means, `selection.max_groups` how many train.
    """

    max_rounds: Live[int] = Field(
        1,
        ge=1,
        le=100,
        description="A step plays its groups up to so many times, with new tasks each time, until "
        "as many groups are mixed as one round has, or selection.max_groups. 1: off.",
    )


class EnvsConfig(FrozenModel):
    train: list[EnvGroup] = Field(
        min_length=1, max_length=1000, description="Environments that train, with their groups."
    )
    eval: list[EnvGroup] = Field(
        default_factory=list,
        max_length=1000,
        description="Environments of the evaluation, whose tasks never train.",
    )
    group_size: Rows = Field(8, description="G: trajectories of one task (siblings).")
    eval_group_size: Rows = Field(1, description="Trajectories of one evaluation task.")


class ShapingTerm(FrozenModel):
    """A named reward term, stored apart from the environment's reward."""

    name: str = Field(
        min_length=1, max_length=100, description="The term is logged as `reward/term/NAME`."
    )
    function: str = Field(
        description="format, length, agreement, `module:function`, or an entry point of "
        "`echoscope.rewards`."
    )
    weight: float = Field(1.0, ge=-1e37, le=1e37, description="Factor on the value of the term.")
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the function."
    )


class KlRewardConfig(FrozenModel):
    """A KL penalty in the reward: every sampled token is paid minus `coef` times its KL to the
    reference policy (Ziegler et al. 2019; part of REINFORCE++)."""

    coef: float = Field(0.001, gt=0, le=1e3, description="Weight of the penalty.")
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k1", description="How the KL of a token is estimated (docs/algorithms.md)."
    )


class RewardConfig(FrozenModel):
    credit: Literal["trajectory", "turn"] = Field(
        "trajectory",
        description="trajectory: the whole return belongs to every turn. turn: a turn is paid for "
        "its own reward and those after it.",
    )
    normalization: Literal["arpo", "brpo", "grpo", "mean", "asym_clip"] = Field(
        "arpo",
        description="arpo: raw returns; brpo: standardised over the batch; grpo: over the group; "
        "mean: minus the group's mean; asym_clip: grpo, limited to -1 to 3.",
    )
    shaping: list[ShapingTerm] = Field(
        default_factory=list, max_length=100, description="Terms that are added to the return."
    )
    kl: KlRewardConfig | None = Field(
        None, description="Penalty for leaving the reference policy, in the reward."
    )

    @property
    def weight_keys(self) -> dict[str, str]:
        """Shaping term to the setting that is its weight, without terms that pay for the format."""
        return {
            term.name: f"reward.shaping.{index}.weight"
            for index, term in enumerate(self.shaping)
            if term.function != "format"
        }


_GAMMA = "Discount of one token."
_LAM = "Weight of longer returns: 0 trusts the critic alone, 1 the rewards alone."
_WHITEN = "Scale advantages to mean 0 and variance 1 over the tokens of the step."


class GaeConfig(FrozenModel):
    """Generalised advantage estimation over tokens; needs a critic."""

    kind: Literal["gae"] = "gae"
    gamma: Share = Field(1.0, description=_GAMMA)
    lam: Share = Field(1.0, description=_LAM)
    whiten: bool = Field(True, description=_WHITEN)


class BiLevelGaeConfig(FrozenModel):
    """GAE over turns, then over the tokens of each turn; needs a critic."""

    kind: Literal["bi_level_gae"] = "bi_level_gae"
    gamma: Share = Field(1.0, description=_GAMMA)
    lam: Share = Field(1.0, description=_LAM)
    turn_gamma: Share = Field(0.95, description="Discount of one turn.")
    whiten: bool = Field(True, description=_WHITEN)


class GroupRelativeConfig(FrozenModel):
    """Siblings compared: GRPO, Dr. GRPO, RLOO; or REINFORCE++ whose baseline is the group's mean,
    whitened over the batch."""

    kind: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"] = "grpo"


class ReinforcePpConfig(FrozenModel):
    """REINFORCE++: returns-to-go of the tokens, whitened. `reward.kl` completes it."""

    kind: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: Share = Field(1.0, description=_GAMMA)


class CustomAdvantageConfig(FrozenModel):
    """An estimator of your own; its values come from the critic, if there is one."""

    kind: Literal["custom"] = "custom"
    function: PluginName
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the function."
    )


AdvantageConfig = Annotated[
    GaeConfig | BiLevelGaeConfig | GroupRelativeConfig | ReinforcePpConfig | CustomAdvantageConfig,
    Field(discriminator="kind"),
]


class OffPolicyConfig(FrozenModel):
    """What the importance ratio is taken to, and what is done about samples of another policy.

    rho is pi_old / mu: the trainer before the update over the sampler. See docs/algorithms.md.
    """

    old_logprobs: Live[Literal["sampler", "trainer"]] = Field(
        "sampler",
        description="Old log-probs of the importance ratio. sampler: those that the engine "
        "recorded. trainer: those of the trained weights before the update, which costs no pass "
        "if a step has one update.",
    )
    correction: Live[Literal["none", "tis", "mis"]] = Field(
        "none",
        description="With trainer's old log-probs. tis: weigh samples by rho, at most `cap` "
        "(truncated importance sampling; decoupled PPO). mis: leave out samples whose rho is "
        "outside of `low` to `high` (IcePop).",
    )
    level: Live[Literal["token", "sequence"]] = Field(
        "token",
        description="token: rho of each token. sequence: one rho for a whole trajectory, for tis "
        "the product over its tokens, for mis their geometric mean.",
    )
    cap: Live[float | None] = Field(
        2.0,
        ge=1,
        le=1e6,
        description="Largest weight of tis; null for none. Lower: less noise, more bias.",
    )
    low: Live[Share] = Field(0.5, description="mis leaves out rho below this.")
    high: Live[float] = Field(5.0, ge=1, le=1e6, description="mis leaves out rho above this.")

    @model_validator(mode="after")
    def _corrects_the_trainer(self) -> OffPolicyConfig:
        if self.correction != "none" and self.old_logprobs == "sampler":
            raise ValueError(
                f"off_policy.correction is {self.correction}, which needs "
                "off_policy.old_logprobs=trainer: with sampler, the importance ratio already "
                "counts how sampler and trainer differ, and a weight would count it twice"
            )
        return self


class OptimConfig(FrozenModel):
    lr: Live[LearningRate] = Field(1e-6, description="Learning rate of the policy.")
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.99), strict=False, description="Decay of AdamW's two moments."
    )
    weight_decay: Coefficient = Field(0.0, description="AdamW's weight decay, of matrices only.")
    grad_clip: Live[float] = Field(
        1.0,
        ge=1e-9,
        le=1e9,
        description="Gradients with a larger norm are scaled down to it.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="The learning rate after the warm-up: as it is, or falling to 0 at the last "
        "step along a line or half a cosine.",
    )
    warmup_steps: Steps = Field(
        0, description="Steps at the beginning in which the learning rate rises to its value."
    )
    epochs: int = Field(1, ge=1, le=1000, description="Passes over the step's batch.")
    minibatches: Rows = Field(1, description="Optimizer steps per pass.")
    max_microbatch_tokens: Tokens | None = Field(
        None,
        description="Tokens per forward pass; null for 1024 on the CPU, and for as many as fit "
        "into the memory on CUDA.",
    )
    offload: bool = Field(
        False,
        description="Keep the optimizer's moments, float32 weights and summed gradients in host "
        "memory while the policy is on CUDA; without effect on the CPU.",
    )


_ROOT_ADDRESS = re.compile(r"(s3|gs|gcs|abfss?)://[^/]+/.+|file:///.+")


class TrainerConfig(FrozenModel):
    """Where the update runs."""

    ranks: int = Field(
        1,
        ge=1,
        le=4096,
        description="Processes that train together, each on a device of its own; weights and "
        "optimizer are split over them.",
    )
    launcher: Literal["local", "ray"] = Field(
        "local",
        description="local: this machine starts the ranks, or torchrun has. ray: a Ray cluster "
        "places them, and again after a node was lost.",
    )
    copy_to: str | None = Field(
        None,
        description="Root on object storage that the run is copied to while it trains, such as "
        "s3://team/runs; `echoscope dashboard s3://team/runs` opens it anywhere.",
    )
    copy_checkpoints: bool = Field(
        False,
        description="Copy the checkpoints there, too, so that the run can be resumed elsewhere. "
        "Those that the run deletes stay there.",
    )
    cpus_per_rank: int = Field(
        1, ge=1, le=1024, description="Cores that a rank reserves on a Ray cluster."
    )

    @field_validator("copy_to")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and not _ROOT_ADDRESS.fullmatch(value):
            raise ValueError(
                f"trainer.copy_to is {value!r}, but must be the address of a root, such as "
                "s3://team/runs"
            )
        return value

    @model_validator(mode="after")
    def _copies_somewhere(self) -> TrainerConfig:
        if self.copy_checkpoints and self.copy_to is None:
            raise ValueError(
                "trainer.copy_checkpoints is true, but trainer.copy_to names no place for them: "
                "set both"
            )
        return self


class RunConfig(FrozenModel):
    """A whole run."""

    name: str = Field(
        "run",
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the run; recipes have their own.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all random numbers of the run.")
    steps: Live[int] = Field(100, ge=1, le=MAX_STEP, description="The last step of the run.")
    threads: int | None = Field(
        None, ge=1, le=256, description="Torch threads; null leaves torch's choice."
    )
    from_run: str | None = Field(
        None, description="Learn from that run's stored trajectories instead of the environments."
    )
    branched_from: BranchedFrom | None = Field(
        None, description="The checkpoint that the run started from; set by `ctl RUN branch`."
    )
    recipe: RecipeOrigin | None = Field(
        None, description="The recipe that the run extends; written when settings are loaded."
    )
    model: ModelConfig = Field(default_factory=ModelConfig)
    engine: EngineConfig = Field(default_factory=HfEngineConfig)
    collection: CollectionConfig = Field(default_factory=CollectionConfig)
    context: ContextConfig = Field(default_factory=ContextConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    envs: EnvsConfig
    dynamic_sampling: DynamicSamplingConfig = Field(default_factory=DynamicSamplingConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    selection: SelectionConfig = Field(default_factory=SelectionConfig)
    advantage: AdvantageConfig = Field(default_factory=GroupRelativeConfig)
    loss: LossConfig = Field(default_factory=ClipLossConfig)
    off_policy: OffPolicyConfig = Field(default_factory=OffPolicyConfig)
    critic: CriticConfig = Field(default_factory=NoCriticConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    probe: ProbeConfig = Field(default_factory=ProbeConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    diagnostics: DiagnosticsConfig = Field(default_factory=DiagnosticsConfig)
    guard: GuardConfig = Field(default_factory=GuardConfig)
    sinks: SinksConfig = Field(default_factory=SinksConfig)
    observers: list[ObserverEntry] = Field(
        default_factory=list,
        max_length=100,
        description="Observers of your own: `module:Class`, or {function, params}.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        for sentence in contradictions(self):
            raise ValueError(sentence)
        if self.context.force_think and not self.context.reasoning:
            object.__setattr__(
                self, "context", self.context.model_copy(update={"force_think": False})
            )
        return self

    @property
    def has_choice_of_tags(self) -> bool:
        """Whether a curriculum can move groups: fresh rollouts of several environments."""
        tags = [entry.name for entry in self.envs.train]
        return self.from_run is None and len(set(tags)) >= max(len(tags), 2)

    @property
    def critic_warmup_steps(self) -> int:
        """Steps at the beginning in which only the critic trains; 0 without a critic."""
        return 0 if self.critic.kind == "none" else self.critic.warmup_steps

    @property
    def compares_siblings(self) -> bool:
        """Whether an advantage is a distance from other trajectories of the same task."""
        return isinstance(self.advantage, GroupRelativeConfig)

    @property
    def norm_tokens(self) -> int:
        """The constant divisor of `seq_mean_token_sum_norm`: `loss.norm_tokens` if it is set.

        Otherwise the tokens that an episode may sample at most: `context.max_episode_tokens`, or
        `context.max_response_tokens` times the largest `max_turns` in `envs.train`. An entry
        without `max_turns` counts as one turn.
        """
        if self.loss.norm_tokens is not None:
            return self.loss.norm_tokens
        if self.context.max_episode_tokens is not None:
            return self.context.max_episode_tokens
        turns = max(group.max_turns or 1 for group in self.envs.train)
        return self.context.max_response_tokens * turns
