"""Every metric once: its key, its unit, its name, one plain sentence, and which way is good.

`metrics.toml` lists them. Charts, hover help, alarms, `--map` and the tables of
docs/metrics-guide.md all read it from here. A key that is not listed gets a name made from the key
itself.

    >>> metric("rollout/action_valid_frac").name, metric("eval/lake/success_rate").name
    ('Valid actions', 'Success rate, lake')
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from echoscope.text.sentences import capitalised

from .metric_entry import NATS, SHARE, Metric

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


def _listed() -> Iterator[Metric]:
    """The entries of `metrics.toml` in their order; `also` are keys that name themselves."""
    path = Path(__file__).parent / "metrics.toml"
    for key, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
        fields = {"unit": _unit_of(key)} | fields
        for other in fields.pop("also", ()):
            yield Metric(key=other, **fields | {"name": ""})
        yield Metric(key=key, **fields)


def _unit_of(key: str) -> str:
    """The unit that a key tells."""
    return next((unit for pattern, unit in _UNITS if re.search(pattern, key)), "")


METRICS: tuple[Metric, ...] = tuple(_listed())
"""Those that pages show by name or that rules read, by subject; `metric` covers all others."""

LISTED: Mapping[str, Metric] = {entry.key: entry for entry in METRICS}
_PATTERNS = tuple(
    (re.compile(re.escape(entry.key).replace(r"\*", "[^/]+")), entry)
    for entry in METRICS
    if "*" in entry.key
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
    unit = _unit_of(key)
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
