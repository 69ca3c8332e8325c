"""Runs in groups: which settings differ between them, and which runs share all of these. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from echoscope.diagnostics.judge.advice.situation import SettingsChange
from echoscope.store.steer.settings import flat

from ...words import setting_words

MISSING = "not set"
EACH_RUN = "run"
"""In place of a setting to group by: each run stands for itself."""
MAX_VALUE_CHARS = 200
_SEED = re.compile(r"(^|[._])seed$")
_NO_SETTING = re.compile(
    r"(name|recipe|run_id|run_name|output_dir|logging_dir|sinks\..*|diagnostics\.notify\..*)"
)
"""What a run is called, where it writes and whom it tells: nothing that its training depends on."""

Settings = Mapping[str, str]
"""Dotted key to value, in words."""


def settings_of(config: Mapping[str, Any]) -> Settings:
    """What a run's training depends on, its seed left out.

    >>> settings_of({"name": "a", "seed": 3, "optim": {"lr": 1e-5}})
    {'optim.lr': '1e-05'}
    """
    return {
        key: setting_words(value)[:MAX_VALUE_CHARS]
        for key, value in flat(config).items()
        if not _SEED.search(key) and not _NO_SETTING.fullmatch(key)
    }


def seed_of(config: Mapping[str, Any]) -> str | None:
    """The seed of a run in words; None where its configuration has none."""
    value = config.get("seed")
    return None if value is None else setting_words(value)


def differing(settings: Mapping[str, Settings]) -> list[str]:
    """The settings that are not the same in all runs, sorted.

    >>> differing({"a": {"lr": "1", "kl": "0"}, "b": {"lr": "2", "kl": "0", "new": "1"}})
    ['lr', 'new']
    """
    keys = sorted(set().union(*settings.values()))
    return [key for key in keys if len({of.get(key, MISSING) for of in settings.values()}) > 1]


def with_changes(settings: Settings, changes: Sequence[SettingsChange]) -> Settings:
    """The settings of a run with what somebody changed while it trained.

    >>> change = SettingsChange(step=40, values={"lr": (0.1, 0.01)})
    >>> with_changes({"lr": "0.1", "kl": "0"}, [change])
    {'lr': '0.1, 0.01 from step 40', 'kl': '0'}
    """
    out = dict(settings)
    for change in changes:
        for key, (old, new) in change.values.items():
            before = out.get(key, MISSING if old is None else setting_words(old))
            out[key] = f"{before}, {setting_words(new)} from step {change.step}"
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs that share the chosen settings."""

    runs: tuple[str, ...]
    name: str
    """What tells it from the other groups. Hostile."""

    @property
    def id(self) -> str:
        """Names the group in an address: its first run."""
        return self.runs[0]


def grouped(
    runs: Sequence[str], settings: Mapping[str, Settings], by: Sequence[str]
) -> list[RunGroup]:
    """The runs in groups of equal settings, in the order of their values.

    Args:
        by: The settings that count. `EACH_RUN` makes each run a group.
    """
    keys = [key for key in by if key != EACH_RUN]
    members: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        values = tuple(settings[run].get(key, MISSING) for key in keys)
        identity = (*values, run) if EACH_RUN in by else values
        members.setdefault(identity, []).append(run)
    ordered = sorted(members.items(), key=lambda item: [in_order(value) for value in item[0]])
    chosen = [dict(zip(keys, identity, strict=False)) for identity, _ in ordered]
    told = _telling(keys, chosen)
    is_each = all(len(of) == 1 for of in members.values())
    return [
        RunGroup(runs=tuple(of), name=of[0] if is_each else _name(here, told, of))
        for (_, of), here in zip(ordered, chosen, strict=True)
    ]


def in_order(value: str) -> tuple[bool, float, str]:
    """Numbers by size, before words."""
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, value
    return number != number, number, value


def _telling(keys: Sequence[str], groups: Sequence[Settings]) -> list[str]:
    """As few settings as tell all groups apart, roughly: each one divides further."""
    told: list[str] = []
    num_apart = 1
    for key in keys:
        apart = {tuple(group[name] for name in (*told, key)) for group in groups}
        if len(apart) > num_apart:
            told.append(key)
            num_apart = len(apart)
    return told


def _name(settings: Settings, told: Sequence[str], runs: Sequence[str]) -> str:
    if not told:
        return runs[0] if len(runs) == 1 else "all runs"
    return ", ".join(f"{short_name(key, told)} {settings[key]}" for key in told)


def short_name(key: str, others: Sequence[str]) -> str:
    """The end of a dotted key, as long as it must be to be none of the others.

    >>> short_name("optim.lr", ["optim.lr", "loss.kl_coef"]), short_name("a.x", ["a.x", "b.x"])
    ('lr', 'a.x')
    """
    parts = key.split(".")
    for length in range(1, len(parts)):
        end = ".".join(parts[-length:])
        if sum(other == end or other.endswith(f".{end}") for other in others) == 1:
            return end
    return key


def setting_table(
    groups: Sequence[RunGroup], settings: Mapping[str, Settings], keys: Sequence[str]
) -> pd.DataFrame:
    """Settings of groups: one row a setting, one column a group, with all values of its runs."""

    def words(key: str, group: RunGroup) -> str:
        values = {settings[run].get(key, MISSING) for run in group.runs}
        return " or ".join(sorted(values, key=in_order))[:MAX_VALUE_CHARS]

    cells = {group.name: [words(key, group) for key in keys] for group in groups}
    return pd.DataFrame({"setting": keys, **cells})


def equal_settings(settings: Mapping[str, Settings]) -> pd.DataFrame:
    """The settings that all runs share: columns setting, value."""
    first, *_ = settings.values()
    apart = set(differing(settings))
    rows = [{"setting": key, "value": first[key]} for key in sorted(first) if key not in apart]
    return pd.DataFrame(rows, columns=["setting", "value"])
