"""The table of metric names: which names of other trainers mean which of our keys.

A name is compared in its normal form: its words in lower case and the singular, with abbreviations
written out. `/`, `.`, `-`, `:`, `_`, spaces and a change from lower to upper case all separate
words, so `critic/rewards/mean`, `critic_rewards_mean` and `Mean Critic Reward` are one name. Words
that say where or how something was averaged (`train`, `rollout`, `avg`, `last 100`) are left out.
What the table does not have keeps its own name; `--map NAME=KEY` says what it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import itemgetter


class How(StrEnum):
    """How the values of a key come from columns, or from other keys."""

    COLUMN = "column"
    COMPLEMENT = "1 - column"
    NEGATIVE = "-column"
    """In the table of names: where the column is never positive."""
    UNREAD = "unread"
    MEAN = "mean of keys"
    RATIO = "first key over second"
    SHARE_OF = "first key over second, within 0 and 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One of our keys, and how a source's values become its values."""

    key: str
    how: How = How.COLUMN
    rank: int = 0
    """Among several columns of one key the lowest rank is read."""
    only_share: bool = False
    """Read only where all values lie in 0..1: by its name it may be something else."""


SUCCESS, RETURN = "rollout/success_rate", "reward/return_mean"
OUTCOMES = frozenset({SUCCESS, RETURN})
_SHARES = ("_frac", "_rate", "accuracy@1", "selection/is_empty")


def is_share(key: str) -> bool:
    """Whether the values of one of our keys lie between 0 and 1."""
    return key.endswith(_SHARES)


def words_in(text: str) -> tuple[str, ...]:
    """Words apart by spaces and line ends: long lists of words are written so."""
    return tuple(text.split())


