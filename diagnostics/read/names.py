"""What other trainers call the metrics that the rules read, and how their units become ours.

RAGEN and verl, TRL (also as W&B writes it, with `train/` before), prime-rl, tinker-cookbook. A name
that is not known here keeps its own; `--map NAME=KEY` says what it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from echoscope.store.records import FloatArray64
from echoscope.text.did_you_mean import did_you_mean

from ..judge.courses.channels import known_keys
from .foreign_names import (
    AS_WRITTEN,
    OUTCOMES,
    Conversion,
    Meaning,
    evaluated,
    is_share,
    looked_up,
    of_last_part,
    spelled,
    step_rank,
    without_prefixes,
)
from .name_words import role_of

MAX_ENTROPY_PER_TOKEN = 13.0
"""Nats. No vocabulary in use has more (ln 256,000 is 12.5): what is larger is per sequence."""


class MetricNameError(ValueError):
    """A `--map` that cannot be followed."""


_ACTION_IS_VALID = re.compile(r"train/([\w.+-]+)/action_is_valid")

_OUR_GROUPS = (
    "critic",
    "eval",
    "gradient",
    "info",
    "loss",
    "optim",
    "policy",
    "probe",
    "reward",
    "rollout",
    "selection",
    "text",
    "time",
)
_CHART_COLUMN = re.compile(r"^(?P<run>.*\S) - (?P<name>\S.*)$")
"""A column of a chart that W&B exports: `RUN - METRIC`."""


_BY_WORDS = 400
_MEAN_OF = re.compile(
    r"(?:(?:train|training|rollout)[/_. ])?(?:mean|avg|average)[ _(/]*(?:last[ _]*)?\d+\)?",
    re.IGNORECASE,
)
"""`mean100`, `train/avg_10`: what is averaged over so many episodes goes without saying."""


def of_words(name: str) -> Meaning | None:
    """What a name means by the words in it, where the catalogue does not have it.

    >>> of_words("eprewmean").key, of_words("MeanTestWinRate").key, of_words("mean 100").key
    ('reward/return_mean', 'eval/all/success_rate', 'reward/return_mean')
    """
    if _MEAN_OF.fullmatch(name.strip()):
        return Meaning(key="reward/return_mean", rank=2 * _BY_WORDS)
    role = role_of(spelled(name))
    if role is None:
        return None
    is_outcome = role.key in OUTCOMES
    if role.is_eval:
        return evaluated(None, role.key.rpartition("/")[2], rank=_BY_WORDS) if is_outcome else None
    return Meaning(
        key=role.key,
        rank=_BY_WORDS + role.num_strange,
        conversion=Conversion.MAGNITUDE if role.key == "policy/entropy" else Conversion.NONE,
        only_share=is_share(role.key),
        is_guess=is_outcome and role.num_strange > 0,
    )


@functools.lru_cache(maxsize=65_536)
def meaning_of(name: str) -> Meaning | None:
    """What a column is, or None where its name says nothing to us.

    >>> meaning_of("actor/entropy").key, meaning_of("actor_entropy").key
    ('policy/entropy', 'policy/entropy')
    >>> meaning_of("val-env/CoordSokoban/manager_invalid_action").conversion.value
    '1 - x'
    """
    names = [name.strip()]
    if match := _CHART_COLUMN.match(names[0]):
        names.append(match["name"])
    for candidate in names:
        for pattern, meant in AS_WRITTEN:
            match = pattern.fullmatch(candidate)
            if match and (meaning := meant(match)) is not None:
                return meaning
        meaning = looked_up(without_prefixes(spelled(candidate)))
        if meaning is not None:
            return meaning
    return of_last_part(names[-1]) or of_words(names[-1])


@functools.lru_cache(maxsize=65_536)
def is_ours(name: str) -> bool:
    """Is this one of our own keys, which another trainer's name must not replace?"""
    if name.split("/")[0] not in _OUR_GROUPS:
        return False
    meaning = meaning_of(name)
    return meaning is None or meaning.key == name or _is_known(name, known_keys())


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


