"""Every metric once: its key, its unit, its name, one plain sentence, and which way is good.

Charts, hover help, alarms, `--map` and the tables of docs/metrics-guide.md all read it from here.
`judge.alarms.rules_reading` says which alarm rules read a metric. A key that is not listed gets a
name made from the key itself.

    >>> metric("rollout/action_valid_frac").name, metric("eval/lake/success_rate").name
    ('Valid actions', 'Success rate, lake')
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from echoscope.text.titles import in_sentence

SHARE = "share"
"""Unit of what lies between 0 and 1; shown as a percentage."""
POINTS = "points"
"""Unit of a difference of two shares; shown in percentage points."""
_NATS = "nats"
_PER_TOKEN = "nats a token"

Good = Literal["up", "down", "steady", ""]
"""Which way is good. `steady`: both ways are bad. Empty: no way is good by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one metric is."""

    key: str
    """`*` stands for one part of a key: a tag or a term."""
    name: str
    """A noun of one to three words: a label of a chart or a column."""
    unit: str = ""
    help: str = ""
    """One or two sentences: what the number is, and when to worry."""
    good: Good = ""
    phrase: str = ""
    """The name in the middle of an alarm's sentence; made from `name` where it is the same."""

    @property
    def in_sentence(self) -> str:
        """As an alarm calls it."""
        return self.phrase or in_sentence(self.name)


def _share(key: str, name: str, help: str, good: Good = "", phrase: str = "") -> Metric:
    return Metric(key=key, name=name, unit=SHARE, help=help, good=good, phrase=phrase)


def _of(key: str, name: str, unit: str, help: str, good: Good = "", phrase: str = "") -> Metric:
    return Metric(key=key, name=name, unit=unit, help=help, good=good, phrase=phrase)


_SUCCESS = "Share of fixed tasks that are solved. Worry when it falls below its best."
_VALID = "Share of turns whose reply holds an action that the environment accepts."
_CAPPED = "Share of replies that were cut at the length limit. Worry above 20 %."

