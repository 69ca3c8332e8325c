"""The catalogue of metric names: which names of other trainers mean which of our keys.

Names are compared in one spelling: lower case, words joined by `_`. `/`, `.`, `-`, `:`, spaces and
a change from lower to upper case all separate words, so `critic/rewards/mean`,
`critic_rewards_mean` and `Critic Rewards Mean` are one name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from echoscope.store.records import FloatArray64

from .name_words import in_english


class Conversion(StrEnum):
    """What a source's values need to mean what the key says."""

    NONE = ""
    COMPLEMENT = "1 - x"
    MAGNITUDE = "-x where x is never positive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One of our keys, and how a source's values become its values."""

    key: str
    conversion: Conversion = Conversion.NONE
    rank: int = 0
    """Among several columns of one key the lowest rank is read."""
    only_share: bool = False
    """Read only where all values lie in 0..1: by its name it may be something else."""
    is_guess: bool = False
    """Read only where nothing else says it: the name holds a word that says nothing to us."""

    def convert(self, values: FloatArray64) -> FloatArray64:
        if self.conversion is Conversion.COMPLEMENT:
            return 1.0 - values
        if self.conversion is Conversion.MAGNITUDE and not (values > 0).any():
            return -values
        return values


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[\s/._\-:|]+")
_BRACKETS = re.compile(r"\([^()]*\)|[%#\"'`]")


@functools.lru_cache(maxsize=65_536)
def spelled(name: str) -> str:
    """The name in the catalogue's spelling.

    >>> spelled("critic/rewards/mean"), spelled("Avg Response Len"), spelled("gradNorm")
    ('critic_rewards_mean', 'avg_response_len', 'grad_norm')
    """
    words = _SEPARATORS.sub("_", _CAMEL.sub("_", _BRACKETS.sub("", in_english(name.strip()))))
    return words.lower().strip("_")


STEP_NAMES = (
    "step",
    "steps",
    "global_step",
    "global_steps",
    "global_step_max_steps",
    "train_step",
    "training_step",
    "optimizer_step",
    "optim_step",
    "trainer_step",
    "progress_batch",
    "iteration",
    "iterations",
    "iter",
    "update",
    "updates",
    "num_updates",
    "n_updates",
    "training_iteration",
    "rollout_step",
    "rollout_id",
    "batch",
    "batch_idx",
    "episode",
    "episodes",
    "epoch",
    "epochs",
    "total_timesteps",
    "timestep",
    "timesteps",
    "env_steps",
    "iters",
    "itr",
    "itrs",
    "it",
    "t",
)
"""What counts training steps, in order of preference."""
_STEP_PREFIXES = ("train_", "trainer_", "training_", "time_", "policy_", "actor_", "progress_")


def step_rank(name: str) -> int | None:
    """How well a name says that it counts steps: 0 is best; None for a name that does not."""
    word = spelled(name)
    for prefix in ("", *_STEP_PREFIXES):
        bare = word.removeprefix(prefix) if word.startswith(prefix) else ""
        if bare in STEP_NAMES:
            return STEP_NAMES.index(bare)
    return None


