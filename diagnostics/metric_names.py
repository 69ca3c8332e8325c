"""What other trainers call the metrics that the rules read, and how their units become ours.

RAGEN and verl, TRL (also as W&B writes it, with `train/` before), prime-rl, tinker-cookbook. A name
that is not known here keeps its own; `--map NAME=KEY` says what it is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

MAX_ENTROPY_PER_TOKEN = 13.0
"""Nats. No vocabulary in use has more (ln 256,000 is 12.5): what is larger is per sequence."""


class MetricNameError(ValueError):
    """A `--map` that cannot be followed."""


class Conversion(StrEnum):
    """What a source's values need to mean what the key says."""

    NONE = ""
    COMPLEMENT = "1 - x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One of our keys, and how a source's values become its values."""

    key: str
    conversion: Conversion = Conversion.NONE

    def convert(self, values: Values) -> Values:
        return 1.0 - values if self.conversion is Conversion.COMPLEMENT else values


_STEP_NAMES = (
    "step",
    "_step",
    "global_step",
    "train/global_step",
    "trainer/global_step",
    "training/global_step",
    "progress/batch",
    "iteration",
    "iter",
)
"""In order of preference."""

_EXACT: Mapping[str, str] = {
    # RAGEN and verl
    "actor/entropy": "policy/entropy",
    "actor/grad_norm": "optim/grad_norm",
    "actor/pg_loss": "loss/policy",
    "actor/kl_loss": "policy/ref_kl",
    "actor/ppo_kl": "policy/approx_kl",
    "actor/pg_clipfrac": "policy/clip_high_frac",
    "actor/pg_clipfrac_lower": "policy/clip_dual_frac",
    "actor/lr": "optim/lr",
    "critic/score/mean": "reward/return_mean",
    "critic/vf_loss": "loss/value",
    "critic/vf_explained_var": "critic/explained_variance",
    "rollout/in_group_reward_std": "reward/group_std_mean",
    "rollout/filter_kept_ratio": "selection/kept_frac",
    "rollout/filter_zero_count": "selection/num_zero",
    "rollout/empty_after_filter": "selection/is_empty",
    "train/response_length": "rollout/num_sampled_tokens_mean",
    "collapse/valid_thinking_rate": "rollout/reasoning_closed_frac",
    "collapse/first_turn_valid_rate": "rollout/first_turn_reasoning_closed_frac",
    "response_length/clip_ratio": "rollout/length_limited_frac",
    "rollout_corr/kl": "policy/mismatch_kl",
    # TRL
    "reward": "reward/return_mean",
    "rewards/mean": "reward/return_mean",
    "reward_std": "reward/group_std_mean",
    "frac_reward_zero_std": "reward/zero_std_frac",
    "completion_length": "rollout/response_length_mean",
    "completions/mean_length": "rollout/response_length_mean",
    "completions/clipped_ratio": "rollout/length_limited_frac",
    "kl": "policy/ref_kl",
    "entropy": "policy/entropy",
    "grad_norm": "optim/grad_norm",
    "loss": "loss/total",
    "learning_rate": "optim/lr",
    "clip_ratio/high_mean": "policy/clip_high_frac",
    "clip_ratio/low_mean": "policy/clip_low_frac",
    "sampling/sampling_logp_difference/max": "policy/mismatch_logprob_max",
    "eval_reward": "eval/all/return_mean",
    "eval/reward": "eval/all/return_mean",
    # prime-rl
    "reward/mean": "reward/return_mean",
    "reward/all/mean": "reward/return_mean",
    "entropy/mean": "policy/entropy",
    "entropy/all/mean": "policy/entropy",
    "mismatch_kl/mean": "policy/mismatch_kl",
    "mismatch_kl/all/mean": "policy/mismatch_kl",
    "seq_len/mean": "rollout/num_sampled_tokens_mean",
    "seq_len/all/mean": "rollout/num_sampled_tokens_mean",
    "is_truncated/mean": "rollout/length_limited_frac",
    "is_truncated/all/mean": "rollout/length_limited_frac",
    "solve_all": "reward/solved_frac",
    "solve_all/all": "reward/solved_frac",
    "solve_none": "reward/hopeless_frac",
    "solve_none/all": "reward/hopeless_frac",
    # tinker-cookbook
    "env/all/reward/total": "reward/return_mean",
    "env/all/by_group/frac_all_good": "reward/solved_frac",
    "env/all/by_group/frac_all_bad": "reward/hopeless_frac",
    "env/all/ac_tokens_per_turn": "rollout/response_length_mean",
    "env/all/turns_per_episode": "rollout/num_turns_mean",
    "test/env/all/reward/total": "eval/all/return_mean",
    "optim/entropy": "policy/entropy",
    "optim/kl_sample_train_v1": "policy/mismatch_kl",
    "optim/kl_sample_train_v2": "policy/mismatch_kl",
    # plain names
    "success": "rollout/success_rate",
    "success_rate": "rollout/success_rate",
    "train/success_rate": "rollout/success_rate",
    "accuracy": "rollout/success_rate",
    "eval/success_rate": "eval/all/success_rate",
    "val/success_rate": "eval/all/success_rate",
    "eval/accuracy": "eval/all/success_rate",
    "format_valid_rate": "rollout/format_valid_frac",
    "valid_action_rate": "rollout/action_valid_frac",
    "response_length": "rollout/response_length_mean",
    "retrieval_accuracy": "info/first_turn/retrieval_accuracy@1",
    "mutual_information": "info/first_turn/mutual_information",
    "conditional_entropy": "info/first_turn/conditional_entropy",
}

_COMPLEMENTS: Mapping[str, str] = {
    "env/all/by_group/frac_mixed": "reward/zero_std_frac",
    "invalid_action_rate": "rollout/action_valid_frac",
}

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