METRICS: tuple[Metric, ...] = (
    # --- success
    _share(
        "rollout/success_rate",
        "Success in training",
        "Share of the step's trajectories that solved their task, before selection.",
        "up",
        "training success",
    ),
    _share("probe/*/success_rate", "", _SUCCESS, "up", "success on the probe tasks"),
    _share("probe/success_rate", "Probe success", _SUCCESS, "up", "success on the probe tasks"),
    _share("eval/*/success_rate", "", _SUCCESS, "up", "evaluation success"),
    _share("eval/success_rate", "Evaluation success", _SUCCESS, "up", "evaluation success"),
    # --- reward
    _of(
        "reward/return_mean",
        "Return",
        "reward",
        "Mean episode return: environment rewards, format penalties and shaping.",
        "up",
        "mean return",
    ),
    _share(
        "reward/success_rate",
        "Reward as success",
        "Mean reward of another trainer's log where all rewards lie between 0 and 1.",
        "up",
        "mean return",
    ),
    _of(
        "reward/return_std",
        "Return std",
        "reward",
        "Spread of returns over all trajectories of the step.",
    ),
    _of(
        "reward/group_std_mean",
        "Reward std within groups",
        "reward",
        "Mean over groups of the spread of returns among siblings: what there is to learn. Worry "
        "when it nears zero while tasks are unsolved.",
        "steady",
        "reward standard deviation within groups",
    ),
    _share(
        "reward/zero_std_frac",
        "Groups without spread",
        "Groups whose siblings all earned the same: they give no gradient. Worry above 80 %.",
        "down",
        "groups whose rewards are all equal",
    ),
    _share("reward/solved_frac", "Solved groups", "Groups in which every sibling succeeded.", "up"),
    _share(
        "reward/hopeless_frac", "Failed groups", "Groups in which every sibling failed.", "down"
    ),
    _share(
        "reward/luck_frac",
        "Luck in rewards",
        "Part of the reward spread that equal actions on equal tasks explain. Worry above half: "
        "then use larger groups.",
        "down",
    ),
    _of(
        "reward/within_var",
        "Variance within groups",
        "reward squared",
        "Mean variance of returns among siblings of one task: all that a group-relative "
        "advantage sees.",
    ),
    _of(
        "reward/between_var",
        "Variance between groups",
        "reward squared",
        "Variance of the groups' mean returns: how much the tasks differ in difficulty.",
    ),
    _of(
        "reward/between_within_ratio",
        "Between / within",
        "",
        "Variance between tasks over variance within them. Large: tasks are solved or hopeless, "
        "and siblings of one task teach little.",
    ),
    # --- replies
    _share(
        "rollout/reasoning_closed_frac",
        "Closed reasoning",
        "Share of replies that go on after their reasoning. Worry when it falls by 20 points.",
        "up",
        "replies that close their reasoning",
    ),
    _share(
        "text/closed_reasoning_frac",
        "Closed reasoning (text)",
        "The same, counted from the text of sampled replies.",
        "up",
        "replies that close their reasoning",
    ),
    _share(
        "rollout/format_valid_frac",
        "Valid format",
        "Responses that parsed into an action. Worry when it falls by 20 points.",
        "up",
        "replies in the right format",
    ),
    _share("rollout/action_valid_frac", "Valid actions", _VALID, "up"),
    _share("text/valid_frac", "Valid actions (text)", _VALID, "up", "valid actions"),
    _share("probe/*/action_valid_frac", "", _VALID, "up", "valid actions in evaluation"),
    _share(
        "probe/action_valid_frac",
        "Valid probe actions",
        _VALID,
        "up",
        "valid actions in evaluation",
    ),
    _share("eval/*/action_valid_frac", "", _VALID, "up", "valid actions in evaluation"),
    _share(
        "eval/action_valid_frac",
        "Valid evaluation actions",
        _VALID,
        "up",
        "valid actions in evaluation",
    ),
    _share(
        "rollout/length_limited_frac",
        "Responses at the cap",
        _CAPPED,
        "down",
        "replies cut at the length limit",
    ),
    _share(
        "text/truncated_frac",
        "Truncated replies",
        _CAPPED,
        "down",
        "replies cut at the length limit",
    ),
    _of(
        "rollout/response_length_mean",
        "Response",
        "tokens",
        "Mean sampled tokens of one response. Worry when it doubles.",
        "steady",
        "response length",
    ),
    _of(
        "rollout/num_sampled_tokens_mean",
        "Trajectory length",
        "tokens",
        "Mean sampled tokens of one trajectory, over all turns.",
        "steady",
        "response length",
    ),
    _of(
        "text/num_chars_p50",
        "Reply length",
        "characters",
        "Median length of a reply.",
        "steady",
        "response length",
    ),
    _of(
        "rollout/response_length_max",
        "Longest response",
        "tokens",
        "Sampled tokens of the longest response.",
    ),
    _of(
        "rollout/reasoning_length_mean",
        "Reasoning",
        "tokens",
        "Mean tokens between the reasoning tags.",
    ),
    _of("rollout/num_turns_mean", "Turns", "turns", "Mean turns of a training trajectory."),
    # --- entropy
    _of(
        "policy/entropy",
        "Policy entropy",
        _PER_TOKEN,
        "Mean entropy of the sampling distribution per sampled token. Worry when it doubles, or "
        "falls to a tenth of its start.",
        "steady",
        "entropy per token",
    ),
    _of(
        "info/*/conditional_entropy_per_token",
        "",
        _PER_TOKEN,
        "How varied the reasoning is for one and the same prompt, per token. Worry when it falls "
        "to a tenth of its start.",
        "steady",
        "reasoning entropy H(Z|X) per token",
    ),
    _of(
        "info/first_turn/conditional_entropy",
        "H(Z given X)",
        _NATS,
        "Conditional entropy: how varied the reasoning is for one and the same prompt.",
        "steady",
    ),
    # --- dependence of the reasoning on its prompt
    _of(
        "info/first_turn/mutual_information",
        "I(X;Z)",
        _NATS,
        "Mutual information: how much the reasoning depends on its prompt (first turn). Worry "
        "when it falls below a quarter of its best.",
        "up",
    ),
    _of(
        "info/*/population_upper_bound",
        "",
        _NATS,
        "I(X;Z) over all prompts of the environment is at most this. The batch alone cannot "
        "show more than ln N.",
    ),
    _share(
        "info/*/dependence",
        "",
        "I(X;Z) as a share of its maximum, ln N for N prompts. At 0 the reasoning ignores its "
        "prompt.",
        "up",
    ),
    _share(
        "info/first_turn/dependence_high",
        "Dependence, upper end",
        "Upper end of the interval of I(X;Z), as a share of its maximum. Alarms read it, so that "
        "noise alone raises none.",
        "up",
        "mutual information I(X;Z) of first-turn reasoning (share of its maximum)",
    ),
    _share(
        "info/all_turns/dependence_high",
        "Dependence, all turns",
        "The same over the reasoning of all turns.",
        "up",
        "mutual information I(X;Z) over all turns (share of its maximum)",
    ),
    _share(
        "info/first_turn/retrieval_accuracy@1",
        "Retrieval accuracy",
        "How often the reasoning's own prompt explains it best among all prompts. Worry when it "
        "nears chance, 1/N.",
        "up",
    ),
    _of(
        "info/*/retrieval_margin",
        "",
        POINTS,
        "Retrieval accuracy less its chance level; 0 where a permutation test cannot tell them "
        "apart.",
        "up",
        "prompts identified from the reasoning, above chance",
    ),
    _share(
        "text/retrieval_accuracy",
        "Retrieval (text)",
        "How often the prompt can be told from the words of the reasoning alone.",
        "up",
    ),
    _of(
        "text/retrieval_margin",
        "Retrieval margin (text)",
        POINTS,
        "Retrieval from text less its chance level.",
        "up",
        "prompts identified from the wording alone, above chance",
    ),
    _share(
        "text/dependence",
        "Dependence (text)",
        "Lower bound of I(X;Z) from words alone, as a share of its maximum.",
        "up",
        "link between prompt and reasoning, estimated from text",
    ),
    _share(
        "text/template_frac",
        "Boilerplate",
        "Share of phrases that most reasonings have in common. Worry when it rises by 30 points.",
        "down",
        "phrases that are boilerplate",
    ),
    _share(
        "text/agreement_frac",
        "Agreement",
        "Share of answers that follow from their reasoning. Worry when it falls by 20 points.",
        "up",
        "answers that follow from their reasoning",
    ),
    # --- repetition
    _share(
        "text/sibling_distance",
        "Sibling distance",
        "How much replies to one prompt differ. Worry below a quarter of its best.",
        "steady",
        "difference between replies to one prompt",
    ),
    _share(
        "text/near_duplicate_frac",
        "Near duplicates",
        "Share of sibling replies that are nearly equal. Worry when it rises by 30 points.",
        "down",
        "nearly equal sibling replies",
    ),
    _share(
        "text/loop_frac",
        "Loops",
        "Share of replies that repeat a phrase over and over. Worry when it rises by 20 points.",
        "down",
        "replies that loop",
    ),
    _share(
        "text/echo_frac",
        "Echo",
        "Overlap of a reply with the policy's own previous turn. Worry when it rises by 30 points.",
        "down",
        "overlap with the own previous turn",
    ),
    # --- selection
    _share("selection/kept_frac", "Kept", "Share of groups that the filter let into the update."),
    _of(
        "selection/is_empty",
        "Empty selection",
        "",
        "1 where the filter kept no group, so that the step trained nothing. Worry after five "
        "in a row.",
        "down",
        "steps without a selected group",
    ),
    # --- the update
    _of(
        "optim/grad_norm",
        "Policy gradient",
        "norm",
        "Norm of the policy's gradient before clipping. A jump is a note, not an alarm.",
        "steady",
        "gradient norm",
    ),
    _of(
        "gradient/regulariser_ratio",
        "Regulariser ratio",
        "",
        "Larger gradient norm of the KL and entropy terms, over that of the task. Worry above 1.",
        "down",
        "KL and entropy gradient over the task gradient",
    ),
    _of(
        "gradient/trajectory/norm_p50",
        "Trajectory gradient, median",
        "norm",
        "Median over trajectories of the norm of the gradient that one trajectory gives alone.",
    ),
    _of(
        "gradient/trajectory/norm_max",
        "Trajectory gradient, largest",
        "norm",
        "Largest norm of the gradient that one trajectory gives alone.",
    ),
    _share(
        "gradient/trajectory/max_share",
        "Largest trajectory's share",
        "Largest share of the sum of squared gradient norms that one trajectory has. Worry "
        "above a third: one episode steers the update.",
        "down",
    ),
    _of(
        "optim/non_finite",
        "Non-finite updates",
        "",
        "1 where a loss or a gradient was not finite, or an update was skipped.",
        "down",
        "non-finite losses or gradients",
    ),
    _of("optim/lr", "Learning rate", "", "Step size of the optimizer."),
    _of("loss/total", "Loss", "", "Everything that is minimised."),
    _of("loss/policy", "Policy loss", "", "The clipped surrogate."),
    _of(
        "policy/mismatch_kl",
        "Mismatch KL",
        _PER_TOKEN,
        "Sampler against trainer on the sampled tokens, same weights; should be near zero. Worry "
        "above 0.05.",
        "down",
        "KL between sampler and trainer",
    ),
    _of(
        "policy/ref_kl",
        "KL to the reference",
        _PER_TOKEN,
        "How far the policy has moved from the reference policy. Worry above 1.",
        "",
        "KL to the reference policy",
    ),
    _of(
        "policy/approx_kl",
        "KL of the update",
        _PER_TOKEN,
        "How far the update moved the policy from the one that sampled.",
    ),
    _share(
        "policy/clip_high_frac",
        "Clipped from above",
        "Tokens whose importance ratio hit the upper clip limit.",
    ),
    _share(
        "policy/clip_low_frac",
        "Clipped from below",
        "Tokens whose importance ratio hit the lower clip limit.",
    ),
    _of(
        "policy/success_logprob",
        "Log-probability of successes",
        _PER_TOKEN,
        "Mean log-probability of tokens in successful trajectories. Worry when it falls.",
        "up",
        "log-probability of successful trajectories per token",
    ),
    # --- time
    _of("time/step_s", "Step time", "s", "Wall-clock seconds of a step.", "down"),
    _of("time/rollout_s", "Rollout time", "s", "Seconds spent generating.", "down"),
    _of("time/update_s", "Update time", "s", "Seconds spent on gradients.", "down"),
    _of(
        "time/tokens_per_s",
        "Throughput",
        "tokens/s",
        "Sampled tokens over the time of the whole step.",
        "up",
    ),
)
"""Those that pages show by name or that rules read, by subject; `metric` covers all others."""