def step_columns(names: Iterable[str]) -> list[str]:
    """The columns that may count training steps, the likeliest first."""
    ranked = [
        (rank, place, name)
        for place, name in enumerate(names)
        if (rank := step_rank(name)) is not None
    ]
    return [name for _, _, name in sorted(ranked)]


def step_column(names: Iterable[str]) -> str | None:
    """Which of the columns counts training steps; None if none is known to."""
    return next(iter(step_columns(names)), None)


def parse_map(entries: Iterable[str], known_keys: Iterable[str]) -> dict[str, Meaning]:
    """`["my_entropy=policy/entropy", "bad=1-rollout/action_valid_frac"]` by source name.

    Raises:
        MetricNameError: no `=`, an empty side, or a key that no rule knows, with a suggestion.
    """
    known = [*known_keys, "step"]
    out: dict[str, Meaning] = {}
    for entry in entries:
        name, equals, target = (part.strip() for part in entry.rpartition("="))
        if not (name and equals and target):
            raise MetricNameError(f"--map {entry!r}: write NAME=KEY, such as ent=policy/entropy")
        is_complement = target.startswith("1-")
        key = target.removeprefix("1-").strip()
        if not _is_known(key, known):
            raise MetricNameError(
                f"--map {entry!r}: no rule reads {key!r}{did_you_mean(key, known)}"
            )
        conversion = Conversion.COMPLEMENT if is_complement else Conversion.NONE
        out[name] = Meaning(key=key, conversion=conversion)
    return out


def _is_known(key: str, patterns: Iterable[str]) -> bool:
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), key) for pattern in patterns
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns:
    """Columns under our keys, where each came from, and what was said about units."""

    columns: dict[str, FloatArray64]
    sources: dict[str, str]
    notes: tuple[str, ...]


def to_our_names(
    columns: Mapping[str, FloatArray64], mapping: Mapping[str, Meaning] | None = None
) -> NamedColumns:
    """Columns renamed and converted; a key that the source has itself wins over an alias.

    Rates of several environments are averaged into the key without a tag; mutual information over
    its ceiling becomes `dependence`; an entropy too large to be per token is divided by the length;
    a reward that stays within 0..1 is a success rate where no other is there.
    """
    out: dict[str, FloatArray64] = {}
    sources: dict[str, str] = {}
    notes: list[str] = []
    guesses: dict[str, Meaning] = {}
    for name, meaning, values in _in_order_of_preference(columns, mapping or {}):
        if is_summary_column(name):
            continue
        if meaning is not None and meaning.is_guess:
            guesses[name] = meaning
            meaning = None
        is_mapped = name in (mapping or {})
        if not is_mapped and _is_success(meaning.key if meaning else name):
            problem = _not_a_rate(values)
            if problem:
                notes.append(f"{name} {problem}: it is no success rate, and is not judged as one")
                if meaning is None:
                    continue
                meaning = None
        is_sure = is_mapped or meaning is None or not meaning.only_share
        if is_sure and is_share(meaning.key if meaning else name):
            values = _of_percent(name, meaning if is_mapped else None, values, notes)
        if meaning is not None and meaning.only_share and not is_mapped:
            share = _as_share(name, values, notes)
            if share is None:
                _offer_percent(name, meaning, values, notes)
                meaning = None
            else:
                values = share
                what = _READ_AS.get(meaning.key.rpartition("/")[2])
                if what and re.search("reward|score", name, re.IGNORECASE):
                    notes.append(f"{name} lies between 0 and 1: it is read as {what}")
        key = meaning.key if meaning else name
        if key in out:
            continue
        out[key] = meaning.convert(values) if meaning else values
        sources[key] = name
    _action_valid_of_env(columns, out, sources)
    _average_tags(out, sources)
    _sum_of_rewards(out, sources, notes)
    _guess_outcome(out, sources, notes, guesses)
    _derive_dependence(out, sources)
    _entropy_per_token(out, sources, notes)
    _kl_per_token(out, sources, notes)
    _return_of_evaluation(out, sources, notes)
    _success_from_rewards(out, sources, notes)
    return NamedColumns(columns=out, sources=sources, notes=tuple(notes))