_TABLE: Mapping[str, str] = {
    SUCCESS: """
        success rate, success, is success, task success rate, task success, success once,
        success at end, resolved, resolved rate, resolve rate, solve rate, solved rate, win rate,
        winrate, win, sr, accuracy, accuracy@1, answer accuracy, pass@1, pass at 1, pass1,
        pass rate, exact match, exact match rate, em, correct rate, rate correct, correctness,
        correct, is correct, solved, is solved, goal rate""",
    RETURN: """
        critic score, return, objective score, env all reward total, reward, score, raw reward,
        task reward, reward total, reward sum, reward score, critic reward, objective rlhf reward,
        rlhf reward, exp score, rm, eprew, eprewmean, mean100, r""",
    "policy/entropy": """
        policy entropy, actor entropy, entropy, entropy all, optim entropy, token entropy,
        per token entropy, entropy per token, gen entropy, actor entropy loss, entropy loss,
        action entropy, approx entropy""",
    "rollout/response_length_mean": """
        response length, completion tokens, glen, gen tokens per sample, ac tokens per turn,
        env all ac tokens per turn""",
    "policy/ref_kl": """
        kl, kl ref, ref kl, kl div, kl divergence, kl loss, actor reward kl penalty, kl to ref,
        kl penalty, policy kl, kl policy ref, critic kl""",
    "policy/ref_kl_per_sequence": "objective kl",
    "policy/approx_kl": "ppo kl, approx kl, approxkl",
    "policy/mismatch_kl": """
        rollout corr kl, mismatch kl, mismatch kl all, optim kl sample train v1,
        optim kl sample train v2, gen kl error""",
    "policy/mismatch_logprob_max": "sampling sampling logp difference max",
    "policy/clip_high_frac": """
        pg clipfrac, clip ratio high, clip frac, clipfrac, policy clipfrac""",
    "policy/clip_low_frac": "clip ratio low",
    "policy/clip_dual_frac": "pg clipfrac lower",
    "optim/grad_norm": """
        grad norm, policy grad norm, actor grad norm, actor grad norm before clip, gradnorm, gnorm,
        grad, grad l2 norm, optim grad norm""",
    "optim/lr": "lr, learning rate",
    "loss/total": "loss, train loss, total loss, loss total",
    "loss/policy": "pg loss, policy loss, loss policy, actor loss, policy gradient loss",
    "loss/value": "critic vf loss, vf loss, value loss, loss value, critic loss",
    "critic/explained_variance": """
        critic vf explained var, explained variance, critic explained variance""",
    "reward/group_std_mean": """
        in group reward std, group reward std, reward group std, reward std,
        within group reward std""",
    "reward/zero_std_frac": """
        frac reward zero std, zero std frac, frac zero std, zero variance frac, zero adv frac,
        flat reward group ratio, zero variance group frac""",
    "reward/solved_frac": """
        solve all, solve all all, env all by group frac all good, frac all good,
        baseline reward pct 1""",
    "reward/hopeless_frac": """
        solve none, solve none all, env all by group frac all bad, frac all bad,
        baseline reward pct 0""",
    "selection/kept_frac": "rollout filter kept ratio",
    "selection/num_zero": "rollout filter zero count",
    "selection/is_empty": "rollout empty after filter",
    "rollout/num_sampled_tokens_mean": "train response length, seq len, seq len all",
    "rollout/num_episodes": """
        num episodes, num rollouts, num trajectories, num samples, n samples, num sequences,
        env all total episodes""",
    "rollout/num_groups": "num groups, n groups, num prompts, num unique prompts",
    "rollout/num_turns_mean": """
        num turns, env all turns per episode, turns per episode, episode num turns""",
    "rollout/reasoning_closed_frac": "collapse valid thinking rate",
    "rollout/first_turn_reasoning_closed_frac": "collapse first turn valid rate",
    "rollout/length_limited_frac": """
        response length clip ratio, completions clipped ratio, clipped ratio, is truncated,
        is truncated all, truncated ratio, frac truncated, truncation rate, response clip ratio""",
    "rollout/format_valid_frac": """
        format valid rate, valid format rate, format rate, format accuracy, format valid,
        format success rate, format correct rate, rewards format reward, format reward,
        format score""",
    "rollout/action_valid_frac": "valid action rate, action valid rate, episode valid action ratio",
    "info/first_turn/retrieval_accuracy@1": """
        retrieval accuracy, collapse first turn sample retrieval accuracy""",
    "info/first_turn/retrieval_chance@1": "collapse first turn sample retrieval chance level",
    "info/first_turn/mutual_information": """
        mutual information, collapse first turn sample mi seq estimate""",
    "info/first_turn/mutual_information_ceiling": "collapse first turn sample mi upper bound",
    "info/first_turn/conditional_entropy": """
        conditional entropy, collapse first turn sample conditional entropy seq est""",
    "info/first_turn/conditional_entropy_per_token": """
        collapse first turn sample conditional entropy est""",
    "info/first_turn/marginal_entropy": "collapse first turn sample reasoning entropy seq est",
    "gradient/policy/all/norm": "grad norm all task",
    "gradient/entropy/all/norm": "grad norm all entropy",
    "gradient/kl/all/norm": "grad norm all kl",
}
"""Our key -> names, the preferred first.

Of RAGEN's collapse detection the first-turn sample is read. Its trajectory sample scores reasonings
under contexts that contain them, and its length-normalised estimate is not information: both keep
their own names."""
_COMPLEMENTS: Mapping[str, str] = {
    "reward/zero_std_frac": "env all by group frac mixed, baseline reward pct mixed",
    "rollout/action_valid_frac": "invalid action rate",
}
"""Our key -> names of what is missing to 1."""
_TAGGED: tuple[tuple[str, str, How, int], ...] = (
    ("val-env/*/success", "eval/*/success_rate", How.COLUMN, 0),
    ("val-env/*/manager_invalid_action", "eval/*/action_valid_frac", How.COMPLEMENT, 0),
    ("train/*/success", "rollout/*/success_rate", How.COLUMN, 0),
    ("train/*/manager_invalid_action", "rollout/*/action_valid_frac", How.COMPLEMENT, 0),
    ("train/*/action_is_valid", "rollout/*/action_valid_frac", How.COLUMN, 1),
    ("train/*/action_is_effective", "rollout/*/action_effective_frac", How.COLUMN, 0),
)
"""RAGEN's names with the tag of an environment: pattern, key, how and rank. What the
environment itself says of its actions is second best."""

