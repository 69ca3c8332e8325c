"""What metrics are called in words: a plain name, a unit, and a sentence that explains them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .words import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Words for one metric."""

    name: str
    unit: str = ""
    help: str = ""


SHARE = "share"
"""Unit of what lies between 0 and 1; charts show it as a percentage."""
_NATS = "nats"

LABELS: Mapping[str, Label] = {
    "rollout/success_rate": Label(
        name="Success in training",
        unit=SHARE,
        help="Share of the step's trajectories that solved their task, before selection.",
    ),
    "reward/return_mean": Label(
        name="Return",
        unit="reward",
        help="Mean episode return: environment rewards, format penalties and shaping.",
    ),
    "reward/return_std": Label(
        name="Return std",
        unit="reward",
        help="Spread of returns over all trajectories of the step.",
    ),
    "reward/group_std_mean": Label(
        name="Reward std within groups",
        unit="reward",
        help="Mean over groups of the spread of returns among siblings: what there is to learn.",
    ),
    "reward/zero_std_frac": Label(
        name="Groups without spread",
        unit=SHARE,
        help="Groups whose siblings all earned the same: they give no gradient.",
    ),
    "reward/solved_frac": Label(
        name="Solved groups", unit=SHARE, help="Groups in which every sibling succeeded."
    ),
    "reward/hopeless_frac": Label(
        name="Hopeless groups", unit=SHARE, help="Groups in which every sibling failed."
    ),
    "selection/kept_frac": Label(
        name="Kept", unit=SHARE, help="Share of groups that the filter let into the update."
    ),
    "policy/entropy": Label(
        name="Policy entropy",
        unit="nats a token",
        help="Mean entropy of the sampling distribution per sampled token.",
    ),
    "policy/mismatch_kl": Label(
        name="Mismatch KL",
        unit="nats a token",
        help="Sampler against trainer on the sampled tokens, same weights; should be near zero.",
    ),
    "policy/ref_kl": Label(
        name="KL to the reference",
        unit="nats a token",
        help="How far the policy has moved from the reference policy.",
    ),
    "policy/approx_kl": Label(
        name="KL of the update",
        unit="nats a token",
        help="How far the update moved the policy from the one that sampled.",
    ),
    "policy/clip_high_frac": Label(
        name="Clipped from above",
        unit=SHARE,
        help="Tokens whose importance ratio hit the upper clip limit.",
    ),
    "policy/clip_low_frac": Label(
        name="Clipped from below",
        unit=SHARE,
        help="Tokens whose importance ratio hit the lower clip limit.",
    ),
    "policy/success_logprob": Label(
        name="Log-probability of successes",
        unit="nats a token",
        help="Mean log-probability of tokens in successful trajectories.",
    ),
    "info/first_turn/mutual_information": Label(
        name="I(X;Z)",
        unit=_NATS,
        help="Mutual information: how much the reasoning depends on its prompt (first turn).",
    ),
    "info/first_turn/conditional_entropy": Label(
        name="H(Z given X)",
        unit=_NATS,
        help="Conditional entropy: how varied the reasoning is for one and the same prompt.",
    ),
    "info/first_turn/retrieval_accuracy@1": Label(
        name="Retrieval accuracy",
        unit=SHARE,
        help="How often the reasoning's own prompt explains it best among all prompts.",
    ),
    "optim/grad_norm": Label(
        name="Policy gradient", unit="norm", help="Norm of the policy's gradient before clipping."
    ),
    "optim/lr": Label(name="Learning rate", help="Step size of the optimizer."),
    "loss/total": Label(name="Loss", help="Everything that is minimised."),
    "loss/policy": Label(name="Policy loss", help="The clipped surrogate."),
    "rollout/response_length_mean": Label(
        name="Response", unit="tokens", help="Mean sampled tokens of one response."
    ),
    "rollout/reasoning_length_mean": Label(
        name="Reasoning", unit="tokens", help="Mean tokens between the reasoning tags."
    ),
    "rollout/response_length_max": Label(
        name="Longest response", unit="tokens", help="Sampled tokens of the longest response."
    ),
    "rollout/length_limited_frac": Label(
        name="Responses at the cap", unit=SHARE, help="Responses cut off by their length limit."
    ),
    "rollout/format_valid_frac": Label(
        name="Valid format", unit=SHARE, help="Responses that parsed into an action."
    ),
    "rollout/action_valid_frac": Label(
        name="Valid actions", unit=SHARE, help="Turns whose action the environment accepted."
    ),
    "rollout/num_turns_mean": Label(
        name="Turns", unit="turns", help="Mean turns of a training trajectory."
    ),
    "time/step_s": Label(name="Step time", unit="s", help="Wall-clock seconds of a step."),
    "time/rollout_s": Label(name="Rollout time", unit="s", help="Seconds spent generating."),
    "time/update_s": Label(name="Update time", unit="s", help="Seconds spent on gradients."),
    "time/tokens_per_s": Label(
        name="Throughput", unit="tokens/s", help="Sampled tokens over the time of the whole step."
    ),
}
"""The metrics that pages show by name; `label` covers all others."""