def _in_order_of_preference(
    columns: Mapping[str, FloatArray64], mapping: Mapping[str, Meaning]
) -> list[tuple[str, Meaning | None, FloatArray64]]:
    """Mapped columns, then our own names, then the catalogue's, the preferred alias first."""
    ranked = []
    for place, name in enumerate(columns):
        if name in mapping:
            order, meaning = (0, 0), mapping[name]
        elif is_ours(name):
            order, meaning = (1, 0), None
        else:
            known = meaning_of(name)
            order, meaning = (2, known.rank if known else 0), known
        ranked.append((order, place, name, meaning))
    ranked.sort(key=lambda entry: entry[:2])
    return [(name, meaning, columns[name]) for _, _, name, meaning in ranked]


_READ_AS = {
    "success_rate": "success",
    "format_valid_frac": "the share of replies in the right format",
}


_LARGEST_SHARE = 1.01
"""A share is no greater, but for rounding."""
_SMALLEST_PERCENT = 1.5
"""Rates in percent exceed it somewhere; a column whose largest value is below may be anything."""
_PERCENT = re.compile(r"percent|pct|%|rate|acc", re.IGNORECASE)


def _is_success(key: str) -> bool:
    return key.rpartition("/")[2] == "success_rate"


def _not_a_rate(values: FloatArray64) -> str:
    """Why values are neither shares nor percent, in words; "" if they may be."""
    present = values[np.isfinite(values)]
    if not len(present):
        return ""
    low, high = float(present.min()), float(present.max())
    is_rate = low >= 0 and (high <= _LARGEST_SHARE or _SMALLEST_PERCENT < high <= 100)
    return "" if is_rate else f"lies between {low:.4g} and {high:.4g}"


def _as_share(name: str, values: FloatArray64, notes: list[str]) -> FloatArray64 | None:
    """FloatArray64 as a share of one; None where they are none."""
    present = values[np.isfinite(values)]
    if not len(present) or present.min() < 0:
        return values if not len(present) else None
    if present.max() <= 1.0:
        return values
    if present.max() <= 100 and present.max() > _SMALLEST_PERCENT and _PERCENT.search(name):
        notes.append(f"{name} lies between 0 and 100: it is read as percent")
        return values / 100.0
    return None


def _of_percent(
    name: str, meaning: Meaning | None, values: FloatArray64, notes: list[str]
) -> FloatArray64:
    """What is said to be a share, as a share of one: values up to 100 are percent.

    Raises:
        MetricNameError: `--map` says so, and the values are neither shares nor percent.
    """
    present = values[np.isfinite(values)]
    if not len(present) or (present.min() >= 0 and present.max() <= _LARGEST_SHARE):
        return values
    if present.min() >= 0 and present.max() <= 100:
        notes.append(f"{name} lies between 0 and 100: it is read as percent")
        return values / 100.0
    if meaning is None:
        return values
    raise MetricNameError(
        f"--map {name}={meaning.key}: {name} lies between {present.min():.4g} and "
        f"{present.max():.4g}, and a share lies between 0 and 1, or in percent between 0 and 100"
    )


def _offer_percent(name: str, meaning: Meaning, values: FloatArray64, notes: list[str]) -> None:
    """A success that may be a number of successes, or a rate in percent: only its owner knows."""
    present = values[np.isfinite(values)]
    is_success = meaning.key.endswith("success_rate")
    if is_success and len(present) and present.min() >= 0 and 1.5 < present.max() <= 100:
        notes.append(
            f"{name} lies between {present.min():.3g} and {present.max():.3g}: if it is a rate in "
            f"percent, give --map '{name}={meaning.key}'"
        )