_SYNONYMS: Mapping[str, str] = {
    spelling: word
    for word, spellings in {
        "reward": "rew rwd",
        "return": "ret",
        "accuracy": "acc",
        "success": "succ",
        "length": "len",
        "entropy": "ent",
        "grad": "gradient",
        "rate": "ratio frac fraction percent pct percentage",
        "truncated": "truncation",
        "response": "resp completion output answer gen generation generated",
    }.items()
    for spelling in spellings.split()
}
_AVERAGES = frozenset({"mean", "avg", "average", "averaged"})
_PREFIXES = frozenset(
    words_in(
        """
        train training trainer metric rollout rl grpo ppo env environment stat batch completion
        policy actor objective data perf chart running global current cur step generation
        experience loss insight monitor episode ep runner
        """
    )
)
"""What may stand before a name of the table; in the singular."""
_FILLERS = (_AVERAGES | _PREFIXES) - {"step", "loss"} | frozenset(
    words_in(
        """
        episodic per of the over in last recent total cumulative overall all raw true normalized
        normalised undiscounted discounted extrinsic smoothed smooth moving rolling window ema
        ewma ma latest history log curve list values agent custom result final fn func
        """
    )
)
"""Words that say how something was averaged, scaled or kept, not what it is; in the singular."""
_EVALUATIONS = frozenset(
    {"eval", "evaluation", "val", "valid", "validation", "test", "dev", "heldout"}
)
_OF_TESTS = _EVALUATIONS | {"core", "aux", "train", "during", "in", "on", "at", "of"}
"""Words beside `eval` that say nothing more: `val-core/TAG/acc/mean@1`."""
_NOT_OF_SUCCESS = re.compile("format|valid|action|tool|length|aux")
"""Tags of rates of well-formed replies, say."""
_NOT_OF_A_RUN = frozenset(
    {"critic", "value", "buffer", "ref", "reference", "baseline", "format", "reward"}
)
_OF_ANSWERS = frozenset({"accuracy", "correctness", "correct", "success"})
"""Words of a reward function that says whether the answer is right, as TRL's users name it."""
_PARTLY = 100
"""A name that is met without some of its words comes after one that is met as a whole."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[\s/._\-:|]+")
_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]\d]*\]|[%#\"'`]")
"""Units and the like. A number in square brackets is an index, which tells columns apart."""
_SAMPLES = re.compile(r"mean@\d+|\d+")
"""verl's mean over so many answers a question; the length of a window."""
_CHART_COLUMN = re.compile(r"^(?P<run>.*\S) - (?P<name>\S.*)$")
"""A column of a chart that W&B exports: `RUN - METRIC`."""


@functools.lru_cache(maxsize=65_536)
def spelled(name: str) -> str:
    """The words of a name in lower case, joined by `_`.

    >>> spelled("critic/rewards/mean"), spelled("Avg Response Len"), spelled("gradNorm")
    ('critic_rewards_mean', 'avg_response_len', 'grad_norm')
    """
    spelling = _SEPARATORS.sub("_", _CAMEL.sub("_", _BRACKETS.sub("", name.strip())))
    return spelling.lower().strip("_")


def _singular(word: str) -> str:
    """`accuracies` as `accuracy`, `losses` as `loss`, `rewards` as `reward`."""
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _normal(words_of_name: Iterable[str]) -> tuple[str, ...]:
    """What words in the singular say, without those of an average."""
    return tuple(_SYNONYMS.get(word, word) for word in words_of_name if word not in _AVERAGES)


def _words(name: str) -> list[str]:
    return [word for word in spelled(name).split("_") if word]