SUCCESS_WORDS = (
    "success_rate",
    "success",
    "is_success",
    "success_ratio",
    "task_success_rate",
    "task_success",
    "episode_success_rate",
    "episode_success",
    "ep_success",
    "success_once",
    "success_at_end",
    "resolved",
    "resolved_rate",
    "resolve_rate",
    "solve_rate",
    "solved_rate",
    "win_rate",
    "winrate",
    "win",
    "sr",
    "accuracy",
    "acc",
    "answer_accuracy",
    "pass@1",
    "pass_at_1",
    "pass1",
    "pass_rate",
    "exact_match",
    "exact_match_rate",
    "em",
    "correct_rate",
    "frac_correct",
    "correct_frac",
    "percent_correct",
    "correctness",
    "correct",
    "solved",
    "goal_rate",
    "reward_acc",
    "reward_accuracy",
)
RETURN_WORDS = (
    "critic_score",
    "return",
    "episode_return",
    "episodic_return",
    "episode_reward",
    "ep_rew",
    "rew",
    "ep_return",
    "ep_reward",
    "eprew",
    "objective_scores",
    "env_all_reward_total",
    "reward",
    "rewards",
    "total_reward",
    "reward_total",
    "score",
    "scores",
    "reward_score",
    "raw_reward",
    "env_reward",
    "task_reward",
    "batch_reward",
    "overall_reward",
    "reward_overall",
    "reward_all",
    "critic_rewards",
    "critic_reward",
    "rewards_total",
    "objective_rlhf_reward",
    "rlhf_reward",
    "exp_scores",
    "rm",
    "ret",
    "r",
)
ENTROPY_WORDS = (
    "policy_entropy",
    "actor_entropy",
    "entropy",
    "entropy_all",
    "optim_entropy",
    "token_entropy",
    "per_token_entropy",
    "policy_entropy_avg",
    "gen_entropy",
    "actor_entropy_loss",
    "entropy_loss",
    "train_entropy",
    "approx_entropy",
    "objective_entropy",
)
LENGTH_WORDS = (
    "response_length",
    "response_len",
    "response_lengths",
    "resp_len",
    "resp_length",
    "completion_length",
    "completion_len",
    "completions_length",
    "completions_mean_length",
    "completion_tokens",
    "response_tokens",
    "gen_length",
    "gen_len",
    "generation_length",
    "generated_length",
    "output_length",
    "output_len",
    "output_tokens",
    "answer_length",
    "env_all_ac_tokens_per_turn",
    "ac_tokens_per_turn",
    "gen_tokens_per_sample",
    "glen",
)
"""Each stands for itself and with mean, avg or average before or after it."""


def _averages(word: str) -> tuple[str, ...]:
    forms = ("{}", "{}_mean", "mean_{}", "{}_avg", "avg_{}", "average_{}", "{}_average")
    return tuple(form.format(word) for form in forms)