def _success_from_rewards(
    columns: dict[str, FloatArray64], sources: dict[str, str], notes: list[str]
) -> None:
    """A reward or score that stays within 0..1 is read as success, if nothing else says success.

    Of training under a key of its own: nobody knows over how few samples a trainer averages its
    reward, so a rule follows it for longer before it speaks.
    """
    if "rollout/success_rate" not in columns:
        _success_from_reward(columns, sources, notes, "reward/return_mean", "reward/success_rate")
    if any(key.startswith("eval/") and key.endswith("success_rate") for key in columns):
        return
    for key in [k for k in columns if k.startswith("eval/") and k.endswith("/return_mean")]:
        success = f"{key.removesuffix('/return_mean')}/success_rate"
        _success_from_reward(columns, sources, notes, key, success)


def _success_from_reward(
    columns: dict[str, FloatArray64],
    sources: dict[str, str],
    notes: list[str],
    key: str,
    success: str,
) -> None:
    values = columns.get(key)
    is_own = values is not None and key == sources[key]
    if values is None or success in columns or is_own or PLUS in sources[key]:
        return
    present = values[~np.isnan(values)]
    if not len(present):
        return
    if present.min() >= 0 and present.max() <= 1:
        if (guessed := _guessed("return", sources[key])) in notes:
            notes.remove(guessed)  # it is not read as return after all
        columns[success], sources[success] = columns.pop(key), sources.pop(key)
        notes.append(f"{sources[success]} lies between 0 and 1: it is read as success")
    else:
        notes.append(
            f"{sources[key]} lies between {present.min():.3g} and {present.max():.3g}: it is read "
            "as return, not as success"
        )


def _action_valid_of_env(
    columns: Mapping[str, FloatArray64], out: dict[str, FloatArray64], sources: dict[str, str]
) -> None:
    """RAGEN's environments say themselves whether actions are valid: second best."""
    for name, values in columns.items():
        match = _ACTION_IS_VALID.fullmatch(name)
        if match and out.setdefault(f"rollout/{match[1]}/action_valid_frac", values) is values:
            sources[f"rollout/{match[1]}/action_valid_frac"] = name


def _average_tags(columns: dict[str, FloatArray64], sources: dict[str, str]) -> None:
    for rate in ("success_rate", "action_valid_frac", "action_effective_frac"):
        pattern = re.compile(rf"rollout/[^/]+/{rate}")
        members = [key for key in columns if pattern.fullmatch(key)]
        key = f"rollout/{rate}"
        if members and key not in columns:
            stacked = np.stack([columns[member] for member in members])
            count = np.isfinite(stacked).sum(axis=0)
            total = np.where(np.isfinite(stacked), stacked, 0.0).sum(axis=0)
            columns[key] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
            sources[key] = ", ".join(sources[member] for member in members)


PLUS = " + "
"""Between the columns whose sum a key is."""
_PART_OF_REWARD = re.compile(r"rewards?_(?P<after>\w+)|(?P<before>\w+)_rewards?(?:_fn|_func)?")
_NO_PART = frozenset(
    {
        *("std", "min", "max", "best", "worst", "var", "median", "threshold", "target", "weight"),
        *("scale", "coef", "coefficient", "baseline", "clip", "length", "count", "num", "time"),
        *("model", "total", "zero", "gap", "diff", "delta", "percentile", "quantile", "range"),
        *("ema", "ma", "avg10", "avg50", "avg100", "smoothed", "rolling", "running"),
        *("eval", "evaluation", "val", "validation", "test", "dev"),
    }
)


def _sum_of_rewards(
    columns: dict[str, FloatArray64], sources: dict[str, str], notes: list[str]
) -> None:
    """Where only the parts of a reward are logged, their sum is the return."""
    if {"reward/return_mean", "rollout/success_rate"} & columns.keys():
        return
    parts = [key for key in columns if key == sources[key] and _is_part_of_reward(key)]
    if len(parts) < 2:
        return
    columns["reward/return_mean"] = np.sum([columns[part] for part in parts], axis=0)
    sources["reward/return_mean"] = PLUS.join(sources[part] for part in parts)
    notes.append(
        f"only parts of a reward are logged: their sum ({sources['reward/return_mean']}) is read "
        "as return"
    )


