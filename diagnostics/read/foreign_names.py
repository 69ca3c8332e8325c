"""The table of metric names: which names of other trainers mean which of our keys.

A name is compared in its normal form: its words in lower case and the singular, with abbreviations
written out. `/`, `.`, `-`, `:`, `_`, spaces and a change from lower to upper case all separate
words, so `critic/rewards/mean`, `critic_rewards_mean` and `Mean Critic Reward` are one name. Words
of an average (`avg`, `mean`, the `100` of a window) are left out, and so are words before a name
that say where it was logged (`train`, `rollout`). What the table (`foreign_names.toml`) does not
have keeps its own name; `--map NAME=KEY` says what it is.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from pathlib import Path
from typing import Any

from echoscope.store.query.metric_keys import ENTROPY, NOTHING_SELECTED, RETURN_MEAN, SUCCESS_RATE


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


OUTCOMES = frozenset({SUCCESS_RATE, RETURN_MEAN})
_SHARES = ("_frac", "_rate", "accuracy@1", NOTHING_SELECTED)


def is_share(key: str) -> bool:
    """Whether the values of one of our keys lie between 0 and 1."""
    return key.endswith(_SHARES)


_LISTED: Mapping[str, Any] = tomllib.loads(
    (Path(__file__).parent / "foreign_names.toml").read_text(encoding="utf-8")
)
WORDS: Mapping[str, frozenset[str]] = {
    name: frozenset(listed) for name, listed in _LISTED["words"].items()
}
"""Lists of words that names of metrics are told by."""

_SYNONYMS: Mapping[str, str] = {
    spelling: word for word, spellings in _LISTED["synonyms"].items() for spelling in spellings
}
_AVERAGES, _PREFIXES, _EVALUATIONS = (
    WORDS[name] for name in ("averages", "prefixes", "evaluations")
)
_NO_TAG = (_AVERAGES | _PREFIXES) - {"env"}
_OF_TESTS = _EVALUATIONS | WORDS["beside_evaluations"]
_NOT_OF_SUCCESS = re.compile("format|valid|action|tool|length|aux")
"""Tags of rates of well-formed replies, say."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[\s/._\-:|]+")
_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]\d]*\]|[%#\"'`]")
"""Units and the like. A number in square brackets is an index, which tells columns apart."""
_WINDOW = re.compile(r"\d{2,}|mean@\d+")
"""Over how many episodes a mean was taken, or answers a question, as verl says it."""


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
    for table, how_listed in (("complements", How.COMPLEMENT), ("names", How.COLUMN)):
        for key, names in _LISTED[table].items():
            how = How.NEGATIVE if key == ENTROPY else how_listed
            for rank, name in enumerate(names):
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
    name = name.strip()
    name_words = _words(name)
    return _tagged(name) or _of_words(name_words) or _of_an_evaluation(name, name_words)


def is_of_a_set(name: str, names: Container[str]) -> bool:
    """Is this slime's mean reward of a set of tasks? Only the names beside it tell.

    >>> is_of_a_set("eval/aime", {"eval/aime", "eval/aime-truncated_ratio"})
    True
    """
    return name.startswith("eval/") and f"{name}-truncated_ratio" in names


def meaning_among(name: str, names: Container[str]) -> Meaning | None:
    """What a column is among others, or None where neither the table nor these tell.

    >>> meaning_among("eval/aime", {"eval/aime", "eval/aime-truncated_ratio"}).key
    'eval/aime/success_rate'
    """
    if not is_of_a_set(name, names):
        return meaning_of(name)
    tag = _SEPARATORS.sub("_", name.removeprefix("eval/"))
    return Meaning(key=f"eval/{tag}/success_rate", only_share=True)


def _tagged(name: str) -> Meaning | None:
    for listed in _LISTED["tagged"]:
        start, end = listed["pattern"].split("*")
        tag = name[len(start) : len(name) - len(end)]
        if name.startswith(start) and name.endswith(end) and re.fullmatch(r"[\w.+-]+", tag):
            how = How(listed.get("how", How.COLUMN))
            return Meaning(key=listed["key"].replace("*", tag), how=how, rank=listed.get("rank", 0))
    return None


def _of_words(name_words: Iterable[str]) -> Meaning | None:
    """The meaning of all words, or of those behind words that say where a name was logged."""
    rest = [_singular(word) for word in name_words if not _WINDOW.fullmatch(word)]
    while (meaning := _BY_WORDS.get(_normal(rest))) is None and rest[1:]:
        if rest[0] not in _PREFIXES | _AVERAGES:
            return None
        rest = rest[1:]
    return meaning


def _of_an_evaluation(name: str, name_words: Sequence[str]) -> Meaning | None:
    """Success or return of an evaluation, with the tag that stands between: `eval/TAG/accuracy`."""
    name_words = [w for w in name_words if w not in _AVERAGES and not w.startswith("mean@")]
    is_last = len(name_words) > 1 and name_words[-1] in _EVALUATIONS
    if not (is_last or _EVALUATIONS.intersection(name_words[:1])):
        return None
    core = list(itertools.dropwhile(_OF_TESTS.__contains__, name_words))
    while core and core[-1] in _OF_TESTS:
        core.pop()
    for index in range(len(core)):
        meaning = _BY_WORDS.get(_normal(map(_singular, core[index:])))
        if meaning is not None:
            is_tag = bool(set(core[:index]) - _NO_TAG)
            tag = "_".join(core[:index]) if is_tag else ""
            return _evaluated(name, tag, meaning, int(is_tag or is_last))
    if core[:1] == ["score"] and "test_score/" in name:  # verl of old
        return _evaluated(name, "_".join(core[1:]), _BY_WORDS[("score",)], 0)
    return None


def _evaluated(name: str, tag: str, meaning: Meaning, rank: int) -> Meaning | None:
    if meaning.key not in OUTCOMES or _NOT_OF_SUCCESS.search(tag):
        return None
    written = _SEPARATORS.sub("_", name)
    tag_start = written.lower().find(tag)
    tag = written[tag_start : tag_start + len(tag)] if tag_start >= 0 else tag
    metric = meaning.key.rpartition("/")[2]
    return Meaning(key=f"eval/{tag or 'all'}/{metric}", rank=rank, only_share=is_share(meaning.key))


STEP_NAMES: Sequence[str] = _LISTED["words"]["steps"]
"""What counts training steps, in order of preference."""


@functools.lru_cache(maxsize=65_536)
def step_rank(name: str) -> int | None:
    """How well a name says that it counts steps: 0 is best; None for a name that does not."""
    word = spelled(name)
    for prefix in _LISTED["words"]["step_prefixes"]:
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
