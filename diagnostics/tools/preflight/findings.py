"""What a preflight knows and says: plain numbers of trial rollouts, costs, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from echoscope.text.strict_json import json_value

from ...config import SelectionConfig
from ...selection.payoff import Payoff

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings that the rollouts are judged against."""

    group_size: int
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float
    selection: SelectionConfig
    has_instructions: bool = True
    """Whether the prompt names the actions: `context.instructions`."""
    has_format_hint: bool = True
    """Whether the prompt describes the format: `context.format_hint`."""
    compares_siblings: bool
    """Whether the advantage needs a spread within groups (GRPO, RLOO), or has another baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What the trial rollouts were. Shares are of groups, turns or episodes as named."""

    num_steps: int
    num_groups: int
    num_episodes: int
    num_turns: int
    num_prompts: int
    """Distinct first prompts."""
    num_mixed: int
    """Groups with a reward spread."""
    num_mixed_by_task: int
    """... of the environment's own rewards, not of format penalties or shaping alone."""
    num_solved: int
    num_hopeless: int
    num_equal: int
    """Groups with equal returns for another reason."""
    num_undefined: int
    """Groups with fewer than two siblings that can train."""
    num_identical: int
    """Groups whose siblings all wrote the same."""
    success_rate: float
    return_mean: float
    return_std: float
    """Over all episodes."""
    group_std_mean: float
    format_valid_frac: float
    action_valid_frac: float
    action_effective_frac: float
    capped_frac: float
    """Replies cut at the cap."""
    response_p50: float
    response_p90: float
    prompt_max: float
    """Longest prompt of any turn."""
    turns_mean: float
    too_long_frac: float
    """Episodes that ended because the next prompt would not fit."""
    failed_frac: float
    """Episodes whose environment failed or timed out."""
    is_finite: bool
    """All rewards and recorded log-probs are finite."""
    num_kept: int
    """Groups that the configured selection would keep."""
    num_empty: int
    """Steps on which it would keep nothing."""
    payoff: Payoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """First-turn I(X;Z) of the starting policy."""

    mutual_information: float
    dependence: float
    """Over ln N."""
    num_prompts: int
    p_value: float
    """Of retrieving the prompt from the reasoning."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds and bytes as measured, and what the whole run has to do."""

    device: str
    load_s: float
    rollout_s: float
    """Of one step of the whole run, all its groups."""
    update_s: float = NAN
    """Of one dry update; NaN where none was made."""
    episode_s: float
    """Rollout seconds per episode."""
    steps: int
    num_evaluated: int
    """Episodes of all evaluations and probes together."""
    diagnostics_frac: float
    """Budget of the measurements, as a share of training."""
    num_parameters: int
    num_trainable: int
    peak_bytes: int
    total_bytes: int
    is_gpu: bool
    checkpoint_bytes: int = 0
    num_checkpoints: int = 0
    problem: str = ""
    """Why the dry update did not work; empty if it did."""
    estimate: str = ""
    """Memory that the run needs, in words; empty where it is not known."""

    @property
    def training_s(self) -> float:
        """steps x (rollout + update), and the measurements' budget on top."""
        return self.steps * (self.rollout_s + self.update_s) * (1 + self.diagnostics_frac)

    @property
    def evaluation_s(self) -> float:
        return self.num_evaluated * self.episode_s

    @property
    def total_s(self) -> float:
        return self.load_s + self.training_s + self.evaluation_s


class Level(StrEnum):
    STOP = "stop"
    """Do not start like this."""
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing worth knowing before the run."""

    level: Level
    name: str
    text: str
    advice: str = ""
    command: str = ""
    """What to type, where one command does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """All of it."""

    numbers: Numbers
    findings: tuple[Finding, ...]
    """The most serious first."""
    dependence: Dependence | None = None
    cost: Cost | None = None
    lines: Mapping[str, str] = field(default_factory=dict)
    """What was measured, in words, by topic."""

    @property
    def is_go(self) -> bool:
        return not any(finding.level is Level.STOP for finding in self.findings)

    @property
    def text(self) -> str:
        """The advice in one sentence."""
        stops = [finding.name for finding in self.findings if finding.level is Level.STOP]
        warnings = [finding.name for finding in self.findings if finding.level is Level.WARN]
        if stops:
            return f"Do not start: {', '.join(stops)}."
        if warnings:
            return f"Start only if you accept: {', '.join(warnings)}."
        return "Ready to start: no problem found."

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not defined is null."""
        payoff = asdict(self.numbers.payoff)
        numbers = asdict(self.numbers) | {"payoff": payoff}
        cost = None
        if self.cost is not None:
            cost = asdict(self.cost) | {
                "training_s": self.cost.training_s,
                "evaluation_s": self.cost.evaluation_s,
                "total_s": self.cost.total_s,
            }
        found = {
            "go": self.is_go,
            "text": self.text,
            "findings": [asdict(finding) for finding in self.findings],
            "numbers": numbers,
            "dependence": None if self.dependence is None else asdict(self.dependence),
            "cost": cost,
        }
        plain: dict[str, Any] = json_value(found)
        return plain