_NAMES: Mapping[str, tuple[str, ...]] = {
    "policy/ref_kl": (
        "kl",
        "kl_ref",
        "ref_kl",
        "kl_div",
        "kl_divergence",
        "actor_kl_loss",
        "kl_loss",
        "actor_reward_kl_penalty",
        "kl_to_ref",
        "kl_penalty",
        "ppo_mean_kl",
        "policy_kl",
        "kl_policy_ref",
        "critic_kl",
    ),
    "policy/ref_kl_per_sequence": ("objective_kl",),
    "policy/approx_kl": ("actor_ppo_kl", "ppo_kl", "approx_kl", "approxkl", "policy_approxkl"),
    "policy/mismatch_kl": (
        "rollout_corr_kl",
        "mismatch_kl",
        "mismatch_kl_all",
        "optim_kl_sample_train_v1",
        "optim_kl_sample_train_v2",
        "gen_kl_error",
    ),
    "policy/mismatch_logprob_max": ("sampling_sampling_logp_difference_max",),
    "policy/clip_high_frac": (
        "actor_pg_clipfrac",
        "clip_ratio_high",
        "pg_clipfrac",
        "clip_frac",
        "clipfrac",
        "clip_fraction",
        "policy_clipfrac",
    ),
    "policy/clip_low_frac": ("clip_ratio_low",),
    "policy/clip_dual_frac": ("actor_pg_clipfrac_lower",),
    "optim/grad_norm": (
        "actor_grad_norm",
        "policy_grad_norm",
        "grad_norm",
        "gradient_norm",
        "actor_grad_norm_before_clip",
        "gradnorm",
        "gnorm",
        "grad",
        "grad_l2_norm",
        "optim_grad_norm",
    ),
    "optim/lr": ("actor_lr", "lr", "learning_rate", "actor_learning_rate", "policy_lr"),
    "loss/total": ("loss", "train_loss", "training_loss", "total_loss", "loss_total"),
    "loss/policy": (
        "actor_pg_loss",
        "pg_loss",
        "policy_loss",
        "loss_policy",
        "actor_loss",
        "policy_gradient_loss",
    ),
    "loss/value": ("critic_vf_loss", "vf_loss", "value_loss", "loss_value", "critic_loss"),
    "critic/explained_variance": (
        "critic_vf_explained_var",
        "explained_variance",
        "critic_explained_variance",
    ),
    "reward/group_std_mean": (
        "rollout_in_group_reward_std",
        "in_group_reward_std",
        "group_reward_std",
        "reward_group_std",
        "reward_std",
        "within_group_reward_std",
    ),
    "reward/zero_std_frac": (
        "frac_reward_zero_std",
        "zero_std_frac",
        "zero_std_ratio",
        "frac_zero_std",
        "zero_variance_frac",
        "zero_variance_ratio",
        "zero_adv_frac",
        "flat_reward_group_ratio",
        "zero_variance_group_frac",
    ),
    "reward/solved_frac": (
        "solve_all",
        "solve_all_all",
        "batch_solve_all",
        "env_all_by_group_frac_all_good",
        "frac_all_good",
        "baseline_reward_pct_1",
    ),
    "reward/hopeless_frac": (
        "solve_none",
        "solve_none_all",
        "batch_solve_none",
        "env_all_by_group_frac_all_bad",
        "frac_all_bad",
        "baseline_reward_pct_0",
    ),
    "selection/kept_frac": ("rollout_filter_kept_ratio",),
    "selection/num_zero": ("rollout_filter_zero_count",),
    "selection/is_empty": ("rollout_empty_after_filter",),
    "rollout/num_sampled_tokens_mean": ("train_response_length", "seq_len", "seq_len_all"),
    "rollout/num_episodes": (
        "num_episodes",
        "num_rollouts",
        "num_trajectories",
        "num_samples",
        "n_samples",
        "num_sequences",
        "env_all_total_episodes",
    ),
    "rollout/num_groups": ("num_groups", "n_groups", "num_prompts", "num_unique_prompts"),
    "rollout/num_turns_mean": (
        "num_turns",
        "env_all_turns_per_episode",
        "turns_per_episode",
        "episode_num_turns",
    ),
    "rollout/reasoning_closed_frac": ("collapse_valid_thinking_rate",),
    "rollout/first_turn_reasoning_closed_frac": ("collapse_first_turn_valid_rate",),
    "rollout/length_limited_frac": (
        "response_length_clip_ratio",
        "completions_clipped_ratio",
        "clipped_ratio",
        "is_truncated",
        "is_truncated_all",
        "truncated_ratio",
        "truncated_frac",
        "truncation_rate",
        "truncated_rate",
        "frac_truncated",
        "response_clip_ratio",
    ),
    "rollout/format_valid_frac": (
        "format_valid_rate",
        "format_rate",
        "format_accuracy",
        "format_acc",
        "valid_format_rate",
        "format_valid",
        "format_success_rate",
        "format_correct_rate",
        "rewards_format_reward",
        "rewards_format_reward_func",
        "format_reward",
        "format_score",
    ),
    "rollout/action_valid_frac": (
        "valid_action_rate",
        "valid_action_ratio",
        "action_valid_rate",
        "episode_valid_action_ratio",
        "valid_actions_rate",
    ),
    "info/first_turn/retrieval_accuracy@1": ("retrieval_accuracy",),
    "info/first_turn/mutual_information": ("mutual_information",),
    "info/first_turn/conditional_entropy": ("conditional_entropy",),
}
"""Our key -> names, the preferred first. Names stand with mean, avg or average, too."""

_SHARES = ("_frac", "_rate", "accuracy@1", "selection/is_empty")


def is_share(key: str) -> bool:
    return key.endswith(_SHARES)


