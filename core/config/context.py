"""How a conversation becomes tokens: what a prompt shows, and where it is cut."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from echoscope.diagnostics.config import FrozenModel

from .limits import MAX_COUNT, MAX_TOKENS, Tokens


class ContextConfig(FrozenModel):
    """How a conversation becomes tokens."""

    reasoning: bool = Field(True, description="Ask for `<think>...</think>` before the answer.")
    force_think: bool = Field(
        True, description="Open the reasoning tag in the prompt; it is then not trained."
    )
    system: str = Field(
        "You solve a task step by step in a text world.", description="Empty for no system message."
    )
    instructions: bool = Field(True, description="Put the environment's rules in the first prompt.")
    format_hint: bool = Field(True, description="Say at each turn how a reply must look.")
    show_reward: bool = Field(
        False, description="Begin each later user turn with the reward of the turn before."
    )
    history_turns: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="Turns the policy sees, the present one included; null for all.",
    )
    max_prompt_tokens: int = Field(
        3600, ge=8, le=MAX_TOKENS, description="Longest prompt of a turn."
    )
    on_long_prompt: Literal["end", "drop_oldest"] = Field(
        "end", description="End the episode, or drop as few of the oldest turns as possible."
    )
    max_response_tokens: Tokens = Field(
        400, description="Longest reply of a turn; a longer one is cut."
    )
    max_episode_tokens: Tokens | None = Field(None, description="Sampled tokens per episode.")
    action_separator: str = Field(
        "||",
        min_length=1,
        max_length=100,
        description="Stands between two actions of one reply. Where an environment takes one "
        "action a turn, a reply is one action, whatever it holds.",
    )
    template_args: dict[str, Any] = Field(
        default_factory=dict,
        max_length=32,
        description="Arguments of the model's chat template, for example {enable_thinking: false} "
        "of Qwen3.",
    )
    tool_format: Literal["auto", "hermes", "llama"] = Field(
        "auto",
        description="How the model spells tool calls: hermes (Qwen, Hermes), llama (Llama 3.x), "
        "or as its chat template says. Only for environments with tools.",
    )