SECTIONS: Mapping[str, str] = {
    "rollout": "Rollouts",
    "reward": "Reward",
    "selection": "Selection",
    "policy": "Policy",
    "loss": "Loss",
    "optim": "Optimizer",
    "critic": "Critic",
    "info": "Information",
    "text": "Text",
    "gradient": "Gradients",
    "eval": "Evaluation",
    "probe": "Probes",
    "time": "Time",
    "collapse": "RAGEN's names: format",
    "collapse_first_turn_sample": "RAGEN's names: first turn",
}
"""What stands before the first "/" of a key, in words."""

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


def label(key: str) -> Label:
    """Words for any metric: those of `LABELS`, or made from the key itself.

    >>> label("eval/frozen_lake/success_rate").name
    'Success rate, frozen_lake'
    >>> label("gradient/policy/all/norm").name
    'Policy term'
    >>> label("selection/num_groups_kept")
    Label(name='Number of groups kept', unit='', help='')
    """
    known = LABELS.get(key)
    if known is not None:
        return known
    parts = key.split("/")
    unit = next((unit for pattern, unit in _UNITS if re.search(pattern, key)), "")
    if len(parts) == 4 and parts[0] == "gradient" and parts[2:] == ["all", "norm"]:
        return Label(
            name=f"{_sentence(parts[1])} term",
            unit="norm",
            help=f"Norm of the gradient of the {parts[1]} term alone, over all groups.",
        )
    if len(parts) < 2:
        return Label(name=_sentence(key), unit=unit)
    of = [_FAMILIES.get(part, part) for part in parts[1:-1]]
    words = [part for part in (_sentence(parts[-1]), *of) if part]
    return Label(name=", ".join(words) or key, unit=unit)


def section(key: str) -> str:
    """What stands before the first "/"; "other" where there is none.

    >>> section("policy/entropy"), section("loss")
    ('policy', 'other')
    """
    before, slash, _ = key.partition("/")
    return before if slash and before else "other"


def section_title(name: str) -> str:
    return SECTIONS.get(name, name.replace("_", " "))


def _sentence(word: str) -> str:
    """A key's last part as words with a capital letter."""
    text = re.sub(r"_(frac|s)$", "", word) or word
    text = " ".join(_WORDS.get(part, part) for part in text.split("_") if part) or word
    return text[:1].upper() + text[1:]


def value_words(key: str, value: float) -> str:
    """A value of a metric as people say it: a share as a percentage, three digits at most.

    >>> value_words("rollout/success_rate", 0.015625), value_words("rollout/success_rate", 1.0)
    ('1.56 %', '100 %')
    >>> value_words("policy/entropy", 0.17712), value_words("policy/entropy", float("nan"))
    ('0.177', 'none')
    """
    if not math.isfinite(value):
        return NONE
    return f"{100 * value:.3g} %" if label(key).unit == SHARE else f"{value:.3g}"


def interval_words(key: str, interval: tuple[float, float] | None) -> str:
    """Both ends of an interval, `none` without one."""
    if interval is None:
        return NONE
    return f"{value_words(key, interval[0])} to {value_words(key, interval[1])}"


def change_words(ratio: float) -> str:
    """A relative change as people say it: percent while that is small, else how many times.

    >>> change_words(0.1016), change_words(-0.5), change_words(51.0), change_words(float("nan"))
    ('+10 %', '-50 %', '52 times', 'none')
    """
    if not math.isfinite(ratio):
        return NONE
    return f"{1 + ratio:.3g} times" if ratio >= 3 else f"{100 * ratio:+.0f} %"