def _catalogue() -> dict[str, Meaning]:
    names = {
        **_NAMES,
        "rollout/success_rate": SUCCESS_WORDS,
        "reward/return_mean": RETURN_WORDS,
        "policy/entropy": ENTROPY_WORDS,
        "rollout/response_length_mean": LENGTH_WORDS,
    }
    out: dict[str, Meaning] = {}
    for key, words in names.items():
        conversion = Conversion.MAGNITUDE if key == "policy/entropy" else Conversion.NONE
        for rank, word in enumerate(words):
            meaning = Meaning(key=key, conversion=conversion, rank=rank, only_share=is_share(key))
            for alias in _averages(word):
                out.setdefault(alias, meaning)
    for word, key in (
        ("env_all_by_group_frac_mixed", "reward/zero_std_frac"),
        ("baseline_reward_pct_mixed", "reward/zero_std_frac"),
        ("invalid_action_rate", "rollout/action_valid_frac"),
        ("invalid_action_ratio", "rollout/action_valid_frac"),
    ):
        out[word] = Meaning(key=key, conversion=Conversion.COMPLEMENT, only_share=True)
    return out


CATALOGUE: Mapping[str, Meaning] = _catalogue()

_EVAL = r"(?:eval|evaluation|val|valid|validation|test|dev|heldout|held_out)"
_ACC = "|".join(sorted(map(re.escape, SUCCESS_WORDS), key=len, reverse=True))
_RET = "|".join(
    ("test_score", "episode_return", "mean_reward", "avg_reward", "reward", "rewards", "score")
)
_MEAN = r"(?:_mean|_avg|_average)?"
_FIRST_TURN: Mapping[str, str] = {
    "mi_seq_estimate": "mutual_information",
    "mi_upper_bound": "mutual_information_ceiling",
    "retrieval_accuracy": "retrieval_accuracy@1",
    "retrieval_chance_level": "retrieval_chance@1",
    "conditional_entropy_seq_est": "conditional_entropy",
    "conditional_entropy_est": "conditional_entropy_per_token",
    "reasoning_entropy_seq_est": "marginal_entropy",
}
"""RAGEN's first-turn sample. Its trajectory sample scores reasonings under contexts that contain
them, and its length-normalised estimate is not information: both keep their own names."""


def evaluated(tag: str | None, metric: str, rank: int = 0) -> Meaning | None:
    if tag and re.search(r"format|valid|action|tool|length|aux", tag):
        return None  # a rate of well-formed replies, say: not of success
    key = f"eval/{(tag or 'all').replace('/', '_')}/{metric}"
    return Meaning(key=key, rank=rank, only_share=is_share(key))


def _of_sample(match: re.Match[str]) -> Meaning | None:
    name = _FIRST_TURN.get(match[1])
    return Meaning(key=f"info/first_turn/{name}") if name else None


def _of_gradient(match: re.Match[str]) -> Meaning:
    return Meaning(key=f"gradient/{'policy' if match[1] == 'task' else match[1]}/all/norm")


Pattern = tuple[re.Pattern[str], Callable[[re.Match[str]], Meaning | None]]
_TAG = r"([\w.+-]+)"