LISTED: Mapping[str, Metric] = {entry.key: entry for entry in METRICS}
_PATTERNS = tuple(
    (re.compile(re.escape(entry.key).replace(r"\*", "[^/]+")), entry)
    for entry in METRICS
    if "*" in entry.key
)

_FAMILIES = {"first_turn": "first turn", "all_turns": "all turns", "actions": "actions"}
_WORDS = {
    "std": "std",
    "kl": "KL",
    "snr": "SNR",
    "lr": "learning rate",
    "logprob": "log-probability",
    "info": "information",
    "num": "number of",
}
_UNITS: Sequence[tuple[str, str]] = (
    (r"_frac$|success_rate(_low|_high)?$|pass_at_\d+$|accuracy(@\d+)?(_low|_high)?$", SHARE),
    (r"_per_s$", "per second"),
    (r"_s$", "s"),
    (r"entropy|mutual_information|kl$|logprob", _NATS),
    (r"(^|/)num_tokens|_tokens(_mean)?$|length", "tokens"),
    (r"norm(_max|_p50)?$", "norm"),
)


@functools.cache
def metric(key: str) -> Metric:
    """What a metric is: as listed, as its pattern says, or as its key tells.

    >>> metric("gradient/policy/all/norm").name
    'Policy term'
    >>> metric("selection/num_groups_kept").name
    'Number of groups kept'
    """
    listed = LISTED.get(key)
    if listed is None:
        listed = next((entry for pattern, entry in _PATTERNS if pattern.fullmatch(key)), None)
    if listed is None:
        return _from_key(key)
    return listed if listed.name else replace(listed, key=key, name=_from_key(key).name)


def _from_key(key: str) -> Metric:
    """A name and a unit made from the key."""
    parts = key.split("/")
    unit = next((unit for pattern, unit in _UNITS if re.search(pattern, key)), "")
    if len(parts) == 4 and parts[0] == "gradient" and parts[2:] == ["all", "norm"]:
        return Metric(
            key=key,
            name=f"{_sentence(parts[1])} term",
            unit="norm",
            help=f"Norm of the gradient of the {parts[1]} term alone, over all groups.",
        )
    if len(parts) < 2:
        return Metric(key=key, name=_sentence(key), unit=unit)
    of = [_FAMILIES.get(part, part) for part in parts[1:-1] if part != "*"]
    names = [part for part in (_sentence(parts[-1]), *of) if part]
    return Metric(key=key, name=", ".join(names) or key, unit=unit)


def _sentence(word: str) -> str:
    """A key's last part with spaces and a capital letter."""
    text = re.sub(r"_(frac|s)$", "", word) or word
    text = " ".join(_WORDS.get(part, part) for part in text.split("_") if part) or word
    return text[:1].upper() + text[1:]
