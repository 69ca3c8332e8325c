"""Judge a run before it starts, by rollouts of its starting policy.

The rollouts, and the seconds they took, come from whoever has the policy (`core/run/trial.py`);
here they are counted, judged and put into words. STOP means that the run as it is set would learn
nothing, or not what it is meant to; a person may still start it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from echoscope.store.records import FinishReason, RolloutBatch, StopReason, Trajectory, Turn
from echoscope.text.amounts import counted, duration_in_two_units, fixed, memory_size, percent
from echoscope.text.strict_json import json_value

from ..config import SelectionConfig
from ..selection.filter import select_groups
from .prospects import Signs, prospects

BROKEN_FORMAT, WEAK_FORMAT = 0.5, 0.9
"""Shares of replies in the right format."""
NO_ACTIONS, WEAK_ACTIONS = 0.2, 0.8
"""Shares of replies with a valid action."""
CAPPED = 0.1
TOO_LONG, MOSTLY_TOO_LONG, NEAR_LIMIT = 0.01, 0.5, 0.9
FEW_MIXED = 0.2
"""Share of groups with a reward spread below which most rollouts teach nothing."""
FAILING, MOSTLY_FAILING = 0.02, 0.5
"""Shares of episodes whose environment failed."""

Commands = Callable[[Mapping[str, object]], str]
"""The train command with settings changed."""


class FindingLevel(StrEnum):
    STOP = "stop"
    WARN = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """The settings that the rollouts are judged against."""

    group_size: int
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float
    selection: SelectionConfig
    explains_format: bool = True
    """Whether the prompt names the actions and describes the format."""
    compares_siblings: bool
    """Whether the advantage needs a spread within groups (GRPO, RLOO), or has another baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What the trial rollouts were. Shares are of groups, turns or episodes as named."""

    num_steps: int
    num_groups: int
    num_episodes: int
    num_prompts: int
    num_mixed: int
    num_solved: int
    num_hopeless: int
    num_identical: int
    """Groups whose siblings all wrote the same."""
    success_rate: float
    return_mean: float
    return_std: float
    group_std_mean: float
    format_valid_frac: float
    action_valid_frac: float
    capped_frac: float
    response_p50: float
    response_p90: float
    prompt_max: float
    turns_mean: float
    too_long_frac: float
    """Episodes that ended because the next prompt would not fit."""
    failed_frac: float
    """Episodes whose environment failed or timed out."""
    is_finite: bool
    """All rewards and recorded log-probs are finite."""
    num_kept: int
    num_empty: int
    """Steps on which it would keep nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds as measured, and what the whole run has to do."""

    device: str
    rollout_s: float
    """Of one step of the whole run, all its groups."""
    update_s: float
    """Of one dry update; NaN where it failed."""
    episode_s: float
    steps: int
    num_evaluated: int
    """Episodes of all evaluations and probes together."""
    diagnostics_frac: float
    """Budget of the measurements, as a share of training."""
    num_parameters: int
    num_trainable: int
    checkpoint_bytes: int
    num_checkpoints: int
    problem: str = ""
    """Why the dry update did not work; empty if it did."""
    memory: str = ""
    """What the run needs, in words; empty where it is not known."""

    @property
    def total_s(self) -> float:
        """Steps, with the measurements' budget on top, and evaluations."""
        training_s = self.steps * (self.rollout_s + self.update_s) * (1 + self.diagnostics_frac)
        return training_s + self.num_evaluated * self.episode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinding:
    """One thing worth knowing before the run."""

    level: FindingLevel
    name: str
    text: str
    advice: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """All of it."""

    numbers: Numbers
    cost: Cost | None
    findings: tuple[PreflightFinding, ...]
    lines: Mapping[str, str] = field(default_factory=dict)
    """What was measured, in words, by topic."""

    @property
    def is_go(self) -> bool:
        return not any(finding.level is FindingLevel.STOP for finding in self.findings)

    @property
    def text(self) -> str:
        """The advice in one sentence."""
        if not self.findings:
            return "Ready to start: no problem found."
        worst = self.findings[0].level
        worst_names = [finding.name for finding in self.findings if finding.level is worst]
        names = ", ".join(dict.fromkeys(worst_names))
        return (
            f"Do not start: {names}." if not self.is_go else f"Start only if you accept: {names}."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not defined is null."""
        cost = None if self.cost is None else asdict(self.cost) | {"total_s": self.cost.total_s}
        plain = {"go": self.is_go, "text": self.text, "findings": self.findings}
        out: dict[str, Any] = json_value({**plain, "numbers": self.numbers, "cost": cost})
        return out


def judge(
    batches: Sequence[RolloutBatch],
    limits: TrialSettings,
    *,
    command: Commands,
    warm_start: str,
    cost: Cost | None = None,
    signs: Signs | None = None,
) -> Preflight:
    """Count, judge and advise.

    Args:
        batches: one per trial step, at least one with at least one group.
        command: writes the train command with settings changed.
        warm_start: the command that begins a warm start on demonstrations; "" where no expert can
            demonstrate.
        signs: what else the trial shows of the run's prospects; None where that is not known.
    """
    numbers = measure(batches, limits)
    findings = _Findings(
        numbers=numbers, limits=limits, command=command, warm_start=warm_start
    ).all(cost, signs)
    order = list(FindingLevel)
    return Preflight(
        numbers=numbers,
        cost=cost,
        findings=tuple(sorted(findings, key=lambda finding: order.index(finding.level))),
        lines=_lines(numbers, limits) | ({} if cost is None else _cost_lines(cost)),
    )


def measure(batches: Sequence[RolloutBatch], limits: TrialSettings) -> Numbers:
    """Count what the trial rollouts were."""
    episodes = [t for batch in batches for t in batch.trajectories]
    selections = [select_groups(batch, limits.selection) for batch in batches]
    std_P = np.concatenate([selection.reward_std_P for selection in selections])
    defined = std_P[np.isfinite(std_P)]
    turns = [turn for episode in episodes for turn in episode.turns]
    returns = np.array([episode.episode_return for episode in episodes])
    success = [e.is_success for e in episodes if e.is_success is not None]
    logprobs = [turn.logprobs for turn in turns if turn.logprobs is not None]
    replies = [turn.response_tokens for turn in turns if turn.response_tokens is not None]
    sizes = np.array([float(len(reply)) for reply in replies] or [np.nan])
    prompts = [len(turn.prompt_tokens) for turn in turns if turn.prompt_tokens is not None]

    def frac(holds: Callable[[Turn], bool]) -> float:
        return float(np.mean([holds(turn) for turn in turns])) if turns else float("nan")

    def ended(*reasons: StopReason) -> float:
        return float(np.mean([episode.stop_reason in reasons for episode in episodes]))

    return Numbers(
        num_steps=len(batches),
        num_groups=len(std_P),
        num_episodes=len(episodes),
        num_prompts=len({episode.prompt_key for episode in episodes}),
        num_mixed=int((defined > 0).sum()),
        num_solved=sum(int(selection.solved_P.sum()) for selection in selections),
        num_hopeless=sum(int(selection.hopeless_P.sum()) for selection in selections),
        num_identical=sum(_wrote_the_same(group) for batch in batches for group in batch.groups),
        success_rate=float(np.mean(success)) if success else float("nan"),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        group_std_mean=float(defined.mean()) if defined.size else float("nan"),
        format_valid_frac=frac(lambda turn: turn.answer_chars is not None),
        action_valid_frac=frac(lambda turn: bool(turn.is_valid)),
        capped_frac=frac(lambda turn: turn.finish_reason is FinishReason.LENGTH),
        response_p50=float(np.quantile(sizes, 0.5)),
        response_p90=float(np.quantile(sizes, 0.9)),
        prompt_max=float(max(prompts, default=np.nan)),
        turns_mean=float(np.mean([episode.num_turns for episode in episodes])),
        too_long_frac=ended(StopReason.PROMPT_TOO_LONG),
        failed_frac=ended(StopReason.ENV_ERROR, StopReason.TIMEOUT),
        is_finite=bool(np.isfinite(returns).all() and all(np.isfinite(r).all() for r in logprobs)),
        num_kept=sum(int(selection.keep_P.sum()) for selection in selections),
        num_empty=sum(selection.is_empty for selection in selections),
    )


def _wrote_the_same(group: Sequence[Trajectory]) -> bool:
    replies = {tuple(turn.response for turn in trajectory.turns) for trajectory in group}
    return len(group) > 1 and len(replies) == 1


def _finding(
    name: str, text: str, advice: str = "", command: str = "", *, stops: bool = False
) -> PreflightFinding:
    level = FindingLevel.STOP if stops else FindingLevel.WARN
    return PreflightFinding(level=level, name=name, text=text, advice=advice, command=command)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """What speaks against the run, part by part."""

    numbers: Numbers
    limits: TrialSettings
    command: Commands
    warm_start: str
    """The command of a warm start; empty where the environment has no expert."""

    def all(self, cost: Cost | None, signs: Signs | None) -> Iterator[PreflightFinding]:
        yield from self.of_episodes()
        yield from self.of_replies()
        yield from self.of_rewards()
        yield from self.of_steps(cost)
        for prospect in () if signs is None else prospects(signs):
            fix = self.command(prospect.settings)
            yield _finding("likely collapse", prospect.text, prospect.advice, fix)

    def or_warm_start(self, advice: str) -> str:
        if self.warm_start:
            return f"{advice}, or warm-start the policy on demonstrations."
        return (
            f"{advice}, or a stronger model. For a warm start the environment needs a scripted "
            "expert, a method solve() (docs/environments.md)."
        )

    @property
    def is_broken(self) -> bool:
        """Hardly a reply can be read."""
        return self.numbers.format_valid_frac < BROKEN_FORMAT

    def of_episodes(self) -> Iterator[PreflightFinding]:
        """Environments that fail, numbers that are none, prompts that do not fit."""
        n, limits = self.numbers, self.limits
        longest = limits.max_prompt_tokens
        if n.failed_frac > FAILING:
            yield _finding(
                "failing environments",
                f"In {percent(n.failed_frac)} of the episodes the environment failed or timed out.",
                "Check it with `echoscope envs check`; such episodes never train.",
                stops=n.failed_frac > MOSTLY_FAILING,
            )
        if not n.is_finite:
            yield _finding(
                "non-finite numbers",
                "Rewards or log-probs hold NaN or infinite values.",
                "Try model.dtype=float32, and check the environment's rewards.",
                stops=True,
            )
        if n.too_long_frac > TOO_LONG or n.prompt_max > NEAR_LIMIT * longest:
            yield _finding(
                "prompts too long" if n.too_long_frac > TOO_LONG else "prompts near the limit",
                f"The longest prompt has {n.prompt_max:.0f} of {longest} tokens, and "
                f"{percent(n.too_long_frac)} of the episodes ended because a prompt did not fit.",
                "Raise the limit, allow fewer turns, or drop old turns "
                "(context.on_long_prompt=drop_oldest).",
                self.command({"context.max_prompt_tokens": 2 * longest}),
                stops=n.too_long_frac > MOSTLY_TOO_LONG,
            )

    def of_replies(self) -> Iterator[PreflightFinding]:
        """Replies without the format, cut ones, and actions that are none."""
        n, limits = self.numbers, self.limits
        cap = limits.max_response_tokens
        if n.format_valid_frac < WEAK_FORMAT:
            # Replies that do not know the format run on to the cap: the cap is not to blame then.
            is_cut = limits.explains_format and n.capped_frac >= (1 - n.format_valid_frac) / 2
            advice, fix = self.or_warm_start("Take another model"), self.warm_start
            if not limits.explains_format:
                advice = self.or_warm_start("Describe the format in the prompt")
                fix = self.command({"context.instructions": True, "context.format_hint": True})
            elif is_cut:
                advice = "Allow longer replies: a reply that is cut cannot be read."
                fix = self.command({"context.max_response_tokens": max(4 * cap, 64)})
            yield _finding(
                "broken format" if self.is_broken else "weak format",
                f"{percent(n.format_valid_frac)} of the replies have the right format"
                + (f"; {percent(n.capped_frac)} are cut at {cap} tokens." if is_cut else "."),
                advice,
                fix,
                stops=self.is_broken,
            )
        elif n.capped_frac > CAPPED:
            yield _finding(
                "replies cut at the cap",
                f"{percent(n.capped_frac)} of replies are cut at context.max_response_tokens="
                f"{cap}.",
                "Raise the cap.",
                self.command({"context.max_response_tokens": 2 * cap}),
            )
        if n.action_valid_frac < WEAK_ACTIONS and not self.is_broken:
            yield _finding(
                "invalid actions",
                f"{percent(n.action_valid_frac)} of the replies hold an action that the "
                f"environment knows, though {percent(n.format_valid_frac)} have the right format.",
                self.or_warm_start("Name the actions in the prompt (context.instructions=true)"),
                self.warm_start,
                stops=n.action_valid_frac < NO_ACTIONS,
            )

    def of_rewards(self) -> Iterator[PreflightFinding]:
        """Groups that teach nothing."""
        n, limits = self.numbers, self.limits
        if not n.num_mixed and (limits.compares_siblings or n.return_std == 0):
            is_consequence = self.is_broken or n.too_long_frac > MOSTLY_TOO_LONG
            name, fix = "no reward spread", ""
            advice = "Take tasks that are sometimes solved, sometimes failed."
            if limits.group_size < 2:
                name, advice = "no siblings", "Play each task several times."
                fix = self.command({"envs.group_size": 8})
            elif n.num_identical == n.num_groups:
                name, advice = "identical siblings", "Sample at a higher temperature."
                fix = self.command({"sampling.temperature": 1.0}) if limits.temperature < 1 else ""
            elif n.num_hopeless == n.num_groups or n.success_rate == 0:
                name, advice = "hopeless", self.or_warm_start("Take easier tasks")
                fix = self.warm_start
                if is_consequence:  # where no reply could be read, tasks cannot be blamed
                    advice, fix = "Fix the other findings first: they may be the reason.", ""
            elif n.num_solved == n.num_groups or n.success_rate == 1:
                name, advice = "solved already", "Take harder tasks."
            # With none of n groups, at most so many of all are of the kind.
            bound = 1 - 0.05 ** (1 / n.num_groups)
            yield _finding(
                name,
                f"Within none of {n.num_groups} groups do the returns differ ({n.num_solved} all "
                f"solved, {n.num_hopeless} all failed), so there is nothing to learn from. At most "
                f"{percent(bound)} of all tasks are different (95 % confidence).",
                advice,
                fix,
                stops=True,
            )
        elif n.success_rate == 0:
            yield _finding(
                "no success",
                f"None of {n.num_episodes} episodes succeeded; returns differ in {n.num_mixed} of "
                f"{n.num_groups} groups, so something else than success would be learned.",
                self.or_warm_start("Take easier tasks"),
                self.warm_start,
            )
        elif n.num_mixed < FEW_MIXED * n.num_groups and limits.compares_siblings:
            kind = "harder" if n.num_solved > n.num_hopeless else "easier"
            yield _finding(
                "starved signal",
                f"Only {n.num_mixed} of {n.num_groups} groups have a reward spread ({n.num_solved} "
                f"all solved, {n.num_hopeless} all failed): the other rollouts teach nothing.",
                f"Take {kind} tasks, or larger groups, or a higher temperature.",
            )

    def of_steps(self, cost: Cost | None) -> Iterator[PreflightFinding]:
        """Too few prompts, steps that train nothing, an update that fails."""
        n = self.numbers
        if n.num_groups > 1 and n.num_prompts <= n.num_groups / 2:
            yield _finding(
                "repeated prompts",
                f"{n.num_groups} groups begin with {counted(n.num_prompts, 'distinct prompt')}: "
                "too few to measure whether the reasoning depends on the prompt.",
                "Vary the tasks, if they are meant to vary.",
            )
        if n.num_empty and n.num_mixed:
            yield _finding(
                "empty selections",
                f"On {n.num_empty} of {n.num_steps} steps the selection would keep no group, so "
                "these steps would train nothing.",
                "Take more groups per step.",
            )
        if cost is not None and cost.problem:
            yield _finding(
                "the update fails",
                f"An update on these rollouts failed: {cost.problem}.",
                "Lower optim.max_microbatch_tokens, set model.gradient_checkpointing=true, or use "
                "adapters (model.lora.rank=64) if memory ran out; else lower optim.lr.",
                stops=True,
            )


def _lines(n: Numbers, limits: TrialSettings) -> dict[str, str]:
    rule = limits.selection
    by = "" if rule.strategy in ("none", "custom") else f" {rule.value:g} of {rule.metric}"
    return {
        "rollouts": f"{n.num_episodes} episodes of {n.num_groups} groups ({n.num_prompts} distinct "
        f"prompts), {n.turns_mean:.1f} turns each",
        "success": f"{percent(n.success_rate)} of episodes; mean return {n.return_mean:.3f}, std "
        f"{n.return_std:.3f}",
        "groups": f"{n.num_mixed} with reward spread, {n.num_solved} all solved, "
        f"{n.num_hopeless} all failed; mean reward std {fixed(n.group_std_mean, 3)}",
        "format": f"{percent(n.format_valid_frac)} of replies in the right format, "
        f"{percent(n.action_valid_frac)} with a valid action",
        "replies": f"median {n.response_p50:.0f}, 90 % up to {n.response_p90:.0f} of "
        f"{limits.max_response_tokens} tokens; {percent(n.capped_frac)} cut at the cap",
        "prompts": f"up to {n.prompt_max:.0f} of {limits.max_prompt_tokens} tokens",
        "selection": f"{rule.strategy}{by} keeps {n.num_kept} of {n.num_groups} groups",
    }


def _cost_lines(cost: Cost) -> dict[str, str]:
    out = {
        "model": f"{cost.num_parameters / 1e6:,.1f} M parameters, "
        f"{cost.num_trainable / 1e6:,.1f} M trained, on {cost.device}",
        "memory": cost.memory or "not known",
    }
    if not cost.problem:
        out["disk"] = (
            f"{memory_size(cost.checkpoint_bytes)} a checkpoint, {cost.num_checkpoints} kept"
        )
        out["time"] = (
            f"about {duration_in_two_units(cost.total_s)}: {cost.steps} steps of "
            f"{cost.rollout_s:.2f} s rollouts and {cost.update_s:.2f} s update (both measured), "
            f"{cost.num_evaluated} evaluation episodes of {cost.episode_s * 1e3:.1f} ms; "
            f"measurements add up to {percent(cost.diagnostics_frac)}"
        )
    return out
