"""Which metrics an alarm rule needs, and how somebody logs one: the one owner of both.

The table of rules in docs/alarms.md, `could_not_see` in JSON and the last lines of a verdict name
the same metrics (a test compares them). A file of another trainer has columns of its own, so there
a metric is named in words, with the columns that are read as it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from echoscope.store.query import metric_keys

from ...catalogue import metric
from ...metric_entry import SHARE
from ..courses.channels import SOURCES, SPECS

TAG = "TAG"
"""Stands for the name of an evaluation, or of an environment."""
_LOGGED: Mapping[str, tuple[str, ...]] = {"optim/non_finite": ("loss/*", "optim/*")}
"""What a rule reads that is made of whatever there is."""
_KEYS = {
    spec.name: next((key for key in spec.keys if not key.startswith("probe/")), spec.keys[0])
    for spec in SPECS
}
"""Channel -> the metric of it that most runs log: few have probe tasks."""

COLUMNS: Mapping[str, Mapping[str, str]] = {
    metric_keys.SUCCESS_RATE: {"trl": "rewards/accuracy_reward/mean"},
    f"eval/{TAG}/success_rate": {"verl": "val-core/TAG/acc/mean@1"},
    metric_keys.RETURN_MEAN: {"verl": "critic/score/mean", "trl": "reward"},
    metric_keys.GROUP_STD: {"trl": "reward_std"},
    metric_keys.ZERO_STD: {"trl": "frac_reward_zero_std"},
    metric_keys.ENTROPY: {"verl": "actor/entropy", "trl": "entropy"},
    "rollout/length_limited_frac": {
        "verl": "response_length/clip_ratio",
        "trl": "completions/clipped_ratio",
    },
    "rollout/format_valid_frac": {"trl": "rewards/format_reward/mean"},
    metric_keys.GRAD_NORM: {"verl": "actor/grad_norm", "trl": "grad_norm"},
    metric_keys.REF_KL: {"verl": "actor/kl_loss", "trl": "kl"},
}
"""Metric -> trainer -> the column of its that is read as the metric."""
TRAINERS = {"verl": "verl", "trl": "TRL"}
"""Whose names a file has -> how sentences call that trainer."""
_OF_ROLLOUTS = ("text/", "info/")
_USUAL = (metric_keys.ACTION_VALID, metric_keys.SUCCESS_RATE)
"""What most trainers of agents log, in one column or another."""


def logged_keys(channels: Iterable[str], logged: Collection[str] = ()) -> tuple[str, ...]:
    """The stored metrics that these channels are made of; any one channel's would do.

    Args:
        logged: Metrics that are there; of a channel that is made of several, what is missing.

    >>> logged_keys(["staleness", "success_eval"])
    ('rollout/staleness_mean', 'eval/TAG/success_rate')
    >>> logged_keys(["retrieval"], ["info/first_turn/retrieval_accuracy@1"])
    ('info/first_turn/retrieval_chance@1',)
    """
    keys: dict[str, None] = {}
    for name in channels:
        key = _KEYS[name]
        sources = SOURCES.get(key, (key,))
        missing = [source for source in sources if source not in logged]
        made_of = _LOGGED.get(key) or (missing or list(sources))[:1]
        keys.update(dict.fromkeys(pattern.replace("/*/", f"/{TAG}/") for pattern in made_of))
    return tuple(keys)


def wanting_words(keys: Sequence[str], trainer: str) -> str:
    """What somebody who watches a file of another trainer has to log, in words.

    Args:
        keys: Any one of these metrics would do (`logged_keys`).
        trainer: Whose names the file has: `verl`, `trl`, or "" where nobody's are known.

    >>> wanting_words(["policy/entropy"], "trl")
    'needs the entropy per token: `entropy` of TRL'
    >>> wanting_words(["rollout/reasoning_closed_frac", "rollout/action_valid_frac"], "")
    'needs the share of valid actions'
    """
    if all(key.startswith(_OF_ROLLOUTS) for key in keys):
        return "needs rollouts: several prompts a step, and two replies or more to each"
    best = _best(keys, trainer)
    columns = _columns(best, trainer)
    return f"needs {_noun(best)}" + (f": {columns}" if columns else "")


def mappable(keys: Sequence[str], trainer: str) -> str:
    """The metric of `wanting_words` as `--map NAME=KEY` takes it; "" where no column can be it."""
    best = _best(keys, trainer)
    is_none = best.startswith(_OF_ROLLOUTS) or "*" in best
    return "" if is_none else best.replace(TAG, "all")


def mapping_words(keys: Sequence[str], trainer: str) -> str:
    """How to say which column the metric of `wanting_words` is; "" where no column can be it.

    >>> mapping_words(["policy/entropy"], "")
    'If a column NAME holds the entropy per token, give `--map NAME=policy/entropy`.'
    """
    key = mappable(keys, trainer)
    if not key:
        return ""
    noun = _noun(_best(keys, trainer))
    return f"If a column NAME holds {noun}, give `--map NAME={key}`."


def _noun(key: str) -> str:
    """A metric with its article.

    >>> _noun("policy/entropy"), _noun("rollout/action_valid_frac")
    ('the entropy per token', 'the share of valid actions')
    """
    entry = metric(key.replace(TAG, "*"))
    noun = entry.in_sentence
    if "success" in noun:
        return noun
    return f"the share of {noun}" if entry.unit == SHARE else f"the {noun}"


def _best(keys: Sequence[str], trainer: str) -> str:
    """The metric that a file of another trainer most likely has."""
    logged = (key for key in keys if _columns(key, trainer))
    usual = (key for key in keys if key in _USUAL)
    return next(logged, None) or next(usual, keys[0])


def _columns(key: str, trainer: str) -> str:
    """The columns that are read as a metric: of one trainer where it is known, else of each."""
    columns = COLUMNS.get(key, {})
    if trainer:
        columns = {trainer: columns[trainer]} if trainer in columns else {}
    return ", ".join(f"`{name}` of {TRAINERS[of]}" for of, name in columns.items())
