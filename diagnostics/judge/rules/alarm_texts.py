"""What the alarms are called, mean and advise: `rules.toml`, most serious first."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """The words of an alarm."""

    title: str
    meaning: str
    """What it means, in a sentence that a newcomer understands."""
    raised_by: str
    critical_with: str = "-"
    advice: str
    refuted_by: str


def _texts() -> dict[str, RuleText]:
    path = Path(__file__).parent / "rules.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: RuleText(**fields) for name, fields in entries.items()}


RULE_TEXTS: Mapping[str, RuleText] = _texts()
"""By the name of the rule, most serious first."""

if TYPE_CHECKING:
    RuleName = str
else:
    RuleName = Literal[tuple(RULE_TEXTS)]
