"""Charts that a sink shows of every run: entropy, mutual information, gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_POINTS = 500
"""Of one line; a longer one keeps every second point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart with a few lines over the steps."""

    name: str
    title: str
    keys: tuple[str, ...]


PANELS: tuple[Panel, ...] = (
    Panel(
        name="entropy",
        title="Entropy: per token, and of the reasoning given its prompt, H(Z|X) (nats)",
        keys=("policy/entropy", "info/first_turn/conditional_entropy_per_token"),
    ),
    Panel(
        name="mutual_information",
        title="Mutual information of prompt and reasoning, I(X;Z) (nats)",
        keys=(
            "info/first_turn/mutual_information",
            "info/all_turns/mutual_information",
            "text/information_bound",
        ),
    ),
    Panel(
        name="gradient_terms",
        title="Gradient norm of each term of the loss",
        keys=("gradient/policy/all/norm", "gradient/entropy/all/norm", "gradient/kl/all/norm"),
    ),
    Panel(
        name="gradient_buckets",
        title="Gradient norm of the policy term by reward std of the group (bucket 1: lowest)",
        keys=tuple(f"gradient/policy/bucket_{number}/norm" for number in range(1, 9)),
    ),
)


@dataclass(slots=True)
class PanelHistory:
    """The points of all panels so far."""

    lines: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _keys: frozenset[str] = frozenset(key for panel in PANELS for key in panel.keys)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for key in self._keys & values.keys():
            if not math.isfinite(values[key]):
                continue
            line = self.lines.setdefault(key, [])
            line.append((step, values[key]))
            if len(line) > MAX_POINTS:
                del line[:-1:2]

    def of(self, panel: Panel) -> dict[str, list[tuple[int, float]]]:
        """The lines of a panel that have points."""
        return {key: self.lines[key] for key in panel.keys if key in self.lines}
