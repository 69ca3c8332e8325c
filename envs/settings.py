"""The settings of an environment's groups: the one definition, for files and for Python."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from . import registry
from .base import EnvParamsError
from .turns.turn import TurnSettings

MAX_COUNT = 1_000_000
MAX_GROUPS = 99_999


class EnvGroup(BaseModel):
    """Some groups of one environment: `groups` prompts per step.

    `params` configure the environment. `max_turns` and `max_actions_per_turn` are those of its
    spec where None.

    Raises:
        pydantic.ValidationError: an unknown name, a wrong type, a value out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    tag: str = Field(
        "", pattern=r"^$|\S", description="Name in metrics; the environment's id if empty."
    )
    env: str = Field(description="Environment id, or `module:Class`.")
    groups: int = Field(8, ge=1, le=MAX_GROUPS, description="Tasks (groups) per step.")
    params: dict[str, Any] = Field(
        default_factory=dict,
        description="Parameters of the environment: `echoscope envs show ID` lists them.",
    )
    max_turns: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="Turns per episode; null: the environment's own."
    )
    max_actions_per_turn: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="Actions of one reply; null: the environment's own."
    )
    max_actions: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="Actions per episode; null: no limit."
    )
    format_penalty: float = Field(
        -0.1,
        ge=-1e6,
        le=0,
        description="Reward of a reply that is malformed, has no action or has an invalid one, "
        "once a reply.",
    )

    @property
    def name(self) -> str:
        return self.tag or self.env

    @property
    def is_one_action(self) -> bool:
        """Whether a reply is one action: its text is not split, whatever separators it holds."""
        return self.settings().max_actions_per_turn == 1

    def settings(self) -> TurnSettings:
        """The limits of an episode, with the environment's defaults filled in.

        Raises:
            EnvError: no such environment, it cannot be imported, or it takes one action a turn and
                `max_actions_per_turn` is more.
        """
        spec = registry.spec(self.env)
        if spec.one_action and (self.max_actions_per_turn or 1) > 1:
            raise EnvParamsError(
                f"max_actions_per_turn is {self.max_actions_per_turn}, but {self.env} takes each "
                "reply as one action: leave max_actions_per_turn out, or set max_turns"
            )
        return TurnSettings(
            max_turns=self.max_turns or spec.max_turns,
            max_actions_per_turn=self.max_actions_per_turn or spec.max_actions_per_turn,
            max_actions=self.max_actions,
            format_penalty=self.format_penalty,
        )