def _by_words() -> dict[tuple[str, ...], Meaning]:
    out: dict[tuple[str, ...], Meaning] = {}
    for table, is_complement in ((_COMPLEMENTS, True), (_TABLE, False)):
        for key, names in table.items():
            how = How.COMPLEMENT if is_complement else How.COLUMN
            if key == "policy/entropy":
                how = How.NEGATIVE
            for rank, name in enumerate(names.split(",")):
                meaning = Meaning(key=key, how=how, rank=rank, only_share=is_share(key))
                out.setdefault(_normal(map(_singular, _words(name))), meaning)
    return out


_BY_WORDS = _by_words()


@functools.lru_cache(maxsize=65_536)
def meaning_of(name: str) -> Meaning | None:
    """What a column is, or None where the table does not have its name.

    >>> meaning_of("actor/entropy").key, meaning_of("Mean Actor Entropy").key
    ('policy/entropy', 'policy/entropy')
    >>> meaning_of("val-core/openai/gsm8k/acc/mean@8").key
    'eval/openai_gsm8k/success_rate'
    >>> meaning_of("reward_threshold") is None, meaning_of("max_reward") is None
    (True, True)
    """
    chart = _CHART_COLUMN.match(name.strip())
    for candidate in (name.strip(), *([chart["name"]] if chart else [])):
        name_words = _words(candidate)
        meaning = (
            _tagged(candidate)
            or _of_words(name_words)
            or _of_an_evaluation(candidate, name_words)
            or _of_a_reward_function(name_words)
        )
        if meaning is not None:
            return meaning
    return _of_last_part(chart["name"] if chart else name)


def _tagged(name: str) -> Meaning | None:
    for pattern, key, how, rank in _TAGGED:
        start, end = pattern.split("*")
        tag = name[len(start) : len(name) - len(end)]
        if name.startswith(start) and name.endswith(end) and re.fullmatch(r"[\w.+-]+", tag):
            return Meaning(key=key.replace("*", tag), how=how, rank=rank)
    return None


def _of_words(name_words: Iterable[str]) -> Meaning | None:
    """The meaning of words: of all, without what stands before, and without words of little."""
    name_words = [_singular(word) for word in name_words]
    for candidate in _without_prefixes(name_words):
        if meaning := _BY_WORDS.get(_normal(candidate)):
            return meaning
    core = [w for w in name_words if w not in _FILLERS and not _SAMPLES.fullmatch(w)]
    meaning = _BY_WORDS.get(_normal(core)) if 0 < len(core) < len(name_words) else None
    return replace(meaning, rank=meaning.rank + _PARTLY) if meaning else None


def _without_prefixes(rest: Sequence[str]) -> Iterator[Sequence[str]]:
    """Words, then the same without the first of them, while that is one of `_PREFIXES`."""
    yield rest
    while len(rest) > 1 and rest[0] in _PREFIXES | _AVERAGES:
        rest = rest[1:]
        yield rest


def _of_an_evaluation(name: str, name_words: Sequence[str]) -> Meaning | None:
    """Success or return of an evaluation, with the tag that stands between: `eval/TAG/accuracy`."""
    name_words = [w for w in name_words if w not in _AVERAGES and not w.startswith("mean@")]
    is_last = len(name_words) > 1 and name_words[-1] in _EVALUATIONS
    if not (
        is_last or _EVALUATIONS.intersection(name_words[: 2 if name_words[:1] == ["train"] else 1])
    ):
        return None
    start, end = 0, len(name_words)
    while start < end and name_words[start] in _OF_TESTS:
        start += 1
    while start < end and name_words[end - 1] in _OF_TESTS:
        end -= 1
    for index in range(start, end):
        meaning = _BY_WORDS.get(_normal(map(_singular, name_words[index:end])))
        if meaning is not None:
            tag = "_".join(name_words[start:index])
            is_tag = not _FILLERS - {"env", "all"} >= set(name_words[start:index])
            rank = int(is_tag or is_last)
            return _evaluated(name, tag * is_tag, meaning, rank)
    if name_words[start : start + 1] == ["score"] and "test_score/" in name:  # verl of old
        return _evaluated(name, "_".join(name_words[start + 1 : end]), _BY_WORDS[("score",)], 0)
    return None