AS_WRITTEN: tuple[Pattern, ...] = (
    (
        re.compile(rf"val-env/{_TAG}/success"),
        lambda m: Meaning(key=f"eval/{m[1]}/success_rate"),
    ),
    (
        re.compile(rf"val-env/{_TAG}/manager_invalid_action"),
        lambda m: Meaning(key=f"eval/{m[1]}/action_valid_frac", conversion=Conversion.COMPLEMENT),
    ),
    (
        re.compile(rf"train/{_TAG}/success"),
        lambda m: Meaning(key=f"rollout/{m[1]}/success_rate"),
    ),
    (
        re.compile(rf"train/{_TAG}/manager_invalid_action"),
        lambda m: Meaning(
            key=f"rollout/{m[1]}/action_valid_frac", conversion=Conversion.COMPLEMENT
        ),
    ),
    (  # as the environment says it: second best
        re.compile(rf"train/{_TAG}/action_is_valid"),
        lambda m: Meaning(key=f"rollout/{m[1]}/action_valid_frac", rank=1),
    ),
    (
        re.compile(rf"train/{_TAG}/action_is_effective"),
        lambda m: Meaning(key=f"rollout/{m[1]}/action_effective_frac"),
    ),
    # verl: data source, metric, mean over N samples a task
    (
        re.compile(r"val-(?:core|aux)/(.+)/(?:acc|accuracy|success|em)/mean@\d+"),
        lambda m: evaluated(m[1], "success_rate"),
    ),
    (
        re.compile(r"val-(?:core|aux)/(.+)/(?:reward|score)/mean@\d+"),
        lambda m: evaluated(m[1], "return_mean"),
    ),
    (re.compile(r"val/test_score/(.+)"), lambda m: evaluated(m[1], "return_mean")),
)
"""Of the name as its trainer writes it: what stands between the slashes is a tag."""

AS_SPELLED: tuple[Pattern, ...] = (
    (
        re.compile(r"val_(?:core|aux)_(.+)_(?:acc|accuracy|success|em)_mean@\d+"),
        lambda m: evaluated(m[1], "success_rate"),
    ),
    (
        re.compile(r"val_(?:core|aux)_(.+)_(?:reward|score)_mean@\d+"),
        lambda m: evaluated(m[1], "return_mean"),
    ),
    (re.compile(r"val_test_score_(.+)"), lambda m: evaluated(m[1], "return_mean")),
    (re.compile(r"(?:acc|accuracy)_mean@\d+"), lambda m: evaluated(None, "success_rate")),
    (re.compile(r"collapse_first_turn_sample_(\w+)"), _of_sample),
    (re.compile(r"grad_norm_all_(task|entropy|kl)"), _of_gradient),
    (
        re.compile(rf"(?:train_)?{_EVAL}_(?:mean_|avg_)?(?:{_ACC}){_MEAN}"),
        lambda m: evaluated(None, "success_rate"),
    ),
    (
        re.compile(rf"(?:train_)?{_EVAL}_(.+?)_(?:mean_|avg_)?(?:{_ACC}){_MEAN}"),
        lambda m: evaluated(m[1], "success_rate", rank=1),
    ),
    (
        re.compile(rf"(?:{_ACC}){_MEAN}_{_EVAL}"),
        lambda m: evaluated(None, "success_rate", rank=1),
    ),
    (
        re.compile(rf"(?:train_)?{_EVAL}_(?:env_all_)?(?:mean_|avg_)?(?:{_RET})(?:_total)?{_MEAN}"),
        lambda m: evaluated(None, "return_mean"),
    ),
    (
        re.compile(
            rf"(?:mean_|avg_|average_|total_)?(?:{_RET}){_MEAN}_(?:(?:during|in|on|at|of)_)?{_EVAL}"
        ),
        lambda m: evaluated(None, "return_mean", rank=1),
    ),
    # TRL and its relatives: a reward function that says whether the answer is right
    (
        re.compile(
            r"(?:rewards?_(?:\w+_)?(?:accuracy|correctness|correct|success)\w*?"
            r"|(?:\w+_)?(?:accuracy|correctness|correct|success)_rewards?(?:_fn|_func)?)" + _MEAN
        ),
        lambda m: (
            Meaning(key="rollout/success_rate", rank=len(SUCCESS_WORDS), only_share=True)
            if not m[0].endswith(("_std", "_min", "_max", "accuracies"))
            else None
        ),
    ),
)
"""Of the name in the catalogue's spelling."""