_TAG = r"([\w.+-]+)"
_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Meaning | None]], ...] = (
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
    (
        re.compile(rf"train/{_TAG}/action_is_effective"),
        lambda m: Meaning(key=f"rollout/{m[1]}/action_effective_frac"),
    ),
    (
        re.compile(rf"val-core/{_TAG}/acc/mean@\d+"),
        lambda m: Meaning(key=f"eval/{m[1]}/success_rate"),
    ),
    (
        re.compile(rf"val-core/{_TAG}/reward/mean@\d+"),
        lambda m: Meaning(key=f"eval/{m[1]}/return_mean"),
    ),
    (
        re.compile(r"collapse_first_turn_sample/(\w+)"),
        lambda m: (
            Meaning(key=f"info/first_turn/{_FIRST_TURN[m[1]]}") if m[1] in _FIRST_TURN else None
        ),
    ),
    (
        re.compile(r"grad_norm/all/(task|entropy|kl)"),
        lambda m: Meaning(key=f"gradient/{'policy' if m[1] == 'task' else m[1]}/all/norm"),
    ),
)

_ACTION_IS_VALID = re.compile(rf"train/{_TAG}/action_is_valid")

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
_WANDB_COLUMN = re.compile(r"^.* - (?P<name>\S.*)$")


def meaning_of(name: str) -> Meaning | None:
    """What a column is, or None where its name says nothing to us.

    >>> meaning_of("actor/entropy").key
    'policy/entropy'
    >>> meaning_of("val-env/CoordSokoban/manager_invalid_action")
    Meaning(key='eval/CoordSokoban/action_valid_frac', conversion=<Conversion.COMPLEMENT: '1 - x'>)
    """
    for candidate in _spellings(name):
        if candidate in _EXACT:
            return Meaning(key=_EXACT[candidate])
        if candidate in _COMPLEMENTS:
            return Meaning(key=_COMPLEMENTS[candidate], conversion=Conversion.COMPLEMENT)
        for pattern, meaning in _PATTERNS:
            match = pattern.fullmatch(candidate)
            if match and (found := meaning(match)) is not None:
                return found
    return None


def _spellings(name: str) -> Iterable[str]:
    """The name as it stands, without W&B's run name, in lower case, without `train/`."""
    names = [name.strip()]
    if match := _WANDB_COLUMN.match(names[0]):
        names.append(match["name"])
    names += [name.lower() for name in names]
    names += [name.removeprefix("train/") for name in names if name.startswith("train/")]
    return dict.fromkeys(names)


def is_summary_column(name: str) -> bool:
    """W&B's `NAME__MIN` and `NAME__MAX`, which repeat NAME where runs are not grouped."""
    return name.endswith(("__MIN", "__MAX"))


def step_column(names: Iterable[str]) -> str | None:
    """Which of the columns counts training steps; None if none is known to."""
    known = {name.strip().lower(): name for name in names}
    return next((known[name] for name in _STEP_NAMES if name in known), None)


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
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise MetricNameError(f"--map {entry!r}: no rule reads {key!r}{hint}")
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

    columns: dict[str, Values]
    sources: dict[str, str]
    notes: tuple[str, ...]


def to_our_names(
    columns: Mapping[str, Values], mapping: Mapping[str, Meaning] | None = None
) -> NamedColumns:
    """Columns renamed and converted; a key that the source has itself wins over an alias.

    Rates of several environments are averaged into the key without a tag; mutual information over
    its ceiling becomes `dependence`; an entropy too large to be per token is divided by the length.
    """
    out: dict[str, Values] = {}
    sources: dict[str, str] = {}
    notes: list[str] = []
    chosen = {name: m for name, m in (mapping or {}).items() if name in columns}
    own = [n for n in columns if n.split("/")[0] in _OUR_GROUPS and meaning_of(n) is None]
    for name in [*chosen, *own, *[n for n in columns if n not in own]]:
        if is_summary_column(name) or (name in sources.values()):
            continue
        meaning = chosen.get(name) or (None if name in own else meaning_of(name))
        key = meaning.key if meaning else name
        if key in out:
            continue
        out[key] = meaning.convert(columns[name]) if meaning else columns[name]
        sources[key] = name
    _action_valid_of_env(columns, out, sources)
    _average_tags(out, sources)
    _derive_dependence(out, sources)
    _entropy_per_token(out, sources, notes)
    return NamedColumns(columns=out, sources=sources, notes=tuple(notes))


def _action_valid_of_env(
    columns: Mapping[str, Values], out: dict[str, Values], sources: dict[str, str]
) -> None:
    """RAGEN's environments say themselves whether actions are valid: second best."""
    for name, values in columns.items():
        match = _ACTION_IS_VALID.fullmatch(name)
        if match and out.setdefault(f"rollout/{match[1]}/action_valid_frac", values) is values:
            sources[f"rollout/{match[1]}/action_valid_frac"] = name


def _average_tags(columns: dict[str, Values], sources: dict[str, str]) -> None:
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


def _derive_dependence(columns: dict[str, Values], sources: dict[str, str]) -> None:
    information = columns.get("info/first_turn/mutual_information")
    ceiling = columns.get("info/first_turn/mutual_information_ceiling")
    key = "info/first_turn/dependence"
    if information is not None and ceiling is not None and key not in columns:
        safe = np.where(ceiling > 0, ceiling, np.nan)
        columns[key] = np.clip(information / safe, 0.0, 1.0)
        sources[key] = sources["info/first_turn/mutual_information"]


def _entropy_per_token(
    columns: dict[str, Values], sources: dict[str, str], notes: list[str]
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


_LENGTH = "rollout/num_sampled_tokens_mean"
