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
from dataclasses import replace

from echoscope.text.sentences import capitalised

from .metric_entry import NATS, PER_TOKEN, POINTS, SHARE, Metric
from .metric_entry import of_unit as _of
from .metric_entry import share as _share
from .off_policy_entries import COLLECTION_METRICS, ENGINE_METRICS, OFF_POLICY_METRICS

_EVAL_SUCCESS = (
    "Share of evaluation tasks that are solved. The tasks are always the same and never train. "
    "Worry when it falls below its best."
)
_PROBE_SUCCESS = (
    "Share of probe tasks that are solved: a few fixed tasks, played with the same random "
    "numbers each time, so only the policy can change it. Worry when it falls below its best."
)
_VALID = (
    "Share of turns whose reply holds an action that the environment accepts. Worry when it "
    "falls by 20 points."
)
_RUNNING_SUCCESS = (
    "Running success in training on this environment. The curriculum gives few groups near 0 and 1."
)
_CAPPED = "Share of replies that were cut at the length limit. Worry above 20 %."

_EVAL_RETURN = "Mean return of an evaluation's episodes, on the trainer's own scale."

METRICS: tuple[Metric, ...] = (
    # --- success
    _share(
        "rollout/success_rate",
        "Success in training",
        "Share of the training trajectories of the step that solved their task, before any "
        "filter. It depends on which tasks were drawn.",
        "up",
        "training success",
    ),
    _share("probe/*/success_rate", "", _PROBE_SUCCESS, "up", "success on the probe tasks"),
    _share(
        "probe/success_rate", "Probe success", _PROBE_SUCCESS, "up", "success on the probe tasks"
    ),
    _share("eval/*/success_rate", "", _EVAL_SUCCESS, "up", "evaluation success"),
    _share("eval/success_rate", "Evaluation success", _EVAL_SUCCESS, "up", "evaluation success"),
    _share(
        "eval/*/pass_at_*",
        "",
        "Chance that at least one of k samples solves an evaluation task, estimated without bias "
        "from all samples of the task. Worry when it falls while success rises: the policy then "
        "solves fewer tasks, more often.",
        "up",
        "pass@k",
    ),
    _share("curriculum/*/group_frac", "", "Share of the step's groups given to this environment."),
    _share("curriculum/*/success", "", _RUNNING_SUCCESS, "up", "running success"),
    # --- reward
    _of(
        "reward/return_mean",
        "Return",
        "reward",
        "Mean return of an episode: the sum of environment rewards, format penalties and shaping.",
        "up",
        "mean return",
    ),
    _of(
        "reward/is_reconstructed",
        "Reconstructed return",
        "",
        "1 where the return is the sum of the parts of a reward whose weights are not known.",
    ),
    *(
        _of(key, name, "reward", _EVAL_RETURN, "up", "evaluation reward")
        for key, name in (("eval/*/return_mean", ""), ("eval/return_mean", "Evaluation reward"))
    ),
    _of(
        "reward/return_std",
        "Return std",
        "reward",
        "Standard deviation of the return over all trajectories of the step.",
    ),
    _of(
        "reward/group_std_mean",
        "Reward std within groups",
        "reward",
        "Standard deviation of the return within a group (the trajectories of one task), mean "
        "over groups: how much there is to learn. Worry when it nears 0 while tasks are "
        "unsolved.",
        "steady",
        "reward standard deviation within groups",
    ),
    _share(
        "reward/zero_std_frac",
        "Groups without spread",
        "Share of groups in which all trajectories earned the same reward. Such a group gives no "
        "gradient. Worry above 80 %.",
        "down",
        "groups whose rewards are all equal",
    ),
    _share(
        "reward/solved_frac",
        "Solved groups",
        "Share of groups in which every trajectory succeeded.",
        "up",
    ),
    _share(
        "reward/hopeless_frac",
        "Failed groups",
        "Share of groups in which every trajectory failed.",
        "down",
    ),
    _share(
        "reward/luck_frac",
        "Noise in rewards",
        "Reward variance between trajectories of one task with the same actions, over the "
        "variance between all trajectories of the task. Worry above 50 %: use larger groups "
        "then.",
        "down",
    ),
    _of(
        "reward/kl",
        "KL in reward",
        PER_TOKEN,
        "Distance from the reference policy that the reward is charged for, before its "
        "coefficient. Estimated at the sampled tokens, so it can be a little below zero.",
    ),
    _of(
        "reward/kl_coef",
        "KL coefficient",
        "",
        "What one nat of distance from the reference policy costs in reward. An adaptive one "
        "rises while the distance is above its target.",
    ),
    # --- replies
    _share(
        "rollout/reasoning_closed_frac",
        "Closed reasoning",
        "Share of replies that close their reasoning and go on to an answer. Worry when it falls "
        "by 20 points.",
        "up",
        "replies that close their reasoning",
    ),
    _share(
        "text/closed_reasoning_frac",
        "Closed reasoning (text)",
        "Share of replies that close their reasoning and go on to an answer, counted from the "
        "stored text. Worry when it falls by 20 points.",
        "up",
        "replies that close their reasoning",
    ),
    _share(
        "rollout/format_valid_frac",
        "Valid format",
        "Share of replies in the expected format, so that their answer can be read. Worry when "
        "it falls by 20 points.",
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
        "Replies at the cap",
        _CAPPED,
        "down",
        "replies cut at the length limit",
    ),
    _share(
        "text/truncated_frac",
        "Replies cut (text)",
        _CAPPED,
        "down",
        "replies cut at the length limit",
    ),
    _of(
        "rollout/response_length_mean",
        "Reply length",
        "tokens",
        "Tokens per reply, mean. Worry when it doubles.",
        "steady",
        "response length",
    ),
    _of(
        "rollout/num_sampled_tokens_mean",
        "Trajectory length",
        "tokens",
        "Sampled tokens per trajectory, over all its turns, mean. Worry when it doubles.",
        "steady",
        "response length",
    ),
    _of(
        "text/num_chars_p50",
        "Reply length (text)",
        "characters",
        "Characters per reply, median. Worry when it doubles.",
        "steady",
        "response length",
    ),
    _of(
        "rollout/response_length_max",
        "Longest reply",
        "tokens",
        "Tokens of the longest reply of the step.",
    ),
    _of(
        "rollout/reasoning_length_mean",
        "Reasoning length",
        "tokens",
        "Tokens between the reasoning tags of a reply, mean.",
    ),
    _of("rollout/num_episodes", "Episodes", "", "Training episodes with a known outcome."),
    _of(
        "rollout/num_groups",
        "Groups",
        "",
        "Groups of these episodes. Those of one group play one task, so they are not independent.",
    ),
    _of("rollout/num_turns_mean", "Turns", "turns", "Turns per training trajectory, mean."),
    _of(
        "rollout/num_rounds",
        "Rounds",
        "rounds",
        "How often a step played its groups, with new tasks each time, until enough of them were "
        "mixed. Each round costs as much as a step without dynamic sampling.",
    ),
    # --- engines and workers in processes of their own
    _of(
        "ray/num_lost",
        "Lost engines",
        "engines",
        "Engines that died or did not answer in this step. Each was replaced and its work was done "
        "again. Worry when it repeats: a machine may lack memory.",
        "down",
    ),
    _of(
        "ray/num_lost_workers",
        "Lost environment workers",
        "workers",
        "Environment workers that died in this step. The episodes in them ended without training; "
        "a new worker took the place of each.",
        "down",
    ),
    _of(
        "ray/*/num_tokens",
        "Tokens by engine",
        "tokens",
        "Tokens that this engine sampled since the step before, evaluation included.",
    ),
    _of(
        "ray/*/num_calls",
        "Calls by worker",
        "calls",
        "Times that this engine or environment worker was asked since the step before.",
    ),
    _of(
        "ray/*/busy_s",
        "Worker busy",
        "s",
        "Seconds that this engine was sampling, or that the environments of this worker were at "
        "work, summed over calls. Much less than others have: it waits for them.",
    ),
    # --- entropy
    _of(
        "policy/entropy",
        "Policy entropy",
        PER_TOKEN,
        "How uncertain the policy is about its next token, mean over sampled tokens. Worry when "
        "it doubles or falls to a tenth of its start.",
        "steady",
        "entropy per token",
    ),
    _of(
        "info/*/conditional_entropy_per_token",
        "",
        PER_TOKEN,
        "Conditional entropy H(Z|X) per token: how much the reasoning varies when the prompt "
        "stays the same. Worry when it falls to a tenth of its start.",
        "steady",
        "reasoning entropy H(Z|X) per token",
    ),
    _of(
        "info/first_turn/conditional_entropy",
        "H(Z|X)",
        NATS,
        "Conditional entropy H(Z|X): how much the reasoning of the first turn varies when the "
        "prompt stays the same. Worry when it falls to a tenth of its start.",
        "steady",
    ),
    # --- dependence of the reasoning on its prompt
    _of(
        "info/first_turn/mutual_information",
        "I(X;Z)",
        NATS,
        "Mutual information I(X;Z): how much the reasoning of the first turn tells about its "
        "prompt; at most ln N for N prompts. Worry when it falls below a quarter of its best.",
        "up",
    ),
    _share(
        "info/*/dependence",
        "",
        "Mutual information I(X;Z) as a share of its maximum, ln N for N prompts. At 0 the "
        "reasoning ignores its prompt.",
        "up",
        "I(X;Z) (share of its maximum)",
    ),
    _share(
        "info/first_turn/dependence_high",
        "Dependence, upper end",
        "Upper end of the 95 % interval of I(X;Z) at the first turn, as a share of its maximum. "
        "Alarms read this end, so that noise alone raises no alarm.",
        "up",
        "upper end of I(X;Z) of first-turn reasoning (share of its maximum)",
    ),
    _share(
        "info/all_turns/dependence_high",
        "Dependence, all turns",
        "Upper end of the 95 % interval of I(X;Z) over all turns, as a share of its maximum.",
        "up",
        "upper end of I(X;Z) over all turns (share of its maximum)",
    ),
    _share(
        "info/first_turn/retrieval_accuracy@1",
        "Retrieval accuracy",
        "Share of reasonings that are more likely under their own prompt than under any other of "
        "the N prompts. Worry when it nears chance, 1/N.",
        "up",
    ),
    _of(
        "info/*/retrieval_margin",
        "",
        POINTS,
        "Retrieval accuracy minus its chance level; 0 if a permutation test finds no difference. "
        "Worry when it nears 0.",
        "up",
        "prompts identified from the reasoning, above chance",
    ),
    _share(
        "text/retrieval_accuracy",
        "Retrieval (text)",
        "Share of reasonings whose prompt can be told from their words alone, without a model. "
        "Worry when it nears chance.",
        "up",
    ),
    _of(
        "text/retrieval_margin",
        "Retrieval margin (text)",
        POINTS,
        "Retrieval from text minus its chance level. Worry when it nears 0.",
        "up",
        "prompts identified from the wording alone, above chance",
    ),
    _share(
        "text/dependence",
        "Dependence (text)",
        "Lower bound of I(X;Z), estimated from words alone, as a share of its maximum.",
        "up",
        "link between prompt and reasoning, estimated from text",
    ),
    _share(
        "text/template_frac",
        "Boilerplate",
        "Share of a reasoning's phrases (five words) that also occur under most other prompts. "
        "Worry when it rises by 30 points.",
        "down",
        "phrases that are boilerplate",
    ),
    _share(
        "text/agreement_frac",
        "Agreement",
        "Share of turns that execute the action their reasoning names last. Worry when it falls "
        "by 20 points.",
        "up",
        "answers that follow from their reasoning",
    ),
    # --- repetition
    _share(
        "text/sibling_distance",
        "Sibling distance",
        "How much the reasonings of one task differ: 0 if all are equal. Worry below a quarter "
        "of its best.",
        "steady",
        "difference between replies to one prompt",
    ),
    _share(
        "text/near_duplicate_frac",
        "Near duplicates",
        "Share of pairs of reasonings of one task that are nearly equal. Worry when it rises by "
        "30 points.",
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
        "Share of a reasoning's phrases that repeat the policy's previous turn. Worry when it "
        "rises by 30 points.",
        "down",
        "overlap with the own previous turn",
    ),
    # --- the sampler's weights
    _of(
        "rollout/staleness_mean",
        "Staleness",
        "updates",
        "Updates that the weights behind a turn lack, mean over turns. 0 if the sampler has the "
        "trainer's weights.",
        "down",
    ),
    _of(
        "rollout/staleness_max",
        "Largest staleness",
        "updates",
        "Updates that the oldest weights behind a turn of the step lack.",
        "down",
    ),
    _of(
        "rollout/uncorrected_staleness",
        "Uncorrected staleness",
        "updates",
        "Staleness, and 0 where `off_policy.correction` weighs the samples. Worry from 1.",
        "down",
        "updates that the sampler is behind",
    ),
    *COLLECTION_METRICS,
    *ENGINE_METRICS,
    # --- selection
    _share(
        "selection/kept_frac",
        "Kept groups",
        "Share of groups that the filter kept for the update.",
    ),
    _of(
        "selection/is_empty",
        "Empty selection",
        "",
        "1 if the filter kept no group, so that the step trained nothing. Worry after five such "
        "steps in a row.",
        "down",
        "steps without a selected group",
    ),
    # --- the update
    _of(
        "optim/grad_norm",
        "Gradient norm",
        "",
        "Norm of the policy's gradient before clipping. A single jump is no reason to worry.",
        "steady",
        "gradient norm",
    ),
    _of(
        "gradient/regulariser_ratio",
        "Regulariser ratio",
        "",
        "Gradient norm of the KL or the entropy term, whichever is larger, over that of the "
        "task. Worry above 1.",
        "down",
        "KL and entropy gradient over the task gradient",
    ),
    _share(
        "gradient/trajectory/max_share",
        "Largest trajectory's share",
        "Share that one trajectory has in the sum of squared gradient norms, the largest of the "
        "step. Worry above a third: one episode steers the update.",
        "down",
    ),
    _of(
        "optim/non_finite",
        "Non-finite updates",
        "",
        "1 if a loss or a gradient was infinite or NaN, or an update was skipped. Worry at once.",
        "down",
        "non-finite losses or gradients",
    ),
    _of("optim/lr", "Learning rate", "", "Step size of the optimizer."),
    _of("optim/critic_lr", "Critic learning rate", "", "Step size of the critic."),
    _of(
        "optim/forwarded_frac",
        "Forwarded share",
        "of the rows' tokens",
        "Tokens that the update forwards, over the tokens of its rows. Below 1 where rows share "
        "their beginnings; above 1 where rows are padded.",
    ),
    _of("loss/total", "Loss", "", "Sum of all loss terms. Its level alone says little."),
    _of(
        "loss/policy",
        "Policy loss",
        "",
        "Loss of the task alone: the clipped surrogate. Its level alone says little.",
    ),
    _of(
        "policy/mismatch_kl",
        "Mismatch KL",
        PER_TOKEN,
        "KL divergence between sampler and trainer on the sampled tokens, before the update. "
        "It should be near 0; worry above 0.05.",
        "down",
        "KL between sampler and trainer",
    ),
    _of(
        "policy/mismatch_ratio_mean",
        "Mismatch ratio",
        "",
        "Trainer's over sampler's probability of the sampled tokens, mean. It is 1 for samples "
        "of any policy, if the sampler records the probabilities that it samples with.",
        "steady",
    ),
    _of(
        "policy/mismatch_ratio_gap",
        "Mismatch ratio gap",
        "",
        "Distance of the mismatch ratio from 1. Worry above 0.02: the sampler's log-probabilities "
        "are not those it samples with.",
        "down",
        "distance of the mean ratio of trainer to sampler from 1",
    ),
    _of(
        "policy/mismatch_logprob_mean",
        "Mean mismatch",
        "nats",
        "Mean difference, without its sign, between sampler and trainer in the log-probability of "
        "a token. In float32 it is rounding, about 1e-6; a sampler in bfloat16 gives about 0.005.",
        "down",
    ),
    _share(
        "policy/mismatch_effective_frac",
        "Effective samples by mismatch",
        "Effective sample size of the sampled tokens, each weighed by trainer over sampler, over "
        "their number. It is 100 % where both agree; worry below 90 %.",
        "up",
    ),
    _of(
        "policy/mismatch_logprob_max",
        "Largest mismatch",
        "nats",
        "Largest difference between sampler and trainer in the log-probability of a token.",
        "down",
    ),
    _of(
        "policy/ref_kl",
        "KL to the reference",
        PER_TOKEN,
        "KL divergence from the reference policy: how far training has moved the policy. Worry "
        "above 1.",
        "",
        "KL to the reference policy",
    ),
    _of(
        "policy/approx_kl",
        "KL of the update",
        PER_TOKEN,
        "KL divergence between the old policy of the importance ratio and the policy during the "
        "update: how far one update moves.",
    ),
    _share(
        "policy/clip_high_frac",
        "Clipped from above",
        "Share of tokens whose importance ratio reached the upper clip limit.",
    ),
    _share(
        "policy/clip_low_frac",
        "Clipped from below",
        "Share of tokens whose importance ratio reached the lower clip limit.",
    ),
    _of(
        "policy/success_logprob",
        "Log-probability of successes",
        PER_TOKEN,
        "Log-probability per token of successful trajectories, mean. Worry when it falls for ten "
        "steps.",
        "up",
        "log-probability of successful trajectories per token",
    ),
    # --- samples of another policy
    *OFF_POLICY_METRICS,
    # --- time
    _of("time/step_s", "Step time", "s", "Wall-clock seconds of a step.", "down"),
    _of(
        "time/rollout_s",
        "Rollout time",
        "s",
        "Seconds of a step spent on sampling episodes.",
        "down",
    ),
    _of("time/update_s", "Update time", "s", "Seconds of a step spent on the update.", "down"),
    _of(
        "time/tokens_per_s",
        "Throughput",
        "tokens/s",
        "Sampled tokens per second of the whole step.",
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
    (
        r"_frac$|success_rate(_low|_high)?$|pass_at_\d+(_low|_high)?$|accuracy(@\d+)?(_low|_high)?$",
        SHARE,
    ),
    (r"_per_s$", "per second"),
    (r"_s$", "s"),
    (r"entropy|mutual_information|kl$|logprob", NATS),
    (r"(^|/)num_tokens|_tokens(_mean)?$|length", "tokens"),
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
            unit="",
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
    return capitalised(text)