def _guess_outcome(
    columns: dict[str, FloatArray64],
    sources: dict[str, str],
    notes: list[str],
    guesses: Mapping[str, Meaning],
) -> None:
    """Where nothing says success or return, a name that holds one of these words is believed."""
    if any(key.endswith(("success_rate", "return_mean")) for key in columns):
        return
    for name, meaning in sorted(guesses.items(), key=lambda guess: guess[1].rank):
        values = columns.get(name)
        if values is None or meaning.key in columns:
            continue
        share = _as_share(name, values, notes) if meaning.only_share else values
        if share is None:
            continue
        columns[meaning.key], sources[meaning.key] = share, sources.pop(name)
        del columns[name]
        notes.append(_guessed("success" if meaning.only_share else "return", name))


def _guessed(kind: str, name: str) -> str:
    return f"nothing else says {kind}: {name} is read as {kind}"


def _is_part_of_reward(name: str) -> bool:
    match = _PART_OF_REWARD.fullmatch(spelled(name).removesuffix("_mean"))
    if match is None:
        return False
    words = set((match["after"] or match["before"]).split("_"))
    return not words & _NO_PART and not any(word.isdigit() for word in words)


def _return_of_evaluation(
    columns: dict[str, FloatArray64], sources: dict[str, str], notes: list[str]
) -> None:
    """Where only the reward of an evaluation is logged, it stands for training's."""
    outcomes = ("success_rate", "return_mean")
    keys = [key for key in columns if key.endswith(outcomes)]
    if len(keys) == 1 and keys[0].startswith("eval/") and keys[0].endswith("return_mean"):
        columns["reward/return_mean"] = columns[keys[0]]
        sources["reward/return_mean"] = sources[keys[0]]
        notes.append(f"no reward of training is logged: {sources[keys[0]]} is read in its place")


def _derive_dependence(columns: dict[str, FloatArray64], sources: dict[str, str]) -> None:
    information = columns.get("info/first_turn/mutual_information")
    ceiling = columns.get("info/first_turn/mutual_information_ceiling")
    key = "info/first_turn/dependence"
    if information is not None and ceiling is not None and key not in columns:
        safe = np.where(ceiling > 0, ceiling, np.nan)
        columns[key] = np.clip(information / safe, 0.0, 1.0)
        sources[key] = sources["info/first_turn/mutual_information"]


def _entropy_per_token(
    columns: dict[str, FloatArray64], sources: dict[str, str], notes: list[str]
) -> None:
    key = "policy/entropy"
    values = columns.get(key)
    if values is None or not np.isfinite(values).any():
        return
    if float(np.median(values[np.isfinite(values)])) <= MAX_ENTROPY_PER_TOKEN:
        return
    lengths = columns.get("rollout/num_sampled_tokens_mean")
    if lengths is None:
        columns["policy/entropy_per_sequence"] = columns.pop(key)
        sources["policy/entropy_per_sequence"] = name = sources.pop(key)
        notes.append(f"{name} is per sequence and no length is logged: entropy rules are blind")
        return
    columns[key] = values / np.where(lengths > 0, lengths, np.nan)
    notes.append(f"{sources[key]} is per sequence: divided by {sources[_LENGTH]}")


def _kl_per_token(
    columns: dict[str, FloatArray64], sources: dict[str, str], notes: list[str]
) -> None:
    """A KL that no token can have is a sum over sequences, and set aside."""
    key = "policy/ref_kl"
    values = columns.get(key)
    if values is None or key == sources[key] or not np.isfinite(values).any():
        return
    if float(np.median(values[np.isfinite(values)])) > MAX_ENTROPY_PER_TOKEN:
        columns["policy/ref_kl_per_sequence"] = columns.pop(key)
        sources["policy/ref_kl_per_sequence"] = name = sources.pop(key)
        notes.append(f"{name} is too large to be per token: the KL rule does not read it")


_LENGTH = "rollout/num_sampled_tokens_mean"
