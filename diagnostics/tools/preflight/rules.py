"""What trial rollouts say about a run before it starts, and the way out.

Each rule looks at the numbers and returns what it found, or None. STOP means that the run as it is
set would learn nothing, or not what it is meant to; a person may still start it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from echoscope.text.amounts import percent

from ...selection.payoff import Worth
from .findings import Cost, Dependence, Finding, Level, Limits, Numbers

BROKEN_FORMAT, WEAK_FORMAT = 0.5, 0.9
"""Shares of replies in the right format."""
NO_ACTIONS, WEAK_ACTIONS = 0.2, 0.8
"""Shares of replies with a valid action."""
CAPPED, MOSTLY_CAPPED = 0.1, 0.5
FEW_MIXED = 0.2
"""Share of groups with a reward spread below which most rollouts teach nothing."""
FAILING, MOSTLY_FAILING = 0.02, 0.5
"""Shares of episodes whose environment failed."""
TIGHT_MEMORY = 0.9
NOT_ABOVE_CHANCE = 0.05

Commands = Callable[[Mapping[str, object]], str]
"""The train command with settings changed."""


def find(
    numbers: Numbers,
    limits: Limits,
    dependence: Dependence | None,
    cost: Cost | None,
    command: Commands,
    warm_start: str,
) -> tuple[Finding, ...]:
    """All findings, the most serious first.

    Args:
        command: writes the train command with settings changed.
        warm_start: the command that begins a warm start on demonstrations; "" where no expert can
            demonstrate.
    """
    found = [
        _environment(numbers),
        _finite(numbers),
        _prompts(numbers, limits, command),
        _format(numbers, limits, command, warm_start),
        _actions(numbers, limits, warm_start),
        _capped(numbers, limits, command),
        _no_spread(numbers, limits, command, warm_start),
        _no_success(numbers, warm_start),
        _few_mixed(numbers, limits, command),
        _same_prompts(numbers),
        _same_replies(numbers, limits, command),
        _selection(numbers, limits, command),
        _payoff(numbers, limits, command),
        _blind(dependence, warm_start),
        _update(cost),
        _memory(cost, command),
    ]
    order = list(Level)
    known = [finding for finding in found if finding is not None]
    return tuple(sorted(known, key=lambda finding: order.index(finding.level)))


def _advice(options: list[str], warm_start: str) -> str:
    """The options and a warm start, as far as one is possible, in a sentence."""
    possible = [*options, *["warm-start the policy on demonstrations"] * bool(warm_start)]
    if not possible:
        return (
            "Take a stronger model. For a warm start the environment needs a scripted expert, a "
            "method solve() (docs/environments.md)."
        )
    sentence = ", or ".join(possible)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _environment(n: Numbers) -> Finding | None:
    if not n.failed_frac > FAILING:
        return None
    return Finding(
        level=Level.STOP if n.failed_frac > MOSTLY_FAILING else Level.WARN,
        name="failing environments",
        text=f"In {percent(n.failed_frac)} of the episodes the environment failed or timed out.",
        advice="Check it with `echoscope envs check`; such episodes never train.",
    )


def _finite(n: Numbers) -> Finding | None:
    if n.is_finite:
        return None
    return Finding(
        level=Level.STOP,
        name="non-finite numbers",
        text="Rewards or log-probs hold NaN or infinite values.",
        advice="Try model.dtype=float32, and check the environment's rewards.",
    )


def _prompts(n: Numbers, limits: Limits, command: Commands) -> Finding | None:
    limit = limits.max_prompt_tokens
    fix = command({"context.max_prompt_tokens": 2 * limit})
    if n.too_long_frac > 0.01:
        ended = f"{percent(n.too_long_frac)} of the episodes ended because a prompt did not fit"
        return Finding(
            level=Level.STOP if n.too_long_frac > 0.5 else Level.WARN,
            name="prompts too long",
            text=f"{ended} context.max_prompt_tokens={limit}.",
            advice="Raise the limit, allow fewer turns, or drop old turns "
            "(context.on_long_prompt=drop_oldest).",
            command=fix,
        )
    if n.prompt_max > 0.9 * limit:
        return Finding(
            level=Level.WARN,
            name="prompts near the limit",
            text=f"The longest prompt has {n.prompt_max:.0f} of {limit} tokens; longer replies "
            "will end episodes.",
            advice="Raise the limit.",
            command=fix,
        )
    return None


def _format(n: Numbers, limits: Limits, command: Commands, warm_start: str) -> Finding | None:
    if not n.format_valid_frac < WEAK_FORMAT:
        return None
    is_broken = n.format_valid_frac < BROKEN_FORMAT
    is_cut = n.capped_frac >= MOSTLY_CAPPED * (1 - n.format_valid_frac)
    cap = limits.max_response_tokens
    cut = f" {percent(n.capped_frac)} are cut at context.max_response_tokens={cap}." * is_cut
    head = f"Only {percent(n.format_valid_frac)}" if n.format_valid_frac else "None"
    if not limits.has_instructions and not limits.has_format_hint:
        # Replies that do not know the format run on to the cap: the cap is not to blame.
        return Finding(
            level=Level.STOP if is_broken else Level.WARN,
            name="broken format" if is_broken else "weak format",
            text=f"{head} of {n.num_turns} replies have the right format, and the prompt does not "
            "describe it (context.instructions=false, context.format_hint=false).",
            advice=_advice(["describe the format in the prompt"], warm_start),
            command=command({"context.instructions": True, "context.format_hint": True}),
        )
    return Finding(
        level=Level.STOP if is_broken else Level.WARN,
        name="broken format" if is_broken else "weak format",
        text=f"{head} of {n.num_turns} replies have the right format.{cut}",
        advice="Allow longer replies: a reply that is cut cannot be read."
        if is_cut
        else _advice(
            ["show the policy the format (context.format_hint=true)"]
            * (not limits.has_format_hint),
            warm_start,
        ),
        command=command({"context.max_response_tokens": max(4 * cap, 64)})
        if is_cut
        else warm_start,
    )


def _actions(n: Numbers, limits: Limits, warm_start: str) -> Finding | None:
    if not n.action_valid_frac < WEAK_ACTIONS or n.format_valid_frac < BROKEN_FORMAT:
        return None
    return Finding(
        level=Level.STOP if n.action_valid_frac < NO_ACTIONS else Level.WARN,
        name="invalid actions",
        text=f"{percent(n.action_valid_frac)} of the replies hold an action that the environment "
        f"knows, though {percent(n.format_valid_frac)} have the right format.",
        advice=_advice(
            ["name the actions in the prompt (context.instructions=true)"]
            * (not limits.has_instructions),
            warm_start,
        ),
        command=warm_start,
    )


def _capped(n: Numbers, limits: Limits, command: Commands) -> Finding | None:
    is_said = n.format_valid_frac < WEAK_FORMAT
    if not n.capped_frac > CAPPED or is_said:
        return None
    cap = limits.max_response_tokens
    return Finding(
        level=Level.WARN,
        name="replies cut at the cap",
        text=f"{percent(n.capped_frac)} of the replies are cut at context.max_response_tokens="
        f"{cap}.",
        advice="Raise the cap.",
        command=command({"context.max_response_tokens": 2 * cap}),
    )


def _no_spread(n: Numbers, limits: Limits, command: Commands, warm_start: str) -> Finding | None:
    if n.num_mixed or (not limits.compares_siblings and n.return_std > 0):
        return None
    groups = f"all {n.num_groups} groups"
    if limits.group_size < 2 and limits.compares_siblings:
        return Finding(
            level=Level.STOP,
            name="no siblings",
            text="Each group has one trajectory, but the advantage compares the trajectories of a "
            "group.",
            advice="Play each task several times.",
            command=command({"envs.group_size": 8}),
        )
    if n.num_identical == n.num_groups and limits.group_size > 1:
        colder = limits.temperature < 1
        return Finding(
            level=Level.STOP,
            name="identical siblings",
            text=f"In {groups} all trajectories wrote the same, so there is nothing to compare.",
            advice="Sample at a higher temperature.",
            command=command({"sampling.temperature": 1.0}) if colder else "",
        )
    if n.num_hopeless == n.num_groups or n.success_rate == 0:
        bound = 1 - 0.05 ** (1 / n.num_groups)
        # Where no reply could be read or finished, tasks cannot be blamed.
        is_consequence = n.format_valid_frac < BROKEN_FORMAT or n.too_long_frac > 0.5
        return Finding(
            level=Level.STOP,
            name="hopeless",
            text=f"No episode of {groups} succeeded, and within each group all returns are equal: "
            f"there is nothing to learn from. At most {percent(bound)} of all tasks are easier "
            "(95 % confidence).",
            advice="Fix the other findings first: they may be the reason."
            if is_consequence
            else _advice(["take easier tasks"], warm_start),
            command="" if is_consequence else warm_start,
        )
    if n.num_solved == n.num_groups or n.success_rate == 1:
        return Finding(
            level=Level.STOP,
            name="solved already",
            text=f"Every episode of {groups} succeeded: nothing is left to learn here.",
            advice="Take harder tasks.",
        )
    return Finding(
        level=Level.STOP,
        name="no reward spread",
        text=f"Within none of {n.num_groups} groups do the returns differ "
        f"({n.num_solved} all solved, {n.num_hopeless} all failed).",
        advice="Take tasks that the policy sometimes solves and sometimes fails.",
    )


def _no_success(n: Numbers, warm_start: str) -> Finding | None:
    if n.success_rate != 0 or not n.num_mixed:
        return None
    by_task = n.num_mixed_by_task
    bound = 1 - 0.05 ** (1 / n.num_episodes)
    source = (
        f"but in {by_task} of {n.num_groups} groups the environment's rewards differ"
        if by_task
        else "returns differ by format penalties and shaping alone, so only those would be learned"
    )
    return Finding(
        level=Level.WARN if by_task else Level.STOP,
        name="no success",
        text=f"None of {n.num_episodes} episodes succeeded (at most {100 * bound:.1f} % would, "
        f"95 %); {source}.",
        advice=_advice(["take easier tasks"], warm_start),
        command=warm_start,
    )


def _few_mixed(n: Numbers, limits: Limits, command: Commands) -> Finding | None:
    known = n.num_groups - n.num_undefined
    if not known or not n.num_mixed or n.num_mixed >= FEW_MIXED * known:
        return None
    harder = n.num_solved > n.num_hopeless
    is_cold = limits.temperature < 1
    return Finding(
        level=Level.WARN,
        name="starved signal",
        text=f"Only {n.num_mixed} of {known} groups have a reward spread ({n.num_solved} all "
        f"solved, {n.num_hopeless} all failed): the other rollouts teach nothing.",
        advice=f"Take {'harder' if harder else 'easier'} tasks, or larger groups"
        + (f", or a temperature above {limits.temperature:g}." if is_cold else "."),
        command=command({"sampling.temperature": 1.0}) if is_cold else "",
    )


def _same_prompts(n: Numbers) -> Finding | None:
    if n.num_groups < 2 or n.num_prompts > n.num_groups / 2:
        return None
    return Finding(
        level=Level.WARN,
        name="repeated prompts",
        text=f"{n.num_groups} groups begin with {n.num_prompts} distinct "
        f"{'prompt' if n.num_prompts == 1 else 'prompts'}: too few to measure whether the "
        "reasoning depends on the prompt.",
        advice="Vary the tasks, if they are meant to vary.",
    )


def _same_replies(n: Numbers, limits: Limits, command: Commands) -> Finding | None:
    is_most = n.num_identical * 2 > n.num_groups
    if not is_most or not n.num_mixed or limits.group_size < 2:
        return None
    return Finding(
        level=Level.WARN,
        name="identical siblings",
        text=f"In {n.num_identical} of {n.num_groups} groups all trajectories wrote the same.",
        advice="Sample at a higher temperature.",
        command=command({"sampling.temperature": 1.0}) if limits.temperature < 1 else "",
    )


def _selection(n: Numbers, limits: Limits, command: Commands) -> Finding | None:
    if not n.num_empty or not n.num_mixed:
        return None
    return Finding(
        level=Level.WARN,
        name="empty selections",
        text=f"On {n.num_empty} of {n.num_steps} steps the selection would keep no group, so these "
        "steps would train nothing.",
        advice="Take more groups per step.",
    )


def _payoff(n: Numbers, limits: Limits, command: Commands) -> Finding | None:
    is_selecting = limits.selection.strategy != "none"
    if n.payoff.worth is Worth.PAYS and not is_selecting:
        return Finding(
            level=Level.INFO,
            name="selection would pay",
            text=n.payoff.text,
            advice="Keep the groups with the largest reward spread.",
            command=command({"selection.strategy": "top_p", "selection.value": 0.9}),
        )
    is_by_spread = is_selecting and limits.selection.metric == "reward_std"
    if n.payoff.worth in (Worth.COSTS, Worth.NOISE) and is_by_spread:
        return Finding(
            level=Level.INFO,
            name="selection may not pay",
            text=n.payoff.text,
            advice="Compare with a run that keeps all groups.",
            command=command({"selection.strategy": "none"}),
        )
    return None


def _blind(found: Dependence | None, warm_start: str) -> Finding | None:
    if found is None or found.problem or not found.p_value > NOT_ABOVE_CHANCE:
        return None
    return Finding(
        level=Level.INFO,
        name="reasoning does not show the prompt",
        text=f"The reasoning of the first turn does not depend measurably on the prompt "
        f"({found.num_prompts} prompts, p {found.p_value:.2g}), so a template collapse could not "
        "be detected.",
        advice="Read some replies: does the reasoning mention what is special about its task?"
        + (" If not, warm-start the policy on demonstrations." if warm_start else ""),
    )


def _update(cost: Cost | None) -> Finding | None:
    if cost is None or not cost.problem:
        return None
    return Finding(
        level=Level.STOP,
        name="the update fails",
        text=f"An update on these rollouts failed: {cost.problem}.",
        advice="Lower optim.max_microbatch_tokens, set model.gradient_checkpointing=true, or use "
        "adapters (model.lora.rank=64) if memory ran out; else lower optim.lr.",
    )


def _memory(cost: Cost | None, command: Commands) -> Finding | None:
    if cost is None or cost.problem or cost.peak_bytes <= TIGHT_MEMORY * cost.total_bytes:
        return None
    share = cost.peak_bytes / cost.total_bytes
    return Finding(
        level=Level.WARN,
        name="tight memory",
        text=f"The peak was {percent(share)} of all memory; longer replies will need more.",
        advice="Recompute activations, or lower optim.max_microbatch_tokens.",
        command=command({"model.gradient_checkpointing": True}),
    )