_PREFIXES = (
    "rl_insight_monitor_",
    "train_metrics_",
    "metrics_train_",
    "train_",
    "training_",
    "metrics_",
    "rollout_",
    "rollouts_",
    "rl_",
    "grpo_",
    "ppo_",
    "env_",
    "stats_",
    "batch_",
    "completions_",
    "policy_",
    "actor_",
    "objective_",
    "data_",
    "perf_",
    "charts_",
    "running_",
    "global_",
    "current_",
    "cur_",
    "step_",
    "generation_",
    "experience_",
    "losses_",
)
"""What may stand before a name of the catalogue."""


def _singular(word: str) -> str:
    """`episode_rewards` as `episode_reward`, `accuracies_avg` as `accuracy_avg`."""
    parts = [
        f"{part[:-3]}y"
        if part.endswith("ies")
        else part[:-2]
        if part.endswith("sses")
        else part[:-1]
        if part.endswith("s") and not part.endswith("ss")
        else part
        for part in word.split("_")
    ]
    return "_".join(parts)


_FILLERS = frozenset(
    {
        *("mean", "avg", "average", "moyen", "moyenne", "medio", "media", "ema", "ewma", "ma"),
        *("smoothed", "smooth", "running", "moving", "rolling", "recent", "window", "overall"),
        *("train", "training", "current", "per", "of", "the", "over"),
        *("raw", "true", "normalized", "normalised", "discounted", "undiscounted", "cumulative"),
        *("latest", "last", "history", "log", "curve", "values", "list"),
    }
)
"""Words that say how something was averaged, scaled or kept, not what it is."""
OUTCOMES = frozenset({"rollout/success_rate", "reward/return_mean"})


def looked_up(words: Iterable[str]) -> Meaning | None:
    """The meaning of the first of some spellings that the catalogue has.

    Success and returns are also met in part: without the words of `_FILLERS` and numbers
    (`avg_reward_200`), and behind a group of another name (`agent_0_accuracy`).
    """
    words = list(words)
    meaning = _in_catalogue(dict.fromkeys([*words, *map(_singular, words)]))
    if meaning is not None or not words:
        return meaning
    parts = [p for p in words[0].split("_") if p not in _FILLERS and not p.isdigit()]
    meaning = _in_catalogue(["_".join(parts), _singular("_".join(parts))])
    if meaning is None or meaning.key not in OUTCOMES or len(parts) == len(words[0].split("_")):
        return None
    return replace(meaning, rank=meaning.rank + _PARTLY)


_PARTLY = 100
"""What is met in part comes after what is met as a whole."""


def of_last_part(name: str) -> Meaning | None:
    """The success or return that a name ends with, behind groups that the catalogue has not.

    >>> of_last_part("ALIGNED/accuracy").key
    'rollout/success_rate'
    >>> of_last_part("critic/grad_norm") is None
    True
    """
    group, slash, last = name.strip().rpartition("/")
    meaning = looked_up([spelled(last)]) if slash and spelled(group) not in _NOT_OF_A_RUN else None
    if meaning is None or meaning.key not in OUTCOMES:
        return None
    return replace(meaning, rank=meaning.rank + 2 * _PARTLY)


_NOT_OF_A_RUN = frozenset({"critic", "value", "buffer", "ref", "reference", "baseline", "format"})


def _in_catalogue(words: Iterable[str]) -> Meaning | None:
    for word in words:
        meaning = CATALOGUE.get(word)
        if meaning is None:
            for pattern, meant in AS_SPELLED:
                match = pattern.fullmatch(word)
                if match and (meaning := meant(match)) is not None:
                    break
        if meaning is not None:
            return meaning
    return None


def without_prefixes(word: str) -> list[str]:
    """A spelling with what may stand before a name taken away, up to three times.

    >>> without_prefixes("train_rollout_reward_mean")
    ['train_rollout_reward_mean', 'rollout_reward_mean', 'reward_mean']
    """
    out = [word]
    for _ in range(3):
        prefix = next((p for p in _PREFIXES if out[-1].startswith(p)), None)
        if prefix is None or len(out[-1]) == len(prefix):
            break
        out.append(out[-1].removeprefix(prefix))
    return out