def _evaluated(name: str, tag: str, meaning: Meaning, rank: int) -> Meaning | None:
    if meaning.key not in OUTCOMES or _NOT_OF_SUCCESS.search(tag):
        return None
    written = _SEPARATORS.sub("_", name)
    tag_start = written.lower().find(tag)
    tag = written[tag_start : tag_start + len(tag)] if tag_start >= 0 else tag
    metric = meaning.key.rpartition("/")[2]
    return Meaning(key=f"eval/{tag or 'all'}/{metric}", rank=rank, only_share=is_share(meaning.key))


def _of_a_reward_function(name_words: Collection[str]) -> Meaning | None:
    """Success, of a reward that is 1 where the answer is right: `rewards/accuracy_reward/mean`."""
    is_reward = not {"reward", "rewards"}.isdisjoint(name_words)
    if (
        not is_reward
        or _OF_ANSWERS.isdisjoint(name_words)
        or not {"std", "min", "max"}.isdisjoint(name_words)
    ):
        return None
    return Meaning(key=SUCCESS, rank=_PARTLY // 2, only_share=True)


def _of_last_part(name: str) -> Meaning | None:
    """The success or return that a name ends with, behind groups that the table has not."""
    group, slash, last = name.strip().rpartition("/")
    group_words = {*_words(group)}
    if not slash or group_words & (_NOT_OF_A_RUN | _EVALUATIONS):
        return None
    meaning = _of_words(_words(last))
    if meaning is None or meaning.key not in OUTCOMES:
        return None
    return replace(meaning, rank=meaning.rank + 2 * _PARTLY)


STEP_NAMES: tuple[str, ...] = words_in(
    """
    step steps global_step global_steps global_step_max_steps train_step training_step
    optimizer_step optim_step trainer_step progress_batch iteration iterations iter update
    updates num_updates n_updates training_iteration rollout_step rollout_id batch batch_idx
    episode episodes epoch epochs total_timesteps timestep timesteps env_steps iters itr itrs
    it t
    """
)
"""What counts training steps, in order of preference."""
_STEP_PREFIXES = ("", "train_", "trainer_", "training_", "time_", "policy_", "actor_", "progress_")


@functools.lru_cache(maxsize=65_536)
def step_rank(name: str) -> int | None:
    """How well a name says that it counts steps: 0 is best; None for a name that does not."""
    word = spelled(name)
    for prefix in _STEP_PREFIXES:
        bare = word.removeprefix(prefix) if word.startswith(prefix) else ""
        if bare in STEP_NAMES:
            return STEP_NAMES.index(bare)
    return None


def is_understood(name: str) -> bool:
    """Whether the table has a name, or it counts steps."""
    return meaning_of(name) is not None or step_rank(name) is not None


def step_columns(names: Iterable[str]) -> list[str]:
    """The columns that may count training steps, the likeliest first."""
    ranked = [(rank, name) for name in names if (rank := step_rank(name)) is not None]
    return [name for _, name in sorted(ranked, key=itemgetter(0))]


def step_column(names: Iterable[str]) -> str | None:
    """Which of the columns counts training steps; None if none is known to."""
    return next(iter(step_columns(names)), None)


def is_summary_column(name: str) -> bool:
    """W&B's `NAME__MIN` and `NAME__MAX`, which repeat NAME where runs are not grouped."""
    return name.endswith(("__MIN", "__MAX"))


def runs_of_chart(names: Iterable[str]) -> dict[str, list[str]]:
    """Run -> its columns, of a chart's export; empty where the columns are not so named.

    >>> runs_of_chart(["Step", "lake-1 - critic/score/mean", "lake-2 - critic/score/mean"])
    {'lake-1': ['lake-1 - critic/score/mean'], 'lake-2': ['lake-2 - critic/score/mean']}
    """
    out: dict[str, list[str]] = {}
    for name in names:
        match = _CHART_COLUMN.match(name.strip())
        if match and not is_summary_column(name):
            out.setdefault(match["run"], []).append(name)
    return out
